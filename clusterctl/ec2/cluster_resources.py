"""What EC2 has of a cluster beside its instances, and how all of it is taken away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import gaps, translated
from clusterctl.ec2.instances import Instance, find_instances, launched_with
from clusterctl.ec2.network.vpcs import find_groups

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class KeyPair:
    name: str
    public_key: str

    def holds(self, public_key: str) -> bool:
        """Whether it is this key, whatever the comment."""
        return self.public_key.split()[:2] == public_key.split()[:2]


def find_key_pairs(client: EC2Client, name: str) -> tuple[KeyPair, ...]:
    """The key pairs with the cluster's tag: one, or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_key_pairs(Filters=[of_cluster], IncludePublicKey=True)["KeyPairs"]
    return tuple(KeyPair(pair["KeyName"], pair.get("PublicKey", "")) for pair in found)


AVAILABLE_WITHIN_S = 60.0


@dataclass(frozen=True)
class PlacementGroup:
    name: str
    state: str


def find_placement_groups(client: EC2Client, name: str) -> tuple[PlacementGroup, ...]:
    """Return the groups with the cluster's tag: one, or none. Raises AwsError."""
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


NOT_TERMINATED = ("pending", "running", "stopping", "stopped", "shutting-down")
BATCH = 100


def terminate_all(
    client: EC2Client,
    name: str,
    timeout_s: float,
    on_look: Callable[[Sequence[Instance]], None] = lambda left: None,
) -> tuple[str, ...]:
    """Terminate the cluster's instances and wait for their end; the names of the nodes there were.

    Looks by tag again and again, so that it also gets what a launch under way still brings.
    Raises AwsError, and ClusterctlError at the deadline.
    """
    deadline = time.monotonic() + timeout_s
    asked: set[str] = set()
    nodes: dict[str, None] = {}
    for gap_s in gaps():
        left = find_instances(client, name, NOT_TERMINATED)
        on_look(left)
        if not left:
            return tuple(nodes)
        nodes.update(dict.fromkeys(instance.node.name for instance in left))
        new = [found.node.instance_id for found in left if found.node.instance_id not in asked]
        asked.update(_terminate(client, new))
        if time.monotonic() > deadline:
            raise ClusterctlError(
                f"still shutting down: {', '.join(found.node.name for found in left)}",
                f"they are told to end; run it again later: clusterctl down {name}",
            )
        time.sleep(gap_s)
    raise AssertionError("unreachable")


def terminate_these(client: EC2Client, name: str, ids: Sequence[str], timeout_s: float) -> None:
    """Terminate these instances of a cluster and see them gone. Raises AwsError, ClusterctlError.

    Their word is not enough: EC2 may lose a request for an instance that is still pending.
    """
    deadline = time.monotonic() + timeout_s
    for gap_s in gaps():
        left = [
            found
            for found in find_instances(client, name, NOT_TERMINATED)
            if found.node.instance_id in ids
        ]
        if not left:
            return
        asked = [
            found.node.instance_id
            for found in left
            if found.node.state is not NodeState.SHUTTING_DOWN
        ]
        _terminate(client, asked)
        if time.monotonic() > deadline:
            raise ClusterctlError(
                f"still shutting down: {', '.join(found.node.name for found in left)}",
                f"they are told to end; see `clusterctl status {name}`",
            )
        time.sleep(gap_s)


def _terminate(client: EC2Client, ids: Sequence[str]) -> list[str]:
    """Ask EC2 to terminate these; return the ids that it has accepted."""
    accepted = []
    for start in range(0, len(ids), BATCH):
        batch = list(ids[start : start + BATCH])
        try:
            with translated():
                client.terminate_instances(InstanceIds=batch)
            accepted += batch
        except AwsError as error:
            # One id that EC2 does not know (yet, or any more) fails the call for all.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            if len(batch) > 1:
                accepted += [known for one in batch for known in _terminate(client, [one])]
    return accepted


def delete_groups(client: EC2Client, name: str, timeout_s: float) -> tuple[str, ...]:
    """Delete the cluster's security groups; waits while something still uses one."""
    groups = find_groups(client, name)
    deadline = time.monotonic() + timeout_s
    for group in groups:
        for gap_s in gaps(0.5):
            try:
                with translated():
                    client.delete_security_group(GroupId=group.group_id)
                break
            except AwsError as error:
                if error.code == "InvalidGroup.NotFound":
                    break
                if error.code != "DependencyViolation" or time.monotonic() > deadline:
                    raise
            time.sleep(gap_s)
    return tuple(group.group_id for group in groups)


def delete_key_pairs(client: EC2Client, names: Sequence[str]) -> None:
    """Delete these key pairs. Raises AwsError."""
    for name in names:
        with translated():
            client.delete_key_pair(KeyName=name)


def await_launches(client: EC2Client, tokens: Sequence[str], until: float) -> None:
    """Wait until launches of unknown outcome show their instances, or `until` (Unix time)."""
    for gap_s in gaps():
        if time.time() >= until or launched_with(client, tokens) >= set(tokens):
            return
        time.sleep(gap_s)
