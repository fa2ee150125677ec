"""What a cluster has cost so far, computed by hand, and what its limits say to that."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from clusterctl.domain.cluster import Node, NodeState
from clusterctl.domain.spec import Disk, Limits, Market
from clusterctl.ec2.costs import Price
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.spending import node_cost, price_key, spending

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
TEN = Price(10.0, "the price list", "2026-11-21")
# 730 GiB at 0.08 a month of 730 hours.
DISK, DISK_USD = Disk(730), 0.08


def machine(hours=0.0, state="running", index=0, **more):
    """A node that was launched `hours` ago."""
    node = Node(
        index=index,
        name=f"demo-{index}",
        instance_id=f"i-{index}",
        state=NodeState(state),
        instance_type="p4d.24xlarge",
        gpus=8,
        private_ip="10.0.0.1",
        public_ip=more.pop("public_ip", None),
        availability_zone=more.pop("zone", "us-east-1a"),
        launched_at=NOW - timedelta(hours=hours),
    )
    made = Instance(node, "demo", "ubuntu", (0,), "ami-1", "clusterctl-demo", "token", disk=DISK)
    return replace(made, **more)


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
        (machine(3, spent_usd=100.0), TEN, 10.08, 130.24, True),
        (machine(3, disk=Disk()), TEN, 10.0, 30.0, True),
        # Its clock is ahead of ours.
        (machine(-0.1), TEN, 10.08, 0.0, True),
        # No price: the disk is known all the same.
        (machine(3, spent_usd=7.0), None, None, 7.24, False),
        # Stopped 5 h ago by `clusterctl stop`, which noted what the run had cost.
        (
            machine(9, "stopped", spent_usd=41.0, state_since=ago(5), **BY_USER),
            TEN,
            0.08,
            41.40,
            True,
        ),
        # Stopped 5 h ago in the console: 4 h of machine, 9 h of disk.
        (machine(9, "stopped", state_since=ago(5), **BY_USER), TEN, 0.08, 40.72, True),
        (machine(9, "stopping", state_since=ago(0), **BY_USER), TEN, 0.08, 90.72, True),
        # It stopped itself, nobody knows when: at least its disk.
        (machine(9, "stopped", spent_usd=41.0, **BY_ITSELF), TEN, 0.08, 41.72, False),
        # What was said of an earlier stop does not make the last run free.
        (
            machine(9, "stopped", spent_usd=41.0, state_since=ago(5), **BY_ITSELF),
            TEN,
            0.08,
            81.72,
            True,
        ),
        (machine(9, "stopped", state_since=ago(5), **BY_USER), None, 0.08, 0.72, False),
        (machine(9, "stopped", public_ip="198.51.100.7", **BY_ITSELF), TEN, 0.085, 0.765, False),
        (machine(9, "shutting-down", spent_usd=41.0), TEN, 0.0, 41.0, True),
    ],
)
def test_one_node(node, price, hourly, spent, complete):
    found = node_cost(node, price, NOW)
    assert found.usd_per_hour == (None if hourly is None else pytest.approx(hourly))
    assert found.spent_usd == pytest.approx(spent)
    assert found.complete is complete


def spent_by(*nodes, price=TEN):
    return spending(nodes, {price_key(node): price for node in nodes}, NOW)


def test_a_cluster_is_the_sum_of_its_nodes():
    found = spent_by(machine(3), machine(1, index=1))
    assert found.usd_per_hour == pytest.approx(20.16)
    assert found.spent_usd == pytest.approx(40.32)
    assert (found.complete, found.price_source) == (True, "the price list, 2026-11-21")
    assert found.since == NOW - timedelta(hours=3)
    assert (found.ends_in_h, found.findings) == (None, ())


def test_without_a_price_there_is_a_least():
    found = spent_by(machine(3), price=None)
    assert (found.usd_per_hour, found.complete, found.price_source) == (None, False, "")
    assert found.spent_usd == pytest.approx(0.24)


def test_spot_prices_are_their_zones():
    first, second = (machine(market=Market.SPOT, zone=zone) for zone in ("a", "b"))
    assert price_key(first) != price_key(second)
    assert price_key(machine(zone="a")) == price_key(machine(zone="b"))


@pytest.mark.parametrize(
    ("limits", "nodes", "ends", "by"),
    [
        ("max-hours=8", [machine(3)], 5.0, "--max-hours"),
        # The first to end ends the job.
        ("max-hours=8", [machine(3), machine(6, index=1)], 2.0, "--max-hours"),
        ("max-hours=8", [machine(9)], 0.0, "--max-hours"),
        # 100.8 was 10 hours of an earlier run.
        ("max-hours=12", [machine(1, spent_usd=100.8)], 1.0, "--max-hours"),
        # 100.8 - 2 x 10.08 at 10.08 an hour
        ("budget=100.8", [machine(2)], 8.0, "--budget"),
        ("budget=100.8", [machine(2), machine(2, index=1)], 3.0, "--budget"),
        ("budget=100.8 max-hours=6", [machine(2)], 4.0, "--max-hours"),
        ("budget=100.8 max-hours=24", [machine(2)], 8.0, "--budget"),
        ("budget=5", [machine(2)], 0.0, "--budget"),
        # What does not run needs no end.
        ("max-hours=8 budget=1000", [machine(3, "stopped")], None, ""),
        ("nonsense max-hours=x", [machine(3)], None, ""),
    ],
)
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
        ("max-hourly=10", machine(3), TEN, ["cost.hourly"]),
        ("budget=31", machine(3), TEN, ["cost.ending"]),
        ("budget=30", machine(3), TEN, ["cost.budget", "cost.ending"]),
        ("budget=30", machine(3), None, ["cost.price"]),
        ("idle-minutes=5 stopped-days=3", machine(99, "stopped", state_since=ago(71)), TEN, []),
        (
            "idle-minutes=5 stopped-days=3",
            machine(99, "stopped", state_since=ago(73)),
            TEN,
            ["cost.stopped"],
        ),
        ("idle-minutes=5 stopped-days=3", machine(99, "stopped"), TEN, []),
        ("idle-minutes=5 stopped-days=3", machine(99), TEN, []),
    ],
)
def test_what_is_warned_of(limits, node, price, checks):
    found = spent_by(replace(node, limits_text=limits), price=price).findings
    assert [finding.check_id for finding in found] == checks
    assert all(finding.hint for finding in found)
