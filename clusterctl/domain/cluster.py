"""A cluster and its nodes as EC2 shows them, and the specification of a cluster to launch.

Plain values without I/O. The nodes of a cluster are sorted by index; the first is the head node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Optional

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count


class NodeState(Enum):
    """The state of a node's instance, under EC2's own names."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


# Instances in these states count as billed.
AWAKE = (NodeState.PENDING, NodeState.RUNNING)
# In these states EC2 bills only what the instance keeps: its volumes.
ASLEEP = (NodeState.STOPPING, NodeState.STOPPED)


@dataclass(frozen=True)
class Node:
    """One instance of a cluster. Index 0 is the head node.

    `gpus` is the number of GPUs of its instance type, not a count made on the node. `quarantined`
    is empty, or the time since when the node is in quarantine, a blank and the reason. Commands
    leave out a node in quarantine unless the user names it.
    """

    index: int
    name: str
    instance_id: str
    state: NodeState
    instance_type: str
    gpus: int
    private_ip: str
    public_ip: Optional[str]
    zone: str
    launched_at: datetime
    quarantined: str = ""

    @classmethod
    def at_address(cls, index: int, name: str, address: str, gpus: int = 0) -> Node:
        """Return a node that was not read from EC2, or that is no instance."""
        now = datetime.now(timezone.utc)
        return cls(index, name, "", NodeState.RUNNING, "", gpus, address, None, "", now)

    @property
    def host(self) -> str:
        """The node's name, as fan-outs need it."""
        return self.name

    @property
    def shown_state(self) -> str:
        """EC2's name of the node's state, or `quarantined` for a running node in quarantine."""
        runs = self.state is NodeState.RUNNING
        return "quarantined" if runs and self.quarantined else self.state.value

    @property
    def address(self) -> str:
        """The address to reach the node from the user's machine: the public one if there is one."""
        return self.public_ip or self.private_ip

    def needs_jump(self, head: Node) -> bool:
        """Return whether the node is reached through the head node: that has a public address, and
        the node has none."""
        return self.index != head.index and not self.public_ip and bool(head.public_ip)


@dataclass(frozen=True)
class Cluster:
    """The members of one cluster, sorted by index.

    `wanted` has the indices that the cluster should have. It is empty where they are not known.
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
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def in_service(self) -> tuple[Node, ...]:
        """The nodes that a command applies to if the user names none.

        These are all nodes outside quarantine, and always the head node.
        """
        return tuple(node for node in self.nodes if node == self.head or not node.quarantined)

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices in `wanted` that no node has."""
        there = {node.index for node in self.nodes}
        return tuple(index for index in self.wanted if index not in there)


# Folders next to those of the clusters, which `down` would delete.
_OTHER_FOLDERS = {
    "lab": "is the local EC2's",
    "cache": "holds what was downloaded",
    "signatures": "holds your signatures for `explain`",
}


def check_name(of: str, name: str) -> str:
    """Return the name of a cluster or network (`of`). Raise UsageError if it cannot be used in
    tags, folders and host names."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name, re.ASCII) or name.endswith("-"):
        raise UsageError(
            f"not a {of} name: {name!r}",
            "use up to 40 lower-case letters, digits and hyphens, a letter first",
        )
    return name


def check_cluster_name(name: str) -> str:
    """Return `name`. Raise UsageError if no cluster can have it."""
    check_name("cluster", name)
    if name in _OTHER_FOLDERS:
        raise UsageError(
            f"a cluster cannot be called {name}", f"that folder {_OTHER_FOLDERS[name]}"
        )
    return name


def is_cluster_name(name: str) -> bool:
    """Return whether check_cluster_name accepts `name`."""
    try:
        return bool(check_cluster_name(name))
    except UsageError:
        return False


# Tags that a user may add to a cluster. EC2 allows 50 for each resource; clusterctl uses the rest.
MOST_TAGS = 30
# Nodes of one cluster. A higher number is more likely a typing error than meant.
MOST_NODES = 10_000
USER_DATA_BYTES = 16 * 1024  # EC2's limit, before base64


class Market(Enum):
    """The way the instances are paid for. A Capacity Block is paid for in advance."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    CAPACITY_BLOCK = "capacity-block"


@dataclass(frozen=True)
class Disk:
    """A node's root volume, which is an encrypted gp3. The launcher fills in fields that are None.

    `kms_key` is the id, the alias or the ARN of a key. None means the account's default key for
    EBS. `load_mib_s` is the rate at which EC2 fills a new volume from its image, 0 to let it load
    each block when it is first read.
    """

    size_gib: int | None = None
    iops: int | None = None
    throughput_mib_s: int | None = None
    kms_key: str | None = None
    load_mib_s: int | None = None


@dataclass(frozen=True)
class Limits:
    """Limits on a cluster's cost and lifetime. None means that there is no such limit.

    The guard on the nodes enforces `max_hours`, `budget_usd` and `idle_minutes`, without the user's
    machine. A cluster that was stopped because it was idle is due for removal after `stopped_days`.
    A node whose instance store holds data counts as idle only with `idle_erases_store`. Raises
    UsageError for a value out of range, and for these two without `idle_minutes`.
    """

    max_hours: Optional[float] = None
    budget_usd: Optional[float] = None
    max_hourly_usd: Optional[float] = None
    idle_minutes: Optional[float] = None
    stopped_days: Optional[float] = None
    idle_erases_store: bool = False

    @property
    def ends(self) -> bool:
        """Whether the nodes shut down at some time even if they are busy."""
        return self.max_hours is not None or self.budget_usd is not None

    @property
    def at_power_off(self) -> str:
        """What EC2 does with a node that switches itself off: `stop` or `terminate`.

        EC2 has one setting for every power-off, whatever the reason. With an idle limit it must be
        `stop`, since an idle node keeps its disks. The node then also stops when its time is up.
        """
        return "terminate" if self.ends and not self.idle_minutes else "stop"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_set = value is not None and not isinstance(value, bool)
            if is_set and not 0 < value < 1e9:
                raise UsageError(f"not a limit for {name.replace('_', ' ')}: {value:g}")
        if self.stopped_days and not self.idle_minutes:
            raise UsageError(
                "a time after which a stopped cluster is removed needs an idle time that stops it",
                "give --idle-stop too",
            )
        if self.idle_erases_store and not self.idle_minutes:
            raise UsageError(
                "--idle-stop-erases-store changes what --idle-stop does, which is not given",
                "give --idle-stop too",
            )


# In place of an instance profile's name: one that `up` makes for the cluster, with a role.
NEW_PROFILE = "new"


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that the user requested. The launch plan decides fields that are None.

    `or_types` are tried in order when no zone has enough instances of `instance_type`; all nodes of
    a cluster still have one type. `min_nodes` is the smallest number of nodes that the user
    accepts. `subnet_id` and `network` exclude each other; without either the default VPC is used.
    `image` is an AMI id, the name of an SSM parameter or a name pattern. With None for
    `placement_group` or `efa`, the plan uses it where it helps. With `private` only the head node
    has a public address. `instance_profile` NEW_PROFILE is one of the cluster's own, whose nodes
    may read `data_buckets`, and read and write `checkpoint_prefixes`; each is BUCKET or
    BUCKET/PREFIX. Without `data_buckets` they may read every bucket. `by_add` is set if the missing
    nodes were requested by `add`, which the tags record. Raises UsageError for values that make no
    sense.
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
    data_buckets: tuple[str, ...] = ()
    checkpoint_prefixes: tuple[str, ...] = ()
    disk: Disk = field(default_factory=Disk)
    tags: tuple[tuple[str, str], ...] = ()
    limits: Limits = field(default_factory=Limits)
    by_add: bool = False

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
        if (self.data_buckets or self.checkpoint_prefixes) and self.instance_profile != NEW_PROFILE:
            raise UsageError(
                "--data-bucket and --checkpoint-prefix say what a cluster's own role allows",
                f"give --instance-profile {NEW_PROFILE} too",
            )
        _check_tags(self.tags)

    @property
    def types(self) -> tuple[str, ...]:
        """The acceptable instance types, the preferred one first."""
        return tuple(dict.fromkeys((self.instance_type, *self.or_types)))


def is_user_name(text: str) -> bool:
    """Return whether `text` is safe as a login user in ssh_config and on command lines."""
    return bool(re.fullmatch(r"[a-z_][a-z0-9_.-]{0,31}", text, re.ASCII))


def is_free_tag(key: str) -> bool:
    """Return whether users may set a tag with this key. AWS and clusterctl reserve some keys."""
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
                "a key has 1 to 128 characters, a value up to 256, all of them printable",
            )
    if len({key for key, _ in tags}) < len(tags):
        raise UsageError("a tag is given twice", "each key can have one value")
    if len(tags) > MOST_TAGS:
        raise UsageError(
            f"{len(tags)} tags are too many", f"give up to {MOST_TAGS}: EC2 takes 50, ours included"
        )
