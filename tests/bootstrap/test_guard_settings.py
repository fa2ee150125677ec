"""The settings of a guard: from the owner's limits to the settings file, and back."""

from __future__ import annotations

import json

import pytest

from clusterctl.bootstrap.guard import first_settings, joined_settings, lifetime_s, parse_used_h
from clusterctl.bootstrap.trust import NodeIdentity
from clusterctl.domain.cluster import Limits
from clusterctl.node.guard.settings import GuardSettings, Worker, parse_settings

MEMBERS = [
    NodeIdentity("demo-0", "10.0.0.4", "203.0.113.9", "ip-10-0-0-4", ()),
    NodeIdentity("demo-1", "10.0.0.5", None, "ip-10-0-0-5", ()),
]
HEAD = """\
{
 "cluster": "demo",
 "idle_s": 1800,
 "index": 0,
 "lifetime_s": 28800,
 "user": "ubuntu",
 "workers": [
  {
   "address": "10.0.0.5",
   "name": "demo-1"
  }
 ]
}
"""


@pytest.mark.parametrize(
    ("limits", "hourly", "expected"),
    [
        (Limits(), 10.0, None),
        (Limits(max_hours=8), None, 28800),
        (Limits(budget_usd=100), 10.0, 36000),
        (Limits(budget_usd=100), None, None),
        (Limits(max_hours=8, budget_usd=100), 10.0, 28800),
        (Limits(max_hours=20, budget_usd=100), 10.0, 36000),
    ],
)
def test_hours_and_dollars_become_a_time(limits, hourly, expected):
    assert lifetime_s(limits, hourly) == expected


def test_the_file_of_a_head_node_whole():
    first = first_settings("demo", Limits(max_hours=8, idle_minutes=30))
    assert first == GuardSettings("demo", lifetime_s=28800, idle_s=1800)
    head = joined_settings(first, 0, "ubuntu", MEMBERS)
    assert head.text() == HEAD
    assert joined_settings(first, 1, "ubuntu", MEMBERS) == GuardSettings(
        "demo", index=1, lifetime_s=28800, idle_s=1800, user="ubuntu"
    )


@pytest.mark.parametrize(
    "settings",
    [
        GuardSettings("demo"),
        GuardSettings("demo", spot=True, lifetime_s=0.5),
        GuardSettings("d", 0, 1.0, 3.0, True, "ec2-user", (Worker("d-1", "fd00::1"),)),
    ],
)
def test_settings_are_read_back_unchanged(settings):
    assert parse_settings(settings.text()) == settings


def test_unknown_settings_of_a_newer_launcher_are_ignored():
    assert parse_settings('{"cluster": "demo", "moon": 1}') == GuardSettings("demo")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "7", '"x"', "{}", "\x00", '{"cluster": 7}'),
        *(
            f'{{"cluster": "demo", {rest}}}'
            for rest in (
                '"lifetime_s": "8"',
                '"lifetime_s": -1',
                '"lifetime_s": 0',
                '"lifetime_s": NaN',
                '"lifetime_s": Infinity',
                '"lifetime_s": true',
                '"lifetime_s": 1e300',
                '"idle_s": [1]',
                '"spot": "yes"',
                '"index": -1',
                '"index": 0.5',
                '"index": true',
                '"user": "-oProxyCommand=x"',
                '"user": "a b"',
                '"user": null',
                '"workers": 3',
                '"workers": {"a": 1}',
                '"workers": [{"name": "a"}]',
                '"workers": [{"name": "a", "address": "-oProxyCommand=x"}]',
                '"workers": [{"name": "a", "address": "x;reboot"}]',
                '"imds": "file:///etc/passwd"',
                '"imds": 1',
            )
        ),
    ],
)
def test_what_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError):
        parse_settings(text)


@pytest.mark.parametrize(
    ("kept", "boot", "uptime", "hours"),
    [
        # The machine's first boot, or its third. Each boot may have cost up to 10 minutes more.
        ({"before_s": 0, "boot_s": 60, "since": 1e9 + 100, "boots": 1}, "b", "3000.5 9.1", 1.0001),
        ({"before_s": 3600, "boot_s": 3600, "since": 1e9 + 100, "boots": 2}, "c", "1800 9", 3.0),
        # Counted from a later boot on; nothing.
        ({"before_s": 3600, "boot_s": 60, "since": 1e9 + 9000, "boots": 2}, "b", "60 9", None),
        ({"before_s": 0, "boot_s": 60, "since": 1e9 + 100, "boots": 1}, "b", "", None),
        (None, "b", "60 9", None),
    ],
)
def test_for_how_long_a_machine_has_run_in_all(kept, boot, uptime, hours):
    said = "" if kept is None else json.dumps({"boot_id": "b", **kept})
    found = parse_used_h(f"{said}\n{boot}\n\n{uptime}\n\n", made_at=1e9)
    assert found == (None if hours is None else pytest.approx(hours, abs=1e-4))


@pytest.mark.parametrize(
    "record", ["{", "[]", "[" * 9999, '{"boot_id": "b"}', '{"boot_id": "b", "before_s": "0"}']
)
def test_of_a_damaged_record_the_running_time_is_not_known(record):
    assert parse_used_h(f"{record}\nb\n60 9\n", made_at=1e9) is None
