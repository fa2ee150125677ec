"""`clusterctl copy NAME SRC... DST`: copyclust on a named cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.copy.options import CopyOptions, copy_options, request_of, url_access
from clusterctl.cli.copy.text import missing_line
from clusterctl.cli.node_options import node_options, selected
from clusterctl.cli.params import Index
from clusterctl.cli.wiring import ClusterCommand, Wiring, account_options

if TYPE_CHECKING:
    from clusterctl.domain.cluster import Cluster
    from clusterctl.operations.access import Access


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.argument("src", nargs=-1, required=True)
@click.argument("dst")
@node_options
@click.option("--from", "from_node", type=Index(), help="SRC is there, on the node 0 or NAME-0.")
@copy_options
@account_options
def copy(
    wiring: Wiring,
    name: str,
    src: tuple[str, ...],
    dst: str,
    head: bool,
    indices: tuple[int, ...] | None,
    from_node: int | None,
    options: CopyOptions,
) -> int:
    """Copy SRC of this machine to DST on all nodes of cluster NAME, in the time of one copy.

    \b
    clusterctl copy demo ~/data/tf-imagenet/ '~/data/tf-imagenet/'
    clusterctl copy demo --nodes 1-3 train.py '~/'
    clusterctl copy demo --from 0 '~/data/' '~/data/'
    clusterctl copy demo s3://bucket/tf-imagenet/ '~/data/tf-imagenet/'

    SRC is a file, a folder, a glob or a URL, and may be several. With a slash at its end it
    stands for what is in the folder. Running it again copies what is missing.
    """
    from clusterctl.cli.copy.view import showing
    from clusterctl.operations.copy import copy_to_cluster

    with showing(options) as shown:
        request = request_of(options, src, dst, from_node)
        with wiring.open(name) as access:
            targets = selected(access, head, indices)
            if from_node is not None:
                access.select((from_node,))
            missing = _missing(access.cluster)
            report = copy_to_cluster(
                access,
                targets,
                request,
                watch=shown.watch,
                urls=url_access(options, src, lambda: wiring.clients),
                link_rates=_link_rates(wiring, access)
                if options.show_plan or options.dry_run
                else {},
                max_workers=options.fanout,
                timeout_s=options.timeout_s,
            )
        # Who names nodes gets those that were named.
        shown.report = report if head or indices else replace(report, missing=missing)
    return shown.finish()


def _missing(cluster: Cluster) -> tuple[str, ...]:
    """The nodes that the cluster is to have and that are not there; says so."""
    missing = tuple(f"{cluster.name}-{index}" for index in cluster.missing)
    if missing:
        output.note(f"warning: {missing_line(missing, len(cluster.nodes))}")
    return missing


def _link_rates(wiring: Wiring, access: Access) -> dict[str, float]:
    """Bytes a second by instance type, as EC2 says: for predictions, so never in the way."""
    from clusterctl.domain.errors import AwsError
    from clusterctl.ec2.machines import find_machine_types

    try:
        found = find_machine_types(
            wiring.ec2, sorted({node.instance_type for node in access.cluster.nodes})
        )
    except AwsError:
        return {}
    return {name: type_.link_gbps * 1e9 / 8 for name, type_ in found.items() if type_.link_gbps}
