"""`status` and `list`: the clusters and nodes that exist, as EC2 shows them.

Also explains, from EC2's state, why a node does not answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import ASLEEP, AWAKE, Cluster, Market, Node, NodeState
from clusterctl.domain.errors import AwsError, HostError, KeyRefused
from clusterctl.domain.findings import Finding
from clusterctl.ec2.health import NOT_KNOWN, NOT_SHOWN, find_gone, impaired_checks, newest, why_gone
from clusterctl.ec2.instances import (
    Instance,
    as_cluster,
    duplicate_nodes,
    find_instances,
    leaving_of,
    unfinished_of,
)
from clusterctl.ec2.tags import Unfinished
from clusterctl.operations.ended import no_cluster
from clusterctl.operations.site import check_site

if TYPE_CHECKING:
    from clusterctl.domain.files import ClusterFolder
    from clusterctl.ec2.session import Clients
    from clusterctl.transport.dial import Target

# How many seconds EC2's answer is used again: nodes that fail together share one call.
FRESH_S = 5.0


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster and all its instances, including those that are being replaced or removed.

    `gone` has the last instance of each missing node, by index; None where EC2 shows none.
    """

    cluster: Cluster
    instances: tuple[Instance, ...] = ()
    gone: Mapping[int, Instance | None] = field(default_factory=dict)

    @property
    def leaving(self) -> tuple[Node, ...]:
        """The nodes that are being replaced or removed. They cost money until they are gone."""
        return tuple(found.node for found in leaving_of(self.instances))

    @property
    def unfinished(self) -> Unfinished:
        """What interrupted commands have not finished. `up` finishes it."""
        return unfinished_of(self.instances)

    @property
    def summary(self) -> str:
        """The nodes counted by state: `4 running`, `3 running, 1 stopped, 1 missing`."""
        return states(self.cluster.nodes, len(self.cluster.missing))

    @property
    def duplicates(self) -> list[Finding]:
        """The nodes that have several machines. No command but `remove` or `down` changes that."""
        twice = duplicate_nodes(self.cluster.name, self.cluster.nodes)
        return [Finding.warning("node.duplicate", twice.message, twice.hint)] if twice else []

    @property
    def findings(self) -> list[Finding]:
        """The nodes that have several machines, or are missing, with why they are gone."""
        name = self.cluster.name
        why = {
            f"{name}-{index}": f"it is gone: {why_gone(instance)}" if instance else NOT_SHOWN
            for index, instance in self.gone.items()
        }
        for node in self.leaving:
            if node.index in self.cluster.missing:
                why[node.name] = "it is being replaced, and its new machine is not launched yet"
        hint = f"launch another in its place: clusterctl up {name}"
        lost = "see whether a machine without them holds its volume: clusterctl gc --all; "
        return self.duplicates + [
            Finding.warning("node.missing", text, lost * (text == NOT_SHOWN) + hint, node)
            for node, text in why.items()
        ]


def find_own(clients: Clients, folder: ClusterFolder) -> tuple[Instance, ...]:
    """Return the instances of a folder's cluster, with one call to EC2.

    Raises UsageError if the folder's cluster is in another region or account, where a cluster of
    the same name may exist. Raises AwsError.
    """
    instances = find_instances(clients.ec2, folder.name)
    check_site(folder, clients, instances)
    return instances


def cluster_status(clients: Clients, folder: ClusterFolder) -> ClusterStatus:
    """Return a snapshot of a folder's cluster. Raises NoSuchCluster, UsageError, AwsError."""
    name = folder.name
    instances = find_own(clients, folder)
    if not instances:
        raise no_cluster(clients, folder)
    cluster = as_cluster(clients.ec2, name, instances)
    gone = find_gone(clients.ec2, name, cluster.missing, instances)
    return ClusterStatus(cluster, instances, gone)


def states(nodes: Iterable[Node], missing: int) -> str:
    """Return the nodes counted by state, the most common state first: `3 running, 1 stopped`."""
    counts = Counter(node.shown_state for node in nodes)
    parts = [f"{count} {state}" for state, count in counts.most_common()]
    return ", ".join([*parts, f"{missing} missing"] if missing else parts)


def describe_state(instance: Instance, impaired: str = "") -> str:
    """Return `running since 2026-11-22 14:06:57 UTC, its instance status check fails since …`, or
    `terminated: a spot interruption at 2026-11-22 14:06 UTC (Server.SpotInstanceTermination)`.

    `impaired` is the part about the status check; empty if none fails.
    """
    node = instance.node
    if node.state in AWAKE:
        since = f" since {node.launched_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{node.state.value}{since}" + (f", {impaired}" if impaired else "")
    return f"{node.state.value}: {why_gone(instance)}"


def unreachable_hint(instance: Instance, impaired: bool, timed_out: bool) -> str:
    """Return a hint with the next command for a node that does not answer.

    `impaired` is true if a status check fails. `timed_out` is true if the node did not accept the
    TCP connection, which may also mean that the security group has an old address of this machine.
    """
    node = instance.node
    name, _, index = node.name.rpartition("-")
    if node.state is NodeState.PENDING:
        return f"wait until it is ready: clusterctl up {name}"
    if node.state in ASLEEP:
        return f"switch it on: clusterctl start {name}"
    if node.state is not NodeState.RUNNING:
        return f"launch another in its place: clusterctl up {name}"
    again = f"a new machine in its place, its disks are lost: clusterctl replace {name} {index}"
    if index == "0" and instance.market is not Market.SPOT:
        # A replacement would lose the jobs, logs and checkpoints on the head node's disk. EC2 stops
        # no spot instance of a one-time request, so such a head node can only be replaced.
        again = (
            "all nodes off and on again (ends jobs; root volumes are kept): "
            f"clusterctl stop {name} --force; clusterctl start {name}"
        )
    again = f"if it does not come back in some minutes, {again}"
    if timed_out and not impaired:
        return f"has this machine's address changed? clusterctl up {name} lets it in; else {again}"
    return again


@dataclass
class Ec2Explanation:
    """Adds EC2's state of a node, and a hint, to the error of a node that cannot be reached.

    Used as the `explain` of Connections, from several threads. Never raises: if EC2 refuses, the
    error names the reason.
    """

    clients: Clients
    cluster: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _queried_at: float | None = None
    _found: Sequence[Instance] = ()
    _impaired: dict[str, str] = field(default_factory=dict)
    _unanswered: str = ""

    def __call__(self, target: Target, error: HostError) -> HostError:
        """Return the error with EC2's state of the node in its message."""
        if isinstance(error, KeyRefused) or isinstance(error.__cause__, HostError):
            # The host has answered. Or the jump host is the reason: its own error, the cause, is
            # already explained.
            return error
        with self._lock:
            self._refresh()
            of_node = [found for found in self._found if found.node.name == target.host]
            impaired, unanswered = self._impaired, self._unanswered
        # After a replacement, EC2 shows the terminated instance of the same name for an hour. The
        # last one is a live one, or else the newest.
        of_node.sort(key=lambda one: (one.node.state in (*AWAKE, *ASLEEP), one.node.launched_at))
        if unanswered:
            return _with(error, f"EC2 does not say why: {unanswered}", error.hint)
        if not of_node:
            hint = f"see `clusterctl status {self.cluster}`"
            return _with(error, "EC2 has no such instance", hint)
        node = of_node[-1].node
        check = impaired.get(node.instance_id, "")
        words = describe_state(of_node[-1], check)
        hint = unreachable_hint(of_node[-1], bool(check), isinstance(error.__cause__, TimeoutError))
        if target.down:
            # The message is already the state; this is the same with time and reason.
            more = type(error)(error.host, f"its instance is {words}", hint)
        elif node.state is NodeState.RUNNING and target.address != node.address:
            words = f"EC2 has {node.instance_id} as {words}, at {node.address}"
            hint = f"the addresses here are out of date: clusterctl up {self.cluster}"
            more = _with(error, words, hint)
        else:
            more = _with(error, f"EC2 has {node.instance_id} as {words}", hint)
        more.is_off = node.state not in AWAKE
        more.is_gone = more.is_off and node.state not in ASLEEP
        return more

    def why_lost(self, name: str, instance_id: str, notice: Mapping[str, object]) -> str:
        """Return why a node was lost, in words.

        Its machine is that of `instance_id`, or the last one of that name if that is empty: another
        may have been launched in its place. `notice` is what a guard saw of it beforehand; may be
        empty.
        """
        with self._lock:
            self._refresh()
            of_node = [found for found in self._found if found.node.name == name]
            unanswered = self._unanswered
        if instance_id:
            of_node = [found for found in of_node if found.node.instance_id == instance_id]
        instance = newest(of_node)
        if instance and instance.node.state in AWAKE:
            has = f"{NOT_KNOWN}: EC2 has {instance.node.instance_id} as {describe_state(instance)}"
            if notice and instance_id:
                has += f", and had given notice: {notice['action']} at {notice['time']}"
            return has
        why = why_gone(instance, notice)
        return (
            f"{why}: EC2 does not say it: {unanswered}" if unanswered and not why.by else str(why)
        )

    def _refresh(self) -> None:
        """Read again what EC2 has, unless that was a moment ago."""
        if self._queried_at is None or time.monotonic() - self._queried_at > FRESH_S:
            self._ask()
            self._queried_at = time.monotonic()

    def _ask(self) -> None:
        """Read the cluster's instances and failing status checks from EC2."""
        self._impaired, self._unanswered = {}, ""
        try:
            client = self.clients.ec2_at_once
            self._found = find_instances(client, self.cluster, ())
        except AwsError as refused:
            self._unanswered = refused.message
            return
        running = [one.node for one in self._found if one.node.state is NodeState.RUNNING]
        # The user's policy may lack ec2:DescribeInstanceStatus.
        with contextlib.suppress(AwsError):
            self._impaired = impaired_checks(client, [node.instance_id for node in running])


def _with(error: HostError, words: str, hint: str) -> HostError:
    return type(error)(error.host, f"{error.message}; {words}", hint)
