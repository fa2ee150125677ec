"""Wait for nodes: from `running` to logged in, set up, and with all their GPUs."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clusterctl.bootstrap.inspection import (
    Inspection,
    check_inspection,
    inspection_script,
    parse_inspection,
)
from clusterctl.bootstrap.node_checks import Asked, check_equipment
from clusterctl.domain.cluster import AWAKE, Node, NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    ConnectionLost,
    HostError,
    HostKeyChanged,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.findings import Finding
from clusterctl.domain.results import FanoutResult
from clusterctl.ec2.polling import gaps
from clusterctl.operations.key_sources import HostKeySources
from clusterctl.operations.lateness import NodeNotReady, late
from clusterctl.operations.progress import Progress, Stage
from clusterctl.operations.watch import InstanceWatch
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

# cloud-init may start sshd before it has put the key there.
KEY_REFUSED_FOR_S = 120.0


@dataclass(frozen=True)
class NodeFacts:
    """A node that is up, and what it said. `host_keys` are `TYPE BASE64`.

    `findings` are what its user should know, and what it can be used with all the same.
    """

    node: Node
    host_keys: tuple[str, ...]
    found: Inspection
    findings: tuple[Finding, ...] = ()

    @property
    def host(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class _Waiting:
    node: Node

    @property
    def host(self) -> str:
        return self.node.name


class Readiness:
    """Waits for the nodes of one cluster, all at once. `target_of` says how to reach a node;
    `checked` is told of each that is ready, while others are waited for."""

    def __init__(
        self,
        watch: InstanceWatch,
        connections: Connections,
        host_keys: HostKeySources,
        target_of: Callable[[Node], Target],
        progress: Progress,
        timeout_s: float,
        checked: Callable[[Node], None],
    ) -> None:
        self._checked = checked
        self._watch = watch
        self._connections = connections
        self._host_keys = host_keys
        self._target_of = target_of
        self._progress = progress
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._cancelled = threading.Event()
        self._stages: dict[str, Stage] = {}
        self._nodes: Sequence[Node] = ()

    def wait(self, nodes: Sequence[Node]) -> FanoutResult[NodeFacts]:
        """One outcome per node, in order: its facts, or what it failed of."""
        self._nodes = nodes
        waiting = [_Waiting(node) for node in nodes]
        try:
            return fan_out(self._one, waiting, max_workers=len(waiting))
        finally:
            # After an interrupt the threads must not go on asking EC2.
            self._cancelled.set()

    def _one(self, waiting: _Waiting) -> NodeFacts:
        name = waiting.node.name
        try:
            node = self._running(waiting.node)
            host_keys = self._learn(node)
            asked = self._asked(node)
            found = self._inspect(node, inspection_script(node.index == 0, asked.efa))
            check_inspection(name, found, node.gpus)
        except ClusterctlError as error:
            if self._cancelled.is_set():
                raise
            self._progress.node(name, Stage.FAILED, error.message.split("\n")[0])
            raise
        self._enter(node, Stage.CHECKED)
        self._checked(node)
        findings = check_equipment(name, found.equipment, asked)
        return NodeFacts(node, host_keys, found, findings)

    def _running(self, node: Node) -> Node:
        self._enter(node, Stage.PENDING)
        # The watch sets the pace of the looks; a tick between two of them asks nobody.
        for _ in self._ticks(node, itertools.repeat(0.1)):
            seen = self._alive(node)
            if seen and seen.state is NodeState.RUNNING and seen.private_ip:
                return seen
        raise AssertionError("unreachable")

    def _learn(self, node: Node) -> tuple[str, ...]:
        keys = self._host_keys.recall(node)
        if keys:
            return keys
        self._enter(node, Stage.CONSOLE)
        agents, has_agent = self._host_keys.agents, self._may_have_agent(node)
        if agents and has_agent:
            agents.expect(node.instance_id)
        began = time.monotonic()
        for _ in self._ticks(node, gaps(0.3, 1.5, 10.0)):
            self._sleep(node, self._host_keys.consoles.turn_s())
            keys = self._host_keys.look(node, has_agent, time.monotonic() - began)
            if keys:
                break
            self._alive(node)
        if agents:
            agents.done(node.instance_id)
        return keys

    def _may_have_agent(self, node: Node) -> bool:
        """Without an instance profile an agent is not allowed to answer."""
        seen = self._watch.look(node.instance_id)
        return bool(seen and seen.instance_profile)

    def _asked(self, node: Node) -> Asked:
        seen = self._watch.look(node.instance_id)
        return Asked(seen.efa_interfaces, seen.disk.size_gib or 0) if seen else Asked()

    def _inspect(self, node: Node, script: str) -> Inspection:
        self._enter(node, Stage.LOGIN)
        compared = False
        refused_until = time.monotonic() + KEY_REFUSED_FOR_S
        for _ in self._ticks(node, gaps(0.2, 1.5)):
            try:
                return self._ask(node, script)
            except KeyRefused:
                if time.monotonic() > refused_until:
                    raise
            except (HostUnreachable, ConnectionLost):
                # Not up yet, or it reboots: its user data may have asked for that.
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
        """Whether EC2 knows other keys than the pinned ones: of the node, or its jump host."""
        jump = self._target_of(node).jump
        names = (node.name, jump.host if jump else "")
        renewed = [self._host_keys.compare(one) for one in self._nodes if one.name in names]
        return any(renewed)

    def _ask(self, node: Node, script: str) -> Inspection:
        output: list[bytes] = []

        def sink(stream: str, chunk: bytes) -> None:
            if stream == "stdout":
                output.append(chunk)
                if b"stage cloud-init" in chunk:
                    self._enter(node, Stage.CLOUD_INIT)
                if b"stage gpus" in chunk:
                    self._enter(node, Stage.GPUS)

        self._connections.run(
            self._target_of(node),
            "sh -s",
            timeout_s=max(1.0, self._deadline - time.monotonic()),
            stdin=script.encode(),
            sink=sink,
        )
        return parse_inspection(node.name, b"".join(output).decode(errors="replace"))

    def _alive(self, node: Node) -> Node | None:
        """The node as EC2 sees it. Raises NodeNotReady once it is on its way out."""
        seen = self._watch.look(node.instance_id)
        if seen is None:
            return None
        if seen.node.state not in AWAKE:
            why = f": {seen.state_reason}" if seen.state_reason else ""
            raise NodeNotReady(
                node.name,
                f"its instance {node.instance_id} is {seen.node.state.value}{why}",
                "`up` again launches another in its place",
            )
        return seen.node

    def _enter(self, node: Node, stage: Stage) -> None:
        if self._stages.get(node.name) is not stage:
            self._stages[node.name] = stage
            self._progress.node(node.name, stage)

    def _ticks(self, node: Node, gaps_s: Iterator[float]) -> Iterator[None]:
        """Once at once, then after each gap. Raises NodeNotReady at the deadline."""
        for gap_s in gaps_s:
            yield
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise self._late(node)
            self._sleep(node, min(gap_s, left_s))

    def _sleep(self, node: Node, seconds: float) -> None:
        """Raises NodeNotReady when an interrupt ends the waiting."""
        if self._cancelled.wait(seconds):
            raise NodeNotReady(node.name, "nobody waits for it any more")

    def _late(self, node: Node) -> NodeNotReady:
        stage = self._stages[node.name]
        with contextlib.suppress(HostError):
            self._connections.forget(self._target_of(node))
        agents = self._host_keys.agents
        asked = agents.reason(node.instance_id) if agents else ""
        return late(node, stage, self._timeout_s, asked)
