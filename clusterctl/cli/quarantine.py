"""`clusterctl quarantine NAME INDEX...`: leave bad nodes out; `release`: return them to service."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.params import FreeText, indices_argument, json_option
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import status_of
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.operations.access import Access


@dataclass(frozen=True)
class Service(Cluster):
    """The cluster, the slots of its nodes in service, and the training that runs on these nodes,
    too; empty if none does."""

    slots: int = 0
    job_id: str = ""


# Seconds that a login may take: a node in quarantine may not answer.
LOGIN_WITHIN_S = 6.0


@cluster_command(explicit=True)
@indices_argument
@click.option("--reason", type=FreeText(), default="", help="Shown by `status`.")
@json_option("InService")
def quarantine(
    app: AppContext, name: str, indices: tuple[int, ...], reason: str, as_json: bool
) -> int:
    """Leave the nodes INDEX... of cluster NAME out of the hosts file, and of every command that
    names no node: train, run, copy, env and all others.

    \b
    clusterctl quarantine demo 2 --reason 'GPU 3 lost, Xid 79'
    clusterctl quarantine demo 2-3

    They keep running, and costing. Commands that name them still reach them: clusterctl ssh demo 2.
    A job that runs on them goes on. `release` returns them to service, `replace` replaces the
    machines.
    """
    return _set(app, name, indices, reason, as_json)


@cluster_command(explicit=True)
@indices_argument
@json_option("InService")
def release(app: AppContext, name: str, indices: tuple[int, ...], as_json: bool) -> int:
    """Return the nodes INDEX... of cluster NAME to service.

    \b
    clusterctl release demo 2
    """
    return _set(app, name, indices, None, as_json)


def _set(
    app: AppContext, name: str, chosen: tuple[int, ...], reason: str | None, as_json: bool
) -> int:
    """Put nodes into quarantine, or with no `reason` back in service; return the exit status."""
    from clusterctl.operations.guards import update_idle_groups
    from clusterctl.operations.members import set_quarantine
    from clusterctl.operations.train import live_hosts, write_hosts_files

    cluster = set_quarantine(app.clients, app.folder(name), chosen, reason)
    names = fold_hosts([f"{name}-{index}" for index in chosen])
    with app.access(cluster) as access:
        written = write_hosts_files(access)
        access.connections.connect_timeout_s = LOGIN_WITHIN_S
        guards = update_idle_groups(access, chosen)
        left = live_hosts(access).slots
        running = _running(access) if reason is not None else ""
    if as_json:
        output.data(Service(**vars(cluster), slots=left, job_id=running))
    else:
        words = "in quarantine" if reason is not None else "in service again"
        nodes = count(len(cluster.in_service), "node")
        output.line(f"{names}: {words}; {nodes} in service, with {count(left, 'slot')}")
    if reason is None:
        output.note(f"limits, and keys of later nodes: clusterctl up {name} sends them to {names}")
    if running:
        output.note(
            f"job {running} runs on, on {names} too. To go on with the rest: "
            f"clusterctl cancel {name}; then clusterctl train {name} {left}"
        )
    # For a node in quarantine whose guard could not be reached there is a hint of its own.
    quarantined = {
        node.name: node.index for node in cluster.nodes if node not in cluster.in_service
    }
    for failure in guards.failures:
        if failure.host in quarantined:
            output.note(
                f"{failure.host} does not answer: --idle-stop ends it neither with the others nor "
                f"by itself; this does: clusterctl remove {name} {quarantined[failure.host]}"
            )
    not_updated = [one for one in guards.failures if one.host not in quarantined]
    hostlines.show_failures(written.failures)
    hostlines.show_failures(not_updated)
    return status_of([*written.failures, *not_updated])


def _running(access: Access) -> str:
    """Return the id of the training that runs; empty if none does, or the head node is silent."""
    from clusterctl.domain.errors import HostError
    from clusterctl.operations.logs import running_jobs

    with contextlib.suppress(HostError):
        for job in running_jobs(access):
            if job.spec.is_training:
                return job.job_id
    return ""
