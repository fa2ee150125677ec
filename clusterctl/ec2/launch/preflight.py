"""The checks before a launch, which find its problems before anything is created. Pure: no I/O.

Each check yields findings. CHECKS run once for a launch, TYPE_CHECKS for each instance type.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from clusterctl.domain.cluster import USER_DATA_BYTES, ClusterSpec, Limits, Market
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import Finding, Severity, as_warning, errors, in_order
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count
from clusterctl.ec2.instances import Instance, duplicate_nodes, members_or_all
from clusterctl.ec2.launch.capacity import (
    LINUX,
    Reservation,
    end_finding,
    quota_exceeded_finding,
    quota_finding,
)
from clusterctl.ec2.launch.observe import Catalogue, Observed
from clusterctl.ec2.launch.request import (
    LOAD_MIB_S,
    LOAD_REGION_MIB_S,
    interfaces_needed,
    lacks_public_address,
    root_disk,
)
from clusterctl.ec2.machines import Image, MachineType, image_findings, retired_finding
from clusterctl.ec2.money.costs import CostEstimate, budget_findings, estimate
from clusterctl.ec2.network.vpcs import Egress, Subnet
from clusterctl.ec2.resources import anothers_key
from clusterctl.ec2.tags import format_limits, parse_limits


def check_request(observed: Observed, public_key: str) -> None:
    """Raise if the existing cluster cannot become the requested one by adding nodes.

    Raises UsageError for too much user data or fewer nodes than exist, ClusterctlError for several
    instances with one index, MissingTool if the private key is not on this machine.
    """
    spec = observed.spec
    if len(spec.user_data) > USER_DATA_BYTES:
        raise UsageError(
            f"the user data has {len(spec.user_data)} bytes; EC2 takes {USER_DATA_BYTES}",
            "let it fetch the rest, for example from S3",
        )
    _check_numbers(observed)
    if observed.key_pair and not observed.key_pair.holds(public_key):
        # Also without an instance: the other machine may be about to launch some with its key.
        raise anothers_key(spec.name)


def _check_numbers(observed: Observed) -> None:
    spec, members = observed.spec, [found.node for found in observed.members]
    if twice := duplicate_nodes(spec.name, members):
        raise twice
    indices = {node.index for node in members}
    if spec.nodes < len(indices):
        raise UsageError(
            f"cluster {spec.name} has {len(indices)} nodes, more than the {spec.nodes} requested",
            f"remove nodes by their index: clusterctl remove {spec.name} "
            f"{format_indices(sorted(indices)[spec.nodes :])}, or ask for --nodes {len(indices)}",
        )


def check_finished(observed: Observed, tokens: Iterable[str]) -> None:
    """Raise ClusterctlError if a launch of unknown outcome is not sent again.

    `tokens` are the client tokens of the planned launches.
    """
    if {sent.token for sent in observed.unresolved} - set(tokens):
        raise ClusterctlError(
            f"an earlier `up` of {observed.spec.name} with other settings was cut off; "
            "whether it launched anything is not known yet",
            f"run that `up` again, or remove what there is: clusterctl down {observed.spec.name}",
        )


@dataclass(frozen=True)
class LaunchContext:
    """What the checks read: the snapshot and the number of nodes to launch (`missing`).

    Each check in CHECKS gets only this, each in TYPE_CHECKS with one of the spec's types.
    """

    observed: Observed
    missing: int

    @property
    def spec(self) -> ClusterSpec:
        return self.observed.spec

    @property
    def catalogue(self) -> Catalogue:
        return self.observed.catalogue


# States of a reservation that will become active.
TO_COME = ("pending", "payment-pending", "scheduled", "assessing", "delayed")


def offered(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check that a zone with a usable subnet offers the type."""
    zones = {subnet.zone for subnet in context.catalogue.subnets}
    offered = context.catalogue.offers.get(machine.name, frozenset())
    if not offered:
        yield Finding.error(
            "type.offered",
            f"no zone of {context.observed.region} offers {machine.name}",
            "choose another --region or --instance-type",
        )
    elif context.spec.zone and context.spec.zone not in offered:
        yield Finding.error(
            "type.offered",
            f"{machine.name} is not offered in {context.spec.zone}",
            f"it is in {', '.join(sorted(offered))}: choose another --zone",
        )
    elif zones and not offered & zones:
        yield Finding.error(
            "type.offered",
            f"{machine.name} is offered in {', '.join(sorted(offered))}; "
            f"the subnets are in {', '.join(sorted(zones))}",
            "choose a --subnet or --network in one of its zones",
        )


def reservation(context: LaunchContext) -> Iterator[Finding]:
    """Check that the capacity reservation exists, is active, has room and fits the launch."""
    spec, found = context.spec, context.catalogue.reservation
    if spec.capacity_reservation is None:
        return
    if found is None:
        yield Finding.error(
            "reservation.none",
            f"there is no capacity reservation {spec.capacity_reservation} "
            f"in {context.observed.region}",
            _bound(context) or "see `aws ec2 describe-capacity-reservations`",
        )
        return
    if found.state != "active":
        yield _not_active(found, _bound(context))
    elif found.free + len(context.observed.freeing) < context.missing:
        fewer = "" if context.observed.members else "ask for fewer --nodes, or "
        fewer = "add fewer nodes, or " if spec.by_add else fewer
        yield Finding.error(
            "reservation.free",
            f"{found.reservation_id} has {count(found.free, 'machine')} left of {context.missing} "
            "that are needed",
            f"{fewer}wait for places with --capacity-timeout 30m: a terminated instance frees its "
            "own within minutes",
        )
    yield from _not_for_it(spec, found)
    if found.block:
        yield from _block(context)


def _not_for_it(spec: ClusterSpec, found: Reservation) -> Iterator[Finding]:
    """Check what a reservation is for: its type, zone, market, platform, tenancy."""
    name = found.reservation_id
    if spec.types != (found.instance_type,):
        yield Finding.error(
            "reservation.type",
            f"{name} is for {found.instance_type}",
            f"give --instance-type {found.instance_type}, and no --or-type",
        )
    if spec.zone and spec.zone != found.zone:
        yield Finding.error("reservation.zone", f"{name} is in {found.zone}", "leave --zone out")
    if spec.market is Market.SPOT:
        yield Finding.error("reservation.spot", f"{name} is no spot capacity", "leave --spot out")
    if found.placement_group:
        yield Finding.error(
            "reservation.placement",
            f"{name} is for a placement group of its own, which clusterctl does not launch into",
            "make a reservation without a placement group",
        )
    if found.interruptible:
        yield Finding.error(
            "reservation.interruptible",
            f"{name} is an interruptible reservation, which clusterctl does not launch into",
            "choose another: --capacity-reservation",
        )
    if found.platform != LINUX and spec.image is None:
        yield Finding.error(
            "reservation.platform",
            f"{name} is for {found.platform}, and the Deep Learning AMI is {LINUX}",
            "choose an image of that platform with --image, or another --capacity-reservation",
        )
    if found.tenancy != "default":
        yield Finding.error(
            "reservation.tenancy",
            f"{name} is of {found.tenancy} tenancy, and nodes are of default tenancy",
            "choose another: --capacity-reservation",
        )


# Errors that pass with time: with --capacity-timeout, `up` waits and checks again.
AWAITED = ("reservation.free", "reservation.start")


def _bound(context: LaunchContext) -> str:
    """Return what helps a cluster whose reservation takes no more nodes; empty for a new cluster.

    Its other nodes are in that reservation, and no command moves them to another.
    """
    name, there = context.spec.name, context.observed.members
    if not there:
        return ""
    return (
        f"the nodes of {name} that run go on, and no more can join them: forget missing ones "
        f"(clusterctl remove {name} INDEX), or launch a cluster of another name"
    )


def _not_active(found: Reservation, bound: str) -> Finding:
    to_come = found.state in TO_COME
    when = f", from {found.starts_at:%Y-%m-%d %H:%M %Z}" if to_come and found.starts_at else ""
    text = f"{found.reservation_id} is {found.state}, not active{when}"
    if to_come:
        return Finding.error(
            "reservation.start", text, "wait for its start: --capacity-timeout 12h"
        )
    hint = bound or "choose another: --capacity-reservation"
    return Finding.error("reservation.state", text, hint)


def _block(context: LaunchContext) -> Iterator[Finding]:
    found = context.catalogue.reservation
    if context.spec.min_nodes is not None:
        yield Finding.error(
            "reservation.min",
            "a Capacity Block launches all nodes or none",
            "leave --min-nodes out",
        )
    if found and found.machines_end_at:
        yield end_finding(found.machines_end_at, Severity.WARNING)


def spot(context: LaunchContext) -> Iterator[Finding]:
    """Warn that EC2 may terminate spot nodes."""
    if context.spec.market is Market.SPOT:
        yield Finding.warning(
            "market.spot",
            "EC2 may interrupt spot nodes with two minutes' notice, and one lost node ends an "
            "MPI job",
            "write checkpoints; each node notes the warning in /run/clusterctl",
        )


def limit_findings(observed: Observed) -> Iterator[Finding]:
    """Check the cluster's limits: combinations that do not work, and earlier ones that are gone."""
    spec = observed.spec
    yield from _dropped(spec, observed.instances)
    if not spec.limits.idle_minutes:
        return
    if spec.market is Market.SPOT:
        yield Finding.error(
            "market.idle",
            "spot nodes cannot be stopped, only terminated",
            "leave --idle-stop out, or limit the time with --max-hours",
        )
    elif spec.limits.ends:
        yield Finding.warning(
            "limits.both",
            "with --idle-stop nodes are only stopped at the end of their time, too, since EC2 has "
            "one setting for every power-off: their disks go on costing",
            f"remove them then: clusterctl down {spec.name}, or clusterctl gc --delete once "
            "--stopped-days have passed; without --idle-stop they are terminated",
        )


def store(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Say how limits that stop nodes treat an instance store, which a stop erases.

    (EC2 user guide, "Data persistence for Amazon EC2 instance store volumes".)
    """
    limits = context.spec.limits
    if not machine.store_gb or not limits.idle_minutes:
        return
    which = f"the instance store of {machine.name}, {machine.store_gb:,} GB at /opt/dlami/nvme"
    if limits.idle_erases_store:
        yield Finding.warning(
            "limits.store",
            f"each stop erases {which}: idleness stops the nodes, whatever is on it",
            "keep what is to last on the root volume or in S3",
        )
    else:
        yield Finding.warning(
            "limits.store",
            f"each stop erases {which}: nodes do not count as idle while data is on it"
            + (", but the end of the time stops them all the same" if limits.ends else ""),
            "keep what is to last on the root volume or in S3; --idle-stop-erases-store has "
            "idleness stop such nodes, too",
        )


def _dropped(spec: ClusterSpec, there: Sequence[Instance]) -> Iterator[Finding]:
    before = parse_limits(members_or_all(there)[0].limits_text) if there else Limits()
    held, hold = (format_limits(one).split() for one in (before, spec.limits))
    keys = {one.partition("=")[0] for one in hold}
    gone = [one for one in held if one.partition("=")[0] not in keys]
    if gone:
        ends = before.at_power_off == "stop" and spec.limits.at_power_off == "terminate"
        yield Finding.warning(
            "limits.dropped",
            f"this `up` replaces the earlier limits, and drops {', '.join(gone)}"
            + (": at their end the nodes are now terminated, with their disks" if ends else ""),
            "give every limit that is to hold in one command, for all of these: "
            f"clusterctl up {spec.name} {' '.join(map(_option, (*hold, *gone)))}",
        )


def _option(limit: str) -> str:
    """Return the option of a limit in `format_limits`, such as `max-hours=3`."""
    key, _, value = limit.partition("=")
    if key == "idle-erases-store":
        return "--idle-stop-erases-store"
    return f"--idle-stop {value}m" if key == "idle-minutes" else f"--{key} {value}"


def sold(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check that EC2 sells the type in the launch's market."""
    if machine.usage_classes and context.spec.market.value not in machine.usage_classes:
        yield Finding.error(
            "type.market",
            f"EC2 does not sell {machine.name} as {context.spec.market.value}",
            f"it sells it as {', '.join(machine.usage_classes)}",
        )


def quotas(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check the quotas of vCPUs, elastic addresses and network interfaces."""
    use = context.catalogue.quotas.get(machine.name)
    # Reserved capacity counts against the vCPU quota from its reservation on.
    if use and not context.spec.capacity_reservation:
        finding = quota_finding(use, machine, context.missing, context.observed.region)
        if finding:
            yield finding
    for finding in (_address(context, machine), _interfaces(context, machine)):
        if finding:
            yield finding


def _address(context: LaunchContext, machine: MachineType) -> Finding | None:
    use = context.catalogue.addresses
    if use is None or not lacks_public_address(context.spec, machine):
        return None
    wanted = "the head node, through which the others are reached, needs an elastic address"
    return quota_exceeded_finding("quota.addresses", use, 1, wanted, context.observed.region)


def _interfaces(context: LaunchContext, machine: MachineType) -> Finding | None:
    if context.catalogue.interfaces is None:
        return None
    need = interfaces_needed(machine, context.missing, context.spec)
    wanted = (
        f"{count(context.missing, 'more node')} ({machine.name}) "
        f"{'needs' if context.missing == 1 else 'need'} {need} network interfaces"
    )
    use, region = context.catalogue.interfaces, context.observed.region
    return quota_exceeded_finding("quota.interfaces", use, need, wanted, region)


# The least and most of a gp3 volume, and the most IOPS per GiB and MiB/s per IOPS (EBS user guide,
# 2026).
GP3_IOPS, GP3_MIB_S, GP3_GIB = (3000, 80_000), (125, 2000), (1, 65_536)
IOPS_PER_GIB, MIB_S_PER_IOPS = 500, 0.25


# Fields of Disk -> the options that set them.
OPTIONS = {
    "size_gib": "--disk-gib",
    "iops": "--disk-iops",
    "throughput_mib_s": "--disk-throughput",
    "kms_key": "--kms-key",
}


def kept(observed: Observed) -> Iterator[Finding]:
    """Warn if the requested disk differs from that of the existing nodes, which keep theirs.

    Options that the user left open have the head node's values in the spec, so they do not differ.
    """
    spec, members = observed.spec, members_or_all(observed.instances)
    if not members:
        return
    head = members[0].disk
    requested = [
        option
        for name, option in OPTIONS.items()
        if getattr(spec.disk, name) != getattr(head, name)
    ]
    if requested:
        yield Finding.warning(
            "disk.kept",
            f"{', '.join(requested)}: for new nodes only, existing ones keep their disks",
            f"another disk for all of them takes a new cluster: clusterctl down {spec.name}",
        )


def disk(context: LaunchContext) -> Iterator[Finding]:
    """Check the disk options against gp3's limits, the image's size and the key's region."""
    disk = context.spec.disk
    yield from _snapshot(disk.size_gib, set(context.catalogue.images.values()))
    yield from _key(disk.kms_key or "", context.observed.region)
    for what, value, (least, most), option in (
        ("GiB", disk.size_gib, GP3_GIB, "--disk-gib"),
        ("IOPS", disk.iops, GP3_IOPS, "--disk-iops"),
        ("MiB/s", disk.throughput_mib_s, GP3_MIB_S, "--disk-throughput"),
    ):
        if value is not None and not least <= value <= most:
            yield Finding.error(
                "disk.limits",
                f"a gp3 volume has {least} to {most} {what}, not {value}",
                f"choose another {option}",
            )
    if disk.load_mib_s:
        most = LOAD_REGION_MIB_S // context.missing
        if disk.load_mib_s not in LOAD_MIB_S or disk.load_mib_s > most:
            yield Finding.error(
                "disk.load",
                f"EC2 fills volumes at {LOAD_MIB_S[0]} to {LOAD_MIB_S[-1]} MiB/s, and all that are "
                f"filled at once in a region at {LOAD_REGION_MIB_S:,}: not "
                f"{count(context.missing, 'volume')} at {disk.load_mib_s}",
                "leave --disk-load out, or give --disk-load 0",
            )


def performance(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check IOPS and throughput of the root volume with the type's defaults filled in."""
    image = context.catalogue.images.get(machine.name)
    disk = root_disk(context.spec.disk, machine, image.root_gib if image else 0)
    iops, mib_s = disk.iops or GP3_IOPS[0], disk.throughput_mib_s or GP3_MIB_S[0]
    if not GP3_IOPS[0] <= iops <= GP3_IOPS[1] or not GP3_MIB_S[0] <= mib_s <= GP3_MIB_S[1]:
        return
    if disk.size_gib and 0 < disk.size_gib * IOPS_PER_GIB < iops:
        yield Finding.error(
            "disk.iops",
            f"{iops} IOPS need a volume of {-(-iops // IOPS_PER_GIB)} GiB, not {disk.size_gib}",
            "raise --disk-gib, or lower --disk-iops",
        )
    if mib_s > MIB_S_PER_IOPS * iops:
        needed = math.ceil(mib_s / MIB_S_PER_IOPS)
        yield Finding.error(
            "disk.throughput", f"{mib_s} MiB/s need {needed} IOPS", f"give --disk-iops {needed}"
        )


def _key(key: str, region: str) -> Iterator[Finding]:
    """Check that the KMS key is in the cluster's region.

    EC2 accepts a launch with a key of another region, and the nodes die while they start.
    """
    there = key.split(":")[3] if key.startswith("arn:") else region
    if there != region:
        yield Finding.error(
            "disk.key",
            f"the KMS key {key} is in {there}, the cluster would be in {region}",
            "choose another --kms-key: volumes are encrypted with keys of their own region",
        )


def _snapshot(size_gib: int | None, images: set[Image]) -> Iterator[Finding]:
    for image in sorted(images, key=lambda one: one.image_id):
        if size_gib is not None and size_gib < image.root_gib:
            yield Finding.error(
                "disk.size",
                f"a root volume of {size_gib} GiB is smaller than the image's snapshot: "
                f"{image.image_id} has {image.root_gib} GiB",
                f"give --disk-gib {image.root_gib} or more, or leave it out",
            )


# IP version -> prefix length. A network with a shorter prefix is too wide to be anybody's own.
NARROW_PREFIX = {4: 8, 6: 16}


def addresses(context: LaunchContext) -> Iterator[Finding]:
    """Check that a subnet exists in the zone and has an address for each node."""
    spec = context.spec
    subnets = [subnet for subnet in context.catalogue.subnets if spec.zone in (None, subnet.zone)]
    if not subnets:
        yield _no_subnet(context)
    elif all(subnet.free_addresses < context.missing for subnet in subnets):
        most = max(subnets, key=lambda subnet: subnet.free_addresses)
        yield Finding.error(
            "subnet.addresses",
            f"{count(context.missing, 'node')} need as many addresses; the subnet with the "
            f"most, {most.subnet_id} in {most.zone}, has {most.free_addresses} left",
            "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
        )


def ssh_findings(observed: Observed) -> Iterator[Finding]:
    """Warn if SSH is allowed from much of the internet.

    `network up` refuses that instead, see network/plan.py.
    """
    if not observed.ssh_from:
        return
    allowed = ipaddress.ip_network(observed.ssh_from, strict=False)
    if allowed.prefixlen >= NARROW_PREFIX[allowed.version]:
        return
    whole = "the whole internet" if not allowed.prefixlen else f"much of the internet: {allowed}"
    yield Finding.warning(
        "network.ssh",
        f"SSH is open to {whole}",
        "say from where you log in: --ssh-from 203.0.113.7/32",
    )


def _no_subnet(context: LaunchContext) -> Finding:
    spec = context.spec
    zones = sorted({subnet.zone for subnet in context.catalogue.subnets})
    if spec.zone and zones and (spec.subnet_id or spec.network):
        what = f"subnet {spec.subnet_id}" if spec.subnet_id else f"network {spec.network}"
        return Finding.error(
            "subnet.zone",
            f"{what} is in {', '.join(zones)}, not in {spec.zone}",
            f"leave --zone out, or give --zone {zones[0]}",
        )
    if spec.network:
        return Finding.error(
            "subnet.none",
            f"there is no network {spec.network} in {context.observed.region}",
            f"make it: clusterctl network up {spec.network}",
        )
    if spec.subnet_id:
        return Finding.error(
            "subnet.none",
            f"there is no subnet {spec.subnet_id} in {context.observed.region}",
            "subnet ids are regional: check --subnet and --region, or leave --subnet out",
        )
    where = f" in {spec.zone}" if spec.zone else ""
    return Finding.error(
        "subnet.none",
        f"the default VPC has no subnet{where}",
        "run `aws ec2 create-default-subnet`, or choose a --subnet or --network",
    )


def interfaces(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check that the type has EFA if it was requested; report nodes without a public address."""
    if context.spec.efa and not machine.efa_interfaces:
        yield Finding.error(
            "network.efa", f"{machine.name} has no EFA", "leave --efa out, or take a larger type"
        )
    if lacks_public_address(context.spec, machine) and not context.spec.private:
        yield Finding.info(
            "network.public",
            f"{machine.name} gets several network interfaces, with which EC2 gives no public "
            "address: the head node gets an elastic one, the others are reached through it",
        )


def open_subnets(observed: Observed) -> tuple[Subnet, ...]:
    """Return the subnets that a launch may use: where a new head node can be reached.

    A subnet counts as one where its routes are not known.
    """
    ways = observed.catalogue.ways_out
    return tuple(
        subnet
        for subnet in observed.catalogue.subnets
        if observed.head
        or (way := ways.get(subnet.subnet_id, Egress(""))).public
        or not way.table_id
    )


def way_in(context: LaunchContext) -> Iterator[Finding]:
    """Check that a new head node can be reached: its subnet leads to an internet gateway.

    Without one, EC2 refuses an elastic address when the nodes run already, and no login is possible
    by any other.
    """
    spec, subnets = context.spec, context.catalogue.subnets
    wanted = [subnet for subnet in subnets if spec.zone in (None, subnet.zone)]
    usable = open_subnets(context.observed)
    if wanted and not any(subnet in usable for subnet in wanted):
        ways = (context.catalogue.ways_out[subnet.subnet_id] for subnet in wanted)
        tables = ", ".join(sorted({way.table_id for way in ways}))
        yield Finding.error(
            "network.way_in",
            f"no login is possible: no route of {tables} leads "
            f"{', '.join(subnet.subnet_id for subnet in wanted)} to an internet gateway",
            "choose a public --subnet, add a route for 0.0.0.0/0 to an internet gateway, or make a "
            "network that has one: clusterctl network up NAME, and --network NAME",
        )


def way_out(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Warn about what nodes without a public address, all but the head node, cannot reach."""
    spec = context.spec
    if spec.nodes < 2 or not lacks_public_address(spec, machine):
        return
    lacking: dict[str, list[str]] = {}
    for subnet in context.catalogue.subnets:
        way = context.catalogue.ways_out.get(subnet.subnet_id)
        if way is None or not way.table_id or way.internet or spec.zone not in (None, subnet.zone):
            continue
        services = {"s3": "S3", "ssm": "Systems Manager"}
        missed = [text for service, text in services.items() if service not in way.services]
        lacking.setdefault(", ".join(missed), []).append(subnet.subnet_id)
    named = bool(spec.subnet_id or spec.network)
    for names, ids in lacking.items():
        option = f" --subnet {ids[0]}" if named else ""
        there = f"{names} or the internet (pip)" if names else "the internet (pip)"
        everywhere = len(ids) == len(context.catalogue.subnets) and not named
        where = "the default VPC" if everywhere else ", ".join(ids)
        text = (
            f"no route of {where} leads nodes without a public address, all but the head "
            f"node, to {there}"
        )
        if "S3" not in names:
            yield Finding.info("network.way_out", text)
            continue
        yield Finding.warning(
            "network.way_out",
            text,
            f"a gateway endpoint for S3 is free: clusterctl network s3{option}; or launch in "
            "a network that has one: clusterctl network up NAME, and --network NAME. The rest "
            "takes a NAT gateway",
        )


def placement(context: LaunchContext) -> Iterator[Finding]:
    """Check that reserved capacity is not combined with a placement group.

    A reservation is made in a placement group or outside of any (EC2 user guide, "Use Capacity
    Reservations with cluster placement groups").
    """
    if not context.spec.placement_group:
        return
    if context.spec.market is Market.CAPACITY_BLOCK:
        yield Finding.error(
            "placement.block",
            "a Capacity Block and a placement group exclude each other",
            "leave --placement-group out: a block's machines are close to each other anyway",
        )
    elif context.spec.capacity_reservation:
        yield Finding.error(
            "placement.reservation",
            f"{context.spec.capacity_reservation} was made outside of the cluster's placement "
            "group, and EC2 would launch none of it there",
            "leave --placement-group out",
        )


def placed(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Check that the type can be in a placement group if one was requested."""
    if context.spec.placement_group and "cluster" not in machine.placement_strategies:
        yield Finding.error(
            "placement.type",
            f"{machine.name} takes no cluster placement group",
            "give --no-placement-group",
        )


def single_node_growth(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    """Warn if a single node without a placement group or EFA grows into a cluster.

    By default a single node gets neither, and it cannot get them later.
    """
    spec, there = context.spec, context.observed.members
    if len(there) != 1 or spec.nodes < 2:
        return
    lacking = []
    if not there[0].placement_group and "cluster" in machine.placement_strategies:
        lacking.append(("a placement group", "--placement-group"))
    if not there[0].efa and machine.efa_interfaces:
        lacking.append(("EFA", "--efa"))
    if lacking and not spec.capacity_reservation:
        names = " or ".join(what for what, _ in lacking)
        options = " ".join(option for _, option in lacking)
        yield Finding.warning(
            "network.grown",
            f"{there[0].node.name} was launched without {names}, so the new nodes are too: "
            "traffic between them will be slower",
            f"for full speed launch all nodes at once: clusterctl down {spec.name}; "
            f"a single node that is to grow is launched with {options}",
        )


@dataclass(frozen=True)
class PreflightResult:
    """All findings, errors first, and the types without an error, in the order of the spec."""

    findings: tuple[Finding, ...]
    types: tuple[str, ...]


def preflight(observed: Observed, missing: int) -> PreflightResult:
    """Run every check for a launch of `missing` nodes.

    Where at least one of several types is usable, an error about another type becomes a warning,
    and that type is not tried.
    """
    context, spec = LaunchContext(observed, missing), observed.spec
    common = [
        *cluster_findings(observed),
        *(detail for check in CHECKS for detail in check(context)),
    ]
    by_type = {name: _of_type(context, name) for name in spec.types}
    usable = tuple(name for name, found in by_type.items() if not errors(found))
    for name, found in by_type.items():
        common += [_not_tried(name, one) if usable else one for one in found]
    # Several types may give the same finding: show it once.
    return PreflightResult(in_order(dict.fromkeys(common)), usable)


def cluster_findings(observed: Observed) -> Iterator[Finding]:
    """Run the checks that also concern a cluster that lacks no node."""
    yield from limit_findings(observed)
    yield from ssh_findings(observed)


def _of_type(context: LaunchContext, name: str) -> list[Finding]:
    machine = context.catalogue.machines.get(name)
    retired = retired_finding(name, machine is not None, context.observed.region)
    if machine is None:
        return [retired or _unknown(context, name)]
    found = [finding for check in TYPE_CHECKS for finding in check(context, machine)]
    return [retired, *found] if retired else found


def _not_tried(name: str, finding: Finding) -> Finding:
    warning = as_warning(finding)
    text = f"{name} is not tried: {finding.message}"
    return warning if warning is finding else replace(warning, message=text)


def _unknown(context: LaunchContext, name: str) -> Finding:
    return Finding.error(
        "type.unknown",
        f"EC2 has no instance type {name} in {context.observed.region}",
        "see `aws ec2 describe-instance-types`, or choose another --region",
    )


def _images(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    yield from image_findings(
        context.catalogue.images.get(machine.name), machine, context.spec.image
    )


def estimate_of(
    observed: Observed, machine: MachineType, nodes: int, addresses: int
) -> CostEstimate:
    """Return what so many nodes of this type with so many public addresses cost."""
    spec, catalogue = observed.spec, observed.catalogue
    image = catalogue.images.get(machine.name)
    disk = root_disk(spec.disk, machine, image.root_gib if image else 0)
    return estimate(
        catalogue.prices.get(machine.name),
        nodes,
        disk,
        addresses,
        instance_type=machine.name,
        market=spec.market,
    )


def cluster_estimate(observed: Observed, machine: MachineType) -> CostEstimate:
    """Return what the whole cluster costs if all its nodes are of this type."""
    nodes = observed.spec.nodes
    # One address, the head node's elastic one, where EC2 gives nodes none.
    return estimate_of(
        observed, machine, nodes, 1 if lacks_public_address(observed.spec, machine) else nodes
    )


def _money(context: LaunchContext, machine: MachineType) -> Iterator[Finding]:
    costs = cluster_estimate(context.observed, machine)
    yield from budget_findings(context.spec.limits, costs, context.catalogue.spent_usd)


CHECKS: tuple[Callable[[LaunchContext], Iterator[Finding]], ...] = (
    *(addresses, disk, placement, reservation, spot, way_in),
)
TYPE_CHECKS: tuple[Callable[[LaunchContext, MachineType], Iterator[Finding]], ...] = (
    *(offered, sold, _images, performance, interfaces, way_out, placed, single_node_growth, store),
    *(quotas, _money),
)
