"""Listing of all resources in a region that carry one of clusterctl's tags, of any cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.results import WithError
from clusterctl.ec2.errors import translated
from clusterctl.ec2.resources import Resource, ResourceKind, list_kind

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
