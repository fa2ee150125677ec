"""Why instances were stopped or terminated, from EC2's reasons and the guards' notices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Optional

from clusterctl.domain.cluster import Market, NodeState
from clusterctl.ec2.instances import (
    Instance,
    find_instances,
    first_launch,
    stopped_since,
    unfinished_of,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

NOT_KNOWN = "the reason is not known"
# Of a missing node of which EC2 shows no instance.
NOT_SHOWN = "no instance has its tags: not launched, ended over an hour ago, or it lost them"
SPOT = "a spot interruption"
BLOCK = "the end of its Capacity Block"
# The code of an instance that switched itself off.
BY_ITSELF = "Client.InstanceInitiatedShutdown"
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
    "Client.UserInitiatedShutdown": "a request to EC2's API",
    "Client.UserInitiatedHibernate": "a request to EC2's API to hibernate it",
    "Client.InstanceTerminated": "the making of an image of it",
    "Client.InternalError": "an error in its launch, often a volume's key that EC2 cannot use",
    "Client.InvalidKMSKey.InvalidState": "a volume's key that is disabled or about to be deleted",
    "Client.InvalidSnapshot.NotFound": "an image whose snapshot does not exist",
    "Client.VolumeLimitExceeded": "the account's limit on volumes",
}
# The beginning of a StateTransitionReason without a code in the StateReason: "User initiated (2026-
# 11-21 16:18:17 GMT)". The second was found on spot instances and means any decision of EC2's own.
BY_TRANSITION = {
    "User initiated": BY_CODE["Client.UserInitiatedShutdown"],
    "Service initiated": "EC2 itself, without a reason",
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
    if BY_CODE.get(code) == SPOT or (noticed and not code.startswith("Client.")):
        by = BLOCK if instance.market is Market.CAPACITY_BLOCK and noticed else SPOT
        return WhyGone(by, at or (noticed.at if noticed else None), code)
    if code in BY_CODE:
        return WhyGone(BY_CODE[code], at, code)
    start = instance.transition_reason.partition(" (")[0]
    by = "" if code else BY_TRANSITION.get(start, "")
    return WhyGone(by, at, instance.state_reason or ("" if by else start))


def _of_notice(notice: Mapping[str, object], market: Market | None) -> WhyGone | None:
    """Return what a notice means; None if there is none, or only a recommendation to move."""
    if notice.get("action") not in ("terminate", "stop", "hibernate"):
        return None
    by = {Market.SPOT: SPOT, Market.CAPACITY_BLOCK: BLOCK, None: "EC2, which had given notice"}
    try:
        at = datetime.strptime(str(notice.get("time")), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return WhyGone(by.get(market, SPOT))
    return WhyGone(by.get(market, SPOT), at.replace(tzinfo=timezone.utc))


def newest(instances: Collection[Instance]) -> Instance | None:
    """Return the instance that was started last; None without one."""
    return max(instances, key=lambda one: one.node.launched_at, default=None)


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
    Instances that clusterctl replaced or removed are left out: their index is wanted again. So are
    those of an earlier cluster of that name, which ended before this one began. A missing node is
    not gone if its machine is being replaced, or if an unfinished `add` has not launched it.
    """
    began = min((first_launch(one) for one in there), default=None)
    own = [
        one
        for one in ended
        if not one.retired
        and (not began or (stopped_since(one.transition_reason) or began) >= began)
    ]
    being_replaced = {one.node.index for one in there}
    requested = unfinished_of(there).add
    last = {
        index: newest([one for one in own if one.node.index == index])
        for index in missing
        if index not in being_replaced
    }
    return {index: one for index, one in last.items() if one or index not in requested}
