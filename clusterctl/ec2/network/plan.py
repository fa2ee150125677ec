"""The settings of a network, and what `network up` does to create or change it. Pure: no I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.domain.cluster import check_name
from clusterctl.domain.errors import ClusterctlError, UsageError

DEFAULT_CIDR = "10.20.0.0/16"
# The prefix lengths that a network may have. EC2 allows /16 to /28 for VPCs and subnets. Each of
# the two subnets has a quarter of the addresses.
LARGEST, SMALLEST = 16, 24
ZONES = 2
# RFC 1918's private addresses, and RFC 6598's shared ones.
_PRIVATE = tuple(
    ipaddress.IPv4Network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)


class Action(Enum):
    """What `network up` has to do."""

    CREATE = "create"
    # CloudFormation allows only the deletion of a stack whose creation failed.
    REPLACE = "delete what failed and create"
    UPDATE = "update"
    WAIT = "wait for what is under way"
    NOTHING = "nothing to do"


@dataclass(frozen=True)
class Stack:
    """A snapshot of a CloudFormation stack.

    `template` is the version of the template that it was last made or updated with (see
    `template_version`), empty for one that clusterctl did not make. `changed` is the time of its
    last update or deletion, empty if it was only created.
    """

    stack_id: str
    name: str
    status: str
    reason: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    changed: str = ""

    @property
    def in_progress(self) -> bool:
        """Whether CloudFormation is working on it."""
        # A change set that was made and never executed leaves REVIEW_IN_PROGRESS for ever.
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def usable(self) -> bool:
        """Whether its resources exist. They also do during and after the rollback of an update."""
        return "VpcId" in self.outputs and not self.status.startswith(("DELETE", "ROLLBACK"))


@dataclass(frozen=True)
class NetworkRequest:
    """The options of `network up`. None: keep the existing value, or the default for a new network.

    `for_type` is the instance type that the zones should offer. Raises UsageError for values that
    no network can have.
    """

    name: str
    cidr: str | None = None
    zones: tuple[str, ...] | None = None
    ssh_from: str | None = None
    for_type: str | None = None

    def __post_init__(self) -> None:
        check_name("network", self.name)
        if self.cidr is not None:
            check_cidr(self.cidr)
        if self.ssh_from is not None:
            check_ssh_from(self.ssh_from)
        if self.zones is not None:
            # `a` and `us-east-1a` are the same zone.
            letters = {zone[-1:] for zone in self.zones}
            if not len(self.zones) == len(letters) == ZONES:
                raise UsageError(
                    f"a network has {ZONES} different zones, not {','.join(self.zones)!r}",
                    "for example --zones a,b",
                )


@dataclass(frozen=True)
class NetworkSettings:
    """The complete settings of a network, as the stack's parameters have them."""

    name: str
    cidr: str
    zones: tuple[str, str]
    ssh_from: str

    def parameters(self) -> dict[str, str]:
        """Return the template's parameters by name."""
        first, second = subnet_cidrs(self.cidr)
        return {
            "Network": self.name,
            "Cidr": self.cidr,
            "FirstZone": self.zones[0],
            "FirstCidr": first,
            "SecondZone": self.zones[1],
            "SecondCidr": second,
            "SshFrom": self.ssh_from,
        }


def settings_of(name: str, parameters: Mapping[str, str]) -> NetworkSettings:
    """Return the settings of an existing stack from its parameters.

    Raises ClusterctlError if the stack lacks one, so that clusterctl did not make it.
    """
    try:
        zones = (parameters["FirstZone"], parameters["SecondZone"])
        return NetworkSettings(name, parameters["Cidr"], zones, parameters["SshFrom"])
    except KeyError as error:
        raise ClusterctlError(
            f"the stack {stack_name(name)} is not one that clusterctl made: "
            f"it has no parameter {error}",
            "choose another name for the network",
        ) from None


def stack_name(name: str) -> str:
    """Return the name of a network's stack."""
    return f"clusterctl-network-{name}"


def decide(stack: Stack | None, request: NetworkRequest, template: str) -> Action:
    """Decide what changes the network to the requested state.

    `template` is the present version of the template. Raises UsageError for a change that an
    existing network cannot get, ClusterctlError for a stack that the user has to repair.
    """
    if stack is None or stack.status == "DELETE_COMPLETE":
        return Action.CREATE
    if stack.in_progress:
        return Action.WAIT
    if stack.status in (
        "ROLLBACK_COMPLETE",
        "ROLLBACK_FAILED",
        "CREATE_FAILED",
        "REVIEW_IN_PROGRESS",
    ):
        return Action.REPLACE
    if stack.status == "DELETE_FAILED":
        raise ClusterctlError(
            f"network {request.name} was to be removed, and something of it is left",
            f"finish that first: clusterctl network down {request.name}",
        )
    if stack.status == "UPDATE_ROLLBACK_FAILED":
        raise ClusterctlError(
            f"a change of network {request.name} failed and could not be taken back",
            f"aws cloudformation continue-update-rollback --stack-name {stack.name}; "
            f"or remove it: clusterctl network down {request.name}",
        )
    given = settings_of(request.name, stack.parameters)
    _check_same(given, request)
    if request.ssh_from not in (None, given.ssh_from) or stack.template != template:
        return Action.UPDATE
    return Action.NOTHING


def _check_same(given: NetworkSettings, request: NetworkRequest) -> None:
    """Raise UsageError for other addresses or zones than the network has.

    A change of these would replace the subnets, with everything that runs in them.
    """
    hint = f"choose another name, or remove it first: clusterctl network down {request.name}"
    if request.cidr not in (None, given.cidr):
        raise UsageError(f"network {request.name} has {given.cidr}, not {request.cidr}", hint)
    requested = request.zones or given.zones
    if {*_full_names(requested, given.zones[0][:-1])} != {*given.zones}:
        raise UsageError(
            f"network {request.name} is in {' and '.join(given.zones)}, not "
            f"{' and '.join(requested)}",
            hint,
        )


def _full_names(zones: Sequence[str], region: str) -> list[str]:
    """Return the zones' full names. Each may be given by its letter."""
    return [zone if zone.startswith(region) else region + zone for zone in zones]


def choose_zones(
    region: str,
    available: Sequence[str],
    wanted: Sequence[str] | None,
    offered: frozenset[str] | None,
) -> tuple[str, str]:
    """Choose a network's two zones: those wanted, or the first two by name.

    `wanted` are names or letters of zones. `offered` are the zones that offer the user's instance
    type; they come first. Raises UsageError for an unknown zone, and where the region has too few
    zones or none offers the type.
    """
    if wanted:
        full = _full_names(wanted, region)
        unknown = [zone for zone in full if zone not in available]
        if unknown:
            raise UsageError(
                f"there is no zone {unknown[0]} for this account",
                f"its zones in {region}: {', '.join(sorted(available))}",
            )
        return full[0], full[1]
    if offered is not None and not offered & set(available):
        raise UsageError(
            f"no zone of {region} offers that instance type", "choose another --region"
        )
    ranked = sorted(available, key=lambda zone: (offered is not None and zone not in offered, zone))
    if len(ranked) < ZONES:
        raise UsageError(
            f"{region} has only {len(ranked)} zone for this account", "choose another --region"
        )
    return ranked[0], ranked[1]


def subnet_cidrs(cidr: str) -> tuple[str, str]:
    """Return the addresses of the two subnets, a quarter of the network each.

    Half of the network stays free for subnets that users add.
    """
    first, second, *_ = ipaddress.IPv4Network(cidr).subnets(prefixlen_diff=2)
    return str(first), str(second)


def check_cidr(cidr: str) -> None:
    """Raise UsageError unless a network can have these addresses."""
    block = _ipv4(cidr, "a network's addresses", DEFAULT_CIDR)
    if not LARGEST <= block.prefixlen <= SMALLEST:
        raise UsageError(
            f"a network cannot have {cidr}",
            f"take between /{LARGEST} and /{SMALLEST}, for example {DEFAULT_CIDR}",
        )
    if not any(block.subnet_of(private) for private in _PRIVATE):
        raise UsageError(
            f"{cidr} belongs to the public internet", f"take private addresses: {DEFAULT_CIDR}"
        )


def check_ssh_from(cidr: str) -> None:
    """Raise UsageError unless this is an IPv4 network, and not the whole internet."""
    if _ipv4(cidr, "where SSH may come from", "203.0.113.7/32").prefixlen == 0:
        raise UsageError(
            "SSH would be open to the whole internet",
            "say from where you log in: --ssh-from 203.0.113.7/32",
        )


def _ipv4(cidr: str, what: str, example: str) -> ipaddress.IPv4Network:
    try:
        if "/" not in cidr:
            raise ValueError("it has no /length")
        return ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise UsageError(
            f"not an IPv4 network for {what}: {cidr!r}: {error}", f"for example {example}"
        ) from None
