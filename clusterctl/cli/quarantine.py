"""`clusterctl quarantine NAME INDEX...`: leave bad nodes out; `release`: bring them back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.node_options import check_nodes, indices_of
from clusterctl.cli.params import Indices
from clusterctl.cli.status import cluster_data
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.operations.access import Access

# Seconds that a login may take: a node in quarantine may not answer.
LOGIN_WITHIN_S = 6.0


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@click.argument("indices", nargs=-1, required=True, type=Indices(), metavar="INDEX...")
@click.option("--reason", default="", help="Shown by `status`.")
@click.option("--json", "as_json", is_flag=True, help="Print the cluster as JSON.")
@account_options
def quarantine(
    app: AppContext, name: str, indices: tuple[tuple[int, ...], ...], reason: str, as_json: bool
) -> int:
    """Leave the nodes INDEX... of cluster NAME out of the hosts file, and of every command that
    names no node: train, run, copy, env and all others.

    \b
    clusterctl quarantine demo 2 --reason 'GPU 3 lost, Xid 79'
    clusterctl quarantine demo 2-3

    They keep running, and costing. Commands that name them still reach them: clusterctl ssh demo 2.
    A job that runs on them goes on. `release` brings them back, `replace` gives them new machines.
    """
    return _set(app, name, indices_of(indices), reason, as_json)


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@click.argument("indices", nargs=-1, required=True, type=Indices(), metavar="INDEX...")
@click.option("--json", "as_json", is_flag=True, help="Print the cluster as JSON.")
@account_options
def release(app: AppContext, name: str, indices: tuple[tuple[int, ...], ...], as_json: bool) -> int:
    """Bring the nodes INDEX... of cluster NAME back from quarantine.

    \b
    clusterctl release demo 2
    """
    return _set(app, name, indices_of(indices), None, as_json)


def _set(
    app: AppContext, name: str, chosen: tuple[int, ...], reason: str | None, as_json: bool
) -> int:
    """Put nodes into quarantine, or with no `reason` back in service; return the exit status."""
    from clusterctl.operations.guards import update_idle_groups
    from clusterctl.operations.members import set_quarantine
    from clusterctl.operations.train import live_hosts, write_hosts_files

    check_nodes(app, name, chosen)
    cluster = set_quarantine(app.clients, app.folder(name), chosen, reason)
    names = fold_hosts([f"{name}-{index}" for index in chosen])
    with app.access(cluster) as access:
        told = write_hosts_files(access)
        access.connections.connect_timeout_s = LOGIN_WITHIN_S
        guards = update_idle_groups(access, chosen)
        left = live_hosts(access).slots
        running = _running(access) if reason is not None else ""
    if as_json:
        output.data({**cluster_data(cluster), "slots": left, "job_id": running or None})
    else:
        words = "in quarantine" if reason is not None else "in service again"
        nodes = count(len(cluster.in_service), "node")
        output.line(f"{names}: {words}; {nodes} in service, with {count(left, 'slot')}")
    if reason is None:
        output.note(f"limits, and keys of later nodes: clusterctl up {name} brings them to {names}")
    if running:
        output.note(
            f"job {running} runs on, on {names} too. To go on with the rest: "
            f"clusterctl cancel {name}; then clusterctl train {name} {left}"
        )
    # For a node in quarantine whose guard could not be reached there is a hint of its own.
    away = {node.name: node.index for node in cluster.nodes if node not in cluster.in_service}
    for failure in guards.failures:
        if failure.host in away:
            output.note(
                f"{failure.host} does not answer: --idle-stop ends it neither with the others nor "
                f"by itself; this does: clusterctl remove {name} {away[failure.host]}"
            )
    untold = [one for one in guards.failures if one.host not in away]
    hostlines.show_failures(told.failures)
    hostlines.show_failures(untold)
    return 255 if told.failures or untold else 0


def _running(access: Access) -> str:
    """Return the id of the training that runs; empty if none does, or the head node is silent."""
    from clusterctl.domain.errors import HostError
    from clusterctl.operations.logs import running_jobs

    with contextlib.suppress(HostError):
        for job in running_jobs(access):
            if job.spec.is_training:
                return job.job_id
    return ""
