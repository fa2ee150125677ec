"""Subnets, interfaces, placement: whether there is room, and the wires fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import Market
from clusterctl.domain.units import count
from clusterctl.ec2.interfaces import efa_wanted, several
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.preflight.case import Case, error


def addresses(case: Case) -> Iterator[Finding]:
    subnets = [subnet for subnet in case.catalogue.subnets if case.spec.zone in (None, subnet.zone)]
    if not subnets:
        where = f" in {case.spec.zone}" if case.spec.zone else ""
        yield error(
            "subnet.none",
            f"there is no subnet to launch into{where}",
            "run `aws ec2 create-default-subnet`, or choose a --subnet or --network",
        )
    elif all(subnet.free_addresses < case.missing for subnet in subnets):
        most = max(subnets, key=lambda subnet: subnet.free_addresses)
        yield error(
            "subnet.addresses",
            f"{count(case.missing, 'node')} need as many addresses; the roomiest subnet, "
            f"{most.subnet_id} in {most.zone}, has {most.free_addresses} left",
            "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
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
