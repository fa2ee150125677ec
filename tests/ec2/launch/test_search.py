"""The place of a launch when capacity is scarce. Failed attempts leave nothing behind."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from moto.ec2.models import ec2_backends

from clusterctl.domain.cluster import ClusterSpec, Disk, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2 import resources
from clusterctl.ec2.instances import find_instances, tag, wanted_of
from clusterctl.ec2.launch.attempt import read_launches
from clusterctl.ec2.launch.execution import PlanCheck
from clusterctl.ec2.resources import find_addresses
from clusterctl.ec2.tags import NODES, own_tags_count, read_disk
from clusterctl.lab.faults.kinds import Boot, Capacity
from tests.ec2.launching import TYPE, ZONES, faults, single_attempts

__all__ = ["faults"]

SPEC = ClusterSpec("demo", 2, TYPE)
WHOLE = [(0, "a"), (1, "a")]


def scarce(faults, left=0, zones=ZONES, instance_type=TYPE):
    for zone in zones:
        faults(Capacity(instance_type, zone, left))


def zones_of(launches):
    """Return the zone of each request."""
    by_subnet = {launches.subnet(zone): zone for zone in ZONES}
    return [by_subnet[request["NetworkInterfaces"][0]["SubnetId"]][-1] for request in launches.sent]


def refused(launches, spec=SPEC, **more):
    with pytest.raises(AwsError) as caught:
        launches.up(spec, **more)
    return caught.value


def test_the_zone_that_ec2_names_is_next(launches, faults):
    scarce(faults, zones=ZONES[:3])
    launches.up(SPEC)
    assert zones_of(launches) == ["a", "d"]
    assert launches.alive() == [(0, "d"), (1, "d")]
    # Each place has a new token, which is recorded before the request is sent.
    assert launches.tokens() == ["launch-0", "launch-0-1"]
    assert launches.written == [[token] for token in launches.tokens()]
    assert read_launches(launches.record) == ()
    [told] = [line for line in launches.told if line.startswith("Insufficient")]
    assert told == (
        "InsufficientInstanceCapacity; RunInstances: 2 x p4d.24xlarge with 8 GPUs each, "
        "nodes demo-[0-1], image ami-0aaaaaaaaaaaaaaa2, us-east-1d"
    )


def test_a_dedicated_host_without_room_is_in_no_other_zone(launches):
    launches.refuse("InsufficientCapacityOnHost", 500)
    with pytest.raises(AwsError) as refused:
        launches.up(SPEC)
    assert (refused.value.code, zones_of(launches)) == ("InsufficientCapacityOnHost", ["a"])


def test_a_zone_without_room_for_volumes_is_left_at_once(launches):
    launches.refuse("InsufficientVolumeCapacity", 500)
    launches.up(SPEC)
    assert zones_of(launches) == ["a", "b"], "EC2 has answered: nothing is asked twice"
    assert launches.alive() == [(0, "b"), (1, "b")]
    assert (read_launches(launches.record), launches.clock.waits) == ((), [])


def rates_of(launches):
    return [
        request["BlockDeviceMappings"][0]["Ebs"].get("VolumeInitializationRate")
        for request in launches.sent
    ]


def test_where_ebs_does_not_fill_the_volumes_the_launch_is_made_without(launches):
    """Other launches of the account have used up what EBS gives a region."""
    other = launches.client.create_volume(AvailabilityZone=ZONES[0], Size=100)["VolumeId"]
    backends = (backend for _, _, backend in ec2_backends.iter_backends())
    [volume] = [one.volumes[other] for one in backends if other in one.volumes]
    volume.load_mib_s, volume.filled_at = 4400, time.monotonic() + 1000
    launches.up(SPEC)
    assert launches.alive() == WHOLE
    volume.load_mib_s = 4999
    launches.up(replace(SPEC, nodes=4))
    assert rates_of(launches) == [300, 300, None]
    assert zones_of(launches) == ["a"] * 3, "the place is not the reason"
    assert read_launches(launches.record) == ()
    assert any("without --disk-load" in line for line in launches.told)
    volume.filled_at = 0.0
    launches.up(replace(SPEC, nodes=5))
    assert rates_of(launches)[3:] == [300]


@pytest.mark.parametrize("code", ["VolumeInitializationRateUnavailable", "Unsupported"])
def test_a_launch_of_unknown_outcome_is_not_made_anew(launches, code):
    """Whatever the words and the code are: only the same request may be sent again."""
    launches.refuse(code, 503, times=9)
    error = refused(launches)
    assert type(error).__name__ == "OutcomeUnknown"
    assert set(launches.tokens()) == {"launch-0"}
    assert len(read_launches(launches.record)) == 1


def test_a_launch_without_filling_whose_answer_was_lost_is_found_again(launches):
    plan = launches.plan(SPEC)
    launches.refuse("VolumeInitializationRateLimitExceeded")
    launches.errors.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        launches.carry_out(plan)
    [sent] = read_launches(launches.record)
    launches.up(SPEC, "second")
    assert launches.tokens()[-1] == sent.token
    assert (launches.alive(), rates_of(launches)) == (WHOLE, [300, None, None])


def test_without_capacity_anywhere_nothing_is_launched(launches, faults):
    scarce(faults, left=1)
    error = refused(launches)
    assert error.code == "InsufficientInstanceCapacity"
    assert error.message.startswith(
        "nowhere are enough machines: tried p4d.24xlarge in us-east-1a, p4d.24xlarge in "
        "us-east-1b, p4d.24xlarge in us-east-1c, p4d.24xlarge in us-east-1d. EC2's message: "
    )
    assert "nothing was launched" in error.hint
    assert (launches.alive(), read_launches(launches.record)) == ([], ())
    assert launches.clock.waits == []


def test_nodes_that_join_a_cluster_can_only_wait(launches, faults):
    launches.up(SPEC)
    scarce(faults)
    error = refused(launches, replace(SPEC, nodes=3))
    assert "--capacity-timeout" in error.hint
    assert "in their zone and of their type" in error.hint
    for option in ("--min-nodes", "--or-type", "--region", "--capacity-reservation"):
        assert option not in error.hint


def test_another_type_whose_head_node_needs_an_address_or_does_not(launches, faults):
    """A p4d with EFA on four cards gets no public address automatically; a g5 does."""
    scarce(faults)
    spec = replace(SPEC, or_types=("g5.12xlarge",))
    members = launches.up(spec)
    assert {one.node.instance_type for one in members} == {"g5.12xlarge"}
    assert all(one.node.public_ip for one in members)
    assert find_addresses(launches.client, "demo") == ()
    # An existing cluster keeps its type.
    assert launches.plan(spec).steps == ()


def test_another_type_that_needs_an_address_where_the_first_does_not(launches, faults):
    scarce(faults, instance_type="g5.12xlarge", zones=(*ZONES, "us-east-1f"))
    members = launches.up(replace(SPEC, instance_type="g5.12xlarge", or_types=(TYPE,)))
    [address] = find_addresses(launches.client, "demo")
    assert address.interface_id == members[0].interface_id
    assert launches.told[-1] == "AssociateAddress: to the head node"


def test_waiting_for_machines(launches, faults):
    scarce(faults)

    def after(waits):
        if waits == 2:
            faults(Capacity(TYPE, "us-east-1b", 2))

    launches.clock.after_wait = after
    launches.up(SPEC, capacity_timeout_s=3600)
    assert launches.clock.waits == [30, 60]
    assert launches.alive() == [(0, "b"), (1, "b")]
    tokens = launches.tokens()
    assert len(set(tokens)) == len(tokens) == 10
    assert "no capacity; next try in 1 min 00 s, giving up in 59 min 30 s" in launches.told


def test_waiting_ends(launches, faults):
    scarce(faults)
    error = refused(launches, capacity_timeout_s=190)
    assert launches.clock.waits == [30, 60, pytest.approx(100, abs=10)]
    assert len(launches.sent) == 4 * len(ZONES)
    assert "tried p4d.24xlarge in us-east-1a, " in error.message


def removed_request(client, nodes):
    tag(client, nodes, {NODES: "0-1"})


def stopped(client, nodes):
    client.stop_instances(InstanceIds=nodes)


def all_removed(client, nodes):
    client.terminate_instances(InstanceIds=nodes)


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (removed_request, "another command has removed demo-2 from the cluster"),
        (stopped, r"another command has stopped demo-\[0-1\]"),
        (all_removed, "all nodes of demo were removed"),
    ],
)
def test_a_launch_that_waited_ends_where_another_command_has_changed_the_cluster(
    launches, faults, other, changed
):
    launches.up(SPEC)
    nodes = [one.node.instance_id for one in find_instances(launches.client, "demo")]
    scarce(faults)
    plan = launches.plan(replace(SPEC, nodes=3), "more")

    def after(waits):
        if waits == 1:
            other(single_attempts(launches.client), nodes)
            faults(Capacity(TYPE, "us-east-1a", 9))

    launches.clock.after_wait = after
    own_tags = own_tags_count(launches.client, Timeouts(launches.clock))
    with own_tags, pytest.raises(ClusterctlError, match=changed) as caught:
        launches.carry_out(plan, 3600)
    assert caught.value.message.endswith("it launches and starts nothing more")
    assert launches.clock.waits[0] == 30
    assert len(launches.sent) == 2, "one for the cluster, one before the wait"
    assert read_launches(launches.record) == ()


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (removed_request, "another command has removed demo-1 from the cluster"),
        (stopped, "another command has stopped demo-0"),
    ],
)
def test_a_launch_that_stood_still_ends_where_another_command_has_changed_the_cluster(
    launches, other, changed
):
    """A laptop's lid was closed after the cluster had been read."""
    launches.up(SPEC)
    plan = launches.plan(replace(SPEC, nodes=3), "more")
    there = find_instances(launches.client, "demo")
    ids = [one.node.instance_id for one in there]
    if other is stopped:
        stopped(launches.client, ids[:1])
    else:
        tag(launches.client, ids, {NODES: "0"})
        launches.client.terminate_instances(InstanceIds=ids[1:])
    launches.clock.advance(60)
    with pytest.raises(ClusterctlError, match=changed):
        launches.carry_out(plan)
    assert len(launches.sent) == 1, "that of the cluster"
    assert not any(2 in one.wanted for one in find_instances(launches.client, "demo"))


def test_after_a_question_the_plan_must_be_as_it_was_shown(launches):
    fresh = launches.plan(SPEC)

    def check(plan):
        launches.clock.advance(60)
        PlanCheck(launches.client, plan, Timeouts(launches.clock)).if_old()

    check(fresh)
    launches.up(SPEC)
    with pytest.raises(ClusterctlError, match=r"has launched demo-\[0-1\]"):
        check(replace(fresh, launch_id="of another", steps=()))
    more = launches.plan(replace(SPEC, nodes=3), "more")
    check(more)
    nodes = [one.node.instance_id for one in find_instances(launches.client, "demo")]
    for indices, changed in (("0", "removed demo-1"), ("0-2", "changed how many nodes demo")):
        tag(launches.client, nodes, {NODES: indices})
        with pytest.raises(ClusterctlError, match=changed):
            check(more)
    assert launches.clock.waits == []


def test_a_placement_group_that_never_comes_gives_the_address_back(launches, monkeypatch):
    plan = launches.plan(SPEC)
    launches.timeouts = Timeouts(launches.clock, placement_group_s=0.0)
    monkeypatch.setattr(resources, "find_resources", lambda *_: ())
    with pytest.raises(ClusterctlError, match="does not become available"):
        launches.carry_out(plan)
    assert any(line.startswith("AllocateAddress") for line in launches.told)
    assert find_addresses(launches.client, "demo") == ()


def test_fewer_nodes_where_fewer_will_do_and_it_is_said(launches, faults):
    scarce(faults, left=3, zones=ZONES[:1])
    spec = replace(SPEC, nodes=5, min_nodes=2, efa=False)
    members = launches.up(spec)
    assert [one.node.index for one in members] == [0, 1, 2]
    assert (launches.sent[0]["MinCount"], launches.sent[0]["MaxCount"]) == (2, 5)
    assert {one.wanted for one in find_instances(launches.client, "demo")} == {(0, 1, 2)}
    assert (
        "2 of 5 new nodes were not to be had, which --min-nodes allows: the cluster has 3 nodes"
    ) in launches.told
    # The same request again: the existing nodes are enough if EC2 has no more.
    launches.up(spec, "second")
    assert launches.alive() == [(0, "a"), (1, "a"), (2, "a")]
    assert wanted_of(find_instances(launches.client, "demo")) == (0, 1, 2)
    assert launches.told[-1].startswith("2 of 2 new nodes were not to be had")
    assert launches.plan(replace(spec, nodes=3)).steps == ()


@pytest.mark.parametrize("dies", ["Server.InsufficientInstanceCapacity", "Server.InternalError"])
def test_nodes_that_die_while_they_start_are_taken_back_and_tried_elsewhere(launches, faults, dies):
    faults(Boot(dies=dies, nodes=(1,)))
    launches.up(SPEC)
    assert zones_of(launches) == ["a", "b"]
    assert launches.alive() == [(0, "b"), (1, "b")]
    assert any(
        line.startswith(f"demo-1 died while starting: {dies}: ")
        and line.endswith("; terminating the others")
        for line in launches.told
    )
    ended = find_instances(launches.client, "demo", states=("terminated",))
    assert [one.node.index for one in ended] == [0, 1]


@pytest.mark.parametrize("grouped", [True, False])
def test_nodes_that_take_long_to_end_do_not_end_the_search(launches, faults, monkeypatch, grouped):
    """p4d and larger take minutes. Only a reservation and a placement group have to be free."""
    gone = find_instances

    def never_gone(client, name, *states, **more):
        found = gone(client, name, *states, **more)
        ended = gone(client, name, ("shutting-down", "terminated"))
        late = [
            replace(one, node=replace(one.node, state=NodeState.SHUTTING_DOWN)) for one in ended
        ]
        return (*found, *late)

    monkeypatch.setattr(resources, "find_instances", never_gone)
    launches.timeouts = Timeouts(launches.clock, rolled_back_s=0.5)
    faults(Boot(dies="Server.InternalError", nodes=(1,)))
    launches.up(replace(SPEC, placement_group=grouped))
    assert launches.alive() == [(0, "b"), (1, "b")]
    assert any("still shutting down: demo-0" in line for line in launches.told) is grouped


@pytest.mark.parametrize(
    ("dies", "hint"),
    [
        ("Client.VolumeLimitExceeded", "EBS storage"),
        ("Client.InternalError", "check --kms-key, or without it the account's key"),
        ("Client.InvalidKMSKey.InvalidState", "enable it, or choose another --kms-key"),
    ],
)
def test_a_death_that_no_other_place_mends(launches, faults, dies, hint):
    faults(Boot(dies=dies, nodes=(0,)))
    error = refused(launches)
    assert error.code == dies
    assert error.message.startswith(f"demo-0 died while starting: {dies}: ")
    assert error.hint.startswith("that launch was taken back; ")
    assert hint in error.hint
    assert (launches.alive(), read_launches(launches.record)) == ([], ())
    assert len(launches.sent) == 1


def test_a_node_that_dies_where_fewer_will_do(launches, faults):
    faults(Boot(dies="Server.InternalError", nodes=(1,)))
    members = launches.up(replace(SPEC, nodes=3, min_nodes=2))
    assert [one.node.index for one in members] == [0, 2]
    assert {one.wanted for one in members} == {(0, 2)}
    assert len(launches.sent) == 1


@pytest.mark.parametrize(
    "code", ["VcpuLimitExceeded", "InvalidParameterCombination", "UnauthorizedOperation"]
)
def test_what_no_other_place_mends_is_asked_once(launches, code):
    launches.refuse(code, times=9)
    assert refused(launches, capacity_timeout_s=3600).code == code
    assert (len(launches.sent), launches.clock.waits) == (1, [])
    assert (launches.alive(), read_launches(launches.record)) == ([], ())


def test_an_account_that_is_being_verified_is_waited_for_where_it_is(launches):
    launches.refuse("PendingVerification")
    launches.up(SPEC, capacity_timeout_s=3600)
    assert (zones_of(launches), launches.clock.waits) == (["a", "a"], [30])
    assert any(line.startswith("PendingVerification; next try in") for line in launches.told)
    assert len(set(launches.tokens())) == 2
    # Without time to wait, the message is not about capacity.
    launches.refuse("PendingVerification")
    error = refused(launches, replace(SPEC, nodes=3))
    assert "says EC2" in error.message
    assert "machines" not in error.message


def test_disks_are_encrypted_and_later_nodes_keep_the_key(launches):
    launches.up(replace(SPEC, disk=Disk(kms_key="alias/mine")))
    launches.up(replace(SPEC, nodes=3), "second")
    ids = [one.node.instance_id for one in find_instances(launches.client, "demo")]
    attached = [{"Name": "attachment.instance-id", "Values": ids}]
    volumes = launches.client.describe_volumes(Filters=attached)["Volumes"]
    assert [(one["Encrypted"], one["KmsKeyId"]) for one in volumes] == [(True, "alias/mine")] * 3
    assert read_disk("300 0 500") == Disk(300, None, 500)
    assert read_disk("300 0 500 two keys") == Disk()


def test_gaps_are_filled_with_as_many_as_are_needed_of_all_together(launches, faults):
    spec = replace(SPEC, nodes=6, efa=False, placement_group=False)
    members = launches.up(spec)
    ids = [one.node.instance_id for one in members if one.node.index in (1, 3, 4, 5)]
    launches.client.terminate_instances(InstanceIds=ids)
    plan = launches.plan(replace(spec, min_nodes=4), "second")
    requests = [one.arguments for one in plan.steps if one.operation == "run_instances"]
    assert [(one["MinCount"], one["MaxCount"]) for one in requests] == [(1, 1), (1, 3)]
    scarce(faults, left=2, zones=ZONES[:1])
    made = launches.carry_out(plan)
    assert [one.node.index for one in made] == [0, 1, 2, 3]
    assert wanted_of(made) == (0, 1, 2, 3)
