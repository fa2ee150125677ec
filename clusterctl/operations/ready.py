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
from clusterctl.domain.cluster import Node, NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    ConnectionLost,
    HostError,
    HostKeyChanged,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.results import FanoutResult
from clusterctl.domain.units import format_duration
from clusterctl.ec2.polling import gaps
from clusterctl.operations.key_sources import HostKeySources
from clusterctl.operations.progress import Progress, Stage
from clusterctl.operations.watch import InstanceWatch
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

# cloud-init may start sshd before it has put the key there.
KEY_REFUSED_FOR_S = 120.0

_HINTS = {
    # cloud-init prints the host keys last, after the user data.
    Stage.CONSOLE: "if its user data needs longer, run `up` again with a larger --timeout; "
    "to see how far it is: aws ec2 get-console-output --latest --instance-id {id}. If the image "
    "prints no host keys: an --instance-profile with Systems Manager, or, trusting what the node "
    "shows, --accept-new-host-keys",
    Stage.LOGIN: "is SSH allowed from where you are? run `up` again with --ssh-from ADDRESS",
    Stage.CLOUD_INIT: "its user data may need longer: run `up` again with a larger --timeout",
}


class NodeNotReady(HostError):
    """A node has died or hangs."""

    exit_status = 1


@dataclass(frozen=True)
class NodeFacts:
    """A node that is up, and what it said. `host_keys` are `TYPE BASE64`."""

    node: Node
    host_keys: tuple[str, ...]
    found: Inspection

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
    """Waits for the nodes of one cluster, all at once. `target_of` says how to reach a node."""

    def __init__(
        self,
        watch: InstanceWatch,
        connections: Connections,
        host_keys: HostKeySources,
        target_of: Callable[[Node], Target],
        progress: Progress,
        timeout_s: float,
    ) -> None:
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
            found = self._inspect(node)
            check_inspection(name, found, node.gpus)
        except ClusterctlError as error:
            if self._cancelled.is_set():
                raise
            self._progress.node(name, Stage.FAILED, error.message.split("\n")[0])
            raise
        self._enter(node, Stage.CHECKED)
        return NodeFacts(node, host_keys, found)

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

    def _inspect(self, node: Node) -> Inspection:
        self._enter(node, Stage.LOGIN)
        compared = False
        refused_until = time.monotonic() + KEY_REFUSED_FOR_S
        for _ in self._ticks(node, gaps(0.2, 1.5)):
            try:
                return self._ask(node)
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

    def _ask(self, node: Node) -> Inspection:
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
            stdin=inspection_script(head=node.index == 0).encode(),
            sink=sink,
        )
        return parse_inspection(node.name, b"".join(output).decode(errors="replace"))

    def _alive(self, node: Node) -> Node | None:
        """The node as EC2 sees it. Raises NodeNotReady once it is on its way out."""
        seen = self._watch.look(node.instance_id)
        if seen is None:
            return None
        if seen.node.state not in (NodeState.PENDING, NodeState.RUNNING):
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
            if self._cancelled.wait(min(gap_s, left_s)):
                raise NodeNotReady(node.name, "nobody waits for it any more")

    def _late(self, node: Node) -> NodeNotReady:
        stage = self._stages[node.name]
        with contextlib.suppress(HostError):
            self._connections.forget(self._target_of(node))
        asked = ""
        if stage is Stage.CONSOLE and self._host_keys.agents:
            reason = self._host_keys.agents.reason(node.instance_id)
            asked = f"; over Systems Manager: {reason}" if reason else ""
        return NodeNotReady(
            node.name,
            f"not ready after {format_duration(self._timeout_s)}: {stage.value}{asked}",
            _HINTS.get(stage, "").replace("{id}", node.instance_id),
        )
