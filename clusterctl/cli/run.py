"""`clusterctl run NAME COMMAND`: runclust on a named cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from clusterctl.cli.app_context import (
    AppContext,
    ClusterCommand,
    account_options,
    node_options,
    selected,
)
from clusterctl.cli.params import CommandText, clusters_here, launched_here
from clusterctl.cli.run_on import FanoutOptions, QuotedCommand, fanout_options, run_on


class _Run(QuotedCommand, ClusterCommand):
    runs_rest = True

    def before_command(self, words: list[str], given: Mapping[str, Any]) -> int:
        # The first word is NAME if it is a cluster here, or if NAME cannot be left out.
        return int(launched_here(words[0]) or len(clusters_here(given)) != 1)


@click.command(cls=_Run)
@click.argument("name")
@click.argument("command", type=CommandText())
@node_options
@fanout_options
@account_options
def run(
    app: AppContext,
    name: str,
    command: str,
    head: bool,
    indices: tuple[int, ...] | None,
    options: FanoutOptions,
) -> int:
    """Run COMMAND on the nodes of cluster NAME, in parallel over SSH.

    \b
    clusterctl run demo 'nvidia-smi -L'
    clusterctl run demo --nodes 0-3,5 -b 'df -h /'
    clusterctl run demo --head 'tail -n 20 train.log'
    """
    with app.open(name) as access:
        return run_on(access.connections, selected(access, head, indices), command, options)
