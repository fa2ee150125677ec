"""Everything that speaks against a launch, found before anything is created. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec, Market
from clusterctl.ec2.images.checks import image_findings
from clusterctl.ec2.launch.interfaces import efa_wanted, several
from clusterctl.ec2.launch.observe import Catalogue, Observed
from clusterctl.ec2.launch.preflight import capacity, disk, network
from clusterctl.ec2.launch.preflight.case import Case, error
from clusterctl.ec2.launch.root_disk import root_disk
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.money.costs import budget_findings, estimate
from clusterctl.ec2.retired import retired_finding


@dataclass(frozen=True)
class Verdict:
    """All findings, the errors first, and the types that nothing speaks against."""

    findings: tuple[Finding, ...]
    types: tuple[str, ...]


def preflight(
    spec: ClusterSpec, seen: Observed, catalogue: Catalogue, missing: int, market: Market
) -> Verdict:
    """Run every check; each finding names what to do about it.

    Where one of several types will do, what speaks against another is a warning: that one is
    not tried.
    """
    case = Case(spec, seen, catalogue, missing, market)
    common = [finding for check in CHECKS for finding in check(case)]
    by_type = {name: _of_type(case, name) for name in spec.types}
    usable = tuple(name for name, found in by_type.items() if not any(map(_is_error, found)))
    for name, found in by_type.items():
        common += [_not_tried(name, one) if usable and _is_error(one) else one for one in found]
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    ordered = sorted(dict.fromkeys(common), key=lambda finding: order.index(finding.severity))
    return Verdict(tuple(ordered), usable)


def settling(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What they mean for a launch that was sent before, and is only asked after."""
    return tuple(
        replace(finding, severity=Severity.WARNING) if _is_error(finding) else finding
        for finding in findings
    )


def _of_type(case: Case, name: str) -> list[Finding]:
    machine = case.catalogue.machines.get(name)
    retired = retired_finding(name, machine is not None, case.seen.region)
    if machine is None:
        return [retired or _unknown(case, name)]
    found = [finding for check in TYPE_CHECKS for finding in check(case, machine)]
    return [retired, *found] if retired else found


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def _not_tried(name: str, finding: Finding) -> Finding:
    text = f"{name} is not tried: {finding.message}"
    return replace(finding, severity=Severity.WARNING, message=text)


def _unknown(case: Case, name: str) -> Finding:
    return error(
        "type.unknown",
        f"EC2 has no instance type {name} in {case.seen.region}",
        "see `aws ec2 describe-instance-types`, or choose another --region",
    )


def _images(case: Case, machine: MachineType) -> Iterator[Finding]:
    yield from image_findings(case.catalogue.images.get(machine.name), machine, case.spec.image)


def _money(case: Case, machine: MachineType) -> Iterator[Finding]:
    image = case.catalogue.images.get(machine.name)
    disk = root_disk(case.spec.disk, machine, image.root_gib if image else 0)
    efa = efa_wanted(machine, case.spec.nodes, case.spec.efa)
    costs = estimate(
        case.catalogue.prices.get(machine.name),
        case.spec.nodes,
        disk.size_gib or 0,
        disk.iops,
        disk.throughput_mib_s,
        1 if case.spec.private or several(machine, efa) else case.spec.nodes,
        instance_type=machine.name,
        market=case.market,
    )
    yield from budget_findings(case.spec.limits, costs, case.catalogue.spent_usd)


CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    network.addresses,
    network.ssh,
    disk.disk,
    network.placement,
    capacity.reservation,
    capacity.spot,
    capacity.limits,
)
TYPE_CHECKS: tuple[Callable[[Case, MachineType], Iterator[Finding]], ...] = (
    capacity.offered,
    capacity.sold,
    _images,
    disk.performance,
    network.interfaces,
    network.way_out,
    network.placed,
    network.grown,
    capacity.quotas,
    _money,
)
