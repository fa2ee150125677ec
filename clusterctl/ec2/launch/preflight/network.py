"""Subnets, interfaces, placement: whether there is room, and the wires fit. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import Market
from clusterctl.domain.units import count
from clusterctl.ec2.instances import members_of
from clusterctl.ec2.launch.interfaces import efa_wanted, several
from clusterctl.ec2.launch.preflight.case import Case, error
from clusterctl.ec2.machines import MachineType

# What is wider than this is nobody's own network. By IP version.
NARROW_PREFIX = {4: 8, 6: 16}


def addresses(case: Case) -> Iterator[Finding]:
    spec = case.spec
    subnets = [subnet for subnet in case.catalogue.subnets if spec.zone in (None, subnet.zone)]
    if not subnets:
        yield _no_subnet(case)
    elif all(subnet.free_addresses < case.missing for subnet in subnets):
        most = max(subnets, key=lambda subnet: subnet.free_addresses)
        yield error(
            "subnet.addresses",
            f"{count(case.missing, 'node')} need as many addresses; the roomiest subnet, "
            f"{most.subnet_id} in {most.zone}, has {most.free_addresses} left",
            "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
        )


def ssh(case: Case) -> Iterator[Finding]:
    yield from ssh_findings(case.seen.ssh_from)


def ssh_findings(ssh_from: str) -> Iterator[Finding]:
    """What is to be said of who may log in; `network up` refuses the whole internet."""
    if not ssh_from:
        return
    allowed = ipaddress.ip_network(ssh_from, strict=False)
    if allowed.prefixlen >= NARROW_PREFIX[allowed.version]:
        return
    whole = "the whole internet" if not allowed.prefixlen else f"much of the internet: {allowed}"
    yield Finding(
        "network.ssh",
        Severity.WARNING,
        f"SSH is open to {whole}",
        hint="say from where you log in: --ssh-from 203.0.113.7/32",
    )


def _no_subnet(case: Case) -> Finding:
    spec = case.spec
    zones = sorted({subnet.zone for subnet in case.catalogue.subnets})
    if spec.zone and zones and (spec.subnet_id or spec.network):
        what = f"subnet {spec.subnet_id}" if spec.subnet_id else f"network {spec.network}"
        return error(
            "subnet.zone",
            f"{what} is in {', '.join(zones)}, not in {spec.zone}",
            f"leave --zone out, or give --zone {zones[0]}",
        )
    if spec.network:
        return error(
            "subnet.none",
            f"there is no network {spec.network} in {case.seen.region}",
            f"make it: clusterctl network up {spec.network}",
        )
    if spec.subnet_id:
        return error(
            "subnet.none",
            f"there is no subnet {spec.subnet_id} in {case.seen.region}",
            "subnet ids are regional: check --subnet and --region, or leave --subnet out",
        )
    where = f" in {spec.zone}" if spec.zone else ""
    return error(
        "subnet.none",
        f"the default VPC has no subnet{where}",
        "run `aws ec2 create-default-subnet`, or choose a --subnet or --network",
    )


def interfaces(case: Case, machine: MachineType) -> Iterator[Finding]:
    efa = efa_wanted(machine, case.spec.nodes, case.spec.efa)
    if case.spec.efa and not machine.efa_interfaces:
        yield error(
            "network.efa",
            f"{machine.name} has no EFA",
            "leave --efa out, or take a larger type",
        )
    if several(machine, efa) and not case.spec.private:
        yield Finding(
            "network.public",
            Severity.INFO,
            f"{machine.name} gets several network interfaces, with which EC2 gives no public "
            "address: the head node gets an elastic one, the others are reached through it",
        )


def way_out(case: Case, machine: MachineType) -> Iterator[Finding]:
    """What nodes without a public address, all but the head node, will not reach."""
    spec = case.spec
    efa = efa_wanted(machine, spec.nodes, spec.efa)
    if spec.nodes < 2 or not (spec.private or several(machine, efa)):
        return
    lacking: dict[str, list[str]] = {}
    for subnet in case.catalogue.subnets:
        way = case.catalogue.ways_out.get(subnet.subnet_id)
        if way is None or way.internet or spec.zone not in (None, subnet.zone):
            continue
        services = {"s3": "S3", "ssm": "Systems Manager"}
        missed = [text for service, text in services.items() if service not in way.services]
        lacking.setdefault(", ".join(missed), []).append(subnet.subnet_id)
    named = bool(spec.subnet_id or spec.network)
    for names, ids in lacking.items():
        option = f" --subnet {ids[0]}" if named else ""
        there = f"{names} or the internet (pip)" if names else "the internet (pip)"
        everywhere = len(ids) == len(case.catalogue.subnets) and not named
        where = "the default VPC" if everywhere else ", ".join(ids)
        text = (
            f"no route of {where} leads nodes without a public address, all but the head "
            f"node, to {there}"
        )
        if "S3" not in names:
            yield Finding("network.way_out", Severity.INFO, text)
            continue
        yield Finding(
            "network.way_out",
            Severity.WARNING,
            text,
            hint=f"a gateway endpoint for S3 is free: clusterctl network s3{option}; or launch in "
            "a network that has one: clusterctl network up NAME, and --network NAME. The rest "
            "takes a NAT gateway",
        )


def placement(case: Case) -> Iterator[Finding]:
    if case.spec.placement_group and case.market is Market.CAPACITY_BLOCK:
        yield error(
            "placement.block",
            "a Capacity Block and a placement group exclude each other",
            "leave --placement-group out: a block's machines are close to each other anyway",
        )


def placed(case: Case, machine: MachineType) -> Iterator[Finding]:
    if case.spec.placement_group and "cluster" not in machine.placement_strategies:
        yield error(
            "placement.type",
            f"{machine.name} takes no cluster placement group",
            "give --no-placement-group",
        )


def grown(case: Case, machine: MachineType) -> Iterator[Finding]:
    """A single node needs neither a placement group nor EFA, and cannot get them later."""
    spec, there = case.spec, members_of(case.seen.instances)
    if len(there) != 1 or spec.nodes < 2:
        return
    lacking = []
    if not there[0].placement_group and "cluster" in machine.placement_strategies:
        lacking.append(("a placement group", "--placement-group"))
    if not there[0].efa and machine.efa_interfaces:
        lacking.append(("EFA", "--efa"))
    if lacking and not spec.capacity_reservation:
        names = " and ".join(what for what, _ in lacking)
        options = " ".join(option for _, option in lacking)
        yield Finding(
            "network.grown",
            Severity.WARNING,
            f"{there[0].node.name} was launched without {names}, so the new nodes are too: "
            "traffic between them will be slower",
            hint=f"for full speed launch all nodes at once: clusterctl down {spec.name}; "
            f"a single node that is to grow is launched with {options}",
        )
