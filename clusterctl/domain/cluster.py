"""What a cluster is: nodes, in order, the head node first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from clusterctl.domain.errors import UsageError


class NodeState(Enum):
    """The state of a node, in EC2's own words."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


# EC2 bills a machine that is awake; of one that is asleep only what it holds.
AWAKE = (NodeState.PENDING, NodeState.RUNNING)
ASLEEP = (NodeState.STOPPING, NodeState.STOPPED)


@dataclass(frozen=True)
class Node:
    """One machine of a cluster. Index 0 is the head node; `gpus` is what its type promises."""

    index: int
    name: str
    instance_id: str
    state: NodeState
    instance_type: str
    gpus: int
    private_ip: str
    public_ip: str | None
    availability_zone: str
    launched_at: datetime

    @property
    def address(self) -> str:
        """Where the user's machine reaches it: the public address where it has one."""
        return self.public_ip or self.private_ip


@dataclass(frozen=True)
class Cluster:
    """The machines that carry one cluster's tag, sorted by index.

    `wanted` are the indices that it is to have; empty where that is not known.
    """

    name: str
    region: str
    ssh_user: str
    nodes: tuple[Node, ...]
    wanted: tuple[int, ...] = ()

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        return self.nodes[1:]

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices that it is to have and that no node has."""
        there = {node.index for node in self.nodes}
        return tuple(index for index in self.wanted if index not in there)


def check_cluster_name(name: str) -> str:
    """The name itself. It ends up in tags, folders and host names. Raises UsageError."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name, re.ASCII) or name.endswith("-"):
        raise UsageError(
            f"not a cluster name: {name!r}",
            "use up to 40 lower-case letters, digits and hyphens, a letter first",
        )
    if name == "lab":
        raise UsageError("a cluster cannot be called lab", "that folder is the local EC2's")
    return name


def is_cluster_name(name: str) -> bool:
    """Whether check_cluster_name takes it."""
    try:
        return bool(check_cluster_name(name))
    except UsageError:
        return False
