"""What is known of a cluster that a limit has ended: from EC2, and from the folder."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from clusterctl.domain.cluster import Market
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.money.costs import spending
from clusterctl.ec2.tags import Spent
from clusterctl.operations.ended import end_of
from clusterctl.operations.local_state import keep_end, kept_end
from tests.ec2.money.test_spending import BY_ITSELF, BY_USER, NOW, TEN, machine

PRICES = {("p4d.24xlarge", Market.ON_DEMAND, ""): TEN}


def gone(hours, limits, index=0, reason=BY_ITSELF, **more):
    """Return a terminated node whose last run began so many hours ago, as EC2 shows it then."""
    return replace(
        machine(hours, "terminated", index=index, limits_text=limits, **reason),
        **{"first_launched_at": None, "wanted": (0, 1), **more},
    )


SPENT = Spent(usd=20.17, ran_h=2.0, until=NOW - timedelta(hours=9), at_least=False)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        # 3 h at 10 + 0.08 + 0.005, of two nodes.
        ([gone(9, "max-hours=3"), gone(9, "max-hours=3", index=1)],
         "ended 2026-11-21 06:00 UTC by --max-hours 3: $60.51"),
        # Two hours of an earlier run count.
        ([gone(9, "max-hours=3", spent=SPENT)],
         "ended 2026-11-21 04:00 UTC by --max-hours 3: $30.25"),
        # Recorded again six minutes after the start, with what its guard has counted.
        ([gone(9, "max-hours=3", spent=Spent(22.0, 2.1, NOW - timedelta(hours=8.9)))],
         "ended 2026-11-21 04:00 UTC by --max-hours 3: $31.08"),
        # 8 h at 10.085 are more than 80.68, reached after 8 h.
        ([gone(9, "budget=80.68 max-hours=8.5")],
         "ended 2026-11-21 11:00 UTC by --budget 80.68: $80.68"),
        # Another generation of the cluster, and a node that `remove` has terminated.
        ([gone(30, "max-hours=1"), gone(9, "max-hours=3"), gone(9, "", 1, BY_USER)],
         "ended 2026-11-21 06:00 UTC by --max-hours 3: $30.25"),
        # Another generation of the cluster, of two nodes, which ended in the same hour.
        (
            [gone(9.5, "max-hours=0.25", index) for index in (0, 1)]
            + [gone(9, "max-hours=3", wanted=(0,))],
            "ended 2026-11-21 06:00 UTC by --max-hours 3: $30.25",
        ),
        # EC2 may show the end a moment before it is due.
        ([gone(2.95, "max-hours=3")], "ended 2026-11-21 12:00 UTC by --max-hours 3: $29.75"),
    ],
)  # fmt: skip
def test_ec2_shows_how_a_limit_has_ended_a_cluster(nodes, words):
    assert str(end_of("demo", nodes, PRICES, NOW)) == words


@pytest.mark.parametrize(
    "nodes",
    [
        [gone(9, "max-hours=3", reason=BY_USER)],
        [gone(9, "idle-minutes=30")],
        [gone(9, "")],
        # Switched off by its user, an hour before the end.
        [gone(9, "max-hours=10")],
        [gone(9, "max-hours=3"), gone(5, "max-hours=9", reason=BY_USER)],
        [gone(9, "max-hours=3", reason={"state_reason": "Server.SpotInstanceTermination: x"})],
    ],
)
def test_no_other_end_is_called_that_of_a_limit(nodes):
    assert end_of("demo", nodes, PRICES, NOW) is None


def test_by_which_of_two_limits_it_ended_is_not_known():
    nodes = [gone(9, "max-hours=3", earlier_limits="max-hours=8"), gone(9, "max-hours=3", index=1)]
    assert end_of("demo", nodes, PRICES, NOW) is None


@pytest.mark.parametrize(
    ("limits", "more", "ran_h"),
    [
        ("max-hours=0.1", {}, 0.1),
        ("budget=5 max-hours=8", {}, 5 / 10.085),
        ("max-hours=2.5", {"spent": SPENT}, 0.5),
        # Started after its end, and made ready 20 minutes later.
        ("max-hours=1.5", {"spent": SPENT}, 0.25),
        ("budget=20", {"spent": SPENT, "ends_at": NOW - timedelta(hours=9 - 35 / 60)}, 35 / 60),
    ],
)
def test_the_end_and_the_sum_are_not_less_than_what_was_shown_before(limits, more, ran_h):
    began = NOW - timedelta(hours=9)
    ended = end_of("demo", [gone(9, limits, **more)], PRICES, NOW)
    assert ended.ended_at == pytest.approx(began + timedelta(hours=ran_h), abs=timedelta(seconds=1))
    node = machine(9, limits_text=limits, public_ip="198.51.100.7", **more)
    for part in range(11):
        now = began + timedelta(hours=ran_h * part / 10)
        shown = spending([node], PRICES, now)
        assert shown.spent_usd <= ended.spending.spent_usd
        assert shown.ends_in_h == pytest.approx(ran_h * (10 - part) / 10, abs=1e-6)
        assert shown.ended_by == ended.spending.ended_by


def test_a_budget_without_a_price_has_no_known_end():
    assert end_of("demo", [gone(9, "budget=5")], {}, NOW) is None


def test_the_folder_remembers_the_end_that_has_come(tmp_path):
    folder = ClusterFolder(tmp_path / "demo")
    assert kept_end(folder, NOW) == ""
    keep_end(folder, NOW, "--budget 5")
    words = "gone; its --budget would have ended it at 2026-11-21 12:00 UTC"
    assert kept_end(folder, NOW) == words
    assert kept_end(folder, NOW - timedelta(seconds=1)) == ""
    keep_end(folder, None, "")
    assert kept_end(folder, NOW) == ""


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "3", "{}", '{"ends_at": 3, "by": "x"}'),
        '{"ends_at": "soon", "by": "--budget 5"}',
        '{"ends_at": "2026-11-21T12:00:00", "by": "--budget 5"}',
        '{"ends_at": "2026-11-21T12:00:00+00:00", "by": "\\u001b[2J"}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_damaged_record_is_named_and_no_time_is_made_up(tmp_path, content):
    folder = ClusterFolder(tmp_path)
    folder.end.write_bytes(content.encode(errors="surrogateescape"))
    words = kept_end(folder, NOW)
    assert f"not known when its limit would have ended it: cannot read {folder.end}: " in words
    assert words.isprintable()
