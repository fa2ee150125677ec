"""Which resources are orphans, as a table; reading EC2's answers; removals that fail."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from botocore.exceptions import ClientError

from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import tags
from clusterctl.ec2.gc.orphans import (
    STOPPED_FOUND,
    GcOptions,
    Rules,
    Verdict,
    classify,
    resource_id,
)
from clusterctl.ec2.instances import read_instance, stopped_since
from clusterctl.ec2.network.vpcs import read_address
from clusterctl.ec2.resources import Resource, ResourceKind, delete, delete_all, of_instance
from tests.clock import FakeClock

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
    observed: str = "",
) -> Resource:
    """Return an instance as DescribeInstances shows it."""
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
                **({STOPPED_FOUND: observed} if observed else {}),
            }
        ),
    }
    return replace(of_instance(read_instance(described)), region=REGION, cluster=cluster)


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
BLIND = {"unlisted_kinds": frozenset({(REGION, ResourceKind.INSTANCE)})}
OLD = {"older_than_s": 3600.0}


def observed(**span) -> dict:
    """The rules of a `gc` that has seen these for so long."""
    return {"unused_since": {resource_id(one): ago(**span) for one in (GROUP, ADDRESS)}}


def spent(usd: float) -> dict:
    """The rules of a `gc` that has added up the cluster's cost, at 10 dollars an hour."""
    return {"spent": {DEMO: (usd, 10.0)}}


def halted(
    since: str, limits: str = "idle-minutes=30 stopped-days=3", observed: str = ""
) -> Resource:
    reason = f"User initiated (2026-11-{since} GMT)" if since else ""
    return machine(
        state="stopped", limits=limits, stopped=reason, made_at=ago(days=30), observed=observed
    )


# Name: the resources, the rules, and the verdict on each resource.
VERDICTS = {
    # A cluster with instances
    "our own": ([machine(), GROUP, KEY], HERE, [IN_USE] * 3),
    "a colleague's": ([machine(), GROUP, KEY], {}, [KEPT, IN_USE, IN_USE]),
    "a colleague's, too old": ([machine()], OLD, [ORPHAN]),
    "our own, too old": ([machine()], {**HERE, **OLD}, [ORPHAN]),
    "a group goes with them": ([machine(), GROUP], OLD, [ORPHAN, ORPHAN]),
    "not old enough": ([machine(made_at=ago(minutes=30))], OLD, [KEPT]),
    "asked for by name": ([machine()], {"cluster": "demo"}, [ORPHAN]),
    "another is asked for": ([machine()], {"cluster": "other"}, []),
    "asked for by name, young": ([machine(made_at=ago(minutes=1)), NEW_KEY], {"cluster": "demo"},
        [ORPHAN, ORPHAN]),
    "ending": ([machine(state="shutting-down"), GROUP], {}, [KEPT, KEPT]),
    # Deadlines
    "over its hours": ([machine(limits="max-hours=4")], HERE, [ORPHAN]),
    "a minute over": ([machine(limits="max-hours=5")], HERE, [IN_USE]),
    "within its hours": ([machine(limits="max-hours=8")], HERE, [IN_USE]),
    "stopped": ([machine(state="stopped", limits="max-hours=1")], HERE, [IN_USE]),
    "over its budget": ([machine(limits="budget=100")], {**HERE, **spent(120)}, [ORPHAN]),
    "a minute over its budget": ([machine(limits="budget=100")], {**HERE, **spent(101)}, [IN_USE]),
    "within its budget": ([machine(limits="budget=100")], {**HERE, **spent(99)}, [IN_USE]),
    "started after its end": ([machine(limits="budget=100", made_at=ago(minutes=14))],
        {**HERE, **spent(120)}, [IN_USE]),
    "stopped, over its budget": ([machine(state="stopped", limits="budget=100")],
        {**HERE, **spent(120)}, [KEPT]),
    "stopped for 3 days": ([halted("17 11:59:00")], HERE, [ORPHAN]),
    "stopped for nearly 3 days": ([halted("17 12:01:00")], HERE, [IN_USE]),
    "stopped at no time": ([halted("99 11:59:00")], HERE, [KEPT]),
    "stopped by itself": ([halted("")], HERE, [KEPT]),
    "by itself, and too old": ([halted("")], {**HERE, **OLD}, [ORPHAN]),
    "a limit that makes no sense": (
        [halted("10 10:00:00", limits="idle-minutes=30 stopped-days=-1 x stopped-days=3x")],
        HERE,
        [IN_USE],
    ),
    "seen 3 days ago": ([halted("", observed="2026-11-17T11:59:00+00:00")], HERE, [ORPHAN]),
    "seen since": ([halted("", observed="2026-11-17T12:01:00+00:00")], HERE, [IN_USE]),
    "seen, then started": ([halted("", observed="2026-09-01T12:00:00+00:00")], HERE, [KEPT]),
    "seen nowhere": ([halted("", observed="2026-11-01T12:00:00")], HERE, [KEPT]),
    "seen by hand": ([halted("", observed="yesterday")], HERE, [KEPT]),
    # Replacement
    "replaced": ([machine(retired=True), machine(name="i-9")], HERE, [ORPHAN, IN_USE]),
    "replaced just now": ([machine(retired=True), machine(name="i-9", made_at=ago(minutes=5))],
        HERE, [KEPT, IN_USE]),
    "its replacement does not run": ([machine(retired=True), machine(name="i-9", state="stopped")],
        HERE, [KEPT, IN_USE]),
    "another node runs": ([machine(retired=True), machine(1)], HERE, [KEPT, IN_USE]),
    "retired, over": ([machine(retired=True, limits="max-hours=1")], HERE, [ORPHAN]),
    # Left-over resources
    "no instance": ([GROUP, KEY, PLACEMENT], {}, [ORPHAN] * 3),
    "a launch under way": ([GROUP, NEW_KEY, ADDRESS], {}, [KEPT] * 3),
    "a volume on its own": ([VOLUME, machine()], HERE, [IN_USE, ORPHAN]),
    "a volume just made": ([replace(VOLUME, made_at=ago(minutes=2))], {}, [KEPT]),
    "a volume in use": ([replace(VOLUME, state="in-use", attached_to="i-0"), machine()], HERE,
        [IN_USE, IN_USE]),
    "a volume of what goes": ([replace(VOLUME, state="in-use", attached_to="i-0"), machine()],
        {"cluster": "demo"}, [ORPHAN, ORPHAN]),
    "a volume somebody else uses": ([replace(VOLUME, state="in-use", attached_to="i-else")], {},
        [KEPT]),
    "a volume on its way": ([replace(VOLUME, state="deleting")], {}, [KEPT]),
    "an address on its own": ([ADDRESS, machine()], HERE, [IN_USE, ORPHAN]),
    "an address, and a node was added just now": (
        [ADDRESS, machine(made_at=ago(minutes=1)), machine(1)],
        HERE,
        [IN_USE, IN_USE, KEPT],
    ),
    "an address somebody else uses": ([replace(ADDRESS, attached_to="eni-7")], {}, [KEPT]),
    "an interface on its own": ([INTERFACE], {}, [ORPHAN]),
    # A command is running on this machine
    "a command is at work": ([GROUP, KEY, VOLUME], {**HERE, "busy": {DEMO: "at work"}}, [KEPT] * 3),
    "at work, asked for": ([GROUP], {"cluster": "demo", "busy": {DEMO: "at work"}}, [KEPT]),
    "at work elsewhere": ([GROUP], {"busy": {("us-west-2", "demo"): "at work"}}, [ORPHAN]),
    "unsettled": ([GROUP, KEY], {"unresolved": frozenset({DEMO})}, [KEPT] * 2),
    # Resources that could not be listed
    "no instances seen": ([GROUP, KEY, VOLUME, ADDRESS], BLIND, [KEPT] * 4),
    "none seen, asked for": ([GROUP], {**BLIND, "cluster": "demo"}, [KEPT]),
    "no key pairs seen": ([GROUP, VOLUME],
        {"unlisted_kinds": frozenset({(REGION, ResourceKind.KEY_PAIR)})}, [ORPHAN, KEPT]),
    "no instances seen elsewhere": ([GROUP],
        {"unlisted_kinds": frozenset({("us-west-2", ResourceKind.INSTANCE)})}, [ORPHAN]),
    "a network in which nothing was seen": ([NETWORK], {**BLIND, "networks": True}, [KEPT]),
    # No date
    "seen for the first time": ([GROUP, KEY], {"unused_since": {}}, [KEPT, ORPHAN]),
    "seen for a while": ([GROUP, ADDRESS], observed(minutes=14), [KEPT] * 2),
    "seen for long enough": ([GROUP, ADDRESS], observed(minutes=15), [ORPHAN] * 2),
    "seen for long, beside a new key": ([GROUP, NEW_KEY], observed(days=9), [KEPT] * 2),
    "seen in the future": ([GROUP], observed(minutes=-5), [KEPT]),
    "first seen, asked for": ([GROUP], {"unused_since": {}, "cluster": "demo"}, [ORPHAN]),
    # Networks
    "an empty network": ([NETWORK], {}, [KEPT]),
    "an empty network, asked for": ([NETWORK], {"networks": True}, [ORPHAN]),
    "a used network": ([NETWORK, machine()], {**HERE, "networks": True}, [IN_USE, IN_USE]),
    "a network anywhere": ([replace(NETWORK, vpc_ids=())], {"networks": True}, [KEPT]),
    "a network, a cluster asked for": ([NETWORK], {"cluster": "demo"}, []),
    # Tags edited by hand
    "an empty name": ([replace(GROUP, cluster="")], {}, [ORPHAN]),
    "a name that is no name": ([machine(cluster="../x")], {}, [KEPT]),
}  # fmt: skip


@pytest.mark.parametrize(("found", "rules", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(found, rules, expected):
    options = {
        name: rules[name] for name in ("cluster", "older_than_s", "networks") if name in rules
    }
    facts = {name: value for name, value in rules.items() if name not in options}
    classified = classify(found, Rules(NOW, **facts, options=GcOptions(**options)))
    assert [one.verdict for one in classified] == expected
    assert all(one.why for one in classified)
    # What ends a cluster is not the only way named where its nodes may be at work.
    is_open = "unresolved" in rules
    assert all(("clusterctl up demo goes on" in one.why) == is_open for one in classified)


def test_one_name_in_two_regions_is_two_clusters():
    there = replace(GROUP, region="us-west-2")
    classified = classify([machine(), GROUP, there], Rules(NOW, **HERE))
    assert [(one.resource.region, one.verdict) for one in classified] == [
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


class HeldByAnother:
    """EC2 of which a node has got the address since it was listed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def describe_addresses(self, AllocationIds):  # noqa: N803
        self.calls.append("describe_addresses")
        return {"Addresses": [{"AllocationId": AllocationIds[0], "AssociationId": "eipassoc-9"}]}

    def disassociate_address(self, AssociationId):  # noqa: N803
        self.calls.append(f"disassociate {AssociationId}")

    def release_address(self, **arguments):
        self.calls.append("release")
        if "disassociate eipassoc-9" not in self.calls:
            error = {"Code": "InvalidIPAddress.InUse", "Message": "in use"}
            raise ClientError({"Error": error}, "ReleaseAddress")


def test_an_address_is_taken_from_a_node_only_where_all_is_to_go():
    address = read_address({"AllocationId": "eipalloc-1", "PublicIp": "198.51.100.7"})
    unused = thing(ResourceKind.ADDRESS, details=address)
    gc = HeldByAnother()
    with pytest.raises(AwsError):
        delete(gc, unused, deadline=0.0)
    assert gc.calls == ["release"]
    down = HeldByAnother()
    assert delete_all(down, [unused], ResourceKind.ADDRESS, 5.0, FakeClock()) == (unused,)
    assert down.calls == ["release", "describe_addresses", "disassociate eipassoc-9", "release"]
