"""Problems of a launch: all findings at once, each with a remedy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from clusterctl.domain.cluster import ClusterSpec, Disk, Limits, Market
from clusterctl.domain.findings import Severity
from clusterctl.ec2.launch.capacity import QuotaUse, Reservation
from clusterctl.ec2.launch.plan import plan_launch
from clusterctl.ec2.money.prices import Price
from clusterctl.ec2.network.vpcs import Egress
from tests.ec2.observed import (
    CATALOGUE,
    IMAGE,
    MACHINE,
    NOTHING,
    PLAIN,
    PUBLIC_KEY,
    SPEC,
    SUBNETS,
    ZONES,
    instance,
    offering,
    settled,
    with_nodes,
)

TYPE = "p4d.24xlarge"
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
PUBLIC = Egress("rtb-1", public=True)
SUBNET_IDS = [one.subnet_id for one in SUBNETS]
START = datetime(2026, 12, 1, 11, 30, tzinfo=timezone.utc)
ODCR = Reservation("cr-1", TYPE, "us-east-1b", "active", 4)
BLOCK = replace(ODCR, block=True, starts_at=START, ends_at=START.replace(day=8))
RESERVED = replace(SPEC, capacity_reservation="cr-1")


def plan(observed=NOTHING, spec=SPEC):
    return plan_launch(settled(spec, observed), PUBLIC_KEY, "launch")


def account(**catalogue):
    """Return an account without the cluster, with a changed catalogue."""
    return replace(NOTHING, catalogue=replace(CATALOGUE, **catalogue))


def subnets(free=4000, zones=ZONES):
    return tuple(replace(one, free_addresses=free) for one in SUBNETS if one.zone in zones)


def asked(**changes):
    return replace(SPEC, **changes)


# Check: the account and the spec that cause it.
FOUND = {
    "type.unknown": (account(machines={}), asked(instance_type="p9.huge")),
    "type.retired": (account(machines={}), asked(instance_type="p3.16xlarge")),
    "type.offered": (account(offers={TYPE: frozenset()}), SPEC),
    "type.offered in the zone": (account(offers={TYPE: frozenset(ZONES[:1])}),
        asked(zone="us-east-1c")),
    "type.offered where the subnets are": (
        account(offers={TYPE: frozenset(ZONES[:1])}, subnets=subnets(zones=ZONES[1:])),
        asked(network="lab"),
    ),
    "type.market": (offering(replace(PLAIN, usage_classes=("on-demand",))),
        asked(market=Market.SPOT)),
    "image.none": (offering(image=None), SPEC),
    "quota.vcpus": (
        account(quotas={TYPE: QuotaUse("Running On-Demand P instances", "L-417A185B", 96, 384)}),
        SPEC,
    ),
    "subnet.addresses": (
        account(subnets=(*subnets(free=3, zones=ZONES[:1]), *subnets(free=2, zones=ZONES[1:]))),
        SPEC,
    ),
    "subnet.none": (account(subnets=()), SPEC),
    "subnet.none in the zone": (
        account(subnets=subnets(zones=ZONES[:1])),
        asked(zone="us-east-1b"),
    ),
    "subnet.none, no such network": (account(subnets=()), asked(network="lab")),
    "subnet.none, no such subnet": (account(subnets=()), asked(subnet_id="subnet-9")),
    "network.ssh": (replace(NOTHING, ssh_from="0.0.0.0/0"), SPEC),
    "network.ssh by IPv6": (replace(NOTHING, ssh_from="::/0"), SPEC),
    "network.ssh, half of it": (replace(NOTHING, ssh_from="128.0.0.0/1"), SPEC),
    "network.ssh, nodes that are there": (replace(with_nodes(0, 1, 2, 3), ssh_from="0.0.0.0/0"),
        SPEC),
    "subnet.zone": (account(subnets=subnets(zones=ZONES[:1])),
        asked(subnet_id="subnet-a", zone="us-east-1b")),
    "subnet.zone of a network": (account(subnets=subnets(zones=ZONES[:2])),
        asked(network="lab", zone="us-east-1c")),
    "place.none": (
        account(
            offers={TYPE: frozenset(ZONES[:1])},
            subnets=(*subnets(free=3, zones=ZONES[:1]), *subnets(zones=ZONES[1:])),
        ),
        SPEC,
    ),
    "disk.size": (offering(image=replace(IMAGE, root_gib=105)), asked(disk=Disk(size_gib=100))),
    "disk.limits": (NOTHING, asked(disk=Disk(iops=100))),
    "disk.limits of size": (NOTHING, asked(disk=Disk(size_gib=70_000))),
    "disk.limits of throughput": (NOTHING, asked(disk=Disk(throughput_mib_s=2001))),
    "limits.store": (
        offering(replace(PLAIN, store_gb=8000)),
        asked(limits=Limits(idle_minutes=30)),
    ),
    "limits.store with an end": (offering(replace(PLAIN, store_gb=8000)),
        asked(limits=Limits(idle_minutes=30, max_hours=8))),
    "limits.store given up": (offering(replace(PLAIN, store_gb=8000)),
        asked(limits=Limits(idle_minutes=30, idle_erases_store=True))),
    "disk.load": (NOTHING, asked(disk=Disk(load_mib_s=301))),
    "disk.load of many": (NOTHING, asked(nodes=20, disk=Disk(load_mib_s=300))),
    "disk.iops": (NOTHING, asked(disk=Disk(iops=80_000))),
    "disk.throughput": (NOTHING, asked(disk=Disk(throughput_mib_s=1999))),
    "disk.key": (
        NOTHING,
        asked(disk=Disk(kms_key="arn:aws:kms:eu-west-1:123456789012:alias/mine")),
    ),
    "network.efa": (NOTHING, asked(efa=True)),
    "network.public": (offering(MACHINE), SPEC),
    "network.way_out": (account(ways_out=dict.fromkeys(SUBNET_IDS, PUBLIC)), asked(private=True)),
    "network.way_out, several interfaces in one subnet": (
        offering(MACHINE, ways_out={"subnet-b": replace(PUBLIC, services=frozenset({"ssm"}))}),
        asked(subnet_id="subnet-b"),
    ),
    "network.way_out, S3 alone": (
        offering(MACHINE, ways_out={"subnet-b": replace(PUBLIC, services=frozenset({"s3"}))}),
        SPEC,
    ),
    "network.way_in": (account(ways_out=dict.fromkeys(SUBNET_IDS, Egress("rtb-1"))), SPEC),
    "placement.type": (offering(replace(PLAIN, placement_strategies=("spread",))),
        asked(placement_group=True)),
    "placement.reservation": (account(reservation=replace(BLOCK, block=False)),
        replace(RESERVED, placement_group=True)),
    "reservation.interruptible": (
        account(reservation=replace(BLOCK, block=False, interruptible=True)),
        RESERVED,
    ),
    "reservation.platform": (
        account(reservation=replace(BLOCK, platform="Red Hat Enterprise Linux")),
        RESERVED,
    ),
    "reservation.tenancy": (account(reservation=replace(BLOCK, tenancy="dedicated")), RESERVED),
    "placement.block": (account(reservation=BLOCK), replace(RESERVED, placement_group=True)),
    "reservation.none": (NOTHING, RESERVED),
    "reservation.start": (account(reservation=replace(BLOCK, state="scheduled")), RESERVED),
    "reservation.state of one that is over": (account(reservation=replace(BLOCK, state="expired")),
        RESERVED),
    "reservation.free": (account(reservation=replace(ODCR, free=3)), RESERVED),
    "reservation.type": (account(reservation=replace(ODCR, instance_type="p5.48xlarge")), RESERVED),
    "reservation.zone": (account(reservation=ODCR), replace(RESERVED, zone="us-east-1a")),
    "reservation.spot": (account(reservation=ODCR), replace(RESERVED, market=Market.SPOT)),
    "reservation.placement": (account(reservation=replace(ODCR, placement_group=True)), RESERVED),
    "reservation.min": (account(reservation=BLOCK), replace(RESERVED, min_nodes=2)),
    "reservation.end": (account(reservation=BLOCK), RESERVED),
    "market.spot": (NOTHING, asked(market=Market.SPOT)),
    "market.idle": (NOTHING, asked(market=Market.SPOT, limits=Limits(idle_minutes=30))),
    "cost.hourly": (NOTHING, asked(limits=Limits(max_hourly_usd=87.85))),
    "cost.budget": (NOTHING, asked(limits=Limits(budget_usd=50))),
    "cost.price": (account(prices={TYPE: None}), asked(limits=Limits(budget_usd=50))),
    "cost.price, no limit": (account(prices={}), SPEC),
}  # fmt: skip


def test_each_check():
    """With an error, the plan has no steps. tests/test_findings.py prints the findings."""
    for case, (observed, spec) in FOUND.items():
        check_id = case.partition(" ")[0].rstrip(",")
        made = plan(observed, spec)
        [found] = [one for one in made.findings if one.check == check_id]
        assert made.refused is (found.severity is ERROR), case
        assert bool(made.steps) is not made.refused, case


@pytest.mark.parametrize("ssh_from", ["203.0.113.7/32", "10.0.0.0/8", "2001::/16", "::1/128"])
def test_nothing_speaks_against_a_plain_launch(ssh_from):
    assert plan(replace(account(subnets=subnets(free=4)), ssh_from=ssh_from)).findings == ()


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        (asked(), Egress("rtb-1")),
        (asked(private=True, nodes=1), Egress("rtb-1")),
        (asked(private=True), Egress("rtb-1", internet=True)),
        (asked(private=True, zone="us-east-1b"), Egress("rtb-1")),
    ],
    ids=["public addresses", "a head node alone", "a NAT gateway", "another zone"],
)
def test_nodes_that_get_out_are_not_warned_of(spec, way):
    found = plan(account(ways_out={"subnet-a": way}), spec).findings
    assert [one for one in found if one.check == "network.way_out"] == []


def way_in(ways, spec=SPEC, **more):
    made = plan(account(ways_out=ways, **more), spec)
    return [one.severity for one in made.findings if one.check == "network.way_in"], made.places


def test_a_head_node_is_launched_only_where_it_can_be_reached():
    closed, natted = Egress("rtb-1"), Egress("rtb-2", internet=True)
    assert way_in(dict.fromkeys(SUBNET_IDS, natted))[0] == [ERROR]
    found, places = way_in({**dict.fromkeys(SUBNET_IDS, closed), "subnet-b": PUBLIC})
    assert (found, {place.subnet_id for place in places}) == ([], {"subnet-b"})
    only_a = {**dict.fromkeys(SUBNET_IDS, PUBLIC), "subnet-a": closed}
    assert way_in(only_a, asked(zone="us-east-1a"))[0] == [ERROR]
    assert way_in(only_a, asked(zone="us-east-1b"))[0] == []
    # Participants of a shared VPC see no route table, and some may list none.
    assert way_in(dict.fromkeys(SUBNET_IDS, Egress("")))[0] == []
    assert way_in({})[0] == []


def test_more_nodes_join_a_cluster_whatever_its_routes():
    """Its head node is there, and is reached or not."""
    observed = replace(
        account(ways_out=dict.fromkeys(SUBNET_IDS, Egress("rtb-1"))), instances=(instance(0),)
    )
    assert [one for one in plan(observed, asked(nodes=2)).findings if "way_in" in one.check] == []


def test_all_of_it_is_said_at_once_errors_first():
    observed = account(
        reservation=replace(BLOCK, state="scheduled", free=0),
        subnets=subnets(free=1),
        quotas={TYPE: QuotaUse("P", "L-417A185B", 0, 0)},
    )
    spec = replace(
        RESERVED,
        zone="us-east-1a",
        min_nodes=1,
        placement_group=True,
        disk=Disk(10, 100, 100),
        limits=Limits(max_hourly_usd=1),
        efa=True,
    )
    findings = plan(observed, spec).findings
    assert [one.check for one in findings] == [
        *("subnet.addresses", "disk.size", "disk.limits", "disk.limits", "placement.block"),
        *("reservation.start", "reservation.zone", "reservation.min", "network.efa"),
        "reservation.end",
    ]
    assert all(one.hint for one in findings)


OTHER = "p5.48xlarge"


def two_types(**other):
    """Return an account with two types. The second one differs."""
    return account(
        machines={TYPE: PLAIN, OTHER: replace(PLAIN, name=OTHER, **other)},
        images={TYPE: IMAGE, OTHER: IMAGE},
        offers={TYPE: frozenset(ZONES[:2]), OTHER: frozenset(ZONES[1:])},
        prices=dict.fromkeys((TYPE, OTHER), Price(21.96, "a table", "2026-07-20")),
    )


def places(made):
    return [(place.instance_type[:3], place.zone[-1]) for place in made.places]


def test_the_places_by_type_as_asked_then_by_zone():
    spec = asked(or_types=(OTHER,))
    assert places(plan(two_types(), spec)) == [
        ("p4d", "a"),
        ("p4d", "b"),
        ("p5.", "b"),
        ("p5.", "c"),
    ]
    backwards = asked(instance_type=OTHER, or_types=(TYPE,))
    assert places(plan(two_types(), backwards))[0] == ("p5.", "b")


@pytest.mark.parametrize(
    ("observed", "check_id"),
    [
        (two_types(placement_strategies=("spread",)), "placement.type"),
        (account(machines={TYPE: PLAIN}), "type.unknown"),
        (
            replace(
                two_types(),
                catalogue=replace(two_types().catalogue, images={TYPE: IMAGE}),
            ),
            "image.none",
        ),
    ],
)
def test_an_alternative_that_does_not_fit_is_left_out_and_that_is_said(observed, check_id):
    made = plan(observed, asked(or_types=(OTHER,), placement_group=True))
    [finding] = [one for one in made.findings if one.check == check_id]
    assert finding.severity is WARNING
    assert finding.message.startswith("p5.48xlarge is not tried: ")
    assert {kind for kind, _ in places(made)} == {"p4d"}
    assert not made.refused


def test_where_no_type_fits_each_says_why():
    made = plan(account(machines={}), asked(or_types=(OTHER,)))
    assert [(one.check, one.severity) for one in made.findings] == [
        ("type.unknown", ERROR),
        ("type.unknown", ERROR),
    ]
    assert (made.places, made.steps) == ((), ())


def test_what_asks_only_for_what_the_launcher_gives_by_itself_passes():
    """A large machine gets 6,000 IOPS by default, which is enough for 1,000 MiB/s."""
    made = plan(spec=asked(disk=Disk(throughput_mib_s=1000)))
    assert made.findings == ()
    small = replace(PLAIN, gpus=1)
    assert [
        one.check for one in plan(offering(small), asked(disk=Disk(throughput_mib_s=1000))).findings
    ] == ["disk.throughput"]


def test_a_capacity_block_is_launched_into_as_it_wants_to_be():
    made = plan(account(reservation=BLOCK), RESERVED)
    [request] = [one.arguments for one in made.steps if one.operation == "run_instances"]
    assert request["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert request["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
    }
    assert "Placement" not in request
    assert (request["MinCount"], request["MaxCount"]) == (4, 4)
    assert request["NetworkInterfaces"][0]["SubnetId"] == "subnet-b"
    assert not any(one.operation == "create_placement_group" for one in made.steps)
    # The block has been paid for.
    assert made.estimate.lines[0].hourly_usd_each == 0


def test_a_reservation_on_demand_is_in_no_market_of_its_own():
    made = plan(account(reservation=ODCR), RESERVED)
    [request] = [one.arguments for one in made.steps if one.operation == "run_instances"]
    assert "InstanceMarketOptions" not in request
    assert "Placement" not in request
    assert [place.zone for place in made.places] == ["us-east-1b"]


def single(**changes):
    head = instance(0, wanted=(0,), placement_group="", **changes)
    return replace(with_nodes(), instances=(head,), catalogue=offering(MACHINE).catalogue)


@pytest.mark.parametrize(
    ("observed", "lacks"),
    [
        (single(), "without a placement group or EFA"),
        (single(efa_interfaces=4), "without a placement group,"),
        (with_nodes(0, 1), ""),
    ],
)
def test_a_single_node_that_grows_is_told_what_it_lacks(observed, lacks):
    made = plan(observed)
    found = [one for one in made.findings if one.check == "network.grown"]
    assert [one.severity for one in found] == ([WARNING] if lacks else [])
    assert all(lacks in one.message and "clusterctl down demo" in one.hint for one in found)
    [request] = [one.arguments for one in made.steps if one.operation == "run_instances"]
    assert ("Placement" in request) is not bool(lacks)


def test_a_single_node_that_is_to_grow_can_have_both_from_the_start():
    spec = ClusterSpec("demo", 1, TYPE, placement_group=True, efa=True)
    made = plan(offering(MACHINE), spec)
    [request] = [one.arguments for one in made.steps if one.operation == "run_instances"]
    assert request["Placement"] == {"GroupName": "clusterctl-demo"}
    assert len(request["NetworkInterfaces"]) == 5
