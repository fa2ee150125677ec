"""Host keys of nodes: the sources they are learnt from, and the record for each instance.

A pin is a line of the cluster's known_hosts file: `NAMES TYPE BASE64 INSTANCE-ID`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.bootstrap.trust import NodeIdentity, known_hosts_lines
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import AwsError, HostError, HostKeyChanged, HostUnreachable
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import grouped
from clusterctl.domain.timeouts import Clock, Timeouts
from clusterctl.ec2.host_keys import Consoles, HostKeyAnswers, ask_host_keys, parse_host_keys
from clusterctl.node.untrusted import text_in
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import HostKey, KnownHostKeys, known_like

if TYPE_CHECKING:
    import paramiko
    from mypy_boto3_ssm import SSMClient


# Follows the instance id in known_hosts if the key came from the host itself and from no trusted
# source.
UNVERIFIED = "unverified"


class LearntHostKeys(KnownHostKeys):
    """The host keys of the nodes of one `up`. Only keys learnt for the node's instance are trusted.

    `path` is the known_hosts file: earlier keys are read from it, and messages name it. The caller
    writes `text` to it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__([])
        self.paths = (path,)
        self._lock = threading.Lock()
        # By instance id: the lines learnt in this run.
        self._lines: dict[str, list[str]] = {}
        self._text = path.read_text(errors="replace") if path.exists() else ""

    def recall(self, node: Node) -> tuple[str, ...]:
        """Return what an earlier `up` recorded for this instance, as `TYPE BASE64`; maybe
        nothing."""
        return tuple(f"{words[1]} {words[2]}" for words in self._recorded(node))

    def was_unverified(self, node: Node) -> bool:
        """Return whether the node's keys were never compared with a trusted source."""
        return any(UNVERIFIED in words[4:] for words in self._recorded(node))

    def learn(self, node: Node, host_keys: Sequence[str], unverified: bool = False) -> None:
        """Record these keys for the node, instead of any recorded before in this run.

        `unverified` marks a key that only the host itself has shown.
        """
        # By the instance id a later `up` checks whether the address still belongs to this machine.
        note = f"{node.instance_id} {UNVERIFIED}" if unverified else node.instance_id
        lines = known_hosts_lines(node_names(node), host_keys, note)
        with self._lock:
            again = node.instance_id in self._lines
            self._lines[node.instance_id] = lines
            if again:
                # KnownHosts cannot remove one node's lines, so all are added again.
                self._keys.clear()
                lines = [line for group in self._lines.values() for line in group]
            for line in lines:
                self._keys.add(line)

    def text(self, nodes: Sequence[Node]) -> str:
        """Return the content of the known_hosts file for these nodes, in their order.

        A node for which nothing was learnt in this run keeps its earlier keys, for example after an
        interrupt. An instance prints its keys at its first boot only, so they might be lost.
        """
        with self._lock:
            learnt = dict(self._lines)
        lines = [
            line for node in nodes for line in learnt.get(node.instance_id) or self._kept(node)
        ]
        return "".join(line + "\n" for line in lines)

    def _kept(self, node: Node) -> list[str]:
        note = f"{node.instance_id} {UNVERIFIED}" if self.was_unverified(node) else node.instance_id
        return known_hosts_lines(node_names(node), self.recall(node), note)

    def _recorded(self, node: Node) -> list[list[str]]:
        lines = (line.split() for line in self._text.splitlines())
        return [words for words in lines if len(words) >= 4 and words[3] == node.instance_id]

    # In place of KnownHostKeys._changed: a cluster knows more about the key.
    def _changed(self, target: Target, shown: HostKey, known: HostKey) -> HostError:
        # `up` has just read the address from EC2, so the node cannot be another instance that took
        # over an old address.
        return HostKeyChanged(
            target.host,
            f"its host key is not its own: it shows {shown}, known is "
            f"{known}, and neither its console nor its agent knows of another",
            "someone may be in between, or its keys are new: check it another way "
            "(EC2 serial console, Session Manager), or get a new machine: clusterctl replace",
        )


class ClusterHostKeys(KnownHostKeys):
    """The host keys that `up` has written for an existing cluster.

    `path` is its known_hosts file. A pin for another instance than the node's current one is not
    accepted.
    """

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._again = f"clusterctl up {cluster.name}"
        super().__init__(
            [path],
            renew=f"run `{self._again}` again, with its options: "
            "it learns the key from the instance's console",
        )
        # Two while a node is being replaced.
        self._instances = grouped((node.name, node.instance_id) for node in cluster.nodes)
        self._recorded_for = _instances_by_name(path)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        """Raise HostKeyUnknown or HostKeyChanged unless `key` is recorded for the node's instance.

        A key that was recorded for another instance, which had the address before, is refused.
        """
        known = self._known(target)
        if known and self._other_instance(target):
            shown = HostKey(key.get_name(), key.asbytes())
            raise self._changed(target, shown, known_like(shown, known))
        super().verify(target, key)

    def _other_instance(self, target: Target) -> str:
        """Return the other instance that the keys of the node's address belong to.

        Empty if they belong to the node's own instance, or if either is not known.
        """
        recorded_for = self._recorded_for.get(target.known_hosts_name, frozenset())
        current = self._instances.get(target.host, [])
        if not current or not recorded_for or recorded_for & {*current}:
            return ""
        return min(recorded_for)

    # In place of KnownHostKeys._changed.
    def _changed(self, target: Target, shown: HostKey, known: HostKey) -> HostError:
        current = " or ".join(self._instances.get(target.host, ["its instance"]))
        keys = f"it shows {shown}, known is {known}"
        other = self._other_instance(target)
        if other:
            return HostKeyChanged(
                target.host,
                f"the key known for its address {target.address} is that of another instance, "
                f"{other}; now {current} has the address, and {keys}",
                f"an address that is used again: run `{self._again}`, "
                "which learns the key of the new instance from its console",
            )
        return HostKeyChanged(
            target.host,
            f"{current} is the same instance as before and shows another host key: {keys}",
            "someone may be in between, or its keys are new. Do not delete the known key: "
            f"run `{self._again}`, which takes another key only if the console has it",
        )


def node_names(node: Node) -> tuple[str, ...]:
    """Return every name and address under which a node may be dialled, for a known_hosts line."""
    return NodeIdentity(node.name, node.private_ip, node.public_ip, "", ()).names


def key_fingerprint(host_key: str) -> str:
    """Return `TYPE SHA256:...`, as `ssh-keygen -l` prints it, for a key `TYPE BASE64`."""
    kind, _, body = host_key.partition(" ")
    digest = hashlib.sha256(base64.b64decode(body)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _instances_by_name(path: Path) -> Mapping[str, frozenset[str]]:
    """Return, for each name and address in a known_hosts file, the instances of its keys."""
    found: dict[str, set[str]] = {}
    for line in text_in(path).splitlines():
        words = line.split()
        if len(words) >= 4 and words[3].startswith("i-"):
            for name in words[0].split(","):
                found.setdefault(name, set()).add(words[3])
    return {name: frozenset(ids) for name, ids in found.items()}


# Seconds between two rounds of Systems Manager calls: an agent registers some time after boot.
ASK_EVERY_S = 15.0


class AgentHostKeys:
    """Fetches host keys through Systems Manager, for all waiting nodes at once.

    `client` makes the API client at the first call. `every_s` is the least time between two calls.
    """

    def __init__(
        self,
        client: Callable[[], SSMClient],
        ask: Callable[..., HostKeyAnswers] = ask_host_keys,
        every_s: float = ASK_EVERY_S,
        clock: Clock = Clock(),
    ) -> None:
        self._clock = clock
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
        """Include this instance in later calls."""
        with self._lock:
            self._waiting.add(instance_id)

    def done(self, instance_id: str) -> None:
        """Leave this instance out of later calls."""
        with self._lock:
            self._waiting.discard(instance_id)

    def read(self, instance_id: str) -> tuple[str, ...]:
        """Return the instance's host keys as `TYPE BASE64`; none while they are not known.

        May call Systems Manager for all waiting instances first. Errors of AWS end up in `reason`.
        """
        # A call may take a minute. Other threads do not wait for it and poll the console meanwhile.
        if self._asking.acquire(blocking=False):
            try:
                self._question()
            finally:
                self._asking.release()
        with self._lock:
            return self._keys.get(instance_id, ())

    def reason(self, instance_id: str) -> str:
        """Return why Systems Manager has no keys of the instance; empty before the first call."""
        with self._lock:
            return self._reasons.get(instance_id, "")

    def _question(self) -> None:
        with self._lock:
            waiting = sorted(self._waiting - self._keys.keys())
            if not waiting or self._clock.monotonic() < self._next_question:
                return
        answers = self._ask(self._client(), waiting)
        with self._lock:
            self._keys.update(answers.keys)
            self._reasons.update(answers.reasons)
            self._next_question = self._clock.monotonic() + self._every_s


@dataclass(frozen=True)
class HostKeySources:
    """The sources of host keys, in order: earlier keys, console, Systems Manager, the node itself.

    `shown_key` connects to a node and returns the key that it shows; it is None unless the user
    accepts unverified keys. `notify` receives findings, for example about a changed key. For
    `console_only_s` only the console is polled.
    """

    consoles: Consoles
    known_keys: LearntHostKeys
    agents: AgentHostKeys
    shown_key: Callable[[Node], paramiko.PKey] | None = None
    notify: Callable[[Finding], None] = lambda finding: None
    console_only_s: float = Timeouts.console_only_s
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _compared: dict[str, bool] = field(default_factory=dict)

    def recall(self, node: Node) -> tuple[str, ...]:
        """Return the keys that an earlier run recorded for this instance, and record them again.

        A key that was accepted unverified is compared with the console, whose keys replace it.
        HostKeyChanged is raised if it is not among them. Raises AwsError.
        """
        keys = self.known_keys.recall(node)
        unverified = bool(keys) and self.known_keys.was_unverified(node)
        if unverified:
            printed = self._console(node)
            if printed and not set(keys) & set(printed):
                raise HostKeyChanged(
                    node.name,
                    f"the key that was accepted unchecked, {_listed(keys)}, is not its own: "
                    f"its console has {_listed(printed)}",
                    "someone was in between: what was sent there is known to others. Get a new "
                    f"machine: clusterctl replace {node.name.rpartition('-')[0]} {node.index}",
                )
            keys, unverified = printed or keys, not printed
        if keys:
            self.known_keys.learn(node, keys, unverified)
        return keys

    def read(self, node: Node, has_agent: bool, waited_s: float) -> tuple[str, ...]:
        """Return and pin the node's keys if a source has them; none otherwise. Raises AwsError.

        `waited_s` is the time since the first poll, which decides which sources are tried. The
        caller waits for `consoles.turn_s` before each call, since EC2 throttles console requests.
        """
        keys = parse_host_keys(self.consoles.read(node.instance_id))
        agent = self.agents if has_agent else None
        if not keys and agent and waited_s >= self.console_only_s:
            keys = agent.read(node.instance_id)
        if keys:
            self.known_keys.learn(node, keys)
        elif self.shown_key and waited_s >= self.console_only_s * (2 if agent else 1):
            keys = self._accept(node, self.shown_key)
        return keys

    def compare(self, node: Node) -> bool:
        """Return whether the console or the agent has other keys than the recorded ones.

        These are then recorded instead. For a node that shows another key than the recorded one.
        The sources are read once for each node; later calls return the same result.
        """
        with self._lock:
            if node.instance_id not in self._compared:
                self._compared[node.instance_id] = False
                with contextlib.suppress(AwsError):
                    self._compared[node.instance_id] = self._renew(node)
            return self._compared[node.instance_id]

    def _renew(self, node: Node) -> bool:
        """Record the keys of the console or agent if they differ, and report it."""
        recorded = self.known_keys.recall(node)
        keys = self._console(node)
        if not keys:
            self.agents.expect(node.instance_id)
            keys = self.agents.read(node.instance_id)
        if not recorded or not keys or set(keys) <= set(recorded):
            return False
        self.known_keys.learn(node, keys)
        self.notify(_renewed(node, keys, recorded))
        return True

    def _console(self, node: Node) -> tuple[str, ...]:
        return parse_host_keys(self.consoles.now(node.instance_id))

    def _accept(self, node: Node, shown_key: Callable[[Node], paramiko.PKey]) -> tuple[str, ...]:
        """Pin the key that the node itself shows; nothing while it does not answer."""
        with contextlib.suppress(HostUnreachable):
            key = shown_key(node)
            host_key = f"{key.get_name()} {key.get_base64()}"
            self.known_keys.learn(node, [host_key], unverified=True)
            self.notify(_accepted(node, host_key))
            return (host_key,)
        return ()


def _renewed(node: Node, keys: tuple[str, ...], recorded: tuple[str, ...]) -> Finding:
    return Finding.warning(
        "hostkey.renewed",
        f"{node.instance_id} has other host keys than the known ones: {_listed(keys)}, "
        f"not {_listed(recorded)}; EC2 confirms the new ones, which are known from now on",
        "if you do not know why they are new, ask who else uses the node",
        node.name,
    )


def _accepted(node: Node, host_key: str) -> Finding:
    return Finding.warning(
        "hostkey.unverified",
        f"its host key was ACCEPTED UNCHECKED, because of --accept-new-host-keys: "
        f"{key_fingerprint(host_key)}. Whoever is in between can read and change the session",
        "compare it with what the node has: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; "
        "a later `up` compares it with the console",
        node.name,
    )


def _listed(host_keys: tuple[str, ...]) -> str:
    return ", ".join(map(key_fingerprint, host_keys))
