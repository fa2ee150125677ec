"""`add`, `remove`, `replace`: the same cluster with other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import ASLEEP, Cluster, ClusterSpec, Node, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, NoSuchCluster, UsageError
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import (
    Instance,
    as_cluster,
    find_instances,
    members_of,
    standing,
    tag,
    unfinished_of,
    untag,
    wanted_of,
)
from clusterctl.ec2.launch.observe import Request, same_again
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.ec2.tags import Unfinished
from clusterctl.operations.down import await_sent
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.local_state import check_site, locked, sent_launches
from clusterctl.operations.readiness import make_ready
from clusterctl.operations.up import UpReport, bring_up, conclude, dismiss, plan_up

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients
    from clusterctl.operations.folder import ClusterFolder

MOST_OF_A_REASON = 200


@dataclass(frozen=True)
class RemoveReport:
    """What is left, and the names of the nodes that are gone. `settled`: the rest knows of it."""

    cluster: Cluster
    removed: tuple[str, ...]
    settled: bool


def set_quarantine(
    clients: Clients, folder: ClusterFolder, indices: Sequence[int], reason: str | None
) -> Cluster:
    """Take these nodes out of all that names no node, for this reason; None: bring them back.

    Returns the cluster as it is then. Raises UsageError, NoSuchCluster, AwsError.
    """
    client, name = clients.ec2, folder.path.name
    if reason is not None and (len(reason) > MOST_OF_A_REASON or not reason.isprintable()):
        raise UsageError(
            f"a reason has up to {MOST_OF_A_REASON} characters, and no line breaks",
            "a tag of EC2 keeps it",
        )
    with locked(folder):
        check_site(folder, clients)
        there = _instances(client, name)
        chosen = _chosen(name, members_of(there), indices)
        head = members_of(there)[0]
        if reason is not None and head in chosen:
            raise UsageError(
                f"{head.node.name} is the head node, and jobs start there: it cannot be in "
                "quarantine",
                f"replace it: clusterctl replace {name} {head.node.index}",
            )
        ids = [found.node.instance_id for found in chosen]
        now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {reason}".strip()
        if reason is None:
            untag(client, ids, tags.QUARANTINED)
        else:
            _tag(client, chosen, {tags.QUARANTINED: now})
        cluster = as_cluster(client, name, there)
        assert cluster is not None, "there is no cluster without instances"
        # As it was just tagged: EC2 may show it a moment later.
        nodes = (
            replace(node, quarantined="" if reason is None else now)
            if node.instance_id in ids
            else node
            for node in cluster.nodes
        )
        return replace(cluster, nodes=tuple(nodes))


def nearest_peer(cluster: Cluster, indices: Sequence[int]) -> Node:
    """The node in service that data for these come from: in the first one's zone if there is one,
    and no head node if there is another. Raises UsageError where there is none."""
    # One that is being replaced has no machine for a while.
    zones = [node.availability_zone for node in cluster.nodes if node.index == min(indices)]
    peers = [node for node in cluster.in_service if node.index not in indices]
    if not peers:
        raise UsageError(
            f"no other node of {cluster.name} is in service: nobody has the data",
            "copy them from here: clusterctl copy NAME FOLDER/ FOLDER/",
        )
    return min(
        peers,
        key=lambda node: (
            node.availability_zone not in zones,
            node == cluster.head,
            abs(node.index - min(indices)),
        ),
    )


def plan_add(launcher: Launcher, name: str, count: int) -> LaunchPlan:
    """The steps of `add`. Changes nothing."""
    return plan_up(launcher, _grown(launcher, name, count))


def add(launcher: Launcher, name: str, count: int) -> UpReport:
    """Launch `count` more nodes as those that are there. Raises what `up` raises.

    Cut off anywhere it goes on when it is run again, and adds no others until those are ready.
    """
    with locked(launcher.folder):
        check_site(launcher.folder, launcher.clients)
        return bring_up(launcher, _grown(launcher, name, count))


def remove(launcher: Launcher, name: str, indices: Sequence[int]) -> RemoveReport:
    """Take these nodes away, and tell the others. The head node stays.

    Raises UsageError for indices that are not there, NoSuchCluster, AwsError, ClusterctlError.
    """
    client = launcher.clients.ec2
    with locked(launcher.folder):
        check_site(launcher.folder, launcher.clients)
        there = _instances(client, name)
        # Those that died or that an `add` never got are wanted no more; the head node always is.
        lost = set(wanted_of(there)[1:]) - {found.node.index for found in there}
        # Also what an earlier `remove` did not get to terminate.
        nodes = [*there, *members_of(there)]
        # Those that it has terminated, and of which the others do not know yet.
        before = unfinished_of(there)
        gone = lost | set(before.remove) - {found.node.index for found in there}
        going = _chosen(name, nodes, [index for index in indices if index not in gone])
        _check_rest(name, there, going)
        names = tuple(f"{name}-{index}" for index in sorted(set(indices)))
        left = [index for index in wanted_of(there) if index not in indices]
        # Two machines may have launched the same node at once: both go.
        rest = [found for found in members_of(there) if found.node.index not in indices]
        launcher.progress.step(f"removing {fold_hosts(names)}")
        asked = Unfinished(
            add=tuple(index for index in before.add if index not in indices),
            remove=tuple(sorted({*before.remove, *indices})),
            replace=tuple(index for index in before.replace if index not in indices),
        )
        # From here on nothing brings them back: not `up`, not `start`.
        labels = {tags.NODES: tags.indices_text(left), tags.UNFINISHED: asked.text}
        _tag(client, rest, labels)
        # What an `add` has launched and EC2 does not show yet would stay.
        await_sent(client, launcher.folder, launcher.progress.step)
        dismiss(launcher, name)
        cluster = as_cluster(client, name, rest)
        assert cluster is not None, "the head node is left"
        settled = all(node.state is NodeState.RUNNING for node in cluster.nodes)
        if settled:
            cluster, *_ = make_ready(launcher, name, rest)
            conclude(launcher, name)
        return RemoveReport(cluster, names, settled)


def replace_nodes(launcher: Launcher, name: str, indices: Sequence[int]) -> UpReport:
    """New machines for these nodes, in the same zone and placement group, then the old ones go.

    Where the old machine's place is needed for the new one, in reserved capacity, it goes first.
    Raises what `up` raises; where no machine is to be had, the old nodes stay as they were.
    Cut off anywhere, it goes on when it is run again.
    """
    client = launcher.clients.ec2
    with locked(launcher.folder):
        check_site(launcher.folder, launcher.clients)
        there = _as_if_never_retired(find_instances(client, name))
        _check_there(client, name, there)
        before = unfinished_of(there)
        # A node that is asked for again may be the new machine already.
        fresh = [index for index in indices if index not in before.replace]
        old = _chosen(name, members_of(there), fresh)
        names = [f"{name}-{index}" for index in sorted(set(indices))]
        launcher.progress.step(f"replacing {fold_hosts(names)}")
        replaced = tuple(sorted({*before.replace, *(one.node.index for one in old)}))
        unfinished = replace(before, replace=replaced).text
        _tag(client, old, {tags.RETIRED: "yes"})
        if old:
            _tag(client, members_of(there), {tags.UNFINISHED: unfinished})
        if standing(there)[0].reservation_id:
            dismiss(launcher, name)
        try:
            return bring_up(launcher, lambda there: same_again(name, there))
        except ClusterctlError as failure:
            # A launch of unknown outcome may still bring the new nodes: `up` settles that.
            if not sent_launches(launcher.folder):
                with suppress(AwsError):
                    _close_failed_replacement(client, name, isinstance(failure, AwsError))
            raise


def _as_if_never_retired(there: Sequence[Instance]) -> tuple[Instance, ...]:
    """A node whose replacement never came is still the one there is."""
    current = {found.node.index for found in there if not found.retired}
    return tuple(
        replace(found, retired=found.retired and found.node.index in current) for found in there
    )


def _close_failed_replacement(client: EC2Client, name: str, launched_none: bool) -> None:
    """Clean up after a failed `replace`: the next one launches new machines instead of going on.

    What is still there and has no successor is a member again. A successor that did not get ready
    stays, for `up` to go on with; another `replace` replaces it.
    """
    there = find_instances(client, name)
    replaced = {found.node.index for found in members_of(there)}
    retired = [one for one in there if one.retired and one.node.index not in replaced]
    before = unfinished_of(there)
    kept = tuple(index for index in before.replace if launched_none and index in replaced)
    if kept != before.replace:
        _tag(client, there, {tags.UNFINISHED: replace(before, replace=kept).text})
    untag(client, [one.node.instance_id for one in retired], tags.RETIRED)


def _grown(launcher: Launcher, name: str, count: int) -> Request:
    def request(there: Sequence[Instance]) -> ClusterSpec:
        _check_there(launcher.clients.ec2, name, there)
        spec = grown(name, there, count, bool(sent_launches(launcher.folder)))
        if unfinished_of(there).add:
            launcher.progress.step(
                f"going on with what was not finished: {unfinished_of(there).told(name)}"
            )
        return spec

    return request


def grown(name: str, there: Sequence[Instance], count: int, under_way: bool) -> ClusterSpec:
    """The cluster with `count` more nodes, or with those that the same `add` had begun with. Pure.

    `under_way`: a launch was sent whose outcome is not known. Raises UsageError where another
    `add` has brought nodes and was not finished.
    """
    if count < 1:
        raise UsageError(f"{count} more nodes make no sense", "ask for 1 or more")
    members = members_of(there)
    begun = unfinished_of(there).add
    names = fold_hosts([f"{name}-{index}" for index in begun])
    asleep = [one.node.name for one in members if one.node.state in ASLEEP]
    if asleep:
        finishes = f", which finishes the `add` of {names} too" if begun else ""
        raise UsageError(
            f"{fold_hosts(asleep)}: stopped; nodes join a cluster that runs",
            f"start it first{finishes}: clusterctl start {name}",
        )
    spec = replace(same_again(name, there), adds=True)
    if len(begun) == count:
        return spec
    if begun and (under_way or any(one.node.index in begun for one in members)):
        raise UsageError(
            f"another `add` is not finished: that of {names}",
            f"finish it first (clusterctl up {name}), or do without: "
            f"clusterctl remove {name} {' '.join(map(str, begun))}",
        )
    # More than there are: what an `add` that failed had wanted is not wanted still.
    return replace(spec, nodes=len(members) + count)


def _instances(client: EC2Client, name: str) -> tuple[Instance, ...]:
    there = find_instances(client, name)
    _check_there(client, name, there)
    return there


def _check_there(client: EC2Client, name: str, there: Sequence[Instance]) -> None:
    if not members_of(there):
        if there:
            raise UsageError(
                f"all nodes of {name} are being replaced, and no new one is there",
                f"finish that first: clusterctl up {name}",
            )
        raise NoSuchCluster(
            f"there is no cluster {name} in {client.meta.region_name}",
            f"see `clusterctl list`, or launch it: clusterctl up {name}",
        )


def _chosen(name: str, nodes: Sequence[Instance], indices: Sequence[int]) -> tuple[Instance, ...]:
    """Return the nodes with these indices; of two with the same index the later.

    Raises UsageError for an index that no node has.
    """
    by_index = {found.node.index: found for found in nodes}
    missing = [index for index in indices if index not in by_index]
    if missing:
        raise UsageError(
            f"cluster {name} has no node {format_indices(missing)}",
            f"its nodes are {format_indices(by_index)}",
        )
    return tuple(by_index[index] for index in sorted(set(indices)))


def _check_rest(name: str, there: Sequence[Instance], going: Sequence[Instance]) -> None:
    head = members_of(there)[0]
    if head.node.index in {found.node.index for found in going}:
        raise UsageError(
            f"{head.node.name} is the head node, and cannot be removed",
            f"replace it (clusterctl replace {name} {head.node.index}), or remove the cluster: "
            f"clusterctl down {name}",
        )


def _tag(client: EC2Client, instances: Sequence[Instance], labels: dict[str, str]) -> None:
    tag(client, [found.node.instance_id for found in instances], labels)
