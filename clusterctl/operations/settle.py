"""From instances to a cluster: wait for every node, make them know each other, write the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterctl.bootstrap.head_programs import start_putting
from clusterctl.bootstrap.node_checks import folded
from clusterctl.bootstrap.script import node_script
from clusterctl.bootstrap.trust import Member
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.spec import Market
from clusterctl.ec2.console import Consoles
from clusterctl.ec2.instances import Instance, as_cluster
from clusterctl.ec2.network import is_local
from clusterctl.jobs.shipping import HOSTS_PATH, ShippedFiles, ship_examples, shipped_files
from clusterctl.operations.access import cluster_targets
from clusterctl.operations.agent_keys import AgentHostKeys
from clusterctl.operations.failures import check_all
from clusterctl.operations.guards import update_guards
from clusterctl.operations.key_sources import CONSOLE_ALONE_S, HostKeySources
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.pins import LearntHostKeys
from clusterctl.operations.progress import Progress, Stage
from clusterctl.operations.ready import NodeFacts, Readiness
from clusterctl.operations.views import hosts_text, ssh_config_text, write_file
from clusterctl.operations.watch import InstanceWatch
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import load_key
from clusterctl.transport.session import Identity
from clusterctl.transport.target import Target

# A host that is still booting may swallow the first packets; better to knock again.
CONNECT_TIMEOUT_S = 5.0
# With 4 GPUs or more 10 to 20 minutes are normal: such machines have terabytes of memory to test,
# and print their host keys last.
READY_WITHIN_S, LARGE_READY_WITHIN_S, LARGE_GPUS = 600.0, 1800.0, 4


def settle(
    launcher: Launcher, name: str, members: Sequence[Instance], had_limits: bool = False
) -> tuple[Cluster, tuple[int, ...], bool]:
    """Wait until all nodes of a cluster are ready and know each other.

    `members` are its instances as EC2 has just shown them. Returns the cluster as it is then, its
    GPUs, and whether every node has an environment to train in.
    """
    cluster = as_cluster(launcher.clients.ec2, name, members)
    assert cluster is not None, "there is no cluster without instances"
    facts = make_ready(launcher, cluster, members, had_limits)
    cluster = replace(cluster, nodes=tuple(fact.node for fact in facts))
    gpus = gpus_of(facts)
    write_file(launcher.folder.hosts, hosts_text(cluster, gpus))
    return cluster, gpus, all(fact.found.training for fact in facts)


def ready_within_s(cluster: Cluster) -> float:
    """How long nodes may take to get ready where nobody has said."""
    large = any(node.gpus >= LARGE_GPUS for node in cluster.nodes)
    return LARGE_READY_WITHIN_S if large else READY_WITHIN_S


def make_ready(
    launcher: Launcher, cluster: Cluster, instances: Sequence[Instance], had_limits: bool
) -> list[NodeFacts]:
    """Wait for the nodes and make them one cluster; what each said, in order.

    Raises ClusterctlError naming every node that failed.
    """
    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    timeout_s = launcher.timeout_s or ready_within_s(cluster)
    progress.nodes([node.name for node in cluster.nodes])
    host_keys = LearntHostKeys(folder.known_hosts)
    identity = Identity((load_key(folder.key),))
    with Connections(identity, host_keys, CONNECT_TIMEOUT_S) as connections:
        watch = InstanceWatch(client, cluster.name, instances)
        target_of = cluster_targets(cluster, launcher.proxy_command, watch.latest)
        sources = HostKeySources(
            consoles=Consoles(client),
            pins=host_keys,
            agents=AgentHostKeys(lambda: launcher.clients.ssm),
            shown_key=(
                (lambda node: connections.shown_key(target_of(node)))
                if launcher.accept_new_host_keys
                else None
            ),
            tell=progress.finding,
            console_alone_s=min(CONSOLE_ALONE_S, timeout_s / 3),
        )
        why_no_programs: list[Callable[[], str]] = []

        def checked(node: Node) -> None:
            if node.index == cluster.head.index:
                # The local EC2 is no reason to ask the network for anything.
                offline = is_local(client.meta.endpoint_url)
                why_no_programs.append(
                    start_putting(connections, target_of(node), HOSTS_PATH, launcher.home, offline)
                )

        readiness = Readiness(watch, connections, sources, target_of, progress, timeout_s, checked)
        try:
            waited = readiness.wait(cluster.nodes)
        finally:
            # Also where a node failed: its owner will want to log in and look.
            write_file(folder.known_hosts, host_keys.text(cluster.nodes))
            seen = replace(cluster, nodes=tuple(watch.latest(node) for node in cluster.nodes))
            write_file(folder.ssh_config, ssh_config_text(seen, folder, launcher.proxy_command))
        check_all(cluster, waited)
        facts = waited.values
        targets = [target_of(fact.node) for fact in facts]
        members = _join(connections, facts, targets, cluster, progress)
        limited = had_limits or any(found.limits_text for found in instances)
        if limited or any(found.market is Market.SPOT for found in instances):
            update_guards(launcher, cluster, connections, targets, members)
        findings = [finding for fact in facts for finding in fact.findings]
        if reason := why_no_programs[0]():
            findings.append(_no_programs(launcher, targets[0].host, reason))
        for target in targets:
            progress.node(target.host, Stage.READY)
    for finding in folded(findings):
        progress.finding(finding)
    return facts


def _join(
    connections: Connections,
    facts: Sequence[NodeFacts],
    targets: Sequence[Target],
    cluster: Cluster,
    progress: Progress,
) -> list[Member]:
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
    head, mpi_key = targets[0], facts[0].found.mpi_key
    scripts = {
        is_head: node_script(members, mpi_key, head.user, is_head) for is_head in (True, False)
    }
    text = hosts_text(replace(cluster, nodes=tuple(fact.node for fact in facts)), gpus_of(facts))
    shipped = ship_examples(connections, targets, text, lambda target: scripts[target is head])
    check_all(cluster, _read(shipped))
    return members


def _no_programs(launcher: Launcher, head: str, reason: str) -> Finding:
    folder = launcher.folder
    return Finding(
        "head.programs",
        Severity.WARNING,
        f"could not be given runclust and copyclust: {reason}",
        head,
        f"they work from here: runclust {folder.hosts} hostname; "
        f"once that is mended, `clusterctl up {folder.path.name}` brings them",
    )


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
