"""The plan of a launch: what is missing between the cluster asked for and the one seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec, Market
from clusterctl.ec2.capacity import Place
from clusterctl.ec2.checks import check_request, check_settled
from clusterctl.ec2.cluster_steps import (
    address_steps,
    key_steps,
    placement_steps,
    start_steps,
    stopped_nodes,
    tag_steps,
)
from clusterctl.ec2.costs import Estimate, estimate
from clusterctl.ec2.group_steps import group_steps
from clusterctl.ec2.instances import members_of, wanted_of
from clusterctl.ec2.likeness import like
from clusterctl.ec2.observe import Catalogue, Observed
from clusterctl.ec2.places import places
from clusterctl.ec2.preflight.case import error
from clusterctl.ec2.preflight.verdict import preflight
from clusterctl.ec2.request import Launch, run_request, run_step, runs
from clusterctl.ec2.steps import ResultOf, Step


@dataclass(frozen=True)
class LaunchPlan:
    """The steps from what is there to what was asked for; none when nothing is missing.

    Doing it executes these very steps. `missing` are the indices of the nodes to launch, `wanted`
    those of the whole cluster. `places` are where the launch is tried, in this order: the step is
    for the first. With an error among `findings` there are no steps to launch anything.
    """

    spec: ClusterSpec
    seen: Observed
    launch_id: str
    wanted: tuple[int, ...]
    missing: tuple[int, ...]
    steps: tuple[Step, ...]
    places: tuple[Place, ...] = ()
    findings: tuple[Finding, ...] = ()
    estimate: Estimate | None = None

    @property
    def stopped(self) -> tuple[int, ...]:
        """The indices of the nodes that are started."""
        return tuple(node.index for node in stopped_nodes(self.seen))

    @property
    def refused(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def launch_at(self, place: Place, indices: tuple[int, ...]) -> Launch:
        """The launch of these nodes at another place than the step says."""
        return _launch(self.spec, self.seen, place, indices, self.wanted)

    def step_at(self, place: Place, indices: tuple[int, ...], token: str) -> Step:
        """The step that does it."""
        launch = self.launch_at(place, indices)
        return run_step(launch, token, _hourly(launch, self.seen))


def plan_launch(spec: ClusterSpec, seen: Observed, public_key: str, launch_id: str) -> LaunchPlan:
    """Decide by difference. `public_key` is the cluster's own, an OpenSSH line.

    Raises UsageError or ClusterctlError where the difference cannot be made up by adding.
    """
    spec = like(spec, seen.instances)
    check_request(spec, seen, public_key)
    wanted = wanted_indices(spec, seen)
    present = {found.node.index for found in members_of(seen.instances)}
    missing = tuple(index for index in wanted if index not in present)
    plan = LaunchPlan(spec, seen, launch_id, wanted, missing, ())
    if missing:
        plan = _with_launch(plan, seen, public_key)
    else:
        # Nothing is launched: what is there is put right, and started where it was stopped.
        steps = [*group_steps(spec, seen), *tag_steps(spec, seen, plan.wanted), *start_steps(seen)]
        plan = replace(plan, steps=(*steps, *address_steps(spec, seen)))
    tokens = [step.arguments.get("ClientToken", "") for step in plan.steps]
    if not plan.refused:
        check_settled(spec, seen, tokens)
    return plan


def wanted_indices(spec: ClusterSpec, seen: Observed) -> tuple[int, ...]:
    """The indices for `spec.nodes` nodes: those the cluster has, and the next free ones."""
    there = wanted_of(seen.instances) or tuple(
        found.node.index for found in members_of(seen.instances)
    )
    free = (index for index in range(spec.nodes + len(there)) if index not in there)
    more = [next(free) for _ in range(spec.nodes - len(there))]
    return tuple(sorted((*there, *more)))


def _with_launch(plan: LaunchPlan, seen: Observed, public_key: str) -> LaunchPlan:
    spec, catalogue = plan.spec, seen.catalogue
    assert catalogue is not None, "observe looks at the catalogue when a node is missing"
    market = market_of(spec, catalogue)
    verdict = preflight(spec, seen, catalogue, len(plan.missing), market)
    found = _places(spec, catalogue, verdict.types, len(plan.missing))
    plan = replace(plan, findings=verdict.findings, places=found)
    if not found and not plan.refused:
        plan = replace(plan, findings=(*plan.findings, _no_place(spec, len(plan.missing))))
    if not found or plan.refused:
        return plan
    first_run, *_ = groups = runs(plan.missing)
    # A launch of unknown outcome is sent again where and as it was sent.
    resent = _resent(plan, groups, seen)
    if first_run in resent:
        again = resent[first_run][0]
        found = (again, *(place for place in found if place != again))
        plan = replace(plan, places=found)
    launches = [
        (run, *resent.get(run, (found[0], f"{plan.launch_id}-{run[0]}", None))) for run in groups
    ]
    run_steps = []
    for run, place, token, request in launches:
        step = plan.step_at(place, run, token)
        run_steps.append(step if request is None else replace(step, arguments=request))
    steps = [
        # First: it takes EC2 a moment to make it available.
        *placement_steps(spec, seen, plan.launch_at(found[0], first_run)),
        *key_steps(spec, seen, public_key),
        *group_steps(spec, seen),
        *tag_steps(spec, seen, plan.wanted),
        *start_steps(seen),
        *run_steps,
        *address_steps(spec, seen, plan.launch_at(found[0], first_run)),
    ]
    return replace(plan, steps=tuple(steps), estimate=_estimate(plan, found[0]))


def market_of(spec: ClusterSpec, catalogue: Catalogue) -> Market:
    """A reservation may turn out to be a Capacity Block."""
    reservation = catalogue.reservation
    return Market.CAPACITY_BLOCK if reservation and reservation.block else spec.market


def _no_place(spec: ClusterSpec, nodes: int) -> Finding:
    return error(
        "place.none",
        f"no zone that offers {' or '.join(spec.types)} has a subnet with {nodes} free addresses",
        "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
    )


def _places(
    spec: ClusterSpec, catalogue: Catalogue, types: Sequence[str], nodes: int
) -> tuple[Place, ...]:
    reservation = catalogue.reservation
    zone = spec.zone or (reservation.zone if reservation else None)
    return places(types, catalogue.offers, catalogue.subnets, zone, nodes)


def _launch(
    spec: ClusterSpec,
    seen: Observed,
    place: Place,
    indices: tuple[int, ...],
    wanted: tuple[int, ...],
) -> Launch:
    catalogue = seen.catalogue
    assert catalogue is not None
    machine, image = catalogue.machines[place.instance_type], catalogue.images[place.instance_type]
    assert image is not None, "a place is of a type that has an image"
    market = market_of(spec, catalogue)
    present = len(wanted) - len(indices)
    least = len(indices) if spec.min_nodes is None else max(1, spec.min_nodes - present)
    return Launch(
        spec=spec,
        place=place,
        machine=machine,
        image=image,
        indices=indices,
        least=min(least, len(indices)),
        wanted=wanted,
        group_id=seen.group.group_id if seen.group else ResultOf("GroupId"),
        placement_group=placement_wanted(spec, catalogue, machine.placement_strategies),
        market=market,
    )


def placement_wanted(spec: ClusterSpec, catalogue: Catalogue, strategies: tuple[str, ...]) -> bool:
    """Whether nodes go into the cluster's placement group. Reserved capacity is placed already."""
    if spec.placement_group is not None:
        return spec.placement_group
    return spec.nodes > 1 and "cluster" in strategies and not spec.capacity_reservation


def _resent(
    plan: LaunchPlan, groups: list[tuple[int, ...]], seen: Observed
) -> dict[tuple[int, ...], tuple[Place, str, Any]]:
    found = {}
    for run in groups:
        for place in plan.places:
            for sent in seen.unsettled:
                if sent.asks_for(run_request(plan.launch_at(place, run), sent.token)):
                    found[run] = (place, sent.token, dict(sent.request))
    return found


def _hourly(launch: Launch, seen: Observed) -> float | None:
    return _costs(launch, seen, len(launch.indices)).hourly_usd


def _estimate(plan: LaunchPlan, place: Place) -> Estimate:
    """Of the whole cluster, what is there already included."""
    return _costs(plan.launch_at(place, plan.missing), plan.seen, len(plan.wanted))


def _costs(launch: Launch, seen: Observed, nodes: int) -> Estimate:
    assert seen.catalogue is not None
    public = 1 if launch.spec.private or launch.several_interfaces else nodes
    return estimate(
        seen.catalogue.prices.get(launch.machine.name),
        nodes,
        launch.disk.size_gib or 0,
        launch.disk.iops,
        launch.disk.throughput_mib_s,
        public,
        instance_type=launch.machine.name,
        market=launch.market,
    )
