"""What EC2 reports of instances: failing checks, scheduled events, the end of their block, and why
they were stopped or terminated, also from the guards' notices.

A scheduled event, such as a retirement, strikes days after EC2 has announced it (EC2 user guide,
"Scheduled events for your instances").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.domain.cluster import Market, NodeState
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity, folded
from clusterctl.ec2.errors import codes, translated
from clusterctl.ec2.instances import (
    STATUS_IDS,
    Instance,
    batches,
    find_instances,
    first_launch,
    stopped_since,
    unfinished_of,
)
from clusterctl.ec2.launch.capacity import block_end, end_finding
from clusterctl.ec2.tags import read_time

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


# The status checks in DescribeInstanceStatus, and what each is about.
CHECKS = {
    "SystemStatus": "system",
    "InstanceStatus": "instance",
    "AttachedEbsStatus": "attached EBS",
}
# What a scheduled event does to a node.
EVENTS = {
    "instance-retirement": "EC2 stops or terminates it, because its hardware fails",
    "instance-stop": "EC2 stops it, because its hardware fails",
    "instance-reboot": "EC2 reboots it",
    "system-reboot": "EC2 reboots the machine below it",
    "system-maintenance": "its network or power may fail for a while",
}
# How long before the end of a Capacity Block it is a warning.
SOON = timedelta(days=1)
# EC2 goes on listing events for a week, with one of these before the description.
PAST = ("[Completed]", "[Canceled]")


def impaired_checks(client: EC2Client, instance_ids: Sequence[str]) -> dict[str, str]:
    """Return, by instance id, which status check of EC2 fails and since when.

    Instances that pass all checks are left out. Raises AwsError.
    """
    found = {one["InstanceId"]: failing_check(one) for one in _statuses(client, instance_ids)}
    return {id: message for id, message in found.items() if message}


def failing_check(status: Any) -> str:
    """Return which check fails in one of DescribeInstanceStatus' answers; empty for none."""
    for key, name in CHECKS.items():
        check = status.get(key) or {}
        if check.get("Status") == "impaired":
            times = [detail.get("ImpairedSince") for detail in check.get("Details", ())]
            since = "".join(f" since {at:%Y-%m-%d %H:%M:%S} UTC" for at in times if at)
            return f"its {name} status check fails{since}"
    return ""


def health_findings(client: EC2Client, instances: Sequence[Instance]) -> tuple[Finding, ...]:
    """Return warnings about the running nodes, and the end of their Capacity Block.

    The end is a warning if it is SOON, else information. Where EC2 refuses to answer, that is a
    finding. No AwsError is raised.
    """
    names = {
        one.node.instance_id: one.node.name
        for one in instances
        if one.node.state is NodeState.RUNNING
    }
    found: list[Finding] = []
    try:
        for status in _statuses(client, list(names)):
            found += _of_node(names[status["InstanceId"]], status)
    except AwsError as refused:
        found.append(_unknown("scheduled events and status checks", refused))
    try:
        ends = block_end(client, instances)
        if ends:
            is_soon = ends - datetime.now(timezone.utc) < SOON
            found.append(end_finding(ends, Severity.WARNING if is_soon else Severity.INFO))
    except AwsError as refused:
        found.append(_unknown("when the Capacity Block ends", refused))
    return tuple(folded(found))


def _unknown(what: str, refused: AwsError) -> Finding:
    text = f"not known: {what}: {refused.message}"
    return Finding.info("node.health", text, refused.hint)


def _of_node(name: str, status: Any) -> Iterator[Finding]:
    index = name.rpartition("-")[2]
    cluster = name.removesuffix(f"-{index}")
    replaced = f"clusterctl replace {cluster} {index}"
    failing = failing_check(status)
    if failing:
        yield Finding.warning("node.impaired", failing, f"if it lasts: {replaced}", name)
    for event in status.get("Events") or ():
        if event.get("Description", "").startswith(PAST):
            continue
        code, begins = event.get("Code", "an event"), event.get("NotBefore")
        what = EVENTS.get(code, event.get("Description") or "EC2 does not say what it does")
        at = f" at {begins:%Y-%m-%d %H:%M} UTC or later" if begins else ", EC2 does not say when"
        yield Finding.warning(
            "node.event",
            f"scheduled{at}: {code} ({what})",
            f"before then, between two jobs: {replaced}",
            name,
        )


def _statuses(client: EC2Client, instance_ids: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for batch in batches(instance_ids, STATUS_IDS):
        with translated():
            found += client.describe_instance_status(InstanceIds=batch)["InstanceStatuses"]
    return found


NOT_KNOWN = "the reason is not known"
# Of a missing node of which EC2 shows no instance.
NOT_SHOWN = (
    "no instance of this cluster has its tags: "
    "not launched, ended over an hour ago, or it lost them"
)
SPOT = "a spot interruption"
BLOCK = "the end of its Capacity Block"
# The code of an instance that switched itself off.
BY_ITSELF = "Client.InstanceInitiatedShutdown"
# The code of an end by TerminateInstances or StopInstances, and what that was of a retired node.
BY_USER = "Client.UserInitiatedShutdown"
BY_COMMAND = "clusterctl, which replaced or removed it"
# The code of EC2's StateReason -> what it means (EC2's API reference, StateReason). The reference
# does not list the spot codes that begin with Client.
BY_CODE = {
    "Server.SpotInstanceTermination": SPOT,
    "Server.SpotInstanceShutdown": SPOT,
    "Client.SpotInstanceShutdown": SPOT,
    "Client.SpotInstanceTermination": SPOT,
    "Server.ScheduledStop": "a retirement that EC2 had scheduled",
    "Server.InternalError": "an internal error of EC2, such as a failed host",
    "Server.InsufficientInstanceCapacity": "a lack of capacity at EC2",
    BY_ITSELF: "a shutdown on the node itself, by a command or a limit",
    BY_USER: "a request to EC2's API",
    "Client.UserInitiatedHibernate": "a request to EC2's API to hibernate it",
    "Client.InstanceTerminated": "the making of an image of it",
    "Client.InternalError": "an error in its launch, often a volume's key that EC2 cannot use",
    "Client.InvalidKMSKey.InvalidState": "a volume's key that is disabled or about to be deleted",
    "Client.InvalidSnapshot.NotFound": "an image whose snapshot does not exist",
    "Client.VolumeLimitExceeded": "the account's limit on volumes",
}
OF_ITS_OWN = "EC2 itself, without a reason"
# The beginning of a StateTransitionReason without a code in the StateReason: "User initiated (2026-
# 11-21 16:18:17 GMT)". The second was found on spot instances and means any decision of EC2's own.
BY_TRANSITION = {
    "User initiated": BY_CODE[BY_USER],
    "Service initiated": OF_ITS_OWN,
}
GONE = (NodeState.SHUTTING_DOWN.value, NodeState.TERMINATED.value)


@dataclass(frozen=True)
class WhyGone:
    """Why a node was stopped or terminated. `by` is who or what did it; empty if not known.

    `at` is the time, None if not known. `reason` is EC2's own reason, such as its code; may be
    empty.
    """

    by: str = ""
    at: Optional[datetime] = None
    reason: str = ""

    def __str__(self) -> str:
        at = f" at {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        return (self.by or NOT_KNOWN) + at + (f" ({self.reason})" if self.reason else "")


def why_gone(instance: Instance | None, notice: Mapping[str, object] | None = None) -> WhyGone:
    """Return why an instance is off or gone.

    `notice` is what a guard saw of it beforehand: its `action` and `time`, as EC2 gives them. For
    None EC2 does not show the instance, as an hour after its end. Pure.
    """
    noticed = _of_notice(notice or {}, instance.market if instance else None)
    if instance is None:
        return noticed or WhyGone()
    code, _, _ = instance.state_reason.partition(":")
    # EC2 may give the code only in this place.
    early, _, _ = instance.transition_reason.partition(":")
    code = code if code or early not in BY_CODE else early
    at = stopped_since(instance.transition_reason)
    if instance.retired and (code == BY_USER or (not code and early.startswith("User initiated"))):
        return WhyGone(BY_COMMAND, at, code)
    if BY_CODE.get(code) == SPOT or (noticed and not code.startswith("Client.")):
        by = BLOCK if instance.market is Market.CAPACITY_BLOCK and noticed else SPOT
        return WhyGone(by, at or (noticed.at if noticed else None), code)
    if code in BY_CODE:
        return WhyGone(BY_CODE[code], at, code)
    start = instance.transition_reason.partition(" (")[0]
    by = "" if code else BY_TRANSITION.get(start, "")
    if by == OF_ITS_OWN and instance.market is Market.CAPACITY_BLOCK:
        by = "EC2 itself, perhaps because its Capacity Block ended"
    return WhyGone(by, at, instance.state_reason or ("" if by else start))


def _of_notice(notice: Mapping[str, object], market: Market | None) -> WhyGone | None:
    """Return what a notice means; None if there is none, or only a recommendation to move."""
    if notice.get("action") not in ("terminate", "stop", "hibernate"):
        return None
    by = {Market.SPOT: SPOT, Market.CAPACITY_BLOCK: BLOCK, None: "EC2, which had given notice"}
    return WhyGone(by.get(market, SPOT), read_time(str(notice.get("time"))))


def newest(instances: Collection[Instance]) -> Instance | None:
    """Return the instance that was started last; None without one."""
    return max(instances, key=lambda one: (one.node.launched_at, not one.retired), default=None)


def find_gone(
    client: EC2Client, name: str, missing: Collection[int], there: Sequence[Instance]
) -> dict[int, Instance | None]:
    """Return what `gone_nodes` does of a cluster, from what EC2 shows. Raises AwsError."""
    return gone_nodes(find_instances(client, name, GONE) if missing else (), missing, there)


def gone_nodes(
    ended: Sequence[Instance], missing: Collection[int], there: Sequence[Instance]
) -> dict[int, Instance | None]:
    """Return the last instance of each missing node that is gone; None where EC2 has none. Pure.

    `ended` are those of that name, which EC2 shows for about an hour, `there` the cluster's others.
    Instances of an earlier cluster of that name, which ended before this one began, are left out.
    The last one may be `retired`: a command terminated it, or was to. A missing node is not gone if
    its machine is being replaced, or if an unfinished `add` has not launched it.
    """
    began = min((first_launch(one) for one in there), default=None)
    dated = [(at, one) for one in ended if (at := _ended_at(one))]
    for at, one in sorted(dated, key=lambda pair: pair[0], reverse=True):
        if began and at >= began:  # it ran beside one of this cluster, so it was of this cluster
            began = min(began, first_launch(one))
    own = [one for one in ended if not began or (_ended_at(one) or began) >= began]
    being_replaced = {one.node.index for one in there}
    requested = unfinished_of(there).add
    last = {
        index: newest([one for one in own if one.node.index == index])
        for index in missing
        if index not in being_replaced
    }
    return {
        index: one
        for index, one in last.items()
        if (one and not one.retired) or index not in requested
    }


def _ended_at(instance: Instance) -> datetime | None:
    """Return when an instance ended: one that died while starting, soon after its launch."""
    code, _, _ = instance.state_reason.partition(":")
    died = instance.node.launched_at if code in codes()["deaths"] else None
    return stopped_since(instance.transition_reason) or died
