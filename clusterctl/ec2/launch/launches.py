"""Some nodes at a place: what is asked for there, as the plan decides, and its cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterctl.domain.spec import ClusterSpec, Market
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.launch.observe import Catalogue, Observed
from clusterctl.ec2.launch.request import Launch
from clusterctl.ec2.launch.root_disk import load_mib_s
from clusterctl.ec2.launch.steps import ResultOf
from clusterctl.ec2.money.costs import Estimate, LoadCost, estimate


def launch_of(
    spec: ClusterSpec,
    seen: Observed,
    place: Place,
    indices: tuple[int, ...],
    least: int,
    wanted: tuple[int, ...],
) -> Launch:
    """The launch of these nodes there, of which `least` have to come."""
    catalogue = seen.catalogue
    assert catalogue is not None
    machine, image = catalogue.machines[place.instance_type], catalogue.images[place.instance_type]
    assert image is not None, "a place is of a type that has an image"
    return Launch(
        spec=spec,
        place=place,
        machine=machine,
        image=image,
        indices=indices,
        least=least,
        wanted=wanted,
        group_id=seen.group.group_id if seen.group else ResultOf("GroupId"),
        placement_group=placement_wanted(spec, catalogue, machine.placement_strategies),
        market=market_of(spec, catalogue),
    )


def least_counts(groups: Sequence[tuple[int, ...]], spare: int) -> dict[tuple[int, ...], int]:
    """How many nodes of each run have to come, where `spare` may be missing of all together."""
    least = {}
    for group in reversed(groups):
        least[group] = max(1, len(group) - max(0, spare))
        spare -= len(group) - least[group]
    return least


def market_of(spec: ClusterSpec, catalogue: Catalogue) -> Market:
    """A reservation may turn out to be a Capacity Block."""
    reservation = catalogue.reservation
    return Market.CAPACITY_BLOCK if reservation and reservation.block else spec.market


def placement_wanted(spec: ClusterSpec, catalogue: Catalogue, strategies: tuple[str, ...]) -> bool:
    """Whether nodes go into the cluster's placement group. Reserved capacity is placed already."""
    if spec.placement_group is not None:
        return spec.placement_group
    return spec.nodes > 1 and "cluster" in strategies and not spec.capacity_reservation


def nodes_cost(launch: Launch, seen: Observed, nodes: int) -> Estimate:
    """What so many of its nodes cost, with the addresses that they get by themselves."""
    alone = launch.spec.private or launch.several_interfaces
    return _estimate(launch, seen, nodes, 0 if alone else nodes)


def cluster_cost(launch: Launch, seen: Observed) -> Estimate:
    """What the whole cluster costs, of which it is a part."""
    nodes = len(launch.wanted)
    # The head node's elastic address, where nodes get none by themselves.
    alone = launch.spec.private or launch.several_interfaces
    costs = _estimate(launch, seen, nodes, 1 if alone else nodes)
    gib = launch.image.root_gib
    rate = load_mib_s(launch.machine, gib)
    return replace(costs, once=LoadCost(len(launch.indices), gib, rate) if rate else None)


def _estimate(launch: Launch, seen: Observed, nodes: int, addresses: int) -> Estimate:
    assert seen.catalogue is not None
    return estimate(
        seen.catalogue.prices.get(launch.machine.name),
        nodes,
        launch.disk.size_gib or 0,
        launch.disk.iops,
        launch.disk.throughput_mib_s,
        addresses,
        instance_type=launch.machine.name,
        market=launch.market,
    )
