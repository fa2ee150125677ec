"""The options and arguments that select nodes of a cluster, and checks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterctl.cli.params import Indices, together
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import check_indices

if TYPE_CHECKING:
    from clusterctl.cli.app_context import AppContext
    from clusterctl.operations.access import Access
    from clusterctl.transport.target import Target


nodes_option = click.option(
    "--nodes", "indices", type=Indices(), help="Only these nodes: 0-3,5 or NAME-1."
)


node_options = together(
    click.option("--head", is_flag=True, help="Only the head node."), nodes_option
)


def selected(access: Access, head: bool, indices: tuple[int, ...] | None) -> tuple[Target, ...]:
    """Return the targets that --head and --nodes select, by default all in service.

    Raises UsageError.
    """
    if head and indices is not None:
        raise UsageError("--head and --nodes exclude each other", "the head node is node 0")
    return access.select((0,) if head else indices)


def check_nodes(app: AppContext, name: str, indices: tuple[int, ...]) -> None:
    """Raise UsageError for indices of nodes that neither exist nor should. Queries EC2, no node.

    It accepts any index if the cluster does not exist: the command itself reports that.
    """
    from clusterctl.ec2.instances import unfinished_of, wanted_of
    from clusterctl.operations.status import find_own

    instances = find_own(app.clients, app.folder(name))
    there = {found.node.index for found in instances} | set(wanted_of(instances))
    if there:
        # A node whose removal is not finished may be named again, to finish it.
        check_indices(name, there, set(indices).difference(unfinished_of(instances).remove))


def refuse_while_job_runs(app: AppContext, name: str, because: str) -> None:
    """Raise JobRunning while a job runs, or while a node serves a model.

    Raise HostError if the head node does not answer.
    """
    from clusterctl.operations.logs import refuse_while_training

    with app.open(name) as access:
        refuse_while_training(access, because, access.all_targets)
