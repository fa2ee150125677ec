"""What EC2 reports of running instances: failing checks, scheduled events, the end of their block.

A scheduled event, such as a retirement, strikes days after EC2 has announced it (EC2 user guide,
"Scheduled events for your instances").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity, folded
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import STATUS_IDS, Instance, batches
from clusterctl.ec2.launch.capacity import block_end, end_finding

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
