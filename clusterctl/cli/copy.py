"""`clusterctl copy NAME SRC DST`: copyclust on a named cluster."""

from __future__ import annotations

import click

from clusterctl.cli.fanout_options import fanout_options
from clusterctl.cli.node_options import node_options, selected
from clusterctl.cli.wiring import Wiring, account_options


@click.command()
@click.argument("name")
@click.argument("src")
@click.argument("dst")
@node_options
@fanout_options(default_fanout=16)
@account_options
def copy(
    wiring: Wiring,
    name: str,
    src: str,
    dst: str,
    head: bool,
    indices: tuple[int, ...] | None,
    timeout_s: float | None,
    fanout: int,
    as_json: bool,
) -> int:
    """Copy SRC of this machine to DST on the nodes of cluster NAME, in parallel.

    \b
    clusterctl copy demo ~/data/tf-imagenet/ '~/data/tf-imagenet/'
    clusterctl copy demo --nodes 1-3 train.py '~/train.py'
    """
    from clusterctl.cli.copy_report import copy_status, show_data, show_host
    from clusterctl.operations.copy import copy_to_cluster

    with wiring.open(name) as access:
        result = copy_to_cluster(
            access,
            selected(access, head, indices),
            src,
            dst,
            max_workers=fanout,
            timeout_s=timeout_s,
            on_outcome=None if as_json else show_host,
        )
    if as_json:
        show_data(result)
    return copy_status(result)
