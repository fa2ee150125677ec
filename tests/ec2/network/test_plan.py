"""Valid networks, and the action for each existing state."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.ec2.network.plan import (
    Action,
    NetworkRequest,
    NetworkSettings,
    Stack,
    choose_zones,
    decide,
    settings_of,
    subnet_cidrs,
)

SETTINGS = NetworkSettings("net", "10.20.0.0/16", ("us-east-1a", "us-east-1b"), "203.0.113.7/32")
REGION, ZONES = "us-east-1", ["us-east-1a", "us-east-1b", "us-east-1c"]
TEMPLATE = "abc"


def stack(status: str, **outputs: str) -> Stack:
    parameters = SETTINGS.parameters()
    return Stack("arn:1", "clusterctl-network-net", status, "", parameters, outputs, TEMPLATE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ""}, "not a network name"),
        ({"name": "net\n"}, "not a network name"),
        ({"name": "n" * 41}, "not a network name"),
        ({"cidr": "10.20.0.0"}, "has no /length"),
        ({"cidr": "10.20.0.1/16"}, "has host bits set"),
        ({"cidr": "10.20.0.0/33"}, "not an IPv4 network"),
        ({"cidr": "fd00::/56"}, "not an IPv4 network"),
        ({"cidr": "10.0.0.0/15"}, "a network cannot have 10.0.0.0/15"),
        ({"cidr": "10.0.0.0/25"}, "a network cannot have"),
        ({"cidr": "8.8.0.0/16"}, "belongs to the public internet"),
        ({"ssh_from": "0.0.0.0/0"}, "open to the whole internet"),
        ({"ssh_from": "::/0"}, "not an IPv4 network"),
        ({"zones": ("a",)}, "2 different zones"),
        ({"zones": ("a", "a")}, "2 different zones"),
        ({"zones": ("a", "us-east-1a")}, "2 different zones"),
    ],
)
def test_wishes_that_make_no_sense(given, says):
    with pytest.raises(UsageError, match=says) as caught:
        NetworkRequest(**{"name": "net", **given})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("cidr", "subnets"),
    [
        ("172.16.0.0/16", ("172.16.0.0/18", "172.16.64.0/18")),
        ("192.168.4.0/22", ("192.168.4.0/24", "192.168.5.0/24")),
        ("100.64.0.0/24", ("100.64.0.0/26", "100.64.0.64/26")),
    ],
)
def test_subnets_are_quarters(cidr, subnets):
    assert subnet_cidrs(NetworkRequest("net", cidr=cidr).cidr) == subnets


@pytest.mark.parametrize(
    ("found", "wish", "action"),
    [
        (None, {}, Action.CREATE),
        ("DELETE_COMPLETE", {}, Action.CREATE),
        ("CREATE_IN_PROGRESS", {}, Action.WAIT),
        ("CREATE_IN_PROGRESS", {"cidr": "10.0.0.0/16"}, Action.WAIT),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", {}, Action.WAIT),
        ("UPDATE_ROLLBACK_IN_PROGRESS", {}, Action.WAIT),
        ("ROLLBACK_COMPLETE", {}, Action.REPLACE),
        ("CREATE_FAILED", {}, Action.REPLACE),
        # A change set that was never executed.
        ("REVIEW_IN_PROGRESS", {}, Action.REPLACE),
        ("CREATE_COMPLETE", {}, Action.NOTHING),
        ("UPDATE_COMPLETE", {}, Action.NOTHING),
        ("UPDATE_ROLLBACK_COMPLETE", {}, Action.NOTHING),
        ("CREATE_COMPLETE", {"cidr": "10.20.0.0/16", "zones": ("b", "a")}, Action.NOTHING),
        ("CREATE_COMPLETE", {"zones": ("us-east-1a", "b")}, Action.NOTHING),
        ("CREATE_COMPLETE", {"ssh_from": "203.0.113.7/32"}, Action.NOTHING),
        ("CREATE_COMPLETE", {"ssh_from": "198.51.100.0/24"}, Action.UPDATE),
        ("UPDATE_ROLLBACK_COMPLETE", {"ssh_from": "198.51.100.0/24"}, Action.UPDATE),
    ],
)
def test_what_is_done_about_what_is_there(found, wish, action):
    there = None if found is None else stack(found)
    assert decide(there, NetworkRequest("net", **wish), TEMPLATE) is action
    if action is Action.NOTHING:
        # A newer template is put in place.
        assert decide(there, NetworkRequest("net", **wish), "newer") is Action.UPDATE


@pytest.mark.parametrize(
    ("status", "wish", "says", "hint"),
    [
        ("CREATE_COMPLETE", {"cidr": "10.0.0.0/16"}, "has 10.20.0.0/16, not 10.0", "network down"),
        (
            "CREATE_COMPLETE",
            {"zones": ("a", "c")},
            "us-east-1a and us-east-1b, not a and c",
            "name",
        ),
        ("DELETE_FAILED", {}, "something of it is left", "network down net"),
        ("UPDATE_ROLLBACK_FAILED", {}, "could not be taken back", "continue-update-rollback"),
    ],
)
def test_what_only_the_user_can_decide(status, wish, says, hint):
    with pytest.raises(ClusterctlError, match=says) as caught:
        decide(stack(status), NetworkRequest("net", **wish), TEMPLATE)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("status", "usable"),
    [
        ("CREATE_COMPLETE", True),
        ("UPDATE_IN_PROGRESS", True),
        ("UPDATE_ROLLBACK_COMPLETE", True),
        ("ROLLBACK_COMPLETE", False),
        ("DELETE_IN_PROGRESS", False),
        ("DELETE_FAILED", False),
    ],
)
def test_a_network_is_there_while_it_changes(status, usable):
    assert stack(status, VpcId="vpc-1").usable is usable
    assert not stack(status).usable


def test_settings_survive_the_stack():
    assert settings_of("net", SETTINGS.parameters()) == SETTINGS
    with pytest.raises(ClusterctlError, match="not one that clusterctl made"):
        settings_of("net", {"Vpc": "1"})


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        (None, None, ("us-east-1a", "us-east-1b")),
        (("c", "a"), None, ("us-east-1c", "us-east-1a")),
        (("us-east-1b", "c"), None, ("us-east-1b", "us-east-1c")),
        (None, {"us-east-1c", "us-east-1b"}, ("us-east-1b", "us-east-1c")),
        # The second zone does not offer the type, but a network needs two zones.
        (None, {"us-east-1c"}, ("us-east-1c", "us-east-1a")),
        (("a", "b"), {"us-east-1c"}, ("us-east-1a", "us-east-1b")),
    ],
)
def test_zones(wanted, offered, chosen):
    given = frozenset(offered) if offered is not None else None
    assert choose_zones(REGION, ZONES[::-1], wanted, given) == chosen


@pytest.mark.parametrize(
    ("available", "wanted", "offered", "says"),
    [
        (ZONES, ("a", "z"), None, "there is no zone us-east-1z"),
        (ZONES, ("a", "eu-west-1b"), None, "there is no zone us-east-1eu-west-1b"),
        (ZONES, None, frozenset(), "no zone of us-east-1 offers"),
        (ZONES[:1], None, None, "only 1 zone"),
        ([], None, None, "only 0 zone"),
    ],
)
def test_zones_that_cannot_be_had(available, wanted, offered, says):
    with pytest.raises(UsageError, match=says):
        choose_zones(REGION, available, wanted, offered)
