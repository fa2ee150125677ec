"""Host keys of a cluster's nodes: learnt from the console, pinned in its known_hosts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from paramiko.hostkeys import HostKeyEntry

from clusterctl.bootstrap.trust import Member, known_hosts_lines
from clusterctl.domain.cluster import Node
from clusterctl.transport.hostkeys import PinnedHostKeys


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
        pinned = (line.split() for line in self._text.splitlines())
        return tuple(
            f"{words[1]} {words[2]}"
            for words in pinned
            if len(words) == 4 and words[3] == node.instance_id
        )

    def learn(self, node: Node, host_keys: Sequence[str]) -> None:
        """Pin these keys, and only these, for the node."""
        # The instance id tells a later `up` whether an address still is the same machine.
        lines = known_hosts_lines(node_names(node), host_keys, node.instance_id)
        entries = [HostKeyEntry.from_line(line) for line in lines]
        with self._lock:
            self._lines[node.instance_id] = lines
            for entry in entries:
                if entry and entry.key:
                    for name in entry.hostnames or ():
                        self._keys.add(name, entry.key.get_name(), entry.key)

    def text(self, nodes: Sequence[Node]) -> str:
        """The known_hosts file for these nodes, in their order."""
        with self._lock:
            lines = [line for node in nodes for line in self._lines.get(node.instance_id, ())]
        return "".join(line + "\n" for line in lines)


def node_names(node: Node) -> tuple[str, ...]:
    """Every name under which a node is dialled from outside."""
    return Member(node.name, node.private_ip, node.public_ip, "", ()).names
