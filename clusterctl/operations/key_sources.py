"""Where a node's host keys are to be had, the best first: its console, its agent, itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Node
from clusterctl.domain.errors import AwsError, HostKeyChanged, HostUnreachable
from clusterctl.domain.findings import Finding, Severity
from clusterctl.ec2.console import Consoles, parse_host_keys
from clusterctl.operations.agent_keys import AgentHostKeys
from clusterctl.operations.pins import LearntHostKeys, text_fingerprint

if TYPE_CHECKING:
    import paramiko

# So long the console alone is looked at; on short deadlines a third of them.
CONSOLE_ALONE_S = 60.0


@dataclass(frozen=True)
class HostKeySources:
    """What `Readiness` asks for a node's host keys, and tells when one is not as it was.

    `agents` is None where nobody is to ask Systems Manager. `shown_key` connects and gives the key
    that a node shows: it is there only where the user accepts that. `tell` takes findings.
    """

    consoles: Consoles
    pins: LearntHostKeys
    agents: AgentHostKeys | None = None
    shown_key: Callable[[Node], paramiko.PKey] | None = None
    tell: Callable[[Finding], None] = lambda finding: None
    console_alone_s: float = CONSOLE_ALONE_S
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _compared: dict[str, bool] = field(default_factory=dict)

    def recall(self, node: Node) -> tuple[str, ...]:
        """What an earlier run pinned for this instance, and is now pinned again.

        Raises HostKeyChanged where that was accepted unseen, and its console has another.
        """
        keys = self.pins.recall(node)
        unseen = bool(keys) and self.pins.was_unseen(node)
        if unseen:
            printed = self._console(node)
            if printed and not set(keys) & set(printed):
                raise HostKeyChanged(
                    node.name,
                    f"the key that was accepted unseen, {_listed(keys)}, is not its own: "
                    f"its console has {_listed(printed)}",
                    "someone was in between: what was sent there is known to others. Have a new "
                    f"machine: clusterctl replace {node.name.rpartition('-')[0]} {node.index}",
                )
            keys, unseen = printed or keys, not printed
        if keys:
            self.pins.learn(node, keys, unseen)
        return keys

    def look(self, node: Node, has_agent: bool, waited_s: float) -> tuple[str, ...]:
        """The keys if they are to be had by now, pinned; nothing before. Raises AwsError.

        To be called when it is the node's turn (`consoles.turn_s`).
        """
        keys = parse_host_keys(self.consoles.look(node.instance_id))
        agent = self.agents if has_agent else None
        if not keys and agent and waited_s >= self.console_alone_s:
            keys = agent.look(node.instance_id)
        if keys:
            self.pins.learn(node, keys)
        elif self.shown_key and waited_s >= self.console_alone_s * (2 if agent else 1):
            keys = self._accept(node, self.shown_key)
        return keys

    def compare(self, node: Node) -> bool:
        """Whether the console or the agent has other keys than were pinned; those are pinned then.

        For a node that shows another key than the pinned one. Looks once for each node.
        """
        with self._lock:
            if node.instance_id not in self._compared:
                self._compared[node.instance_id] = False
                with contextlib.suppress(AwsError):
                    self._compared[node.instance_id] = self._renew(node)
            return self._compared[node.instance_id]

    def _renew(self, node: Node) -> bool:
        pinned = self.pins.recall(node)
        keys = self._console(node)
        if not keys and self.agents:
            self.agents.expect(node.instance_id)
            keys = self.agents.look(node.instance_id)
        if not pinned or not keys or set(keys) <= set(pinned):
            return False
        self.pins.learn(node, keys)
        self.tell(
            Finding(
                "hostkey.renewed",
                Severity.WARNING,
                f"{node.instance_id} has other host keys than were pinned: {_listed(keys)}, "
                f"not {_listed(pinned)}; so says EC2, and the new ones are pinned",
                node.name,
                "if you do not know why they were made anew, ask who else uses the node",
            )
        )
        return True

    def _console(self, node: Node) -> tuple[str, ...]:
        return parse_host_keys(self.consoles.now(node.instance_id))

    def _accept(self, node: Node, shown_key: Callable[[Node], paramiko.PKey]) -> tuple[str, ...]:
        with contextlib.suppress(HostUnreachable):
            key = shown_key(node)
            host_key = f"{key.get_name()} {key.get_base64()}"
            self.pins.learn(node, [host_key], unseen=True)
            self.tell(_accepted(node, host_key))
            return (host_key,)
        return ()


def _accepted(node: Node, host_key: str) -> Finding:
    return Finding(
        "hostkey.unseen",
        Severity.WARNING,
        f"its host key was ACCEPTED UNSEEN, as --accept-new-host-keys says: "
        f"{text_fingerprint(host_key)}. If someone is in between, they hold your session",
        node.name,
        "compare it with what the node has: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; "
        "a later `up` compares it with the console",
    )


def _listed(host_keys: tuple[str, ...]) -> str:
    return ", ".join(map(text_fingerprint, host_keys))
