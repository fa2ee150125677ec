"""Valid and invalid specifications of a cluster."""

from __future__ import annotations

import pytest

from clusterctl.domain.cluster import MOST_NODES, MOST_TAGS, ClusterSpec, Disk, Limits, Market
from clusterctl.domain.errors import UsageError


def spec(**changes):
    return ClusterSpec(**{"name": "demo", "nodes": 4, "instance_type": "p4d.24xlarge", **changes})


REFUSED = {
    **{
        f"named {name!r}": ({"name": name}, "not a cluster name", "lower-case")
        for name in ("", "A", "1a", "-a", "a-", "a_b", "a/b", "..", "a b", "ä", "a" * 41, "a\n")
    },
    "named as the local EC2": ({"name": "lab"}, "cannot be called lab", ""),
    **{
        f"the user {user!r}": ({"ssh_user": user}, "not a user name", "")
        for user in ("", "a b;", "Root", "-l", "a\n")
    },
    **{
        f"the type {kind!r}": ({"instance_type": kind}, "not an instance type", "")
        for kind in ("", "p3", "p3.2xlarge ", "p3.2XLARGE", "$(reboot).x", "../p3.2xlarge")
    },
    "no node": ({"nodes": 0}, "0 nodes makes no sense", "1 or more"),
    "less than none": ({"nodes": -1}, "makes no sense", "1 or more"),
    "a slip of the finger": ({"nodes": MOST_NODES + 1}, "10001 nodes are too many", "up to 10000"),
    "an or-type that is none": ({"or_types": ("p5.48xlarge", "gpu")}, "'gpu'", "p4d.24xlarge"),
    "a type in two lines": ({"or_types": ("p3.2xlarge\n",)}, "not an instance type", ""),
    "at least none": ({"min_nodes": 0}, "at least 0 of 4", "between 1 and 4"),
    "at least more": ({"min_nodes": 5}, "at least 5 of 4", "between 1 and 4"),
    "two networks": ({"subnet_id": "subnet-1", "network": "lab"},
        "--subnet and --network exclude each other", "one of them"),
    "a name of ours": ({"tags": (("Name", "x"),)}, "'Name' is not free", "another key"),
    "a tag of ours": ({"tags": (("clusterctl:cluster", "x"),)}, "is not free", "clusterctl:…"),
    "in capitals": ({"tags": (("ClusterCtl:x", "x"),)}, "is not free", "another key"),
    "a tag of AWS": ({"tags": (("AWS:x", "x"),)}, "is not free", "another key"),
    "no key": ({"tags": (("", "x"),)}, "not a tag: ''", "1 to 128"),
    "a long key": ({"tags": (("k" * 129, "x"),)}, "not a tag", "1 to 128"),
    "a long value": ({"tags": (("k", "x" * 257),)}, "not a tag", "up to 256"),
    "two lines": ({"tags": (("k", "x\ny"),)}, "not a tag: 'k': 'x\\ny'", "printable"),
    "a control character": ({"tags": (("k\0", "x"),)}, "not a tag", "printable"),
    "twice": ({"tags": (("k", "x"), ("k", "y"))}, "given twice", "one value"),
    "too many": ({"tags": tuple((f"k{n}", "x") for n in range(MOST_TAGS + 1))},
        f"{MOST_TAGS + 1} tags are too many", "50"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense(changes, message, hint):
    with pytest.raises(UsageError) as caught:
        spec(**changes)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_least_and_the_most_that_make_sense():
    tags = tuple((f"k{n}", "x" * 256) for n in range(MOST_TAGS - 2))
    odd = (("ключ / + - = . _ : @", "<&'\"> ü ☃"), ("name", ""))
    made = spec(nodes=1, min_nodes=1, tags=(*tags, *odd))
    assert made.tags[-2:] == odd
    for name in ("a", "x1-2", "a" * 40):
        assert spec(name=name).name == name


def test_types_are_tried_in_order_and_once_each():
    asked = spec(or_types=("p5.48xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"))
    assert asked.types == ("p4d.24xlarge", "p5.48xlarge", "p4de.24xlarge")


def test_what_is_left_open_is_decided_by_the_plan():
    made = spec()
    assert (made.market, made.disk, made.limits) == (Market.ON_DEMAND, Disk(), Limits())
    assert (made.placement_group, made.efa, made.zone, made.image) == (None, None, None, None)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e9])
@pytest.mark.parametrize("field", ["max_hours", "budget_usd", "max_hourly_usd", "idle_minutes"])
def test_limits_that_are_none(field, value):
    with pytest.raises(UsageError) as caught:
        Limits(**{field: value})
    assert field.replace("_", " ") in caught.value.message


def test_what_idleness_may_erase_needs_an_idle_time():
    with pytest.raises(UsageError) as caught:
        Limits(idle_erases_store=True)
    assert "--idle-stop" in caught.value.hint


def test_an_end_for_a_stopped_cluster_needs_something_that_stops_it():
    with pytest.raises(UsageError) as caught:
        Limits(stopped_days=3)
    assert "--idle-stop" in caught.value.hint
    assert Limits(stopped_days=3, idle_minutes=30).stopped_days == 3
