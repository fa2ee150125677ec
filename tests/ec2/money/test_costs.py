"""Costs of machines, compared with values computed by hand, and messages about limits."""

import re

import pytest

from clusterctl.domain.cluster import Disk, Limits, Market
from clusterctl.domain.findings import Severity
from clusterctl.ec2.money.costs import (
    CostEstimate,
    CostLine,
    LoadCost,
    budget_findings,
    estimate,
    format_usd,
    left_findings,
)
from clusterctl.ec2.money.prices import Price, disk_hourly_usd
from clusterctl.ec2.tags import format_limits, parse_limits

P4D = Price(21.957642, "the price list", "2026-07-20")


def costing(hourly):
    return CostEstimate((CostLine("p4d.24xlarge, on-demand", 1, hourly),))


@pytest.mark.parametrize(
    ("gib", "iops", "throughput", "month"),
    [
        (100, None, None, 8.00),
        (100, 3000, 125, 8.00),
        # Less than the free part gives no discount.
        (100, 100, 10, 8.00),
        # 500 x 0.08 + 3000 x 0.005 + 375 x 0.04
        (500, 6000, 500, 70.00),
        (0, None, None, 0.0),
    ],
)
def test_a_disk_costs_its_size_and_what_exceeds_the_free_part(gib, iops, throughput, month):
    assert disk_hourly_usd(Disk(gib, iops, throughput)) == pytest.approx(month / 730)


def test_a_cluster_costs_its_machines_disks_and_addresses():
    found = estimate(P4D, 4, Disk(500, 6000, 500), 1, instance_type="p4d.24xlarge")
    # 4 x 21.957642 + 4 x 70 / 730 + 0.005
    assert found.hourly_usd == pytest.approx(87.830568 + 0.383562 + 0.005, abs=1e-6)
    assert [(line.what, line.count) for line in found.lines] == [
        ("p4d.24xlarge, on-demand", 4),
        ("gp3 disk of 500 GiB", 4),
        ("public IPv4 address", 1),
    ]
    assert found.price_source == "the price list, 2026-07-20"


def test_filling_a_disk_from_its_image_costs_once_and_little():
    # EBS pricing, example 12: $0.0036 a GiB at 300 MiB/s; with 250 GiB and 200 MiB/s $0.60.
    assert LoadCost(4, 100, 300).usd_each == pytest.approx(0.36)
    assert LoadCost(1, 250, 200).usd_each == pytest.approx(0.60)


def test_a_capacity_block_is_paid_in_advance_but_its_disks_are_not():
    found = estimate(None, 2, Disk(100), market=Market.CAPACITY_BLOCK, instance_type="p5.48xlarge")
    assert found.hourly_usd == pytest.approx(16 / 730)
    assert "paid in advance" in found.lines[0].what
    # Without one of the prices, the sum is unknown.
    assert estimate(None, 2, Disk(100), 2).hourly_usd is None


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (87.830568, "$87.83"),
        (1761.28, "$1,761.28"),
        (0.0104, "$0.0104"),
        (0, "$0.00"),
        (0.00001, "$0.00"),
        (-3.5, "-$3.50"),
        (None, "unknown"),
    ],
)
def test_dollars(usd, text):
    assert format_usd(usd) == text


@pytest.mark.parametrize(
    ("limits", "hourly", "spent", "expected"),
    [
        (Limits(), 10.0, 0.0, []),
        (Limits(max_hourly_usd=10), 10.0, 0.0, []),
        (Limits(max_hourly_usd=9.99), 10.0, 0.0, [("cost.hourly", "error")]),
        (Limits(budget_usd=100, max_hours=8), 10.0, 0.0, []),
        (Limits(budget_usd=100, max_hours=11), 10.0, 0.0, [("cost.budget", "info")]),
        (Limits(budget_usd=100), 10.0, 0.0, [("cost.budget", "info")]),
        (Limits(budget_usd=10), 10.0, 0.0, [("cost.budget", "info")]),
        (Limits(budget_usd=9.99), 10.0, 0.0, [("cost.budget", "error")]),
        (Limits(budget_usd=100), 10.0, 95.0, [("cost.budget", "error")]),
        (Limits(budget_usd=100), 10.0, 100.0, [("cost.budget", "error")]),
        (Limits(budget_usd=100), 0.0, 0.0, []),
        (Limits(budget_usd=5, max_hourly_usd=5), 10.0, 0.0,
         [("cost.hourly", "error"), ("cost.budget", "error")]),
        (Limits(), None, 0.0, [("cost.price", "warning")]),
        (Limits(budget_usd=100), None, 0.0, [("cost.price", "error")]),
        (Limits(max_hourly_usd=100), None, 0.0, [("cost.price", "error")]),
    ],
)  # fmt: skip
def test_what_the_limits_say(limits, hourly, spent, expected):
    found = [*budget_findings(limits, costing(hourly), spent)]
    assert [(finding.check, finding.severity.value) for finding in found] == expected
    assert all(finding.hint for finding in found if finding.severity is Severity.ERROR)


@pytest.mark.parametrize(
    ("limits", "ran_h", "spent", "hourly", "expected"),
    [
        (Limits(max_hours=8), 7.9, 0, 10, []),
        (Limits(max_hours=8, budget_usd=100), 8.0, 0, 10, ["--max-hours 8 has been reached"]),
        (Limits(max_hours=8), 7.95, 0, 10, ["--max-hours 8 would end the nodes in 3 min 00 s"]),
        (Limits(max_hours=0.05), 0, 0, 10, ["--max-hours 0.05 would end the nodes in 3 min 00 s"]),
        (Limits(budget_usd=5), 2, 5.49, 7, ["--budget $5.00 has been reached already: the"]),
        (Limits(budget_usd=5), 2, 5.0, None, ["--budget $5.00 has been reached already"]),
        (Limits(budget_usd=6), 2, 5.5, 12, ["--budget $6.00 would end the nodes in 2 min 30 s"]),
        (Limits(budget_usd=6), 2, 4.99, 12, []),
        # Without a price nobody knows how long it lasts; machines of a block cost nothing more.
        (Limits(budget_usd=6), 2, 5.99, None, []),
        (Limits(budget_usd=6), 2, 5.99, 0.0, []),
        (Limits(budget_usd=6, max_hours=2), 2, 7, 1, ["--max-hours 2", "--budget $6.00"]),
        (Limits(idle_minutes=1, max_hourly_usd=99), 99, 99, 99, []),
        (Limits(max_hourly_usd=1), 99, 99, 99, ["--max-hourly $1.00 is less than the nodes cost"]),
    ],
)
def test_a_limit_that_would_end_the_cluster_at_once_is_refused(
    limits, ran_h, spent, hourly, expected
):
    found = left_findings(limits, ran_h, spent, hourly)
    assert len(found) == len(expected)
    for one in left_findings(limits, ran_h, spent, hourly, at_most=True):
        assert re.search(r"have run for|has cost", one.message) is None or "at most" in one.message
    for one in left_findings(limits, ran_h, spent, hourly, at_most=True, complete=False):
        assert "has cost" not in one.message or "has cost about $" in one.message
    for one, text in zip(found, expected):
        assert (text in one.message, one.severity) == (True, Severity.ERROR)
        # The limit that the hint proposes is accepted.
        option, least = re.search(r"give --(\S+) ([\d.]+) or more", one.hint).groups()
        fields = {"max-hours": "max_hours", "budget": "budget_usd", "max-hourly": "max_hourly_usd"}
        assert left_findings(Limits(**{fields[option]: float(least)}), ran_h, spent, hourly) == []


# Limits in tags: what was written can be read, and foreign content does no harm


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(), ""),
        (Limits(max_hours=8), "max-hours=8"),
        (
            Limits(8, 100, 90, 30, 3),
            "max-hours=8 budget=100 max-hourly=90 idle-minutes=30 stopped-days=3",
        ),
        (Limits(idle_minutes=30, idle_erases_store=True), "idle-minutes=30 idle-erases-store=1"),
        (Limits(max_hours=0.25, budget_usd=1234567.89), "max-hours=0.25 budget=1234567.89"),
    ],
)
def test_limits_come_back_as_they_were(limits, text):
    assert format_limits(limits) == text
    assert parse_limits(text) == limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("budget", Limits()),
        ("budget=-5 max-hours=8", Limits(max_hours=8)),
        ("budget=0 max-hours=0.0", Limits()),
        ("budget=1e5 max-hours=inf max-hourly=nan", Limits()),
        ("budget=99999999999", Limits()),
        ("xmax-hours=8 max-hours=1e9", Limits()),
        ("Budget=5 max_hours=8 __class__=1 name=2", Limits()),
        ("  max-hours=8\t\n budget=5  ", Limits(max_hours=8, budget_usd=5)),
        ("budget=5 budget=7", Limits(budget_usd=7)),
        # Nothing stops the cluster, so there is no stop from which to count the days.
        ("stopped-days=3", Limits()),
        ("idle-erases-store=1", Limits()),
        ("idle-minutes=5 idle-erases-store=0", Limits(idle_minutes=5)),
        ("budget=\N{ARABIC-INDIC DIGIT FIVE}", Limits()),
        ("\0" * 256, Limits()),
    ],
)
def test_what_makes_no_sense_is_no_limit(text, limits):
    assert parse_limits(text) == limits
