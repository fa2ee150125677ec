"""One look at EC2 for all who wait for a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import AWAKE, Node, NodeState
from clusterctl.ec2.instances import Instance, find_instances, find_states
from clusterctl.ec2.polling import gaps

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class InstanceWatch:
    """These instances of a cluster, whatever becomes of them. `seen`: as EC2 has just shown them.

    What the last answer said decides when EC2 is asked again, and for what: often while a node is
    pending or hidden, seldom once all run, for the states alone as long as those are the same.
    """

    def __init__(self, client: EC2Client, name: str, seen: Sequence[Instance]) -> None:
        self._client = client
        self._name = name
        self._lock = threading.Lock()
        self._often, self._seldom = gaps(0.2, 1.1), gaps(1.0, 1.3)
        self._seen = {instance.node.instance_id: instance for instance in seen}
        self._ids = tuple(self._seen)
        self._next_look = time.monotonic() + next(self._pace)

    def look(self, instance_id: str) -> Instance | None:
        """The instance as last seen; None if EC2 does not show it (yet). Raises AwsError."""
        # Whoever comes while another looks waits for that look, and then has it.
        with self._lock:
            if time.monotonic() >= self._next_look:
                self._look()
                self._next_look = time.monotonic() + next(self._pace)
            return self._seen.get(instance_id)

    def latest(self, node: Node) -> Node:
        """The node as last seen, without looking again: a public address comes late."""
        seen = self._seen.get(node.instance_id)
        return seen.node if seen else node

    def _look(self) -> None:
        before = {id: one.node.state for id, one in self._seen.items()}
        whole = all(map(_is_whole, self._seen.values()))
        if whole and find_states(self._client, self._ids) == before:
            return
        found = find_instances(self._client, self._name, states=())
        shown = {instance.node.instance_id: instance for instance in found}
        self._seen = {id: shown[id] for id in self._ids if id in shown}

    @property
    def _pace(self) -> Iterator[float]:
        states = [one.node.state for one in self._seen.values()]
        awaited = NodeState.PENDING in states or len(states) < len(self._ids)
        return self._often if awaited else self._seldom


def _is_whole(seen: Instance) -> bool:
    """Whether EC2 has nothing more to show of it: addresses may come after the rest."""
    node = seen.node
    if node.state not in AWAKE:
        return True
    # With several interfaces only the head node gets a public address.
    public = not (seen.private or (seen.several_interfaces and node.index))
    return bool(node.private_ip and (node.public_ip or not public))
