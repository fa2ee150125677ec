"""What a cluster is, nodes in order, the head node first; and what a user can ask it to be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count


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
    """One machine of a cluster. Index 0 is the head node; `gpus` is what its type promises.

    `quarantined`: since when, and why, no command takes it unless it is named; else empty.
    """

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
    quarantined: str = ""

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
    def in_service(self) -> tuple[Node, ...]:
        """The nodes that commands are for where none is named: those not in quarantine."""
        return tuple(node for node in self.nodes if node == self.head or not node.quarantined)

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


# EC2 takes 50 of a resource; the rest is the launcher's.
MOST_TAGS = 30
# More than anybody has: a slip of the finger.
MOST_NODES = 10_000


class Market(Enum):
    """How the machines are paid for. A Capacity Block is paid for in advance."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"


@dataclass(frozen=True)
class Disk:
    """A node's root volume, an encrypted gp3. None: what the launcher thinks right.

    `kms_key` is the id, the alias or the ARN of a key; None: the account's default one for EBS.
    """

    size_gib: int | None = None
    iops: int | None = None
    throughput_mib_s: int | None = None
    kms_key: str | None = None


@dataclass(frozen=True)
class Limits:
    """What a cluster may cost and how long it may live. None: no such limit.

    `max_hours`, `budget_usd` and `idle_minutes` are kept by the nodes themselves, whether or not
    anybody watches. A cluster that idleness has stopped is due for removal after
    `stopped_days`.
    """

    max_hours: float | None = None
    budget_usd: float | None = None
    max_hourly_usd: float | None = None
    idle_minutes: float | None = None
    stopped_days: float | None = None

    @property
    def ends(self) -> bool:
        """Whether the nodes have a time at which they end."""
        return self.max_hours is not None or self.budget_usd is not None

    @property
    def at_power_off(self) -> str:
        """What EC2 is to do with a node that switches itself off: `stop` or `terminate`.

        EC2 has one answer for every power-off. Where idleness may be the reason the disks must
        stay, also when time is up.
        """
        return "terminate" if self.ends and not self.idle_minutes else "stop"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < 1e9:
                raise UsageError(f"not a limit for {name.replace('_', ' ')}: {value:g}")
        if self.stopped_days and not self.idle_minutes:
            raise UsageError(
                "a time after which a stopped cluster is removed needs an idle time that stops it",
                "give --idle-stop too",
            )


@dataclass(frozen=True)
class ClusterSpec:
    """What the user asked for. None: decided by the plan, from what EC2 says.

    `or_types` are taken, in order, when no zone has enough of `instance_type`; a cluster has one
    type all the same. `min_nodes` accepts fewer nodes than asked for. `subnet_id` and `network`
    exclude each other; neither means the default VPC. `image` is an AMI id, an SSM parameter's
    name or a name pattern. `placement_group`, `efa`: None where it helps. `private`: no public
    address but the head node's. `adds`: the tags keep that what is missing was asked for by `add`.
    """

    name: str
    nodes: int
    instance_type: str
    or_types: tuple[str, ...] = ()
    min_nodes: int | None = None
    market: Market = Market.ON_DEMAND
    capacity_reservation: str | None = None
    placement_group: bool | None = None
    efa: bool | None = None
    zone: str | None = None
    subnet_id: str | None = None
    network: str | None = None
    private: bool = False
    image: str | None = None
    ssh_user: str | None = None
    ssh_from: str | None = None
    user_data: bytes = b""
    instance_profile: str | None = None
    disk: Disk = field(default_factory=Disk)
    tags: tuple[tuple[str, str], ...] = ()
    limits: Limits = field(default_factory=Limits)
    adds: bool = False

    def __post_init__(self) -> None:
        check_cluster_name(self.name)
        if self.ssh_user is not None and not is_user_name(self.ssh_user):
            raise UsageError(f"not a user name: {self.ssh_user!r}")
        for wanted in self.types:
            if not re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", wanted, re.ASCII):
                raise UsageError(f"not an instance type: {wanted!r}", "for example p4d.24xlarge")
        if self.nodes < 1:
            raise UsageError(f"a cluster of {self.nodes} nodes makes no sense", "ask for 1 or more")
        if self.nodes > MOST_NODES:
            raise UsageError(
                f"{self.nodes} nodes are too many", f"a cluster has up to {MOST_NODES} nodes"
            )
        if self.min_nodes is not None and not 1 <= self.min_nodes <= self.nodes:
            raise UsageError(
                f"at least {self.min_nodes} of {count(self.nodes, 'node')} makes no sense",
                f"--min-nodes is between 1 and {self.nodes}",
            )
        if self.subnet_id and self.network:
            raise UsageError("--subnet and --network exclude each other", "give one of them")
        _check_tags(self.tags)

    @property
    def types(self) -> tuple[str, ...]:
        """The instance types that will do, best first."""
        return tuple(dict.fromkeys((self.instance_type, *self.or_types)))


def is_user_name(text: str) -> bool:
    """Whether a login user can be called so: it goes into ssh_config and onto command lines."""
    return bool(re.fullmatch(r"[a-z_][a-z0-9_.-]{0,31}", text, re.ASCII))


def is_free_tag(key: str) -> bool:
    """Whether a tag of this key can be the user's own."""
    return key != "Name" and not key.lower().startswith(("clusterctl:", "aws:"))


def _check_tags(tags: tuple[tuple[str, str], ...]) -> None:
    for key, value in tags:
        if not is_free_tag(key):
            raise UsageError(
                f"the tag {key!r} is not free",
                "choose another key: Name, aws:… and clusterctl:… are taken",
            )
        if not 0 < len(key) <= 128 or len(value) > 256 or not (key + value).isprintable():
            raise UsageError(
                f"not a tag: {key[:130]!r}: {value[:260]!r}",
                "a key has 1 to 128 characters, a value up to 256, and no line breaks",
            )
    if len({key for key, _ in tags}) < len(tags):
        raise UsageError("a tag is given twice", "each key can have one value")
    if len(tags) > MOST_TAGS:
        raise UsageError(
            f"{len(tags)} tags are too many", f"give up to {MOST_TAGS}: EC2 takes 50, ours included"
        )
