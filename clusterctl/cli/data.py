"""`clusterctl data`: the data sets on the nodes."""

from __future__ import annotations

import click

from clusterctl.cli.app_context import AppContext, cluster_command, node_options, selected
from clusterctl.cli.params import Group, NodePath
from clusterctl.cli.verify import checking, show, verify_options


@click.group(cls=Group)
def data() -> None:
    """The data sets on the nodes of a cluster.

    \b
    Example:
      clusterctl data verify demo '~/data/tf-imagenet'
    """


@cluster_command(group=data)
@click.argument("path", type=NodePath())
@node_options
@verify_options
def verify(
    app: AppContext,
    name: str,
    path: str,
    head: bool,
    indices: tuple[int, ...] | None,
    content: bool,
    mtime: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Compare what the nodes of cluster NAME have at PATH, a file or a folder.

    \b
    clusterctl data verify demo '~/data/tf-imagenet'
    clusterctl data verify demo --content /data/tf-imagenet
    clusterctl data verify demo --nodes 1-3 '~/train.py'

    Names, kinds, sizes, modes, links. The exit status is 0 if all have the same, 1 if not or if
    there is nothing at PATH anywhere, and 255 if a node could not be reached.
    """
    from clusterctl.operations.verify import Depth, verify

    depth = Depth(content, mtime)
    with app.open(name) as access, checking() as watch:
        targets = selected(access, head, indices)
        report = verify(access.connections, targets, path, depth, watch=watch, timeout_s=timeout_s)
    return show(report, as_json)
