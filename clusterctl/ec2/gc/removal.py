"""Remove things one by one, by their ids, in the order in which they let go of each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.errors import gaps, throttled, translated
from clusterctl.ec2.gc.resources import Resource, ResourceKind
from clusterctl.ec2.gc.sweep import look_at

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Deletion:
    """The call that deletes one thing. `gone` are codes that say it is not there (any more)."""

    operation: str
    argument: str
    gone: tuple[str, ...]
    in_use: tuple[str, ...] = ()
    by_name: bool = False


DELETIONS = {
    ResourceKind.ADDRESS: Deletion(
        "release_address",
        "AllocationId",
        ("InvalidAllocationID.NotFound",),
        ("InvalidIPAddress.InUse",),
    ),
    ResourceKind.VOLUME: Deletion(
        "delete_volume", "VolumeId", ("InvalidVolume.NotFound",), ("VolumeInUse",)
    ),
    ResourceKind.INTERFACE: Deletion(
        "delete_network_interface",
        "NetworkInterfaceId",
        ("InvalidNetworkInterfaceID.NotFound",),
        ("InvalidNetworkInterface.InUse",),
    ),
    ResourceKind.PLACEMENT_GROUP: Deletion(
        "delete_placement_group",
        "GroupName",
        ("InvalidPlacementGroup.Unknown",),
        ("InvalidPlacementGroup.InUse",),
        by_name=True,
    ),
    ResourceKind.SECURITY_GROUP: Deletion(
        "delete_security_group",
        "GroupId",
        ("InvalidGroup.NotFound", "InvalidGroupId.NotFound"),
        ("DependencyViolation", "InvalidGroup.InUse"),
    ),
    ResourceKind.KEY_PAIR: Deletion(
        "delete_key_pair", "KeyName", ("InvalidKeyPair.NotFound",), by_name=True
    ),
}


TERMINATED_WITHIN_S = 900.0
# What an instance held lets go of it some time after it is gone. For all of a region together.
FREE_WITHIN_S = 120.0
NETWORK_WITHIN_S = 300.0
SAY_EVERY_S = 30.0
_BATCH = 100


@dataclass(frozen=True)
class Left:
    """What could not be removed, and why."""

    resource: Resource
    error: ClusterctlError


class _Teller:
    """Says now and then what is being waited for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: tuple[str, float] = ("", 0.0)

    def waits(self, what: str, why: str, within_s: float) -> None:
        subject, said_at = self._last
        if what != subject or time.monotonic() > said_at + SAY_EVERY_S:
            self._last = (what, time.monotonic())
            left = format_duration(max(0.0, within_s))
            self._tell(f"waiting for {what}: {why}; for {left} at most")


def remove(
    clients: Clients,
    region: str,
    resources: Sequence[Resource],
    on_gone: Callable[[Resource], None] = lambda resource: None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Left, ...]:
    """Delete these, and nothing else; what is left, with the reason. What is gone already is fine.

    `on_gone` is told as things go, `tell` what is being waited for. Nothing is raised but bugs and
    KeyboardInterrupt.
    """
    by_kind: dict[ResourceKind, list[Resource]] = {kind: [] for kind in ResourceKind}
    for resource in resources:
        by_kind[resource.kind].append(resource)
    teller = _Teller(tell)
    left = _terminate_and_wait(clients, region, by_kind[ResourceKind.INSTANCE], on_gone, teller)
    # What hangs on an instance that stays cannot go; nor need anybody wait for it.
    staying = {one.resource.id: one for one in left}
    deadline = time.monotonic() + FREE_WITHIN_S
    for kind, deletion in DELETIONS.items():
        for resource in by_kind[kind]:
            holder = staying.get(resource.attached_to)
            error = (
                holder.error
                if holder
                else _delete(clients.ec2, deletion, resource, deadline, teller)
            )
            if error:
                left.append(Left(resource, error))
            else:
                on_gone(resource)
    for resource in by_kind[ResourceKind.NETWORK]:
        try:
            _delete_network(clients, region, resource, teller)
            on_gone(resource)
        except ClusterctlError as failure:
            left.append(Left(resource, failure))
    return tuple(left)


def _delete(
    client: Any, deletion: Deletion, resource: Resource, deadline: float, teller: _Teller
) -> ClusterctlError | None:
    value = resource.name if deletion.by_name else resource.id
    for gap_s in gaps(0.5):
        try:
            with translated():
                getattr(client, deletion.operation)(**{deletion.argument: value})
            return None
        except AwsError as error:
            if error.code in deletion.gone:
                return None
            waits = error.code in deletion.in_use or throttled(error)
            if not waits:
                return error
            in_use = error.code in deletion.in_use
            left_s = deadline - time.monotonic()
            if left_s < 0:
                return _still_used(resource, error) if in_use else error
            why = "something still uses it" if in_use else "EC2 is throttling"
            teller.waits(_called(resource), why, left_s)
        time.sleep(gap_s)
    raise AssertionError("unreachable")


def still_there(one: Resource) -> ClusterctlError:
    """Of what a later look shows all the same."""
    return ClusterctlError(f"still there ({one.state})" if one.state else "still there")


def _called(resource: Resource) -> str:
    return f"{resource.kind.value} {resource.id} in {resource.region}"


def _still_used(resource: Resource, error: AwsError) -> AwsError:
    hint = "find what uses it, and run it again"
    if resource.kind is ResourceKind.SECURITY_GROUP:
        hint = (
            "what may use it: aws ec2 describe-network-interfaces --region "
            f"{resource.region} --filters Name=group-id,Values={resource.id}"
        )
    return AwsError(error.code, f"something still uses it: {error.message}", hint)


def _terminate_and_wait(
    clients: Clients,
    region: str,
    instances: Sequence[Resource],
    on_gone: Callable[[Resource], None],
    teller: _Teller,
) -> list[Left]:
    by_id = {one.id: one for one in instances}
    refused: dict[str, ClusterctlError] = {}
    ids = list(by_id)
    for start in range(0, len(ids), _BATCH):
        refused.update(_terminate(clients.ec2, ids[start : start + _BATCH]))
    waited_for = set(by_id) - set(refused)
    try:
        shown = _await_end(clients, region, waited_for, by_id, on_gone, teller)
    except AwsError as error:
        return [Left(by_id[one], refused.get(one, error)) for one in by_id]
    late = ClusterctlError("told to end, and still shutting down", "run it again later")
    refused.update(dict.fromkeys(shown, late))
    return [Left(by_id[one], error) for one, error in refused.items()]


def _terminate(client: Any, ids: Sequence[str]) -> Mapping[str, AwsError]:
    """Why some were refused."""
    try:
        with translated():
            client.terminate_instances(InstanceIds=list(ids))
    except AwsError as error:
        # One that is unknown or protected fails the call for all.
        if len(ids) > 1:
            refused: dict[str, AwsError] = {}
            for one in ids:
                refused.update(_terminate(client, [one]))
            return refused
        if error.code != "InvalidInstanceID.NotFound":
            return {ids[0]: error}
    return {}


def _await_end(
    clients: Clients,
    region: str,
    waited_for: Iterable[str],
    by_id: Mapping[str, Resource],
    on_gone: Callable[[Resource], None],
    teller: _Teller,
) -> set[str]:
    """Those that are still there at the deadline. Raises AwsError."""
    left = set(waited_for)
    deadline = time.monotonic() + TERMINATED_WITHIN_S
    for gap_s in gaps():
        if not left:
            break
        shown = {one.id for one in look_at(clients, region, ResourceKind.INSTANCE)}
        for one in sorted(left - shown):
            on_gone(by_id[one])
        left &= shown
        if not left or time.monotonic() > deadline:
            break
        what = f"{count(len(left), 'instance')} in {region}"
        teller.waits(what, "told to end", deadline - time.monotonic())
        time.sleep(gap_s)
    return left


def _delete_network(clients: Clients, region: str, network: Resource, teller: _Teller) -> None:
    """Raises AwsError, and ClusterctlError where CloudFormation gives up or takes too long."""
    with translated():
        clients.cloudformation.delete_stack(StackName=network.name)
    deadline = time.monotonic() + NETWORK_WITHIN_S
    for gap_s in gaps():
        shown = [
            one for one in look_at(clients, region, ResourceKind.NETWORK) if one.id == network.id
        ]
        if not shown:
            return
        if shown[0].state == "DELETE_FAILED" or time.monotonic() > deadline:
            raise ClusterctlError(
                f"CloudFormation has not deleted it ({shown[0].state})",
                f"aws cloudformation describe-stack-events --stack-name {network.name} says why",
            )
        teller.waits(_called(network), "CloudFormation deletes it", deadline - time.monotonic())
        time.sleep(gap_s)
