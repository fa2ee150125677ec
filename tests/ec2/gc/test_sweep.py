"""What is an orphan, as a table; what EC2 says, read; removals that meet trouble."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from clusterctl.ec2 import tags
from clusterctl.ec2.gc.orphans import Rules, Verdict, judge, thing_id
from clusterctl.ec2.gc.resources import (
    STOPPED_SEEN,
    Resource,
    ResourceKind,
    limit_of,
    read_machine,
    stopped_since,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
REGION = "us-east-1"
DEMO = (REGION, "demo")
HERE = {"here": frozenset({DEMO})}


def ago(**span) -> datetime:
    return NOW - timedelta(**span)


def machine(
    index: int = 0,
    state: str = "running",
    *,
    name: str = "",
    made_at: datetime | None = None,
    cluster: str = "demo",
    limits: str = "",
    stopped: str = "",
    retired: bool = False,
    seen: str = "",
) -> Resource:
    """An instance as DescribeInstances has it."""
    labels = {tags.CLUSTER: cluster, tags.FIRST_INDEX: str(index), tags.LIMITS: limits}
    described = {
        "InstanceId": name or f"i-{index}",
        "InstanceType": "p4d.24xlarge",
        "State": {"Name": state},
        "StateTransitionReason": stopped,
        "LaunchTime": made_at or ago(hours=5),
        "VpcId": "vpc-1",
        "Tags": tags.tag_list(
            {
                **labels,
                **({tags.RETIRED: "yes"} if retired else {}),
                **({STOPPED_SEEN: seen} if seen else {}),
            }
        ),
    }
    return read_machine(described, REGION, tags.tag_dict(described["Tags"]))


def thing(kind: ResourceKind, **fields) -> Resource:
    common = {"cluster": "demo", "state": "available", "name": "clusterctl-demo"}
    return Resource(kind, f"{kind.name.lower()}-1", REGION, **{**common, **fields})


VOLUME = thing(ResourceKind.VOLUME, made_at=ago(days=3))
ADDRESS = thing(ResourceKind.ADDRESS, state="not associated")
GROUP = thing(ResourceKind.SECURITY_GROUP)
PLACEMENT = thing(ResourceKind.PLACEMENT_GROUP)
KEY = thing(ResourceKind.KEY_PAIR, made_at=ago(days=3))
NEW_KEY = thing(ResourceKind.KEY_PAIR, made_at=ago(minutes=3))
INTERFACE = thing(ResourceKind.INTERFACE)
NETWORK = thing(
    ResourceKind.NETWORK, cluster=None, network="big", state="CREATE_COMPLETE", vpc_ids=("vpc-1",)
)
ORPHAN, KEPT, IN_USE = Verdict.ORPHAN, Verdict.KEPT, Verdict.IN_USE
BLIND = {"blind": frozenset({(REGION, ResourceKind.INSTANCE)})}
OLD = {"older_than_s": 3600.0}


def seen(**span) -> dict:
    """The rules of a `gc` that has seen these for so long."""
    return {"alone_since": {thing_id(one): ago(**span) for one in (GROUP, ADDRESS)}}


def halted(since: str, limits: str = "stopped-days=3", seen: str = "") -> Resource:
    reason = f"User initiated (2026-11-{since} GMT)" if since else ""
    return machine(state="stopped", limits=limits, stopped=reason, made_at=ago(days=30), seen=seen)


@pytest.mark.parametrize(
    ("found", "rules", "expected"),
    [
        # A cluster with instances
        pytest.param([machine(), GROUP, KEY], HERE, [IN_USE] * 3, id="our own"),
        pytest.param([machine(), GROUP, KEY], {}, [KEPT, IN_USE, IN_USE], id="a colleague's"),
        pytest.param([machine()], OLD, [ORPHAN], id="a colleague's, too old"),
        pytest.param([machine()], {**HERE, **OLD}, [ORPHAN], id="our own, too old"),
        pytest.param([machine(), GROUP], OLD, [ORPHAN, ORPHAN], id="a group goes with them"),
        pytest.param([machine(made_at=ago(minutes=30))], OLD, [KEPT], id="not old enough"),
        pytest.param([machine()], {"cluster": "demo"}, [ORPHAN], id="asked for by name"),
        pytest.param([machine()], {"cluster": "other"}, [], id="another is asked for"),
        pytest.param(
            [machine(made_at=ago(minutes=1)), NEW_KEY],
            {"cluster": "demo"},
            [ORPHAN, ORPHAN],
            id="asked for by name, young",
        ),
        pytest.param([machine(state="shutting-down"), GROUP], {}, [KEPT, KEPT], id="ending"),
        # Deadlines
        pytest.param([machine(limits="max-hours=4")], HERE, [ORPHAN], id="over its hours"),
        pytest.param([machine(limits="max-hours=5")], HERE, [IN_USE], id="a minute over"),
        pytest.param([machine(limits="max-hours=8")], HERE, [IN_USE], id="within its hours"),
        pytest.param(
            [machine(state="stopped", limits="max-hours=1")],
            HERE,
            [IN_USE],
            id="stopped",
        ),
        pytest.param([halted("17 11:59:00")], HERE, [ORPHAN], id="stopped for 3 days"),
        pytest.param([halted("17 12:01:00")], HERE, [IN_USE], id="stopped for nearly 3 days"),
        pytest.param([halted("99 11:59:00")], HERE, [KEPT], id="stopped at no time"),
        pytest.param([halted("")], HERE, [KEPT], id="stopped by itself"),
        pytest.param([halted("")], {**HERE, **OLD}, [ORPHAN], id="by itself, and too old"),
        pytest.param(
            [halted("10 10:00:00", limits="stopped-days=-1 x stopped-days=3x")],
            HERE,
            [IN_USE],
            id="a limit that makes no sense",
        ),
        pytest.param(
            [halted("", seen="2026-11-17T11:59:00+00:00")], HERE, [ORPHAN], id="seen 3 days ago"
        ),
        pytest.param(
            [halted("", seen="2026-11-17T12:01:00+00:00")], HERE, [IN_USE], id="seen since"
        ),
        pytest.param(
            [halted("", seen="2026-09-01T12:00:00+00:00")], HERE, [KEPT], id="seen, then started"
        ),
        pytest.param([halted("", seen="2026-11-01T12:00:00")], HERE, [KEPT], id="seen nowhere"),
        pytest.param([halted("", seen="yesterday")], HERE, [KEPT], id="seen by hand"),
        # Replacement
        pytest.param(
            [machine(retired=True), machine(name="i-9")],
            HERE,
            [ORPHAN, IN_USE],
            id="replaced",
        ),
        pytest.param(
            [machine(retired=True), machine(name="i-9", made_at=ago(minutes=5))],
            HERE,
            [KEPT, IN_USE],
            id="replaced just now",
        ),
        pytest.param(
            [machine(retired=True), machine(name="i-9", state="stopped")],
            HERE,
            [KEPT, IN_USE],
            id="its replacement does not run",
        ),
        pytest.param(
            [machine(retired=True), machine(1)], HERE, [KEPT, IN_USE], id="another node runs"
        ),
        pytest.param(
            [machine(retired=True, limits="max-hours=1")], HERE, [ORPHAN], id="retired, over"
        ),
        # What is left
        pytest.param([GROUP, KEY, PLACEMENT], {}, [ORPHAN] * 3, id="no instance"),
        pytest.param([GROUP, NEW_KEY, ADDRESS], {}, [KEPT] * 3, id="a launch under way"),
        pytest.param([VOLUME, machine()], HERE, [IN_USE, ORPHAN], id="a volume on its own"),
        pytest.param(
            [replace(VOLUME, made_at=ago(minutes=2))], {}, [KEPT], id="a volume just made"
        ),
        pytest.param(
            [replace(VOLUME, state="in-use", attached_to="i-0"), machine()],
            HERE,
            [IN_USE, IN_USE],
            id="a volume in use",
        ),
        pytest.param(
            [replace(VOLUME, state="in-use", attached_to="i-0"), machine()],
            {"cluster": "demo"},
            [ORPHAN, ORPHAN],
            id="a volume of what goes",
        ),
        pytest.param(
            [replace(VOLUME, state="in-use", attached_to="i-else")],
            {},
            [KEPT],
            id="a volume somebody else uses",
        ),
        pytest.param([replace(VOLUME, state="deleting")], {}, [KEPT], id="a volume on its way"),
        pytest.param([ADDRESS, machine()], HERE, [IN_USE, ORPHAN], id="an address on its own"),
        pytest.param(
            [ADDRESS, machine(made_at=ago(minutes=1)), machine(1)],
            HERE,
            [IN_USE, IN_USE, KEPT],
            id="an address, and a node was added just now",
        ),
        pytest.param(
            [replace(ADDRESS, attached_to="eni-7")], {}, [KEPT], id="an address somebody else uses"
        ),
        pytest.param([INTERFACE], {}, [ORPHAN], id="an interface on its own"),
        # Under way on this machine
        pytest.param(
            [GROUP, KEY, VOLUME],
            {**HERE, "busy": frozenset({DEMO})},
            [KEPT] * 3,
            id="a command is at work",
        ),
        pytest.param(
            [GROUP], {"cluster": "demo", "busy": frozenset({DEMO})}, [KEPT], id="at work, asked for"
        ),
        pytest.param(
            [GROUP], {"busy": frozenset({("us-west-2", "demo")})}, [ORPHAN], id="at work elsewhere"
        ),
        pytest.param([GROUP, KEY], {"unsettled": frozenset({DEMO})}, [KEPT] * 2, id="unsettled"),
        # What could not be looked at
        pytest.param([GROUP, KEY, VOLUME, ADDRESS], BLIND, [KEPT] * 4, id="no instances seen"),
        pytest.param([GROUP], {**BLIND, "cluster": "demo"}, [KEPT], id="none seen, asked for"),
        pytest.param(
            [GROUP, VOLUME],
            {"blind": frozenset({(REGION, ResourceKind.KEY_PAIR)})},
            [ORPHAN, KEPT],
            id="no key pairs seen",
        ),
        pytest.param(
            [GROUP],
            {"blind": frozenset({("us-west-2", ResourceKind.INSTANCE)})},
            [ORPHAN],
            id="no instances seen elsewhere",
        ),
        pytest.param(
            [NETWORK], {**BLIND, "networks": True}, [KEPT], id="a network in which nothing was seen"
        ),
        # No date
        pytest.param(
            [GROUP, KEY], {"alone_since": {}}, [KEPT, ORPHAN], id="seen for the first time"
        ),
        pytest.param([GROUP, ADDRESS], seen(minutes=14), [KEPT] * 2, id="seen for a while"),
        pytest.param([GROUP, ADDRESS], seen(minutes=15), [ORPHAN] * 2, id="seen for long enough"),
        pytest.param(
            [GROUP, NEW_KEY], seen(days=9), [KEPT] * 2, id="seen for long, beside a new key"
        ),
        pytest.param([GROUP], seen(minutes=-5), [KEPT], id="seen in the future"),
        pytest.param(
            [GROUP], {"alone_since": {}, "cluster": "demo"}, [ORPHAN], id="first seen, asked for"
        ),
        # Networks
        pytest.param([NETWORK], {}, [KEPT], id="an empty network"),
        pytest.param([NETWORK], {"networks": True}, [ORPHAN], id="an empty network, asked for"),
        pytest.param(
            [NETWORK, machine()], {**HERE, "networks": True}, [IN_USE, IN_USE], id="a used network"
        ),
        pytest.param(
            [replace(NETWORK, vpc_ids=())],
            {"networks": True},
            [KEPT],
            id="a network anywhere",
        ),
        pytest.param([NETWORK], {"cluster": "demo"}, [], id="a network, a cluster asked for"),
        # Hands that wrote tags
        pytest.param([replace(GROUP, cluster="")], {}, [ORPHAN], id="an empty name"),
        pytest.param([machine(cluster="../x")], {}, [KEPT], id="a name that is no name"),
    ],
)
def test_verdicts(found, rules, expected):
    judged = judge(found, Rules(NOW, **rules))
    assert [one.verdict for one in judged] == expected
    assert all(one.why for one in judged)


def test_one_name_in_two_regions_is_two_clusters():
    there = replace(GROUP, region="us-west-2")
    judged = judge([machine(), GROUP, there], Rules(NOW, **HERE))
    assert [(one.resource.region, one.verdict) for one in judged] == [
        ("us-east-1", IN_USE),
        ("us-east-1", IN_USE),
        ("us-west-2", ORPHAN),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("User initiated (2026-11-03 08:30:00 GMT)", datetime(2026, 11, 3, 8, 30)),
        ("User initiated (2026-11-03 08:30:00 UTC)", datetime(2026, 11, 3, 8, 30)),
        ("User initiated", None),
        ("", None),
        ("User initiated (2026-13-45 99:99:99 GMT)", None),
        ("User initiated (٢٠٢٦-11-03 08:30:00 GMT)", None),
    ],
)
def test_when_an_instance_was_stopped(text, expected):
    assert stopped_since(text) == (expected and expected.replace(tzinfo=timezone.utc))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max-hours=8 stopped-days=3", 8),
        ("budget=100 max-hours=0.5", 0.5),
        ("max-hours=0", None),
        ("max-hours=1e9", None),
        ("xmax-hours=8", None),
        ("max-hours=nan", None),
        ("", None),
    ],
)
def test_a_limit_of_a_tag(text, expected):
    assert limit_of(machine(limits=text), "max-hours") == expected
