"""Wait for nodes and join them to one cluster. `make_ready` does all of it.

A node is ready once it is running, its host key is learnt, SSH lets us in, cloud-init has finished
and it has as many GPUs as its type. Then every node gets the names and keys of the others.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.bootstrap.head_programs import start_installation
from clusterctl.bootstrap.inspection import (
    Inspection,
    RequestedEquipment,
    check_equipment,
    check_inspection,
    inspection_script,
    parse_inspection,
)
from clusterctl.bootstrap.trust import NodeIdentity, node_script
from clusterctl.domain.cluster import ASLEEP, AWAKE, Cluster, Market, Node, NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    ConnectionLost,
    HostError,
    HostKeyChanged,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.files import write_file
from clusterctl.domain.findings import Finding, folded
from clusterctl.domain.results import FanoutResult, parse_outputs
from clusterctl.domain.timeouts import Clock, Timeouts, backoff_delays
from clusterctl.domain.units import format_duration
from clusterctl.ec2.health import why_gone
from clusterctl.ec2.host_keys import Consoles
from clusterctl.ec2.instances import Instance, as_cluster, find_instances, find_states
from clusterctl.ec2.launch.request import LARGE_GPUS
from clusterctl.ec2.session import is_local
from clusterctl.jobs.deploy import HOSTS_PATH, deploy_files, deployed_files
from clusterctl.operations.access import cluster_key, cluster_targets
from clusterctl.operations.guards import (
    EndMessage,
    await_guards,
    end_silent_guards,
    update_guards,
)
from clusterctl.operations.known_hosts import AgentHostKeys, HostKeySources, LearntHostKeys
from clusterctl.operations.launcher import Launcher, Stage, StepProgress, check_all
from clusterctl.operations.local_state import hosts_text, ssh_config_text
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.session import Identity

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from paramiko import PKey


class InstanceWatch:
    """Polls the state of a fixed set of instances.

    `known_states` is the first snapshot, from EC2's last answer. EC2 is polled often while an
    instance is pending or not shown, and seldom once all run. Once every description is complete, a
    poll reads only the states, which is a shorter answer, and reads the rest when a state has
    changed.
    """

    def __init__(
        self, client: EC2Client, name: str, known_states: Sequence[Instance], clock: Clock = Clock()
    ) -> None:
        self._client = client
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._often, self._seldom = backoff_delays(0.2, 1.1), backoff_delays(1.0, 1.3)
        self._states = {instance.node.instance_id: instance for instance in known_states}
        self._ids = tuple(self._states)
        self._next_probe = self._clock.monotonic() + next(self._pace)

    def read(self, instance_id: str) -> Instance | None:
        """Return the latest snapshot of an instance, polling EC2 if it is time to.

        None if EC2 does not show the instance (yet). Raises AwsError.
        """
        # Threads share one DescribeInstances call: those that arrive during a call wait for it and
        # use its answer.
        with self._lock:
            if self._clock.monotonic() >= self._next_probe:
                self._probe()
                self._next_probe = self._clock.monotonic() + next(self._pace)
            return self._states.get(instance_id)

    def poll(self) -> None:
        """Poll EC2 now. Raises AwsError."""
        with self._lock:
            self._probe()

    def latest(self, node: Node) -> Node:
        """Return the node as of the last poll, without polling, or `node` if EC2 showed none.

        The public address may be in a later snapshot only.
        """
        found = self._states.get(node.instance_id)
        return found.node if found else node

    def _probe(self) -> None:
        """Poll EC2 once, only for the states if all descriptions are complete."""
        before = {id: one.node.state for id, one in self._states.items()}
        whole = all(map(_is_whole, self._states.values()))
        if whole and find_states(self._client, self._ids) == before:
            return
        found = find_instances(self._client, self._name, states=())
        shown = {instance.node.instance_id: instance for instance in found}
        self._states = {id: shown[id] for id in self._ids if id in shown}

    @property
    def _pace(self) -> Iterator[float]:
        """The gaps between polls that fit the last snapshot."""
        states = [one.node.state for one in self._states.values()]
        awaited = NodeState.PENDING in states or len(states) < len(self._ids)
        return self._often if awaited else self._seldom


def _is_whole(found: Instance) -> bool:
    """Return whether EC2's description is complete. Addresses may appear after the other fields."""
    node = found.node
    if node.state not in AWAKE:
        return True
    # EC2 gives no public address to an instance with several interfaces. Only the head node has
    # one then, an elastic address.
    public = not (found.private or (found.several_interfaces and node.index))
    return bool(node.private_ip and (node.public_ip or not public))


def has_ended(state: NodeState, is_finished: bool) -> bool:
    """Return whether an instance that was to run has stopped or terminated.

    Until EC2's answers are `is_finished`, it may be shown as stopped, as it was before it was
    started.
    """
    return state not in AWAKE and (is_finished or state not in ASLEEP)


# What a user can do about a node that is late at a stage.
_HINTS = {
    # cloud-init prints the host keys at its very end, after the user data has run.
    Stage.CONSOLE: "if its user data needs longer, run `up` again with a larger --timeout; "
    "to see how far it is: aws ec2 get-console-output --latest --instance-id {id}. If the image "
    "prints no host keys: an --instance-profile with Systems Manager, or, trusting what the node "
    "shows, --accept-new-host-keys",
    Stage.LOGIN: "is SSH allowed from where you are? run `up` again with --ssh-from ADDRESS",
    Stage.CLOUD_INIT: "its user data may need longer: run `up` again with a larger --timeout",
}


class NodeNotReady(HostError):
    """The node's instance has died, or the node did not get ready in time."""

    exit_status = 1


def not_ready_error(
    node: Node, stage: Stage, timeout_s: float, agents_reason: str = ""
) -> NodeNotReady:
    """Return the error for a node that was still at `stage` after `timeout_s` seconds.

    `agents_reason` is why Systems Manager has no host key of it; empty if it was not called.
    """
    requested = ""
    if stage is Stage.CONSOLE and agents_reason:
        requested = f"; over Systems Manager: {agents_reason}"
    return NodeNotReady(
        node.name,
        f"not ready after {format_duration(timeout_s)}: {stage.value}{requested}",
        _HINTS.get(stage, "").replace("{id}", node.instance_id),
    )


@dataclass(frozen=True)
class ReadyNode:
    """A node that is ready, and what it reported.

    `host_keys` are `TYPE BASE64`. `found` is the node's report. `findings` are problems that do not
    keep the node from being used.
    """

    node: Node
    host_keys: tuple[str, ...]
    found: Inspection
    findings: tuple[Finding, ...] = ()


@dataclass
class Readiness:
    """Waits for the nodes of one cluster, all at once.

    `target_of` returns how to reach a node. `timeout_s` counts from here, for all nodes together.
    `checked` is called with each node that has passed its checks, while others are still waited
    for. `first_script` returns what a node's shell runs before it is inspected, at each login.
    """

    watch: InstanceWatch
    connections: Connections
    host_keys: HostKeySources
    target_of: Callable[[Node], Target]
    progress: StepProgress
    timeout_s: float
    checked: Callable[[Node], None]
    timeouts: Timeouts = field(default_factory=Timeouts)
    first_script: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        self._clock = self.timeouts.clock
        self._deadline = self._clock.monotonic() + self.timeout_s
        self._finished_at = self._clock.monotonic() + self.timeouts.shown_s
        self._cancelled = threading.Event()
        self._stages: dict[str, Stage] = {}
        self._nodes: Sequence[Node] = ()

    def wait(self, nodes: Sequence[Node]) -> FanoutResult[ReadyNode]:
        """Return one outcome per node, in order: its facts, or the error that it failed with."""
        self._nodes = nodes
        try:
            return fan_out(self._one, nodes, max_workers=len(nodes))
        finally:
            # After an interrupt, the threads must stop polling EC2.
            self._cancelled.set()

    def still_run(self) -> FanoutResult[Node | None]:
        """Poll EC2 again. Return one outcome per node that was ready: an error if its instance has
        ended since."""
        self.watch.poll()
        return fan_out(lambda node: self._alive(node, was_ready=True), self._nodes)

    def _one(self, node: Node) -> ReadyNode:
        name = node.name
        try:
            node = self._running(node)
            host_keys = self._learn(node)
            requested = self._requested(node)
            found = self._inspect(node, inspection_script(node.index == 0, requested.efa))
            check_inspection(name, found, node.gpus)
        except ClusterctlError as error:
            if self._cancelled.is_set():
                # Ended by the interrupt: the node itself has not failed.
                raise
            self.progress.node(name, Stage.FAILED, error.message.split("\n")[0])
            raise
        self._enter(node, Stage.CHECKED)
        self.checked(node)
        findings = check_equipment(name, found.equipment, requested)
        return ReadyNode(node, host_keys, found, findings)

    def _running(self, node: Node) -> Node:
        """Wait until the node runs and has an address. Return it as EC2 then shows it."""
        self._enter(node, Stage.PENDING)
        # The watch decides when EC2 is polled; most of these ticks read the last snapshot.
        for _ in self._ticks(node, itertools.repeat(0.1)):
            found = self._alive(node)
            if found and found.state is NodeState.RUNNING and found.private_ip:
                return found
        raise AssertionError("unreachable")

    def _learn(self, node: Node) -> tuple[str, ...]:
        """Return and pin the node's host keys, waiting until a source has them."""
        keys = self.host_keys.recall(node)
        if keys:
            return keys
        self._enter(node, Stage.CONSOLE)
        agents, has_agent = self.host_keys.agents, self._may_have_agent(node)
        if has_agent:
            agents.expect(node.instance_id)
        began = self._clock.monotonic()
        try:
            for _ in self._ticks(node, backoff_delays(0.3, 1.5, 10.0)):
                # All nodes share one rate of GetConsoleOutput calls, which EC2 throttles.
                self._sleep(node, self.host_keys.consoles.turn_s())
                keys = self.host_keys.read(node, has_agent, self._clock.monotonic() - began)
                if keys:
                    return keys
                self._alive(node)
            raise AssertionError("unreachable")
        finally:
            agents.done(node.instance_id)

    def _may_have_agent(self, node: Node) -> bool:
        """Return whether the node has an instance profile, which the SSM agent needs to answer."""
        found = self.watch.read(node.instance_id)
        return bool(found and found.instance_profile)

    def _requested(self, node: Node) -> RequestedEquipment:
        """Return what the launch requested, to compare the node with."""
        found = self.watch.read(node.instance_id)
        return (
            RequestedEquipment(found.efa_interfaces, found.disk.size_gib or 0)
            if found
            else RequestedEquipment()
        )

    def _inspect(self, node: Node, script: str) -> Inspection:
        """Run the inspection script as soon as the node can be logged in to. Return its report."""
        self._enter(node, Stage.LOGIN)
        compared = False
        refused_until = self._clock.monotonic() + self.timeouts.key_refused_s
        for _ in self._ticks(node, backoff_delays(0.2, 1.5)):
            try:
                return self._ask(node, script)
            except KeyRefused:
                if self._clock.monotonic() > refused_until:
                    raise
            except (HostUnreachable, ConnectionLost):
                # sshd is not up yet, or the node reboots, which its user data may do.
                self._enter(node, Stage.LOGIN)
            except HostKeyChanged:
                if compared or not self._renewed(node):
                    raise
                compared = True
            except CommandTimeout:
                raise self._late(node) from None
            self._alive(node)
        raise AssertionError("unreachable")

    def _renewed(self, node: Node) -> bool:
        """Return whether EC2 has other keys than the recorded ones, of the node or its jump host.

        The new keys are then recorded. The error may be about either of the two.
        """
        jump = self.target_of(node).jump
        names = (node.name, jump.host if jump else "")
        renewed = [self.host_keys.compare(one) for one in self._nodes if one.name in names]
        return any(renewed)

    def _ask(self, node: Node, script: str) -> Inspection:
        """Run the inspection script once, and report the stages that it prints."""
        output: list[bytes] = []

        def sink(stream: str, chunk: bytes) -> None:
            if stream == "stdout":
                output.append(chunk)
                if b"stage cloud-init" in chunk:
                    self._enter(node, Stage.CLOUD_INIT)
                if b"stage gpus" in chunk:
                    self._enter(node, Stage.GPUS)

        self.connections.run(
            self.target_of(node),
            "sh -s",
            timeout_s=max(1.0, self._deadline - self._clock.monotonic()),
            stdin=(self.first_script() + script).encode(),
            sink=sink,
        )
        return parse_inspection(node.name, b"".join(output).decode(errors="replace"))

    def _alive(self, node: Node, was_ready: bool = False) -> Node | None:
        """Return the node as EC2 last showed it; None if EC2 does not show it (yet).

        Raises NodeNotReady once its instance stops or terminates.
        """
        found = self.watch.read(node.instance_id)
        if found is None:
            return None
        state = found.node.state
        if has_ended(state, was_ready or self._clock.monotonic() > self._finished_at):
            again = "starts it" if state in ASLEEP else "launches another in its place"
            raise NodeNotReady(
                node.name,
                f"its instance {node.instance_id} is {state.value}: {why_gone(found)}",
                f"`up` again {again}",
            )
        return found.node

    def _enter(self, node: Node, stage: Stage) -> None:
        if self._stages.get(node.name) is not stage:
            self._stages[node.name] = stage
            self.progress.node(node.name, stage)

    def _ticks(self, node: Node, gaps_s: Iterator[float]) -> Iterator[None]:
        """Yield at once, then after each gap in seconds. Raises NodeNotReady at the deadline."""
        for gap_s in gaps_s:
            yield
            left_s = self._deadline - self._clock.monotonic()
            if left_s <= 0:
                raise self._late(node)
            self._sleep(node, min(gap_s, left_s))

    def _sleep(self, node: Node, seconds: float) -> None:
        """Sleep. Raises NodeNotReady if an interrupt has ended the waiting."""
        if self._clock.wait(self._cancelled, seconds):
            raise NodeNotReady(node.name, "the command no longer waits for it")

    def _late(self, node: Node) -> NodeNotReady:
        """Return the error for a node at the deadline, and close its connection."""
        stage = self._stages[node.name]
        with contextlib.suppress(HostError):
            self.connections.forget(self.target_of(node))
        return not_ready_error(
            node, stage, self.timeout_s, self.host_keys.agents.reason(node.instance_id)
        )


# A booting host may drop the first packets, so a short timeout and another try are faster.
CONNECT_TIMEOUT_S = 5.0
# Machines with LARGE_GPUS or more, and those without a hypervisor, normally need 10 to 20 minutes:
# their firmware tests terabytes of memory, and the host keys are printed only at the end of the
# boot.
READY_WITHIN_S, LARGE_READY_WITHIN_S = 600.0, 1800.0


def make_ready(
    launcher: Launcher,
    members: Sequence[Instance],
    before: Sequence[Instance] = (),
    leaving: Sequence[Instance] = (),
) -> tuple[Cluster, tuple[int, ...], bool]:
    """Wait until all nodes in service are ready, and join them to one cluster.

    `members` are the cluster's instances as EC2 has just shown them, `before` those with the limits
    that they had: their guards may have to be removed, or started again. `leaving` are the machines
    that go afterwards: until then their host keys stay known. Returns the cluster with the
    nodes that are ready or in quarantine, the GPUs counted on each node in service, and whether
    each of these has an environment for training. Writes the hosts file, known_hosts and
    ssh_config. Raises AwsError, and ClusterctlError naming every node that failed.
    """
    cluster = as_cluster(launcher.clients.ec2, launcher.name, members)
    going = [one.node for one in leaving]
    facts = _reach_and_join(launcher, cluster, members, before, going)
    ready = {fact.node.index: fact.node for fact in facts}
    gpus = gpus_of(facts)
    cluster = replace(cluster, nodes=tuple(ready.get(one.index, one) for one in cluster.nodes))
    write_file(launcher.folder.hosts, hosts_text(cluster, gpus))
    there = tuple(one for one in cluster.nodes if one.index in ready or one.quarantined)
    cluster = replace(cluster, nodes=there)
    return cluster, gpus, all(fact.found.training for fact in facts)


def ready_within_s(cluster: Cluster) -> float:
    """Return the default timeout for getting nodes ready, in seconds, by their types."""
    large = any(node.gpus >= LARGE_GPUS or ".metal" in node.instance_type for node in cluster.nodes)
    return LARGE_READY_WITHIN_S if large else READY_WITHIN_S


def _reach_and_join(
    launcher: Launcher,
    cluster: Cluster,
    instances: Sequence[Instance],
    before: Sequence[Instance],
    leaving: Sequence[Node],
) -> list[ReadyNode]:
    """Wait for the nodes in service and join them. Return the facts of each, in order.

    A node in quarantine is not waited for: its fault would fail the whole operation. Raises
    ClusterctlError naming every node that failed.
    """
    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    timeouts = launcher.timeouts
    timeout_s = launcher.timeout_s or ready_within_s(cluster)
    awaited = cluster.in_service
    left_out = [node for node in cluster.nodes if node not in awaited]
    progress.nodes([node.name for node in awaited])
    host_keys = LearntHostKeys(folder.known_hosts)
    identity = Identity((cluster_key(folder),))
    with Connections(identity, host_keys, CONNECT_TIMEOUT_S, timeouts=timeouts) as connections:
        watch = InstanceWatch(client, cluster.name, instances, timeouts.clock)
        target_of = cluster_targets(cluster, launcher.proxy_command, watch.latest)

        def shown_key(node: Node) -> PKey:
            return connections.shown_key(target_of(node))

        sources = _host_key_sources(launcher, host_keys, shown_key, timeout_s)
        why_no_programs: list[Callable[[], str]] = []

        def checked(node: Node) -> None:
            if node.index == cluster.head.index:
                # Work with the local EC2 must not need the internet, where pip would search.
                offline = is_local(client.meta.endpoint_url)
                why_no_programs.append(
                    start_installation(
                        connections, target_of(node), HOSTS_PATH, launcher.home, offline
                    )
                )

        limited = any(one.limits_text or one.earlier_limits for one in (*before, *instances))
        message = EndMessage(launcher, cluster.name)
        readiness = Readiness(
            *(watch, connections, sources, target_of, progress, timeout_s, checked, timeouts),
            first_script=message.script if limited else lambda: "",
        )
        try:
            waited = readiness.wait(awaited)
        finally:
            # Written even if a node failed, so that its owner can log in and see why.
            current = replace(cluster, nodes=tuple(map(watch.latest, cluster.nodes)))
            _write_views(launcher, current, host_keys, leaving)
        check_all(cluster, waited)
        facts = waited.values
        targets = [target_of(fact.node) for fact in facts]
        out_of_service = [
            NodeIdentity(node.name, node.private_ip, node.public_ip, "", host_keys.recall(node))
            for node in left_out
        ]
        members = _join(connections, facts, targets, cluster, progress, out_of_service)
        resting = [target_of(node) for node in left_out]
        guards = (launcher, cluster, connections, targets, members, resting)
        markets = {found.market for found in instances}
        silent = end_silent_guards(connections, targets, before)
        try:
            if limited or markets & {Market.SPOT, Market.CAPACITY_BLOCK}:
                update_guards(*guards)
        except ClusterctlError as untold:
            if limited or Market.SPOT in markets:
                raise
            progress.finding(_untold(untold))
        findings = [finding for fact in facts for finding in fact.findings]
        if silent:
            findings += await_guards(timeouts, connections, targets, instances, silent)
        if reason := why_no_programs[0]():
            # Somebody else may have removed the nodes meanwhile.
            check_all(cluster, readiness.still_run())
            findings.append(_no_programs(launcher, targets[0].host, reason))
        for target in targets:
            progress.node(target.host, Stage.READY)
    for finding in folded(findings):
        progress.finding(finding)
    return facts


def _host_key_sources(
    launcher: Launcher,
    known_keys: LearntHostKeys,
    shown_key: Callable[[Node], PKey],
    timeout_s: float,
) -> HostKeySources:
    clients, timeouts = launcher.clients, launcher.timeouts
    return HostKeySources(
        consoles=Consoles(clients.ec2, timeouts.clock.monotonic),
        known_keys=known_keys,
        agents=AgentHostKeys(lambda: clients.ssm, clock=timeouts.clock),
        shown_key=shown_key if launcher.accept_new_host_keys else None,
        notify=launcher.progress.finding,
        console_only_s=min(timeouts.console_only_s, timeout_s / 3),
    )


def _write_views(
    launcher: Launcher, current: Cluster, host_keys: LearntHostKeys, leaving: Sequence[Node]
) -> None:
    """Write known_hosts and ssh_config for the nodes, as EC2 has last shown them, and keep the host
    keys of those that are `leaving`: an interrupted command asks them what would be lost."""
    for node in current.nodes:
        if node not in current.in_service and (keys := host_keys.recall(node)):
            # A stop and start may have changed its address, so its old keys are recorded under the
            # new one.
            host_keys.learn(node, keys, host_keys.was_unverified(node))
    folder = launcher.folder
    write_file(folder.known_hosts, host_keys.text([*current.nodes, *leaving]))
    write_file(folder.ssh_config, ssh_config_text(current, folder, launcher.proxy_command))


def _join(
    connections: Connections,
    facts: Sequence[ReadyNode],
    targets: Sequence[Target],
    cluster: Cluster,
    progress: StepProgress,
    out_of_service: Sequence[NodeIdentity],
) -> list[NodeIdentity]:
    """Give every node the names, keys and files of the cluster. Return the nodes' identities.

    `out_of_service` are the nodes in quarantine. The others get their names and host keys, too, so
    that a released node needs no other node to change. Raises ClusterctlError naming every node
    that failed.
    """
    members = [
        NodeIdentity(
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
    everyone = [*members, *out_of_service]
    scripts = {
        is_head: node_script(everyone, mpi_key, head.user, is_head) for is_head in (True, False)
    }
    text = hosts_text(replace(cluster, nodes=tuple(fact.node for fact in facts)), gpus_of(facts))
    shipped = deploy_files(connections, targets, text, lambda target: scripts[target is head])
    check_all(cluster, parse_outputs(shipped, deployed_files))
    return members


def _untold(failure: ClusterctlError) -> Finding:
    text = f"the nodes did not get the end time of their Capacity Block: {failure.message}"
    hint = "give the login user `sudo -n`; `clusterctl status` shows the end, too"
    return Finding.warning("reservation.end", text, hint)


def _no_programs(launcher: Launcher, head: str, reason: str) -> Finding:
    folder = launcher.folder
    return Finding.warning(
        "head.programs",
        f"runclust and copyclust could not be installed: {reason}",
        f"they work from here: runclust {folder.hosts} hostname; "
        f"once that is fixed, `clusterctl up {folder.name}` installs them",
        head,
    )


def gpus_of(facts: Sequence[ReadyNode]) -> tuple[int, ...]:
    """Return the GPUs that nvidia-smi counted on each node; 0 without nvidia-smi."""
    return tuple(fact.found.gpus or 0 for fact in facts)
