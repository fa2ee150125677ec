"""One look at EC2 for all who wait for a node."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Node
from clusterctl.ec2.instances import Instance, find_instances
from clusterctl.ec2.polling import gaps

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class InstanceWatch:
    """The instances of one cluster, whatever their state; at most one DescribeInstances per gap."""

    def __init__(self, client: EC2Client, name: str) -> None:
        self._client = client
        self._name = name
        self._lock = threading.Lock()
        self._gaps = gaps(0.2, 1.1)
        self._next_look = 0.0
        self._seen: dict[str, Instance] = {}

    def look(self, instance_id: str) -> Instance | None:
        """The instance as last seen; None if EC2 does not show it (yet). Raises AwsError."""
        # Whoever comes while another looks waits for that look, and then has it.
        with self._lock:
            if time.monotonic() >= self._next_look:
                found = find_instances(self._client, self._name, states=())
                self._seen = {instance.node.instance_id: instance for instance in found}
                self._next_look = time.monotonic() + next(self._gaps)
            return self._seen.get(instance_id)

    def latest(self, node: Node) -> Node:
        """The node as last seen, without looking again: a public address comes late."""
        seen = self._seen.get(node.instance_id)
        return seen.node if seen else node
