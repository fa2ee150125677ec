"""A cluster's key pairs and placement groups, and the removal of everything a cluster has."""

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
    """A key pair in EC2. `public_key` is an OpenSSH line, empty where EC2 does not return it."""

    name: str
    public_key: str

    def holds(self, public_key: str) -> bool:
        """Return whether this is the same key. The comments may differ."""
        return self.public_key.split()[:2] == public_key.split()[:2]


def find_key_pairs(client: EC2Client, name: str) -> tuple[KeyPair, ...]:
    """Return the key pairs with the cluster's tag: usually one or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_key_pairs(Filters=[of_cluster], IncludePublicKey=True)["KeyPairs"]
    return tuple(KeyPair(pair["KeyName"], pair.get("PublicKey", "")) for pair in found)


# How long a new placement group may stay in another state than `available`.
AVAILABLE_WITHIN_S = 60.0


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group. `state` is EC2's: `pending`, `available` or `deleting`."""

    name: str
    state: str


def find_placement_groups(client: EC2Client, name: str) -> tuple[PlacementGroup, ...]:
    """Return the placement groups with the cluster's tag: usually one or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_placement_groups(Filters=[of_cluster])
    return tuple(
        PlacementGroup(group["GroupName"], group.get("State", ""))
        for group in found["PlacementGroups"]
        if group.get("State") != "deleted"
    )


def await_available(client: EC2Client, name: str) -> None:
    """Wait until the cluster's placement group accepts instances.

    Raises AwsError, and ClusterctlError if that takes more than AVAILABLE_WITHIN_S.
    """
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
    """Delete the cluster's placement groups and return their names.

    EC2 refuses while terminated instances are still in a group: tries again for `timeout_s` in all.
    Raises AwsError.
    """
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
# Instances per TerminateInstances call.
BATCH = 100


def terminate_all(
    client: EC2Client,
    name: str,
    timeout_s: float,
    on_look: Callable[[Sequence[Instance]], None] = lambda left: None,
) -> tuple[str, ...]:
    """Terminate the cluster's instances, wait until they are gone, and return the nodes' names.

    Each poll finds instances by tag, so that it also terminates those that a launch still under
    way brings. `on_look` receives the remaining instances of each poll. Raises AwsError, and
    ClusterctlError after `timeout_s`.
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
    """Terminate these instances of a cluster and wait until they are gone.

    Repeats the request until they shut down: EC2 may accept one for an instance that is still
    pending and not carry it out. Raises AwsError, and ClusterctlError after `timeout_s`.
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
    """Call TerminateInstances and return the ids that EC2 accepted. Raises AwsError."""
    accepted = []
    for start in range(0, len(ids), BATCH):
        batch = list(ids[start : start + BATCH])
        try:
            with translated():
                client.terminate_instances(InstanceIds=batch)
            accepted += batch
        except AwsError as error:
            # One id that EC2 does not know, because it is too new or too old, fails the call for
            # all. So each is sent alone.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            if len(batch) > 1:
                accepted += [known for one in batch for known in _terminate(client, [one])]
    return accepted


def delete_groups(client: EC2Client, name: str, timeout_s: float) -> tuple[str, ...]:
    """Delete the cluster's security groups and return their ids.

    Waits up to `timeout_s` while something still uses a group. Raises AwsError.
    """
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
    """Delete the key pairs with these names. Raises AwsError."""
    for name in names:
        with translated():
            client.delete_key_pair(KeyName=name)


def await_launches(client: EC2Client, tokens: Sequence[str], until: float) -> None:
    """Wait until each of these client tokens has made instances, or until `until` (Unix time).

    For launches of unknown outcome. Raises AwsError.
    """
    for gap_s in gaps():
        if time.time() >= until or launched_with(client, tokens) >= set(tokens):
            return
        time.sleep(gap_s)
