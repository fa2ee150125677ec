"""`status` and `list`: what exists, as EC2 has it now."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import ASLEEP, AWAKE, Cluster, Node, NodeState
from clusterctl.domain.errors import AwsError, HostError, NoSuchCluster
from clusterctl.ec2.instances import (
    Instance,
    as_cluster,
    find_instances,
    impaired_checks,
    leaving_of,
    stopped_since,
    unfinished_of,
)
from clusterctl.ec2.tags import Unfinished
from clusterctl.operations.local_state import check_site

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.folder import ClusterFolder
    from clusterctl.transport.target import Target

# Nodes that fail together are asked for once.
FRESH_S = 5.0


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster, and all that costs money for it."""

    cluster: Cluster
    instances: tuple[Instance, ...] = ()

    @property
    def leaving(self) -> tuple[Node, ...]:
        """Nodes that are being replaced or removed, and cost until they are gone."""
        return tuple(found.node for found in leaving_of(self.instances))

    @property
    def unfinished(self) -> Unfinished:
        """What was asked for and is not done, and goes on when it is asked for again."""
        return unfinished_of(self.instances)

    @property
    def summary(self) -> str:
        """`4 running`, `3 running, 1 stopped, 1 missing`."""
        return states(self.cluster, len(self.cluster.missing))


def find_own(clients: Clients, folder: ClusterFolder) -> tuple[Instance, ...]:
    """The instances of a folder's cluster, in one look; none of another account's namesake.

    Raises UsageError where the cluster is elsewhere, AwsError.
    """
    instances = find_instances(clients.ec2, folder.path.name)
    check_site(folder, clients, instances)
    return instances


def cluster_status(clients: Clients, folder: ClusterFolder) -> ClusterStatus:
    """One look. Raises NoSuchCluster, UsageError, AwsError."""
    name = folder.path.name
    instances = find_own(clients, folder)
    cluster = as_cluster(clients.ec2, name, instances)
    if cluster is None:
        raise NoSuchCluster(
            f"there is no cluster {name} in {clients.ec2.meta.region_name}",
            f"see `clusterctl list`, or launch it: clusterctl up {name}",
        )
    return ClusterStatus(cluster, instances)


def states(cluster: Cluster, missing: int = 0) -> str:
    """The nodes counted by state, commonest first."""
    counts = Counter(shown_state(node) for node in cluster.nodes)
    parts = [f"{count} {state}" for state, count in counts.most_common()]
    return ", ".join([*parts, f"{missing} missing"] if missing else parts)


def shown_state(node: Node) -> str:
    """EC2's word; of a running node in quarantine that it is there."""
    runs = node.state is NodeState.RUNNING
    return "quarantined" if runs and node.quarantined else node.state.value


def in_ec2s_words(instance: Instance, impaired: str = "") -> str:
    """`running since 2026-11-22 14:06:57 UTC, its instance status check fails since …`."""
    node = instance.node
    if node.state in AWAKE:
        since = f" since {node.launched_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{node.state.value}{since}" + (f", {impaired}" if impaired else "")
    # EC2 does not say when a machine switched itself off.
    at = stopped_since(instance.state_since)
    since = f" since {at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
    reason = f" ({instance.state_reason})" if instance.state_reason else ""
    return node.state.value + since + reason


def what_helps(node: Node, impaired: bool, timed_out: bool) -> str:
    """The next command for a node that does not answer. `timed_out`: nobody took the connection."""
    name, _, index = node.name.rpartition("-")
    if node.state is NodeState.PENDING:
        return f"wait until it is ready: clusterctl up {name}"
    if node.state in ASLEEP:
        return f"switch it on: clusterctl start {name}"
    if node.state is not NodeState.RUNNING:
        return f"launch another in its place: clusterctl up {name}"
    anew = f"a new machine in its place: clusterctl replace {name} {index}"
    if index == "0":
        # Jobs, logs and checkpoints are on its disk.
        anew = (
            f"off and on again, disks kept: clusterctl stop {name} --force; clusterctl start {name}"
        )
    if timed_out and not impaired:
        return f"has this machine's address changed? clusterctl up {name} lets it in; else {anew}"
    return anew


@dataclass
class Ec2Explanation:
    """Adds to the error of an unreachable node what EC2 says of it, and what helps."""

    clients: Clients
    cluster: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked_at: float | None = None
    _found: Sequence[Instance] = ()
    _impaired: dict[str, str] = field(default_factory=dict)
    _unanswered: str = ""

    def __call__(self, target: Target, error: HostError) -> HostError:
        """The error with EC2's state of the node in it."""
        if isinstance(error.__cause__, HostError):
            # The jump host is why, and its own error says so.
            return error
        with self._lock:
            if self._asked_at is None or time.monotonic() - self._asked_at > FRESH_S:
                self._ask()
                self._asked_at = time.monotonic()
            of_node = [found for found in self._found if found.node.name == target.host]
            impaired, unanswered = self._impaired, self._unanswered
        # A node that was replaced has left an instance of its name behind.
        of_node.sort(key=lambda one: (one.node.state in (*AWAKE, *ASLEEP), one.node.launched_at))
        if unanswered:
            return _with(error, f"EC2 does not say why: {unanswered}", error.hint)
        if not of_node:
            hint = f"see `clusterctl status {self.cluster}`"
            return _with(error, "EC2 has no such instance", hint)
        node = of_node[-1].node
        check = impaired.get(node.instance_id, "")
        words = in_ec2s_words(of_node[-1], check)
        hint = what_helps(node, bool(check), isinstance(error.__cause__, TimeoutError))
        if target.down:
            # That is what is the matter, in EC2's words at more length.
            more = type(error)(error.host, f"its instance is {words}", hint)
        elif node.state is NodeState.RUNNING and target.address != node.address:
            words = f"EC2 has {node.instance_id} as {words}, at {node.address}"
            hint = f"the addresses here are out of date: clusterctl up {self.cluster}"
            more = _with(error, words, hint)
        else:
            more = _with(error, f"EC2 has {node.instance_id} as {words}", hint)
        more.is_off = node.state not in AWAKE
        return more

    def _ask(self) -> None:
        self._impaired, self._unanswered = {}, ""
        try:
            client = self.clients.ec2_at_once
            self._found = find_instances(client, self.cluster, ())
        except AwsError as refused:
            self._unanswered = refused.message
            return
        running = [one.node for one in self._found if one.node.state is NodeState.RUNNING]
        # A permission that policies of older versions do not give.
        with contextlib.suppress(AwsError):
            self._impaired = impaired_checks(client, [node.instance_id for node in running])


def _with(error: HostError, words: str, hint: str) -> HostError:
    return type(error)(error.host, f"{error.message}; {words}", hint)
