"""Host keys of a cluster's nodes: learnt for one instance each, pinned in its known_hosts."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.bootstrap.trust import NodeIdentity, known_hosts_lines
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import HostError, HostKeyChanged
from clusterctl.transport.hostkeys import PinnedHostKeys, add_line, described
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    import paramiko

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
