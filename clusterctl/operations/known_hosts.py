"""Host keys of nodes: where they are learnt from, and how each instance's are pinned."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.bootstrap.trust import NodeIdentity, known_hosts_lines
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import AwsError, HostError, HostKeyChanged, HostUnreachable
from clusterctl.domain.findings import Finding, Severity
from clusterctl.ec2.host_keys import Consoles, HostKeyAnswers, ask_host_keys, parse_host_keys
from clusterctl.transport.keys import PinnedHostKeys, add_line, described
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    import paramiko
    from mypy_boto3_ssm import SSMClient


# Stands in known_hosts behind the instance id, for a key that only the host itself has shown.
UNSEEN = "accepted-unseen"


class LearntHostKeys(PinnedHostKeys):
    """The pins for the nodes of one `up`: nothing is trusted that was not learnt for its instance.

    `path` is the known_hosts file that messages name and that the pins go to.
    """

    def __init__(self, path: Path) -> None:
        super().__init__([])
        self.paths = (path,)
        self._lock = threading.Lock()
        self._lines: dict[str, list[str]] = {}
        self._text = path.read_text() if path.exists() else ""

    def recall(self, node: Node) -> tuple[str, ...]:
        """What an earlier `up` pinned for this very instance, as `TYPE BASE64`; maybe nothing."""
        return tuple(f"{words[1]} {words[2]}" for words in self._pinned(node))

    def was_unseen(self, node: Node) -> bool:
        """Whether what was pinned for it was never compared with anything."""
        return any(UNSEEN in words[4:] for words in self._pinned(node))

    def learn(self, node: Node, host_keys: Sequence[str], unseen: bool = False) -> None:
        """Pin these keys, and only these, for the node."""
        # The instance id tells a later `up` whether an address still is the same machine.
        note = f"{node.instance_id} {UNSEEN}" if unseen else node.instance_id
        lines = known_hosts_lines(node_names(node), host_keys, note)
        with self._lock:
            again = node.instance_id in self._lines
            self._lines[node.instance_id] = lines
            if again:
                self._keys.clear()
                lines = [line for group in self._lines.values() for line in group]
            for line in lines:
                add_line(self._keys, line)

    def text(self, nodes: Sequence[Node]) -> str:
        """The known_hosts file for these nodes, in their order.

        Who is interrupted before a node was reached keeps what was pinned for it: an instance
        prints its keys at its first boot only.
        """
        with self._lock:
            learnt = dict(self._lines)
        lines = [
            line for node in nodes for line in learnt.get(node.instance_id) or self._kept(node)
        ]
        return "".join(line + "\n" for line in lines)

    def _kept(self, node: Node) -> list[str]:
        note = f"{node.instance_id} {UNSEEN}" if self.was_unseen(node) else node.instance_id
        return known_hosts_lines(node_names(node), self.recall(node), note)

    def _pinned(self, node: Node) -> list[list[str]]:
        lines = (line.split() for line in self._text.splitlines())
        return [words for words in lines if len(words) >= 4 and words[3] == node.instance_id]

    def _changed(self, target: Target, shown: paramiko.PKey, pinned: paramiko.PKey) -> HostError:
        # Here the address is the instance's own: `up` has just asked EC2 for it.
        return HostKeyChanged(
            target.host,
            f"its host key is not its own: it shows {described(shown)}, pinned is "
            f"{described(pinned)}, and neither its console nor its agent knows of another",
            "someone may be in between, or its keys were made anew: look at it another way "
            "(EC2 serial console, Session Manager), or have a new machine: clusterctl replace",
        )


class ClusterHostKeys(PinnedHostKeys):
    """What `up` has pinned for a cluster that is there. `instances`: by node, its instance now."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._again = f"clusterctl up {cluster.name}"
        super().__init__(
            [path],
            renew=f"run `{self._again}` again, with its options: "
            "it learns the key from the instance's console",
        )
        self._instances = {node.name: node.instance_id for node in cluster.nodes}
        self._pinned_for = _instances_by_name(path)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        """Raises HostKeyUnknown or HostKeyChanged unless `key` is the one pinned for its instance.

        A key pinned for another instance that had the address before is none of its own.
        """
        known = self._keys.lookup(target.known_hosts_name)
        if known and self._other_instance(target):
            raise self._changed(
                target, key, known.get(key.get_name()) or next(iter(known.values()))
            )
        super().verify(target, key)

    def _other_instance(self, target: Target) -> str:
        """The instance that the pins of its address are for, where that is not the node's own."""
        pinned_for = self._pinned_for.get(target.known_hosts_name, frozenset())
        current = self._instances.get(target.host)
        if not current or not pinned_for or current in pinned_for:
            return ""
        return min(pinned_for)

    def _changed(self, target: Target, shown: paramiko.PKey, pinned: paramiko.PKey) -> HostError:
        current = self._instances.get(target.host, "its instance")
        keys = f"it shows {described(shown)}, pinned is {described(pinned)}"
        other = self._other_instance(target)
        if other:
            return HostKeyChanged(
                target.host,
                f"the key pinned for its address {target.address} is that of another instance, "
                f"{other}; now {current} has the address, and {keys}",
                f"an address that is used again: run `{self._again}`, "
                "which learns the key of the new instance from its console",
            )
        return HostKeyChanged(
            target.host,
            f"{current} is the same instance as before and shows another host key: {keys}",
            "someone may be in between, or its keys were made anew. Do not delete the pin: "
            f"run `{self._again}`, which takes another key only if the console has it",
        )


def node_names(node: Node) -> tuple[str, ...]:
    """Every name under which a node is dialled from outside."""
    return NodeIdentity(node.name, node.private_ip, node.public_ip, "", ()).names


def text_fingerprint(host_key: str) -> str:
    """`TYPE SHA256:...` of a `TYPE BASE64`."""
    kind, _, body = host_key.partition(" ")
    digest = hashlib.sha256(base64.b64decode(body)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _instances_by_name(path: Path) -> Mapping[str, frozenset[str]]:
    """Name or address -> the instances that pins for it were learnt for."""
    found: dict[str, set[str]] = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        words = line.split()
        if len(words) >= 4 and words[3].startswith("i-"):
            for name in words[0].split(","):
                found.setdefault(name, set()).add(words[3])
    return {name: frozenset(ids) for name, ids in found.items()}


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
