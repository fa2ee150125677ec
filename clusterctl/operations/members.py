"""`add`, `remove`, `replace` and quarantine: change the nodes of an existing cluster.

Each of `add`, `remove` and `replace` first records its work in tags of the nodes, so that it can be
interrupted at any point and continued by `up` or by the same command, also from another machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import ASLEEP, Cluster, ClusterSpec, Node, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError, no_such_cluster
from clusterctl.domain.ranges import check_indices, fold_hosts
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import (
    Instance,
    as_cluster,
    find_instances,
    leaving_of,
    members_of,
    missing_of,
    tag,
    unfinished_of,
    untag,
    wanted_of,
)
from clusterctl.ec2.launch.observe import Request, spec_of_existing
from clusterctl.ec2.launch.plan import LaunchPlan, unfinished_findings
from clusterctl.ec2.tags import Unfinished
from clusterctl.operations.access import cluster_key
from clusterctl.operations.down import wait_for_unfinished_launches
from clusterctl.operations.launcher import Launcher, LaunchRefused
from clusterctl.operations.local_state import sent_launches
from clusterctl.operations.readiness import make_ready
from clusterctl.operations.site import changing
from clusterctl.operations.up import (
    FREED_WITHIN_S,
    UpReport,
    clear_unfinished,
    plan_up,
    start_up,
    terminate_leaving,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.domain.files import ClusterFolder
    from clusterctl.ec2.session import Clients

# Characters of a quarantine's reason. With the time before it, it has to fit into a tag, which
# holds 256 characters.
MOST_OF_A_REASON = 200


@dataclass(frozen=True)
class ReducedCluster(Cluster):
    """The nodes that are left, and the names of those that are not.

    `is_finished` is false if a remaining node does not run: the nodes then have the old hosts file
    until the next `start` or `up`.
    """

    removed: tuple[str, ...] = ()
    is_finished: bool = True


def set_quarantine(
    clients: Clients, folder: ClusterFolder, indices: Sequence[int], reason: str | None
) -> Cluster:
    """Put these nodes into quarantine for this reason, or release them if `reason` is None.

    Commands leave a node in quarantine out unless they name it. Returns the changed cluster. Raises
    UsageError for the head node, an unknown index or an unsuitable reason, MissingTool without the
    cluster's key, NoSuchCluster, AwsError.
    """
    client, name = clients.ec2, folder.name
    if reason is not None and (len(reason) > MOST_OF_A_REASON or not reason.isprintable()):
        raise UsageError(
            f"a reason has up to {MOST_OF_A_REASON} characters, all of them printable",
            "a tag of EC2 keeps it",
        )
    with changing(folder, clients):
        there = _instances(client, folder)
        chosen = _chosen(name, members_of(there), indices)
        if reason is not None and 0 in indices:
            raise UsageError(
                f"{name}-0 is the head node, and jobs start there: it cannot be in quarantine",
                f"replace it: clusterctl replace {name} 0",
            )
        ids = [found.node.instance_id for found in chosen]
        text = ""
        if reason is None:
            untag(client, ids, tags.QUARANTINED)
        else:
            text = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {reason}".strip()
            _tag(client, chosen, {tags.QUARANTINED: text})
        now = (
            replace(one, node=replace(one.node, quarantined=text)) if one in chosen else one
            for one in there
        )
        return as_cluster(client, name, tuple(now))


def nearest_peer(cluster: Cluster, indices: Sequence[int]) -> Node:
    """Return the node in service from which nodes with these indices should copy data.

    Prefers the zone of the first of them, then a node other than the head node, then the nearest
    index. Raises UsageError if no other node is in service.
    """
    # Empty if that node is being replaced and has no instance yet.
    zones = [node.zone for node in cluster.nodes if node.index == min(indices)]
    peers = [node for node in cluster.in_service if node.index not in indices]
    if not peers:
        raise UsageError(
            f"no other node of {cluster.name} is in service to copy the data from",
            "copy them from here: clusterctl copy NAME FOLDER/ FOLDER/",
        )
    return min(
        peers,
        key=lambda node: (
            node.zone not in zones,
            node == cluster.head,
            abs(node.index - min(indices)),
        ),
    )


def plan_add(launcher: Launcher, count: int) -> LaunchPlan:
    """Return the steps that `add` would take. Changes nothing. Raises what `plan_up` raises."""
    return plan_up(launcher, _grown(launcher, count))


def add(launcher: Launcher, count: int) -> UpReport:
    """Launch `count` more nodes like the existing ones. Raises what `up` raises.

    An interrupted `add` continues when it is run again, and launches no further nodes until the
    first ones are ready.
    """
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        return start_up(launcher, _grown(launcher, count))


def remove(launcher: Launcher, indices: Sequence[int]) -> ReducedCluster:
    """Terminate these nodes, and update the files of the remaining ones.

    Also forgets missing nodes with these indices, so that `up` does not launch them. Raises
    UsageError for the head node or an unknown index, MissingTool without the cluster's key,
    NoSuchCluster, AwsError, and ClusterctlError, also if the head node is missing.
    """
    client, name = launcher.clients.ec2, launcher.name
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        there = _instances(client, launcher.folder)
        before = unfinished_of(there)
        # Wanted nodes without an instance can be removed, too: they died, or an `add` never got
        # them. A repeated `remove` accepts those that it has already terminated, and updates the
        # others.
        known = {*wanted_of(there), *(found.node.index for found in there)}
        check_indices(name, known, set(indices).difference(before.remove))
        check_removable(name, indices)
        check_head(name, there)
        names = tuple(f"{name}-{index}" for index in sorted(set(indices)))
        wanted = [index for index in wanted_of(there) if index not in indices]
        # Selected by index: if two machines have launched the same node, both instances go.
        rest = [found for found in members_of(there) if found.node.index not in indices]
        launcher.progress.step(f"removing {fold_hosts(names)}")
        requested = Unfinished(
            add=tuple(index for index in before.add if index not in indices),
            remove=tuple(sorted({*before.remove, *indices})),
            replace=tuple(index for index in before.replace if index not in indices),
        )
        # With these tags, neither `up` nor `start` launches or starts the removed nodes again.
        labels = {tags.NODES: tags.indices_text(wanted), tags.UNFINISHED: requested.text}
        _tag(client, rest, labels)
        # Otherwise an instance that `add` has launched, and EC2 does not show yet, would stay.
        notify, timeouts = launcher.progress.step, launcher.timeouts
        wait_for_unfinished_launches(client, launcher.folder, notify, timeouts)
        there = _instances(client, launcher.folder)
        terminate_leaving(launcher, leaving_of(there))
        left = members_of(there)
        cluster = as_cluster(client, name, left)
        is_finished = all(node.state is NodeState.RUNNING for node in cluster.nodes)
        if is_finished:
            cluster, *_ = make_ready(launcher, left, left)
            clear_unfinished(launcher)
        return ReducedCluster(**vars(cluster), removed=names, is_finished=is_finished)


def replace_nodes(launcher: Launcher, indices: Sequence[int]) -> UpReport:
    """Launch new instances for these nodes, then terminate the old ones, if they still exist.

    The new ones are in the same zone and placement group. In a full capacity reservation the old
    instances are terminated first, because the new ones need their places, but only after all
    checks. If the checks refuse, or EC2 has no capacity, the old nodes stay as they were. An
    interrupted `replace` continues when it is run again. Raises what `up` raises.
    """
    client, name = launcher.clients.ec2, launcher.name
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        there = _as_if_never_retired(find_instances(client, name))
        _check_there(client, launcher.folder, there)
        before = unfinished_of(there)
        # An index from an interrupted `replace` may already belong to the new instance, which must
        # not be replaced.
        fresh = [index for index in indices if index not in {*before.replace, *missing_of(there)}]
        old = _chosen(name, members_of(there), fresh)
        names = [f"{name}-{index}" for index in sorted(set(indices))]
        launcher.progress.step(f"replacing {fold_hosts(names)}")
        replaced = tuple(sorted({*before.replace, *(one.node.index for one in old)}))
        unfinished = replace(before, replace=replaced).text
        _tag(client, old, {tags.RETIRED: "yes"})
        if old:
            _tag(client, members_of(there), {tags.UNFINISHED: unfinished})
        if members_of(there)[0].reservation_id:
            # The old machine may have ended just now, and EC2 not yet show its place as free.
            capacity_s = max(launcher.capacity_timeout_s, FREED_WITHIN_S)
            launcher = replace(launcher, capacity_timeout_s=capacity_s)
        try:
            report = start_up(launcher, lambda there: spec_of_existing(name, there))
            # Its own tag is no work of an earlier command.
            return replace(report, finished=before)
        except ClusterctlError as failure:
            # With a launch of unknown outcome, the new nodes may still appear; `up` handles that.
            if not sent_launches(launcher.folder):
                with suppress(AwsError):
                    _close_failed_replacement(client, name, isinstance(failure, AwsError))
            if isinstance(failure, LaunchRefused):
                # Its own tags are no request of before.
                checked = (one for one in failure.findings if one.check != "cluster.unfinished")
                failure.findings = (*checked, *unfinished_findings(name, there))
            raise


def _as_if_never_retired(there: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the instances with the retired mark dropped where no replacement exists."""
    current = {found.node.index for found in there if not found.retired}
    return tuple(
        replace(found, retired=found.retired and found.node.index in current) for found in there
    )


def _close_failed_replacement(client: EC2Client, name: str, launched_none: bool) -> None:
    """Clean up after a failed `replace`, so that the next one launches new instances.

    An old node without a replacement becomes a member again. A replacement that did not get ready
    stays: `up` continues with it, and another `replace` replaces it. `launched_none` is true if EC2
    refused; replacements from an earlier run then stay recorded as unfinished.
    """
    there = find_instances(client, name)
    replaced = {found.node.index for found in members_of(there)}
    retired = [one for one in there if one.retired and one.node.index not in replaced]
    before = unfinished_of(there)
    kept = tuple(index for index in before.replace if launched_none and index in replaced)
    if kept != before.replace:
        _tag(client, there, {tags.UNFINISHED: replace(before, replace=kept).text})
    untag(client, [one.node.instance_id for one in retired], tags.RETIRED)


def _grown(launcher: Launcher, count: int) -> Request:
    """Return the request for a cluster with `count` more nodes."""

    def request(there: Sequence[Instance]) -> ClusterSpec:
        _check_there(launcher.clients.ec2, launcher.folder, there)
        name = launcher.name
        spec = grown(name, there, count, bool(sent_launches(launcher.folder)))
        if unfinished_of(there).add:
            launcher.progress.step(
                f"going on with what was not finished: {unfinished_of(there).described(name)}"
            )
        return spec

    return request


def grown(name: str, there: Sequence[Instance], count: int, under_way: bool) -> ClusterSpec:
    """Return the spec of the cluster with `count` more nodes. A pure function.

    If an `add` of the same number is unfinished, the spec is that of this `add`. `under_way` is
    true if a launch was sent whose outcome is not known. Raises UsageError for a count below 1, for
    stopped nodes, and if an `add` of another number has launched nodes, or may launch some, and is
    not finished.
    """
    if count < 1:
        raise UsageError(f"{count} more nodes make no sense", "ask for 1 or more")
    members = members_of(there)
    started = unfinished_of(there).add
    names = fold_hosts([f"{name}-{index}" for index in started])
    asleep = [one.node.name for one in members if one.node.state in ASLEEP]
    if asleep:
        finishes = f", which finishes the `add` of {names} too" if started else ""
        raise UsageError(
            f"{fold_hosts(asleep)}: stopped; nodes join a cluster that runs",
            f"start it first{finishes}: clusterctl start {name}",
        )
    spec = replace(spec_of_existing(name, there), by_add=True)
    if len(started) == count:
        return spec
    if started and (under_way or any(one.node.index in started for one in members)):
        raise UsageError(
            f"another `add` is not finished: that of {names}",
            f"finish it first (clusterctl up {name}), or do without: "
            f"clusterctl remove {name} {' '.join(map(str, started))}",
        )
    # Counted from the existing nodes: the nodes that a failed `add` wanted are dropped.
    return replace(spec, nodes=len(members) + count)


def _instances(client: EC2Client, folder: ClusterFolder) -> tuple[Instance, ...]:
    there = find_instances(client, folder.name)
    _check_there(client, folder, there)
    return there


def _check_there(client: EC2Client, folder: ClusterFolder, there: Sequence[Instance]) -> None:
    """Raise UsageError if all nodes are being replaced, NoSuchCluster if there is no instance,
    MissingTool without the cluster's key: nodes could not get the change."""
    name = folder.name
    if not members_of(there):
        if there:
            raise UsageError(
                f"all nodes of {name} are being replaced, and no new one is there",
                f"finish that first: clusterctl up {name}",
            )
        raise no_such_cluster(name, client.meta.region_name)
    cluster_key(folder)


def _chosen(name: str, nodes: Sequence[Instance], indices: Sequence[int]) -> tuple[Instance, ...]:
    """Return the nodes with these indices; of two with the same index, the later in `nodes`.

    Raises UsageError for an index that no node has.
    """
    by_index = {found.node.index: found for found in nodes}
    check_indices(name, by_index, indices)
    return tuple(by_index[index] for index in sorted(set(indices)))


def check_removable(name: str, indices: Collection[int]) -> None:
    """Raise UsageError for the head node."""
    if 0 in indices:
        raise UsageError(
            f"{name}-0 is the head node, and cannot be removed",
            f"replace it (clusterctl replace {name} 0), or remove the cluster: "
            f"clusterctl down {name}",
        )


def check_head(name: str, there: Sequence[Instance]) -> None:
    """Raise ClusterctlError if the head node is missing: it has the records of what jobs wrote."""
    if 0 in missing_of(there):
        raise ClusterctlError(
            f"{name}-0: the head node is gone, with the jobs and logs on its disk",
            f"launch another in its place: clusterctl up {name}",
        )


def _tag(client: EC2Client, instances: Sequence[Instance], labels: dict[str, str]) -> None:
    tag(client, [found.node.instance_id for found in instances], labels)
