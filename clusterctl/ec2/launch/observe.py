"""The facts that a launch is decided from: the existing cluster, EC2's offers, and the spec."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import (
    AWAKE,
    MOST_TAGS,
    NEW_PROFILE,
    ClusterSpec,
    Disk,
    Limits,
    Market,
    is_free_tag,
)
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError, no_such_cluster
from clusterctl.domain.timeouts import Age, Clock
from clusterctl.ec2.instances import (
    PRESENT,
    Instance,
    find_instances,
    find_profile_associations,
    launched_with,
    leaving_of,
    members_of,
    members_or_all,
    wanted_of,
)
from clusterctl.ec2.launch.attempt import UNKNOWN_FOR_S, SentLaunch, read_launches
from clusterctl.ec2.launch.capacity import (
    Offers,
    QuotaUse,
    Reservation,
    find_address_use,
    find_interface_use,
    find_offers,
    find_quota_uses,
    find_reservation,
)
from clusterctl.ec2.launch.request import interfaces_needed, lacks_public_address
from clusterctl.ec2.machines import Image, MachineType, find_image, find_machine_types, is_image_id
from clusterctl.ec2.money.costs import node_cost
from clusterctl.ec2.money.prices import Price, find_price, find_prices, price_key
from clusterctl.ec2.network.vpcs import (
    Egress,
    ElasticAddress,
    SecurityGroup,
    Subnet,
    Vpc,
    caller_cidr,
    find_subnets,
    find_vpc,
    find_ways_out,
    parse_cidr,
)
from clusterctl.ec2.node_role import NodeRole, find_node_role, with_policy_hint
from clusterctl.ec2.policy import EVERY_BUCKET, Bounds, node_policy
from clusterctl.ec2.resources import KeyPair, Resource, ResourceKind, details_of, find_made
from clusterctl.ec2.tags import Creations, parse_limits

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


def inherited(spec: ClusterSpec, instances: Sequence[Instance]) -> ClusterSpec:
    """Return the spec with all that it leaves open taken from the existing head node.

    The zone, image, market and so on: new nodes are like the existing ones. Without existing nodes
    the spec is returned unchanged. Raises UsageError where it requests something different.
    """
    members = members_or_all(instances)
    if not members:
        return spec
    head = members[0]
    _check(spec, head)
    return replace(
        spec,
        instance_type=head.node.instance_type,
        or_types=(),
        # A name pattern or SSM parameter may lead to a newer image by now. The cluster keeps its.
        image=head.image_id or spec.image,
        ssh_user=head.ssh_user,
        market=head.market,
        capacity_reservation=head.reservation_id or None,
        placement_group=bool(head.placement_group),
        efa=head.efa,
        zone=head.node.zone or None,
        subnet_id=head.subnet_id or None,
        network=None,
        private=head.private,
        instance_profile=spec.instance_profile or head.instance_profile or None,
        disk=_filled(spec.disk, head.disk),
        tags=spec.tags or _own_tags(head),
        limits=parse_limits(head.limits_text) if spec.limits == Limits() else spec.limits,
    )


def with_reservation_market(spec: ClusterSpec, reservation: Reservation | None) -> ClusterSpec:
    """Return the spec with the Capacity Block market if the reservation is a Capacity Block."""
    if reservation and reservation.block and spec.market is not Market.SPOT:
        return replace(spec, market=Market.CAPACITY_BLOCK)
    return spec


def spec_of_existing(name: str, instances: Sequence[Instance]) -> ClusterSpec:
    """Return a spec that requests an existing cluster as it is.

    Raises NoSuchCluster for a cluster without nodes.
    """
    members = members_or_all(instances)
    if not members:
        raise no_such_cluster(name)
    nodes = max(len(wanted_of(instances)), len(members))
    return ClusterSpec(name, nodes, members[0].node.instance_type)


def _check(spec: ClusterSpec, head: Instance) -> None:
    is_ami = bool(spec.image and is_image_id(spec.image))
    requested: list[tuple[str, object, object]] = [
        ("login user", spec.ssh_user, head.ssh_user),
        ("image", spec.image if is_ami else None, head.image_id or None),
        ("zone", spec.zone, head.node.zone or None),
        ("subnet", spec.subnet_id, head.subnet_id or None),
        ("capacity reservation", spec.capacity_reservation, head.reservation_id),
        ("market", None if spec.market is Market.ON_DEMAND else spec.market, head.market),
        ("a placement group", spec.placement_group, bool(head.placement_group)),
        ("EFA", spec.efa, head.efa),
        ("private nodes", spec.private or None, head.private),
    ]
    if head.node.instance_type not in spec.types:
        requested.insert(0, ("type", spec.instance_type, head.node.instance_type))
    for what, wanted, found in requested:
        # None means that the user left the option open, or that EC2 does not show the value.
        if wanted is not None and found is not None and found != wanted:
            raise UsageError(
                f"cluster {spec.name} has {_difference(what, wanted, found)}",
                f"leave that option out, or remove the cluster first: clusterctl down {spec.name}",
            )


def _difference(what: str, wanted: object, found: object) -> str:
    if found is True:
        return what
    if not found:
        return f"no {what.removeprefix('a ')}"
    shown = (one.value if isinstance(one, Market) else one for one in (found, wanted))
    return f"another {what}: {', not '.join(map(str, shown))}"


def _filled(disk: Disk, other: Disk) -> Disk:
    given = {one.name: getattr(disk, one.name) for one in fields(Disk)}
    return replace(other, **{name: value for name, value in given.items() if value is not None})


def _own_tags(head: Instance) -> tuple[tuple[str, str], ...]:
    # Other programs tag instances, too. Take no more tags than a launch can carry, and none that
    # `--tag` would refuse.
    own = [
        (key, value)
        for key, value in sorted(head.tags.items())
        if is_free_tag(key) and (key + value).isprintable()
    ]
    return tuple(own[:MOST_TAGS])


# The quota of network interfaces is checked only for launches of at least this many: a tenth of
# EC2's default quota. EC2 cannot count them, so a check lists all of the region's interfaces.
MANY_INTERFACES = 500
NO_SUBNET = ("InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed", "InvalidSubnetId.Malformed")


@dataclass(frozen=True)
class Catalogue:
    """What EC2 offers for a launch. The mappings are by instance type, `ways_out` by subnet id.

    `machines`, `images`, `prices` and `quotas` lack a type that EC2 does not know, and `images` one
    without an image. `ways_out` is empty where routes may not be read.
    `addresses` and `interfaces` are the use of these quotas; None where the launch takes no
    elastic address, or few interfaces. `spent_usd` is what the existing nodes have cost.
    """

    machines: Mapping[str, MachineType] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)
    offers: Offers = field(default_factory=dict)
    subnets: tuple[Subnet, ...] = ()
    reservation: Reservation | None = None
    prices: Mapping[str, Price | None] = field(default_factory=dict)
    quotas: Mapping[str, QuotaUse] = field(default_factory=dict)
    ways_out: Mapping[str, Egress] = field(default_factory=dict)
    addresses: QuotaUse | None = None
    interfaces: QuotaUse | None = None
    spent_usd: float = 0.0


# Returns the spec to launch, given the cluster's existing instances.
Request = Callable[[Sequence[Instance]], ClusterSpec]


def fixed_request(spec: ClusterSpec) -> Request:
    """Return a request for this spec that ignores the existing instances."""
    return lambda there: spec


@dataclass(frozen=True)
class Observed:
    """A snapshot of everything in the account that concerns one cluster, and the spec to launch.

    `spec` is complete, with what the user left open taken from the existing nodes. Only the user
    data lacks what `with_complete_user_data` (operations/guards.py) adds. All later code reads the
    spec from here. `instances` are those that are not shutting down or terminated, with those that
    are being replaced or removed. `catalogue` is empty where no node is missing. `ssh_from` is the
    network to allow SSH from; empty where this machine's public address is unknown and the security
    group's existing rules must do. `unresolved` are launches that were sent a short time ago and
    have shown no instance yet. `node_role` is the cluster's own role if the spec requests it, and
    `profile_associations` has the ids of those that have to change, by instance id. `age` is how
    long ago `instances` were read.
    """

    spec: ClusterSpec
    region: str
    vpc: Vpc
    ssh_from: str
    catalogue: Catalogue = field(default_factory=Catalogue)
    instances: tuple[Instance, ...] = ()
    key_pair: KeyPair | None = None
    group: SecurityGroup | None = None
    placement_group: Resource | None = None
    address: ElasticAddress | None = None
    unresolved: tuple[SentLaunch, ...] = ()
    node_role: NodeRole | None = None
    profile_associations: Mapping[str, str] = field(default_factory=dict)
    age: Age = field(default_factory=lambda: Age(Clock()), compare=False)

    @cached_property
    def members(self) -> tuple[Instance, ...]:
        """The instances without those that are being replaced or removed."""
        return members_of(self.instances)

    @cached_property
    def leaving(self) -> tuple[Instance, ...]:
        """The instances that are being replaced or removed."""
        return leaving_of(self.instances)

    @property
    def freeing(self) -> tuple[Instance, ...]:
        """The leaving instances whose end frees a place in the spec's capacity reservation."""
        wanted = self.spec.capacity_reservation
        running = (one for one in self.leaving if one.node.state in AWAKE)
        return tuple(one for one in running if wanted and one.reservation_id == wanted)

    @property
    def without_profile(self) -> tuple[Instance, ...]:
        """The members that do not have the spec's instance profile yet."""
        wanted = self.spec.instance_profile
        return tuple(one for one in self.members if wanted and one.instance_profile != wanted)

    @property
    def lacking(self) -> int:
        """How many nodes are missing."""
        return _lacking(self.spec, self.members)

    @property
    def head(self) -> Instance | None:
        """The head node; None if it does not exist."""
        return next((one for one in self.members if one.node.index == 0), None)


def observe(
    clients: Clients, name: str, request: Request, launch_record: Path, creations: Creations
) -> Observed:
    """Take a snapshot of a cluster and complete the spec to launch. Changes nothing in EC2.

    `request` makes the spec from the existing instances, `launch_record` is the file with the
    launches that were sent. Raises AwsError, ClusterctlError, and what `request` raises.
    """
    client, age = clients.ec2, Age(creations.timeouts.clock)
    sent = read_launches(launch_record)
    launched = launched_with(client, [one.token for one in sent])
    instances = _merged(find_instances(client, name), launched)
    # An instance in either response shows its launch's outcome, which is then not sent again.
    shown = {one.launch_token for one in (*instances, *launched)}
    recent = time.time() - UNKNOWN_FOR_S
    unresolved = tuple(one for one in sent if one.token not in shown and one.sent_at > recent)
    requested = request(instances)
    spec = inherited(requested, instances)
    members = members_of(instances)
    lacking = _lacking(spec, members)
    if requested.network and members:
        _check_network(client, requested, members[0])
    reservation = None
    if lacking and spec.capacity_reservation:
        reservation = find_reservation(client, spec.capacity_reservation)
        spec = with_reservation_market(spec, reservation)
    subnets = _subnets(clients, spec)
    vpc = _vpc(client, spec, subnets)
    made = find_made(client, name, creations)
    # An interrupted `up` may have left a group in another VPC. That one cannot be used here, and
    # `down` removes it.
    groups = details_of(made, SecurityGroup)
    group = next((one for one in groups if one.vpc_id == vpc.vpc_id), None)
    observed = Observed(
        spec=spec,
        region=client.meta.region_name,
        vpc=vpc,
        ssh_from=_ssh_from(client, spec, vpc, group),
        instances=instances,
        key_pair=next(iter(details_of(made, KeyPair)), None),
        group=group,
        placement_group=next(
            (one for one in made if one.kind is ResourceKind.PLACEMENT_GROUP), None
        ),
        address=next(iter(details_of(made, ElasticAddress)), None),
        unresolved=unresolved,
        age=age,
    )
    if requested.instance_profile:
        observed = _with_profile(clients, observed, creations)
    if not lacking:
        return observed
    return replace(observed, catalogue=_catalogue(clients, observed, reservation, subnets, lacking))


def _lacking(spec: ClusterSpec, members: Sequence[Instance]) -> int:
    return max(0, spec.nodes - len(members))


def _with_profile(clients: Clients, observed: Observed, creations: Creations) -> Observed:
    """Add what has to be known to give the nodes the instance profile that was requested."""
    if observed.spec.instance_profile == NEW_PROFILE:
        spec = observed.spec
        data = spec.data_buckets or (EVERY_BUCKET,)
        wanted = node_policy(Bounds(observed.region), data, spec.checkpoint_prefixes)
        with with_policy_hint():
            role = find_node_role(clients, spec.name, wanted, creations)
        spec = replace(spec, instance_profile=role.name, data_buckets=(), checkpoint_prefixes=())
        observed = replace(observed, node_role=role, spec=spec)
    others = [one.node.instance_id for one in observed.without_profile if one.instance_profile]
    return replace(
        observed,
        profile_associations=find_profile_associations(clients.ec2, others) if others else {},
    )


def _check_network(client: EC2Client, spec: ClusterSpec, head: Instance) -> None:
    """Raise UsageError if the existing nodes are not in the network that the spec names.

    An instance names its subnet but not the network, so compare with the network's subnets.
    """
    network = find_subnets(client, network=spec.network)
    if head.subnet_id not in {subnet.subnet_id for subnet in network}:
        raise UsageError(
            f"cluster {spec.name} is not in network {spec.network}, but in {head.subnet_id}",
            f"leave --network out, or remove the cluster first: clusterctl down {spec.name}",
        )


def _subnets(clients: Clients, spec: ClusterSpec) -> tuple[Subnet, ...]:
    if spec.subnet_id:
        try:
            return find_subnets(clients.ec2, subnet_ids=[spec.subnet_id])
        except AwsError as error:
            if error.code not in NO_SUBNET:
                raise
            return ()
    if spec.network:
        return find_subnets(clients.ec2, network=spec.network)
    return find_subnets(clients.ec2)


def _vpc(client: EC2Client, spec: ClusterSpec, subnets: tuple[Subnet, ...]) -> Vpc:
    if not subnets and (spec.subnet_id or spec.network):
        # The subnet or network does not exist. The preflight reports it, with all others.
        return Vpc("", "")
    return find_vpc(client, subnets[0].vpc_id if subnets else None)


def _catalogue(
    clients: Clients,
    observed: Observed,
    reservation: Reservation | None,
    subnets: tuple[Subnet, ...],
    lacking: int,
) -> Catalogue:
    client, spec = clients.ec2, observed.spec
    machines = find_machine_types(client, spec.types)
    without = any(lacks_public_address(spec, one) for one in machines.values())
    most = max((interfaces_needed(one, lacking, spec) for one in machines.values()), default=0)
    image = spec.image
    if image is None and observed.unresolved:
        # A newer default image may have appeared since the launch was sent. It can only be sent
        # again with its token if the request is the same.
        image = str(observed.unresolved[0].request.get("ImageId", "")) or None
    return Catalogue(
        machines=machines,
        images=_images(clients, image, machines),
        offers=find_offers(client, spec.types),
        subnets=subnets,
        reservation=reservation,
        prices={name: find_price(clients, name, spec.market, spec.zone) for name in machines},
        quotas=find_quota_uses(clients, machines.values(), spec.market),
        ways_out=_ways_out(client, subnets),
        addresses=find_address_use(clients) if without and not observed.address else None,
        interfaces=find_interface_use(clients) if most >= MANY_INTERFACES else None,
        spent_usd=_spent_usd(clients, observed.instances),
    )


def _ways_out(client: EC2Client, subnets: Sequence[Subnet]) -> Mapping[str, Egress]:
    try:
        return find_ways_out(client, subnets)
    except AwsError as error:
        if error.code != "UnauthorizedOperation":
            raise
        return {}


def _spent_usd(clients: Clients, there: tuple[Instance, ...]) -> float:
    prices = find_prices(clients, there)
    now = datetime.now(timezone.utc)
    return sum(node_cost(one, prices[price_key(one)], now).spent_usd for one in there)


def _images(
    clients: Clients, wanted: str | None, machines: Mapping[str, MachineType]
) -> dict[str, Image]:
    """Return the image for each type that has one. Types of one family take one query."""
    found: dict[str, Image | None] = {}
    kinds = {name: wanted or machine.family for name, machine in machines.items()}
    for name, machine in machines.items():
        if kinds[name] not in found:
            found[kinds[name]] = find_image(clients, wanted, machine)
    return {name: image for name in machines if (image := found[kinds[name]])}


def _ssh_from(client: EC2Client, spec: ClusterSpec, vpc: Vpc, group: SecurityGroup | None) -> str:
    if spec.ssh_from:
        return parse_cidr(spec.ssh_from)
    try:
        return caller_cidr(client.meta.endpoint_url, vpc)
    except ClusterctlError:
        # This machine may have no access to the web. The rules of an earlier `up` will do then.
        if group and group.ssh_from:
            return ""
        raise


def _merged(found: Sequence[Instance], launched: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return `found` with those of the launched instances that EC2 has left out there."""
    there = {one.node.instance_id for one in found}
    more = [one for one in launched if one.node.instance_id not in there]
    present = [one for one in more if one.node.state.value in PRESENT]
    return tuple(sorted((*found, *present), key=lambda one: (one.node.index, one.node.instance_id)))
