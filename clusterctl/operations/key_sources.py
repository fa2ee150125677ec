"""Where a node's host keys are to be had, the best first: its console, its agent, itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Node
from clusterctl.domain.errors import AwsError, HostKeyChanged, HostUnreachable
from clusterctl.domain.findings import Finding, Severity
from clusterctl.ec2.console import Consoles, parse_host_keys
from clusterctl.ec2.host_keys_ssm import HostKeyAnswers, ask_host_keys
from clusterctl.operations.known_hosts import LearntHostKeys, text_fingerprint

if TYPE_CHECKING:
    import paramiko
    from mypy_boto3_ssm import SSMClient

# An agent registers some time after the boot, so it is asked for again.
ASK_EVERY_S = 15.0


class AgentHostKeys:
    """Asks Systems Manager for many nodes at once. `client` makes the API's client when needed."""

    def __init__(
        self,
        client: Callable[[], SSMClient],
        ask: Callable[..., HostKeyAnswers] = ask_host_keys,
        every_s: float = ASK_EVERY_S,
    ) -> None:
        self._client = client
        self._ask = ask
        self._every_s = every_s
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._next_question = 0.0
        self._keys: dict[str, tuple[str, ...]] = {}
        self._reasons: dict[str, str] = {}

    def expect(self, instance_id: str) -> None:
        """From now on a question is for this instance too."""
        with self._lock:
            self._waiting.add(instance_id)

    def done(self, instance_id: str) -> None:
        """Its keys are known from elsewhere."""
        with self._lock:
            self._waiting.discard(instance_id)

    def look(self, instance_id: str) -> tuple[str, ...]:
        """Its host keys, as far as they are known; may ask for all that wait. Raises nothing."""
        # Whoever comes while another asks goes on looking at the console.
        if self._asking.acquire(blocking=False):
            try:
                self._question()
            finally:
                self._asking.release()
        with self._lock:
            return self._keys.get(instance_id, ())

    def reason(self, instance_id: str) -> str:
        """Why there are none; empty if nobody was asked yet."""
        with self._lock:
            return self._reasons.get(instance_id, "")

    def _question(self) -> None:
        with self._lock:
            waiting = sorted(self._waiting - self._keys.keys())
            if not waiting or time.monotonic() < self._next_question:
                return
        answers = self._ask(self._client(), waiting)
        with self._lock:
            self._keys.update(answers.keys)
            self._reasons.update(answers.reasons)
            self._next_question = time.monotonic() + self._every_s


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
