"""`clusterctl down`: remove a cluster and everything that was made for it."""

from __future__ import annotations

import sys

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.params import yes_option
from clusterctl.domain.units import count


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as JSON.")
@account_options
def down(app: AppContext, name: str, yes: bool, as_json: bool) -> None:
    """Remove cluster NAME: instances, address, groups, key pair, local folder.

    Everything is found by its tag, so it works without the local folder and after an
    interrupted `up`. Asks first on a terminal.

    \b
    clusterctl down demo
    clusterctl down demo --yes
    """
    from clusterctl.cli.node_progress import LineProgress
    from clusterctl.operations.down import down as remove
    from clusterctl.operations.down import leftovers

    folder = app.folder(name)
    if not yes and sys.stdin.isatty():
        left = leftovers(app.clients, name, folder)
        if left.nodes:
            nodes = count(len(left.nodes), "node")
            click.confirm(f"Terminate the {nodes} of {name}?", abort=True, err=True)
    try:
        removed = remove(app.clients, name, folder, LineProgress())
    except KeyboardInterrupt:
        output.note("something may be left")
        output.note_way_on()
        raise
    if as_json:
        output.data(
            {
                "name": name,
                "nodes": removed.nodes,
                "addresses": removed.addresses,
                "security_groups": removed.groups,
                "placement_groups": removed.placement_groups,
                "key_pairs": removed.key_pairs,
                "folder": removed.folder,
            }
        )
    elif removed.nothing:
        output.note(f"nothing to do: there is nothing of a cluster {name}")
    else:
        nodes = count(len(removed.nodes), "node")
        output.line(f"removed {name}: {nodes}, and all that was made for it")
