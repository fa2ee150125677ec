"""Costs of a cluster so far, compared with values computed by hand, and the times of its limits."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from clusterctl.domain.cluster import Disk, Limits, Market, Node, NodeState
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.money.costs import format_spent, node_cost, spending
from clusterctl.ec2.money.prices import Price, price_key
from clusterctl.ec2.tags import Spent, read_spent, spent_text

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
TEN = Price(10.0, "the price list", "2026-11-21")
# 730 GiB at 0.08 a month of 730 hours.
DISK, DISK_USD = Disk(730), 0.08


def machine(hours=0.0, state="running", index=0, made=None, **more):
    """Return a node that was started `hours` ago, and launched `made` hours ago."""
    node = Node(
        index=index,
        name=f"demo-{index}",
        instance_id=f"i-{index}",
        state=NodeState(state),
        instance_type="p4d.24xlarge",
        gpus=8,
        private_ip="10.0.0.1",
        public_ip=more.pop("public_ip", None),
        zone=more.pop("zone", "us-east-1a"),
        launched_at=NOW - timedelta(hours=hours),
    )
    one = Instance(node, "demo", "ubuntu", (0,), "ami-1", "clusterctl-demo", "token", disk=DISK)
    made = replace(one, first_launched_at=NOW - timedelta(hours=hours if made is None else made))
    return replace(made, **more)


def noted(usd, hours_ago, ran_h=4.0, at_least=False):
    return Spent(usd, ran_h, NOW - timedelta(hours=hours_ago), at_least)


def ago(hours):
    return f"User initiated ({NOW - timedelta(hours=hours):%Y-%m-%d %H:%M:%S} GMT)"


BY_USER = {"state_reason": "Client.UserInitiatedShutdown: User initiated shutdown"}
BY_ITSELF = {"state_reason": "Client.InstanceInitiatedShutdown: Instance initiated shutdown"}


@pytest.mark.parametrize(
    ("node", "price", "hourly", "spent", "complete"),
    [
        # 3 h at 10 + 0.08
        (machine(3), TEN, 10.08, 30.24, True),
        (machine(3, "pending"), TEN, 10.08, 30.24, True),
        (machine(3, public_ip="198.51.100.7"), TEN, 10.085, 30.255, True),
        # The run was recorded, and the node started again a second later.
        (machine(3, made=50, spent=noted(100.0, 3.0003)), TEN, 10.08, 130.243, True),
        # `stop` was cut off after it had recorded the run, which continues.
        (machine(9, spent=noted(40.32, 5)), TEN, 10.08, 90.72, True),
        # Started by another program: earlier runs are unknown.
        (machine(3, made=50), TEN, 10.08, 30 + 50 * 0.08, False),
        (machine(3, made=50, spent=noted(100.0, 40)), TEN, 10.08, 133.20, False),
        (machine(3, spent=noted(100.0, 3, at_least=True)), TEN, 10.08, 130.24, False),
        (machine(3, disk=Disk()), TEN, 10.0, 30.0, False),
        # The tag was edited by hand.
        (machine(3, spent=noted(7.0, -1000)), TEN, 10.08, 7.0, False),
        # EC2's clock is ahead of ours.
        (machine(-0.05), TEN, 10.08, 0.0, True),
        # The price is unknown, that of the disk is known.
        (machine(3, spent=noted(7.0, 3)), None, None, 7.24, False),
        # Stopped 5 h ago, in the console or by `clusterctl stop`: 4 h of a machine with an address,
        # and 9 h of a disk.
        (machine(9, "stopped", transition_reason=ago(5), **BY_USER), TEN, 0.08, 40.74, True),
        (machine(9, "stopped", transition_reason=ago(5), private=True, **BY_USER), TEN, 0.08, 40.72,
         True),
        (machine(9, "stopped", spent=noted(41.0, 5.001), transition_reason=ago(5), **BY_USER), TEN,
         0.08, 41.41, True),
        # Started by clusterctl and stopped in the console: the second run counts as well.
        (machine(9, "stopped", made=50, spent=noted(41.0, 9), transition_reason=ago(5), **BY_USER),
         TEN, 0.08, 81.74, True),
        (machine(9, "stopping", transition_reason=ago(0), **BY_USER), TEN, 0.08, 90.765, True),
        # It stopped itself at an unknown time: at least the disk counts.
        (machine(9, "stopped", **BY_ITSELF), TEN, 0.08, 0.72, False),
        (machine(9, "stopped", spent=noted(41.0, 2), **BY_ITSELF), TEN, 0.08, 41.16, False),
        # EC2's reason is from an earlier stop, and is no evidence about the last run.
        (machine(9, "stopped", transition_reason=ago(10), **BY_ITSELF), TEN, 0.08, 0.72, False),
        (machine(9, "stopped", transition_reason=ago(5), **BY_USER), None, 0.08, 0.74, False),
        (machine(9, "stopped", public_ip="198.51.100.7", **BY_ITSELF), TEN, 0.085, 0.765, False),
        (machine(9, "shutting-down", spent=noted(41.0, 0)), TEN, 0.0, 41.0, False),
        (replace(machine(3), first_launched_at=None), TEN, 10.08, 30.24, False),
    ],
)  # fmt: skip
def test_one_node(node, price, hourly, spent, complete):
    found = node_cost(node, price, NOW)
    assert found.hourly_usd == (None if hourly is None else pytest.approx(hourly))
    assert found.spent_usd == pytest.approx(spent, abs=0.002)
    assert found.complete is complete
    # Recording, writing and reading it repeatedly does not change it.
    for _ in range(2):
        spent_then = Spent(found.spent_usd, found.ran_h, NOW, not found.complete)
        node = replace(node, spent=read_spent(spent_text(spent_then)))
        again = node_cost(node, price, NOW)
        if node.node.state is not NodeState.SHUTTING_DOWN:
            assert again.spent_usd == pytest.approx(spent, abs=0.003)
            assert again.complete is complete


@pytest.mark.parametrize(
    ("node", "what"),
    [(machine(-0.2), "its launch"), (machine(1, spent=noted(1, -0.2)), "its cost tag")],
)
def test_what_is_in_the_future_is_so_by_this_machines_clock(node, what):
    [why] = node_cost(node, TEN, NOW).missing
    assert why == f"{what} has a date in the future by this machine's clock"


def test_what_its_guard_has_counted():
    """A machine switched itself off and was started again. EC2 knows only the last 3 hours."""
    node = machine(3, made=50)
    found = node_cost(node, TEN, NOW, used_h=8.0)
    assert (found.spent_usd, found.ran_h, found.complete) == (pytest.approx(84.0), 8.0, True)
    assert format_spent(found.spent_usd, found.complete, found.at_most) == "at most $84.00"
    # It stays so after the next stop, of which EC2 says no more.
    text = spent_text(Spent(found.spent_usd, found.ran_h, NOW, at_most=found.at_most))
    again = node_cost(replace(machine(9, "stopped", **BY_ITSELF), spent=read_spent(text)), TEN, NOW)
    assert format_spent(again.spent_usd, again.complete, again.at_most) == "about $84.00"
    # The guard rounds up at each boot. No machine has run for longer than it exists.
    found = node_cost(machine(0.1, made=0.25, spent=noted(0.2, 0.2, 0.05)), TEN, NOW, used_h=0.6)
    assert (found.spent_usd, found.ran_h) == (pytest.approx(0.25 * 10.08), 0.25)
    # The guard's count never makes the cost lower than without it.
    found = node_cost(machine(3), TEN, NOW, used_h=2.0)
    assert (found.spent_usd, found.ran_h, found.at_most) == (pytest.approx(30.24), 3.0, False)


def spent_by(*nodes, price=TEN):
    return spending(nodes, {price_key(node): price for node in nodes}, NOW)


def test_a_cluster_is_the_sum_of_its_nodes():
    found = spent_by(machine(3), machine(1, index=1))
    assert found.hourly_usd == pytest.approx(20.16)
    assert found.spent_usd == pytest.approx(40.32)
    assert (found.complete, found.price_source) == (True, "the price list, 2026-11-21")
    assert found.since == NOW - timedelta(hours=3)
    assert (found.ends_in_h, found.findings) == (None, ())


def test_why_it_is_not_all_is_said_once_for_all_nodes():
    found = spent_by(machine(3, made=50), machine(3, made=50, index=1), machine(1, index=2))
    [finding] = found.findings
    assert (finding.check, finding.host, found.complete) == (
        *("cost.incomplete", "demo-[0-1]"),
        False,
    )
    assert finding.message == (
        "the cost is incomplete: it was started 2026-11-21 09:00 UTC; for how long it ran "
        "between 2026-11-19 10:00 and then is not known"
    )


def test_without_a_price_there_is_a_least():
    found = spent_by(machine(3), price=None)
    assert (found.hourly_usd, found.complete, found.price_source) == (None, False, "")
    assert found.spent_usd == pytest.approx(0.24)


def test_spot_prices_are_their_zones():
    first, second = (machine(market=Market.SPOT, zone=zone) for zone in ("a", "b"))
    assert price_key(first) != price_key(second)
    assert price_key(machine(zone="a")) == price_key(machine(zone="b"))


@pytest.mark.parametrize(
    ("limits", "nodes", "ends", "by"),
    [
        ("max-hours=8", [machine(3)], 5.0, "--max-hours"),
        # The first node that ends also ends the job.
        ("max-hours=8", [machine(3), machine(6, index=1)], 2.0, "--max-hours"),
        ("max-hours=8", [machine(9)], 0.0, "--max-hours"),
        # 10 hours of earlier runs. The disk's cost while the machine was off is not time.
        ("max-hours=12", [machine(1, spent=noted(500.0, 1, ran_h=10))], 1.0, "--max-hours"),
        # 100.8 - 2 x 10.08 at 10.08 an hour
        ("budget=100.8", [machine(2)], 8.0, "--budget"),
        ("budget=100.8", [machine(2), machine(2, index=1)], 3.0, "--budget"),
        ("budget=100.8 max-hours=6", [machine(2)], 4.0, "--max-hours"),
        ("budget=100.8 max-hours=24", [machine(2)], 8.0, "--budget"),
        ("budget=5", [machine(2)], 0.0, "--budget"),
        # Started after its end: a quarter of an hour, and the same again once it was ready.
        ("max-hours=8", [machine(0.1, spent=noted(500.0, 0.1, ran_h=10))], 0.15, "--max-hours"),
        ("budget=400", [machine(0.1, spent=noted(500.0, 0.1, ran_h=10))], 0.15, "--budget"),
        ("max-hours=8", [machine(1, spent=noted(500.0, 1, ran_h=10))], 0.0, "--max-hours"),
        ("max-hours=8",
         [machine(1, spent=noted(9.0, 1, ran_h=10), ends_at=NOW + timedelta(hours=0.2))],
         *(0.2, "--max-hours")),
        # A new limit holds in its place.
        ("max-hours=11.1",
         [machine(1, spent=noted(9.0, 1, ran_h=10), ends_at=NOW + timedelta(hours=0.2))],
         *(0.1, "--max-hours")),
        # A stopped machine needs no end.
        ("max-hours=8 budget=1000", [machine(3, "stopped")], None, ""),
        ("nonsense max-hours=x", [machine(3)], None, ""),
    ],
)  # fmt: skip
def test_when_its_limits_end_it(limits, nodes, ends, by):
    found = spent_by(*(replace(node, limits_text=limits) for node in nodes))
    assert found.ends_in_h == (None if ends is None else pytest.approx(ends))
    assert found.ended_by == by


def test_the_head_nodes_limits_count():
    found = spent_by(machine(1, index=1, limits_text="max-hours=2"), machine(1, limits_text=""))
    assert found.limits.max_hours is None
    old, new = machine(2, limits_text="max-hours=2", retired=True), machine(limits_text="budget=5")
    assert spent_by(old, new).limits == Limits(budget_usd=5)


@pytest.mark.parametrize(
    ("limits", "node", "price", "checks"),
    [
        ("max-hours=8 budget=1000 max-hourly=11", machine(3), TEN, []),
        ("max-hours=3.25", machine(3), TEN, ["cost.ending"]),
        ("max-hours=1.9", machine(3), TEN, ["cost.overrun"]),
        ("max-hours=2.1", machine(3), TEN, ["cost.ending"]),
        ("max-hours=2", machine(3, "stopped", transition_reason=ago(0.5)), TEN, ["cost.ended"]),
        ("max-hours=4", machine(3, "stopped", transition_reason=ago(0.5)), TEN, []),
        ("max-hourly=10", machine(3), TEN, ["cost.hourly"]),
        ("budget=31", machine(3), TEN, ["cost.ending"]),
        ("budget=30", machine(3), TEN, ["cost.budget", "cost.ending"]),
        ("budget=30", machine(3), None, ["cost.price", "cost.incomplete"]),
        ("idle-minutes=5 stopped-days=3", machine(99, "stopped", transition_reason=ago(71)), TEN,
         []),
        ("idle-minutes=5 stopped-days=3", machine(99, "stopped", transition_reason=ago(73)), TEN,
         ["cost.stopped"]),
        ("idle-minutes=5 stopped-days=3", machine(99, "stopped"), TEN, ["cost.incomplete"]),
        ("idle-minutes=5 stopped-days=3", machine(99), TEN, []),
    ],
)  # fmt: skip
def test_what_is_warned_of(limits, node, price, checks):
    found = spent_by(replace(node, limits_text=limits), price=price).findings
    assert [finding.check for finding in found] == checks
    assert all(finding.hint for finding in found)


def test_reserved_capacity_costs_while_its_nodes_are_stopped():
    prices = {price_key(machine(3)): TEN}
    nodes = [
        machine(3, "stopped", index, reservation_id="cr-1", transition_reason=ago(1))
        for index in (0, 1)
    ]
    found = [one for one in spending(nodes, prices, NOW).findings if "cr-1" in one.message]
    assert [(one.check, one.severity.value) for one in found] == [("cost.reservation", "warning")]
    assert (
        "2 stopped nodes in cr-1: its capacity goes on costing $20.00 an hour" in found[0].message
    )
    assert found[0].hint.endswith("--capacity-reservation-id cr-1 --region us-east-1")
    local = [replace(one, node=replace(one.node, zone="us-west-2-lax-1a")) for one in nodes]
    [hint] = [one.hint for one in spending(local, {}, NOW).findings if "cr-1" in one.message]
    assert hint.endswith("--region us-west-2")
    running = [machine(3, reservation_id="cr-1")]
    block = [replace(one, market=Market.CAPACITY_BLOCK) for one in nodes]
    for others in (running, block, [machine(3, "stopped", transition_reason=ago(1))]):
        ids = {one.check for one in spending(others, prices, NOW).findings}
        assert "cost.reservation" not in ids
