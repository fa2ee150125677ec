"""Listing and removal of the resources that carry our tags, of any cluster. They are removed one by
one, by their ids, users before what they use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.results import WithError
from clusterctl.domain.timeouts import Clock, Polling
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.errors import translated
from clusterctl.ec2.network.stack import StackWork, find_stack
from clusterctl.ec2.node_role import delete_profile, delete_role
from clusterctl.ec2.resources import (
    DELETIONS,
    Resource,
    ResourceKind,
    delete,
    list_kind,
    terminate_each,
)

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


# After one of these errors every other call to the region would fail too.
_NO_ANSWER = (
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "AuthFailure"),
    *("OptInRequired", "ExpiredToken", "RequestExpired", "InvalidClientTokenId"),
    "UnrecognizedClientException",
)


@dataclass(frozen=True)
class Unlisted(WithError):
    """A kind of resource that could not be listed in a region, and why."""

    error: AwsError
    region: str
    kind: ResourceKind
    json_names = ("region", "kind", "message", "hint")


@dataclass(frozen=True)
class RegionResources:
    """The resources of one region, and the kinds that could not be listed there."""

    resources: tuple[Resource, ...] = ()
    failures: tuple[Unlisted, ...] = ()


def all_regions(clients: Clients) -> tuple[str, ...]:
    """Return the regions that are enabled for the account, sorted. Raises AwsError."""
    with translated():
        found = clients.ec2.describe_regions()["Regions"]
    return tuple(sorted(region["RegionName"] for region in found))


def list_region(clients: Clients, region: str, kinds: Iterable[ResourceKind]) -> RegionResources:
    """List the resources of these kinds, with one paginated call per kind.

    Raises no AwsError: a kind that EC2 refuses to list is in `failures`, and the others are listed.
    """
    found: list[Resource] = []
    failures: list[Unlisted] = []
    for kind in kinds:
        last = failures[-1].error if failures else None
        if last and last.code in _NO_ANSWER:
            failures.append(Unlisted(last, region, kind))
            continue
        try:
            found += list_kind(clients, region, kind)
        except AwsError as error:
            failures.append(Unlisted(error, region, kind))
    return RegionResources(tuple(found), tuple(failures))


def unreachable_region(region: str, error: ClusterctlError) -> RegionResources:
    """Return the result for a region where no call could be made: no kind is listed."""
    failure = error if isinstance(error, AwsError) else AwsError("", error.message, error.hint)
    return RegionResources(failures=tuple(Unlisted(failure, region, kind) for kind in ResourceKind))


TERMINATED_WITHIN_S = 900.0
# EC2 reports resources as in use for some time after their instance is gone. This is the longest
# wait for all resources of a region together.
FREE_WITHIN_S = 120.0
NETWORK_WITHIN_S = 300.0
# Time between two messages about the same wait.
SAY_EVERY_S = 30.0


@dataclass(frozen=True)
class RemainingResource(WithError):
    """A resource that could not be removed, and why."""

    resource: Resource
    json_names = ("resource", "message", "hint")


class _WaitReporter:
    """Reports waits to the user: each new one at once, then every SAY_EVERY_S."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._last: tuple[str, float] = ("", 0.0)

    def waits(self, what: str, why: str, within_s: float) -> None:
        subject, reported_at = self._last
        if what != subject or time.monotonic() > reported_at + SAY_EVERY_S:
            self._last = (what, time.monotonic())
            left = format_duration(max(0.0, within_s))
            self._notify(f"waiting for {what}: {why}; for {left} at most")


def remove(
    clients: Clients,
    region: str,
    resources: Sequence[Resource],
    on_gone: Callable[[Resource], None] = lambda resource: None,
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[RemainingResource, ...]:
    """Delete these resources of one region and return those that are left, with the reasons.

    A resource that does not exist counts as deleted. `on_gone` receives each resource as soon as
    it is gone, `notify` messages about waits. No AWS error is raised: each becomes a reason.
    """
    by_kind: dict[ResourceKind, list[Resource]] = {kind: [] for kind in ResourceKind}
    for resource in resources:
        by_kind[resource.kind].append(resource)
    teller = _WaitReporter(notify)
    left = _terminate_and_wait(clients, region, by_kind[ResourceKind.INSTANCE], on_gone, teller)
    # What is attached to an instance that stays cannot be deleted, so do not try or wait.
    staying = {one.resource.id: one for one in left}
    deadline = time.monotonic() + FREE_WITHIN_S
    for resource in (*by_kind[ResourceKind.PROFILE], *by_kind[ResourceKind.ROLE]):
        try:
            _delete_of_iam(clients.iam, resource)
            on_gone(resource)
        except AwsError as failure:
            left.append(RemainingResource(failure, resource))
    for kind in DELETIONS:
        for resource in by_kind[kind]:
            holder = staying.get(resource.attached_to)
            error = holder.error if holder else _delete(clients.ec2, resource, deadline, teller)
            if error:
                left.append(RemainingResource(error, resource))
            else:
                on_gone(resource)
    for resource in by_kind[ResourceKind.NETWORK]:
        try:
            if stack := find_stack(clients.cloudformation, resource.name):
                StackWork(clients.cloudformation, notify, NETWORK_WITHIN_S).delete(stack)
            on_gone(resource)
        except ClusterctlError as failure:
            left.append(RemainingResource(failure, resource))
    return tuple(left)


def _delete(
    client: Any, resource: Resource, deadline: float, teller: _WaitReporter
) -> ClusterctlError | None:
    in_use = DELETIONS[resource.kind].in_use

    def on_wait(error: AwsError, left_s: float) -> None:
        why = "something still uses it" if error.code in in_use else "EC2 is throttling"
        what = f"{resource.kind.value} {resource.id} in {resource.region}"
        teller.waits(what, why, left_s)

    try:
        delete(client, resource, deadline, on_wait)
        return None
    except AwsError as error:
        return _still_used(resource, error) if error.code in in_use else error


def _delete_of_iam(iam: Any, resource: Resource) -> None:
    if resource.kind is ResourceKind.PROFILE:
        delete_profile(iam, resource.name)
    else:
        again = f"clusterctl gc --cluster {resource.cluster} --delete"
        delete_role(iam, resource.name, again)


def still_exists_error(one: Resource) -> ClusterctlError:
    """Return the error for a resource that a later listing still has."""
    return ClusterctlError(f"still there ({one.state})" if one.state else "still there")


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
    teller: _WaitReporter,
) -> list[RemainingResource]:
    by_id = {one.id: one for one in instances}
    refused: dict[str, ClusterctlError] = {**terminate_each(clients.ec2, list(by_id))}
    waited_for = set(by_id) - set(refused)
    try:
        shown = _await_end(clients, region, waited_for, by_id, on_gone, teller)
    except AwsError as error:
        return [RemainingResource(refused.get(one, error), by_id[one]) for one in by_id]
    late = ClusterctlError("still shutting down", "run it again later")
    refused.update(dict.fromkeys(shown, late))
    return [RemainingResource(error, by_id[one]) for one, error in refused.items()]


def _await_end(
    clients: Clients,
    region: str,
    waited_for: Iterable[str],
    by_id: Mapping[str, Resource],
    on_gone: Callable[[Resource], None],
    teller: _WaitReporter,
) -> set[str]:
    """Wait until these instances are gone and return the ids of those that are not in time.

    Raises AwsError.
    """
    left = set(waited_for)
    polling = Polling(Clock(), TERMINATED_WITHIN_S)
    while left:
        shown = {one.id for one in list_kind(clients, region, ResourceKind.INSTANCE)}
        for one in sorted(left - shown):
            on_gone(by_id[one])
        left &= shown
        if not left or polling.left_s < 0:
            break
        what = f"{count(len(left), 'instance')} in {region}"
        teller.waits(what, "shutting down", polling.left_s)
        polling.wait()
    return left
