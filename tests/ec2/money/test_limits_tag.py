"""Limits in a tag: what is written is read, what somebody else wrote is survived."""

import pytest

from clusterctl.domain.cluster import Limits
from clusterctl.ec2.money.costs import format_limits, parse_limits


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(), ""),
        (Limits(max_hours=8), "max-hours=8"),
        (
            Limits(8, 100, 90, 30, 3),
            "max-hours=8 budget=100 max-hourly=90 idle-minutes=30 stopped-days=3",
        ),
        (Limits(max_hours=0.25, budget_usd=1234567.89), "max-hours=0.25 budget=1234567.89"),
        (Limits(budget_usd=100000), "budget=100000"),
    ],
)
def test_limits_come_back_as_they_were(limits, text):
    assert format_limits(limits) == text
    assert parse_limits(text) == limits


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("budget", Limits()),
        ("budget=", Limits()),
        ("budget=lots max-hours=8", Limits(max_hours=8)),
        ("budget=-5 max-hours=8", Limits(max_hours=8)),
        ("budget=0 max-hours=0.0", Limits()),
        ("budget=1e5 max-hours=inf max-hourly=nan", Limits()),
        ("budget=99999999999", Limits()),
        ("Budget=5 max_hours=8 __class__=1 name=2", Limits()),
        ("budget=5,max-hours=8", Limits()),
        ("  max-hours=8\t\n budget=5  ", Limits(max_hours=8, budget_usd=5)),
        ("budget=5 budget=7", Limits(budget_usd=7)),
        # Nothing would ever stop it: there is nothing to remove it after.
        ("stopped-days=3", Limits()),
        ("budget=\N{ARABIC-INDIC DIGIT FIVE}", Limits()),
        ("\0" * 256, Limits()),
    ],
)
def test_what_makes_no_sense_is_no_limit(text, limits):
    assert parse_limits(text) == limits
