"""`up`: from nothing, or from what is there, to a cluster whose nodes are ready."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.bootstrap.prepare import prepare
from clusterctl.bootstrap.trust import Member
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.spec import ClusterSpec
from clusterctl.domain.units import count
from clusterctl.ec2.instances import as_cluster
from clusterctl.ec2.launch import carry_out
from clusterctl.ec2.observe import observe
from clusterctl.ec2.plan import LaunchPlan, plan_launch
from clusterctl.jobs.shipping import ShippedFiles, ship_examples, shipped_files
from clusterctl.operations.access import node_target
from clusterctl.operations.failures import check_all
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.keep import (
    LocalKey,
    check_account,
    keep_account,
    keep_key,
    local_key,
    locked,
)
from clusterctl.operations.pins import LearntHostKeys
from clusterctl.operations.progress import Progress, Stage
from clusterctl.operations.ready import NodeFacts, Readiness
from clusterctl.operations.views import hosts_text, ssh_config_text, write_file
from clusterctl.operations.watch import InstanceWatch
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import load_key
from clusterctl.transport.session import Identity
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# A host that is still booting may swallow the first packets; better to knock again.
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class UpReport:
    """A cluster that is ready. `launched` are the indices new in this run; `gpus` as counted."""

    cluster: Cluster
    launched: tuple[int, ...]
    gpus: tuple[int, ...]


class Refused(UsageError):
    """A launch that could not work, or must not cost what it would. Nothing was created."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        super().__init__(f"{name} is not launched: {count(len(errors), 'thing')} to mend first")
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Launcher:
    """What `up` and its kin need beside the spec. `prices` is where prices are cached."""

    clients: Clients
    folder: ClusterFolder
    progress: Progress = field(default_factory=Progress)
    proxy_command: tuple[str, ...] = ()
    timeout_s: float = 600.0
    capacity_timeout_s: float = 0.0

    @property
    def prices(self) -> Path:
        return self.folder.path.parent / "prices.json"


def plan_up(launcher: Launcher, spec: ClusterSpec) -> LaunchPlan:
    """The steps that `up` would take now. Changes nothing, here or at EC2."""
    check_account(launcher.folder, launcher.clients.ec2)
    return _plan(launcher, spec, local_key(launcher.folder, spec.name))


def up(launcher: Launcher, spec: ClusterSpec) -> UpReport:
    """Launch what is missing, wait until every node is ready, write the views.

    Raises Refused with what speaks against it, AwsError, UsageError, and ClusterctlError naming
    each node that did not get ready.
    """
    check_account(launcher.folder, launcher.clients.ec2)
    with locked(launcher.folder):
        plan, cluster = launch(launcher, spec)
        cluster, gpus = settle(launcher, cluster)
    return UpReport(cluster, plan.missing, gpus)


def settle(launcher: Launcher, cluster: Cluster) -> tuple[Cluster, tuple[int, ...]]:
    """Wait until all nodes are ready and know each other; the cluster as it is then, its GPUs."""
    facts = make_ready(launcher, cluster)
    cluster = replace(cluster, nodes=tuple(fact.node for fact in facts))
    gpus = gpus_of(facts)
    write_file(launcher.folder.hosts, hosts_text(cluster, gpus))
    return cluster, gpus


def launch(launcher: Launcher, spec: ClusterSpec) -> tuple[LaunchPlan, Cluster]:
    """The part of `up` that talks to EC2 only: the plan as carried out, and what is there now."""
    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    progress.step("looking at what is there")
    key = local_key(folder, spec.name)
    plan = _plan(launcher, spec, key)
    if plan.refused:
        raise Refused(spec.name, plan.findings)
    for finding in plan.findings:
        progress.finding(finding)
    keep_account(folder, client)
    keep_key(folder, key)
    instances = carry_out(client, plan, folder.launch, progress.step, launcher.capacity_timeout_s)
    cluster = as_cluster(client, spec.name, instances)
    assert cluster is not None, "a plan leaves no cluster without instances"
    return plan, cluster


def _plan(launcher: Launcher, spec: ClusterSpec, key: LocalKey) -> LaunchPlan:
    seen = observe(launcher.clients, spec, launcher.folder.launch, launcher.prices)
    if seen.instances and key.unwritten is not None:
        raise MissingTool(
            f"the key of cluster {spec.name} is not on this machine: {launcher.folder.key}",
            "copy the cluster's folder from the machine that ran `up`, "
            f"or begin anew: clusterctl down {spec.name}",
        )
    return plan_launch(spec, seen, key.public, uuid.uuid4().hex)


def make_ready(launcher: Launcher, cluster: Cluster) -> list[NodeFacts]:
    """Wait for the nodes and make them one cluster; what each said, in order.

    Raises ClusterctlError naming every node that failed.
    """

    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    proxy_command = launcher.proxy_command

    def target_of(node: Node) -> Target:
        return node_target(node, cluster.ssh_user, proxy_command)

    progress.nodes([node.name for node in cluster.nodes])
    host_keys = LearntHostKeys(folder.known_hosts)
    identity = Identity((load_key(folder.key),))
    with Connections(identity, host_keys, CONNECT_TIMEOUT_S) as connections:
        watch = InstanceWatch(client, cluster.name)
        readiness = Readiness(
            client, watch, connections, host_keys, target_of, progress, launcher.timeout_s
        )
        try:
            waited = readiness.wait(cluster.nodes)
        finally:
            # Also where a node failed: its owner will want to log in and look.
            write_file(folder.known_hosts, host_keys.text(cluster.nodes))
            seen = replace(cluster, nodes=tuple(watch.latest(node) for node in cluster.nodes))
            write_file(folder.ssh_config, ssh_config_text(seen, folder, proxy_command))
        check_all(cluster, waited)
        facts = waited.values
        _join(connections, facts, [target_of(fact.node) for fact in facts], cluster, progress)
    return facts


def _join(
    connections: Connections,
    facts: Sequence[NodeFacts],
    targets: Sequence[Target],
    cluster: Cluster,
    progress: Progress,
) -> None:
    members = [
        Member(
            name=fact.node.name,
            private_ip=fact.node.private_ip,
            public_ip=fact.node.public_ip,
            hostname=fact.found.hostname,
            host_keys=fact.host_keys,
        )
        for fact in facts
    ]

    for target in targets:
        progress.node(target.host, Stage.PREPARE)
    check_all(cluster, prepare(connections, targets, members, facts[0].found.mpi_key))
    text = hosts_text(replace(cluster, nodes=tuple(fact.node for fact in facts)), gpus_of(facts))
    check_all(cluster, _read(ship_examples(connections, targets, text)))
    for target in targets:
        progress.node(target.host, Stage.READY)


def gpus_of(facts: Sequence[NodeFacts]) -> tuple[int, ...]:
    """The GPUs of each node, as nvidia-smi counts them."""
    return tuple(fact.found.gpus or 0 for fact in facts)


def _read(shipped: FanoutResult[CommandResult]) -> FanoutResult[ShippedFiles]:
    def one(outcome: HostOutcome[CommandResult]) -> HostOutcome[ShippedFiles]:
        if outcome.value is None:
            return HostOutcome(outcome.host, error=outcome.error)
        try:
            return HostOutcome(outcome.host, shipped_files(outcome.value))
        except ClusterctlError as error:
            return HostOutcome(outcome.host, error=error)

    return FanoutResult(tuple(one(outcome) for outcome in shipped.outcomes))
