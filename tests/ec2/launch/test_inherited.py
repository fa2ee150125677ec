"""Nodes that join a cluster are like the existing ones. Different settings are refused by name."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from clusterctl.domain.cluster import MOST_TAGS, ClusterSpec, Disk, Limits, Market
from clusterctl.domain.errors import NoSuchCluster, UsageError
from clusterctl.ec2.launch.observe import inherited, spec_of_existing
from tests.ec2.observed import instance

ASKED = ClusterSpec("demo", 6, "p4d.24xlarge")
HEAD = instance(
    0,
    image_id="ami-7",
    ssh_user="ec2-user",
    market=Market.SPOT,
    reservation_id="cr-1",
    instance_profile="nodes",
    efa_interfaces=4,
    private=True,
    disk=Disk(300, 6000, 500, "alias/mine"),
    limits_text="max-hours=8 idle-minutes=30",
    tags={
        "Name": "demo",
        "team": "nlp",
        "aws:autoscaling": "x",
        "clusterctl:cluster": "demo",
        "Clusterctl:by-hand": "x",
    },
)
SAME = ClusterSpec(
    "demo",
    6,
    "p4d.24xlarge",
    market=Market.SPOT,
    capacity_reservation="cr-1",
    placement_group=True,
    efa=True,
    zone="us-east-1a",
    subnet_id="subnet-a",
    private=True,
    image="ami-7",
    ssh_user="ec2-user",
    instance_profile="nodes",
    disk=Disk(300, 6000, 500, "alias/mine"),
    tags=(("team", "nlp"),),
    limits=Limits(max_hours=8, idle_minutes=30),
)


def test_every_field_that_is_left_open_is_the_head_nodes():
    assert inherited(ASKED, [HEAD, instance(1)]) == SAME
    assert inherited(spec_of_existing("demo", [HEAD]), [HEAD]) == replace(SAME, nodes=4)


def test_what_was_taken_over_is_accepted_again():
    assert inherited(SAME, [HEAD]) == SAME


def test_no_field_of_a_spec_is_forgotten():
    kept = {"name", "nodes", "min_nodes", "ssh_from", "user_data"}
    everything = replace(
        ASKED, min_nodes=2, ssh_from="10.0.0.0/8", user_data=b"x", or_types=("p5.48xlarge",)
    )
    made = inherited(everything, [HEAD])
    for field in fields(ClusterSpec):
        source = everything if field.name in kept else SAME
        assert getattr(made, field.name) == getattr(source, field.name), field.name


def test_where_all_are_being_replaced_the_new_ones_are_like_them():
    assert inherited(ASKED, [replace(HEAD, retired=True)]) == SAME


def test_without_members_nothing_changes():
    assert inherited(ASKED, []) == ASKED
    with pytest.raises(NoSuchCluster) as caught:
        spec_of_existing("demo", [])
    assert "clusterctl up demo" in caught.value.hint


PLAIN = instance(0, placement_group="", wanted=(0,))
REFUSED = {
    "type": (HEAD, {"instance_type": "p5.48xlarge"}, "another type: p4d.24xlarge, not p5.48xlarge"),
    "user": (HEAD, {"ssh_user": "ubuntu"}, "another login user: ec2-user, not ubuntu"),
    "image": (HEAD, {"image": "ami-8"}, "another image: ami-7, not ami-8"),
    "zone": (HEAD, {"zone": "us-east-1b"}, "another zone: us-east-1a, not us-east-1b"),
    "subnet": (HEAD, {"subnet_id": "subnet-b"}, "another subnet: subnet-a, not subnet-b"),
    "reservation": (HEAD, {"capacity_reservation": "cr-2"},
        "another capacity reservation: cr-1, not cr-2"),
    "a first reservation": (PLAIN, {"capacity_reservation": "cr-2"}, "no capacity reservation"),
    "market": (replace(HEAD, market=Market.CAPACITY_BLOCK), {"market": Market.SPOT},
        "another market: capacity-block, not spot"),
    "spot beside on-demand": (
        PLAIN,
        {"market": Market.SPOT},
        "another market: on-demand, not spot",
    ),
    "in a placement group": (HEAD, {"placement_group": False}, "has a placement group"),
    "in none": (PLAIN, {"placement_group": True}, "has no placement group"),
    "EFA": (HEAD, {"efa": False}, "has EFA"),
    "no EFA": (PLAIN, {"efa": True}, "has no EFA"),
    "private": (PLAIN, {"private": True}, "has no private nodes"),
}  # fmt: skip


@pytest.mark.parametrize(("head", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_another_wish_is_refused_by_name(head, changes, message):
    with pytest.raises(UsageError) as caught:
        inherited(replace(ASKED, **changes), [head])
    assert message in caught.value.message
    assert "leave that option out" in caught.value.hint
    assert "clusterctl down demo" in caught.value.hint


@pytest.mark.parametrize(("asked", "found"), [("admin", "admin"), (None, "nodes")])
def test_an_instance_profile_can_be_changed(asked, found):
    assert inherited(replace(ASKED, instance_profile=asked), [HEAD]).instance_profile == found


@pytest.mark.parametrize(
    "image", ["Deep Learning * GPU AMI *", "/aws/service/deeplearning/ami/x86_64/x/latest/ami-id"]
)
def test_a_name_may_mean_another_image_by_now_the_clusters_stays(image):
    assert inherited(replace(ASKED, image=image), [HEAD]).image == "ami-7"


def test_what_ec2_does_not_show_is_not_compared():
    blank = instance(0, image_id="", subnet_id="")
    made = inherited(replace(ASKED, image="ami-8", subnet_id="subnet-b"), [blank])
    assert (made.image, made.subnet_id) == ("ami-8", None)


@pytest.mark.parametrize(
    ("instance_type", "or_types"),
    [("p5.48xlarge", ("p4d.24xlarge",)), ("p4d.24xlarge", ("p5.48xlarge",))],
)
def test_a_cluster_of_an_alternative_type_stays_of_that_type(instance_type, or_types):
    made = inherited(replace(ASKED, instance_type=instance_type, or_types=or_types), [HEAD])
    assert made.types == ("p4d.24xlarge",)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Disk(), Disk(300, 6000, 500, "alias/mine")),
        (Disk(size_gib=500), Disk(500, 6000, 500, "alias/mine")),
        (Disk(iops=9000, throughput_mib_s=1000), Disk(300, 9000, 1000, "alias/mine")),
        (Disk(kms_key="alias/new"), Disk(300, 6000, 500, "alias/new")),
    ],
)
def test_a_disk_is_as_asked_and_else_as_the_others_have_it(asked, expected):
    assert inherited(replace(ASKED, disk=asked), [HEAD]).disk == expected


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
        (Limits(), "max-hours=8 budget=100", Limits(max_hours=8, budget_usd=100)),
        (Limits(budget_usd=50), "max-hours=8 budget=100", Limits(budget_usd=50)),
        (Limits(), "max-hours=never stopped-days=2 budget=0", Limits()),
        (Limits(), "", Limits()),
    ],
)
def test_new_limits_replace_all_of_the_old(asked, text, expected):
    made = inherited(replace(ASKED, limits=asked), [instance(0, limits_text=text)])
    assert made.limits == expected


def test_own_tags_are_as_asked_and_else_as_the_others_have_them():
    assert inherited(replace(ASKED, tags=(("a", "b"),)), [HEAD]).tags == (("a", "b"),)
    many = instance(0, tags={f"k{n:02}": "x" for n in range(48)})
    assert len(inherited(ASKED, [many]).tags) == MOST_TAGS
