"""`up`: from nothing, or from what is there, to a cluster whose nodes are ready."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from clusterctl.domain.cluster import ASLEEP, Cluster
from clusterctl.domain.errors import AwsError, MissingTool
from clusterctl.domain.findings import Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.ec2 import tags
from clusterctl.ec2.cluster_resources import terminate_these
from clusterctl.ec2.instances import Instance, find_instances, members_of, unfinished_of, untag
from clusterctl.ec2.launch.execution import carry_out
from clusterctl.ec2.launch.observe import Request, observe
from clusterctl.ec2.launch.plan import LaunchPlan, plan_launch
from clusterctl.ec2.launch.preflight import check_twins
from clusterctl.ec2.tags import Unfinished
from clusterctl.operations.costs import note_end, note_spent
from clusterctl.operations.guards import with_user_data
from clusterctl.operations.launcher import Launcher, LaunchRefused
from clusterctl.operations.local_state import (
    LocalKey,
    check_site,
    keep_key,
    keep_site,
    local_key,
    locked,
    site_of,
)
from clusterctl.operations.readiness import make_ready

DISMISSED_WITHIN_S = 600.0


@dataclass(frozen=True)
class UpReport:
    """A cluster that is ready; `gpus` as counted. `instances` are its members as last read.

    `launched` are the indices that are new in this run, or since an `add` that it has finished,
    `started` those that were stopped. `finished` is what earlier commands had not come to.
    `can_train`: every node has an environment to train in.
    """

    cluster: Cluster
    instances: tuple[Instance, ...]
    launched: tuple[int, ...]
    gpus: tuple[int, ...]
    started: tuple[int, ...] = ()
    can_train: bool = True
    finished: Unfinished = Unfinished()


def plan_up(launcher: Launcher, request: Request) -> LaunchPlan:
    """The steps that `up` would take now. Changes nothing, here or at EC2."""
    check_site(launcher.folder, launcher.clients)
    return _plan(launcher, request, local_key(launcher.folder, launcher.name))


def up(launcher: Launcher, request: Request) -> UpReport:
    """Launch what is missing, wait until every node is ready, write the views.

    Raises LaunchRefused with what speaks against it, AwsError, UsageError, and ClusterctlError
    naming each node that did not get ready.
    """
    with locked(launcher.folder):
        check_site(launcher.folder, launcher.clients)
        return bring_up(launcher, request)


def bring_up(launcher: Launcher, request: Request) -> UpReport:
    """`up` for who holds the lock."""
    plan, instances = launch(launcher, request)
    had_limits = any(found.limits_text for found in plan.seen.instances)
    cluster, gpus, can_train = make_ready(launcher, plan.spec.name, instances, had_limits)
    if plan.seen.instances:
        dismiss(launcher, cluster.name)
    finished = unfinished_of(plan.seen.instances)
    if finished or plan.spec.adds:
        conclude(launcher, cluster.name)
    # With --min-nodes not all of them may have come.
    there = {node.index for node in cluster.nodes}
    launched = tuple(sorted({*plan.missing, *finished.add} & there))
    return UpReport(cluster, instances, launched, gpus, plan.stopped, can_train, finished)


def conclude(launcher: Launcher, name: str) -> None:
    """Forget what was asked for: it is done. The same command now asks for more."""
    client = launcher.clients.ec2
    ids = [found.node.instance_id for found in find_instances(client, name)]
    launcher.progress.done = True
    try:
        untag(client, ids, tags.UNFINISHED)
    except KeyboardInterrupt:
        # Too late to interrupt anything: all is done, and nothing must look unfinished.
        untag(client, ids, tags.UNFINISHED)
        raise
    except AwsError:
        # The request may have worked and its answer been lost.
        if any(found.unfinished for found in find_instances(client, name)):
            raise


def dismiss(launcher: Launcher, name: str) -> None:
    """Terminate the nodes whose replacement is ready, or that were removed."""
    client = launcher.clients.ec2
    there = find_instances(client, name)
    members = {found.node.instance_id for found in members_of(there)}
    going = [found for found in there if found.node.instance_id not in members]
    if going:
        launcher.progress.step(
            f"terminating {fold_hosts([found.node.name for found in going])}, no longer needed"
        )
        note_end(launcher.home, launcher.clients, name, going)
        ids = [found.node.instance_id for found in going]
        terminate_these(client, name, ids, DISMISSED_WITHIN_S)


def launch(launcher: Launcher, request: Request) -> tuple[LaunchPlan, tuple[Instance, ...]]:
    """The part of `up` that talks to EC2 only: the plan as carried out, and the members now."""
    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    progress.step("looking at what is there")
    key, name = local_key(folder, launcher.name), launcher.name
    plan = _plan(launcher, request, key)
    if plan.refused:
        raise LaunchRefused(name, plan.findings)
    for finding in plan.findings:
        if finding.severity is Severity.WARNING:
            progress.finding(finding)
    if plan.missing or plan.stopped:
        launcher.agree(plan)
    keep_site(folder, site_of(launcher.clients, plan.seen.instances))
    keep_key(folder, key)

    def before_start() -> None:
        asleep = [one for one in find_instances(client, name) if one.node.state in ASLEEP]
        note_spent(launcher.clients, asleep, launcher.prices)

    instances = carry_out(
        client, plan, folder.launch, progress.step, launcher.capacity_timeout_s, before_start
    )
    # The lock is this machine's: another one may have launched the same nodes meanwhile.
    check_twins(name, [one.node for one in instances])
    return plan, instances


def _plan(launcher: Launcher, request: Request, key: LocalKey) -> LaunchPlan:
    name, clients = launcher.name, launcher.clients
    seen = observe(clients, name, request, launcher.folder.launch, launcher.prices)
    if seen.instances and key.unwritten is not None:
        raise MissingTool(
            f"the key of cluster {name} is not on this machine: {launcher.folder.key}",
            "copy the cluster's folder from the machine that ran `up`, "
            f"or begin anew: clusterctl down {name}",
        )
    return plan_launch(with_user_data(clients, seen), key.public, uuid.uuid4().hex)
