"""A cluster's placement group: one per cluster, found by its name, which is the cluster's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.polling import gaps

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

AVAILABLE_WITHIN_S = 60.0


@dataclass(frozen=True)
class PlacementGroup:
    name: str
    state: str


def find_placement_groups(client: EC2Client, name: str) -> tuple[PlacementGroup, ...]:
    """Those with the cluster's tag: one, or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_placement_groups(Filters=[of_cluster])
    return tuple(
        PlacementGroup(group["GroupName"], group.get("State", ""))
        for group in found["PlacementGroups"]
        if group.get("State") != "deleted"
    )


def await_available(client: EC2Client, name: str) -> None:
    """Wait until the placement group takes instances. Raises AwsError, ClusterctlError."""
    deadline = time.monotonic() + AVAILABLE_WITHIN_S
    for gap_s in gaps(0.1):
        states = {group.state for group in find_placement_groups(client, name)}
        if states == {"available"}:
            return
        if time.monotonic() > deadline:
            raise ClusterctlError(
                f"the placement group of {name} does not become available: "
                f"{', '.join(states) or 'EC2 does not show it'}",
                "run `up` again, or do without: --no-placement-group",
            )
        time.sleep(gap_s)


def delete_placement_groups(client: EC2Client, name: str, timeout_s: float) -> tuple[str, ...]:
    """Delete the cluster's placement groups, once their instances are gone; their names."""
    deadline = time.monotonic() + timeout_s
    deleted = []
    for group in find_placement_groups(client, name):
        if group.state == "deleting":
            continue
        deleted.append(group.name)
        for gap_s in gaps(0.5):
            try:
                with translated():
                    client.delete_placement_group(GroupName=group.name)
                break
            except AwsError as error:
                if error.code == "InvalidPlacementGroup.Unknown":
                    break
                if error.code != "InvalidPlacementGroup.InUse" or time.monotonic() > deadline:
                    raise
            time.sleep(gap_s)
    return tuple(deleted)
