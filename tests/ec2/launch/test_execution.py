"""Execution of a plan against moto. EC2 refuses, throttles, or does not answer some requests."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from botocore.exceptions import ReadTimeoutError

from clusterctl.domain.cluster import ClusterSpec, Market
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2.instances import find_instances, launched_with
from clusterctl.ec2.launch.attempt import UNKNOWN_FOR_S, SentLaunch, read_launches, write_launches
from clusterctl.lab.faults.kinds import ApiError, SameIndex
from tests.ec2.launching import Trouble, faults, refused
from tests.moto_ec2 import NEW_IMAGE

__all__ = ["faults"]

SPEC = ClusterSpec("demo", 3, "p4d.24xlarge", efa=False)
WHOLE = [(0, "a"), (1, "a"), (2, "a")]
SILENCE = ReadTimeoutError(endpoint_url="https://ec2")


def unsettled(launches):
    return [sent.token for sent in read_launches(launches.record)]


def test_from_nothing_each_launch_written_down_before_it_is_sent(launches):
    plan = launches.plan(SPEC)
    instances = launches.carry_out(plan)
    assert launches.told == [step.describe() for step in plan.steps]
    assert [found.node.name for found in instances] == ["demo-0", "demo-1", "demo-2"]
    assert {(found.image_id, found.node.gpus) for found in instances} == {(NEW_IMAGE, 8)}
    [request] = launches.sent
    assert launches.written == [[request["ClientToken"]]] == [["launch-0"]]
    assert request["NetworkInterfaces"][0]["Groups"][0].startswith("sg-")
    assert unsettled(launches) == []


def test_each_node_has_its_own_name_in_the_console(launches):
    launches.up(SPEC)
    found = find_instances(launches.client, "demo")
    assert [one.tags["Name"] for one in found] == ["demo-0", "demo-1", "demo-2"]


def test_a_policy_that_does_not_let_names_change_ends_no_launch(launches, faults):
    faults(ApiError("CreateTags", "UnauthorizedOperation"))
    assert len(launches.up(SPEC)) == 3
    assert launches.told[-1].startswith("the nodes have one name in EC2's console: ")


@pytest.mark.parametrize(
    ("code", "status"), [("RequestLimitExceeded", 503), ("InternalError", 500)]
)
def test_throttled_or_failed_is_sent_again_with_the_same_token(launches, code, status):
    launches.refuse(code, status, times=2)
    launches.up(SPEC)
    assert launches.tokens() == ["launch-0"] * 3
    assert (launches.alive(), unsettled(launches)) == (WHOLE, [])


def test_throttled_to_the_end_leaves_nothing_unsettled(launches):
    launches.refuse("RequestLimitExceeded", 503, times=9)
    with pytest.raises(AwsError) as caught:
        launches.up(SPEC)
    assert (caught.value.code, unsettled(launches)) == ("RequestLimitExceeded", [])


def test_no_answer_keeps_the_token_and_the_next_up_uses_it(launches):
    launches.errors += [SILENCE] * 9
    with pytest.raises(AwsError) as caught:
        launches.up(SPEC)
    assert "nothing is launched twice" in caught.value.hint
    launches.errors.clear()
    launches.up(SPEC, "second")
    assert set(launches.tokens()) == {"launch-0"}
    assert (launches.alive(), unsettled(launches)) == (WHOLE, [])


def test_a_lost_answer_and_then_no_more_than_throttling_is_not_forgotten(launches):
    launches.errors.append(SILENCE)
    launches.refuse("RequestLimitExceeded", status=503, times=9)
    with pytest.raises(AwsError) as caught:
        launches.up(SPEC)
    assert caught.value.code == "RequestLimitExceeded"
    assert "is not known" in caught.value.message
    assert (unsettled(launches), set(launches.tokens())) == (["launch-0"], {"launch-0"})


def test_launched_but_the_answer_was_lost(launches, monkeypatch):
    """The launched nodes are found, and not launched again."""
    plan, client = launches.plan(SPEC), launches.client
    monkeypatch.setattr(
        "clusterctl.ec2.launch.execution.without_retries",
        lambda _: Trouble(client, "run_instances", KeyboardInterrupt(), after=True),
    )
    with pytest.raises(KeyboardInterrupt):
        launches.carry_out(plan)
    monkeypatch.undo()
    [token] = unsettled(launches)
    found = launched_with(client, [token, "never sent"])
    assert {one.launch_token for one in found} == {token}
    launches.up(SPEC, "second")
    assert (launches.alive(), unsettled(launches)) == (WHOLE, [])


def test_of_launches_with_other_settings_only_an_old_one_that_shows_nothing_is_passed_over(
    launches,
):
    request = {"ClientToken": "x", "MinCount": 7}
    write_launches(launches.record, [SentLaunch(request, time.time())])
    with pytest.raises(ClusterctlError, match="cut off"):
        launches.up(SPEC)
    assert unsettled(launches) == ["x"]
    write_launches(launches.record, [SentLaunch(request, time.time() - UNKNOWN_FOR_S - 1)])
    launches.up(SPEC)
    assert (launches.alive(), unsettled(launches)) == (WHOLE, [])


def test_of_two_launches_the_first_stays_written_until_both_show(launches):
    spec = replace(SPEC, nodes=5)
    nodes = [found.node for found in launches.up(spec)]
    gone = [nodes[0].instance_id, nodes[3].instance_id]
    launches.client.terminate_instances(InstanceIds=gone)
    launches.errors.append(None)
    launches.refuse("InsufficientInstanceCapacity", 500)
    with pytest.raises(AwsError):
        launches.up(spec, "second")
    assert unsettled(launches) == ["second-0"]
    launches.up(spec, "third")
    assert [index for index, _ in launches.alive()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("codes", "requests"),
    [
        # EC2 may not show a new resource yet.
        (["InvalidGroup.NotFound"] * 2, 3),
        (["InvalidSecurityGroupID.NotFound"] * 2, 3),
        (["InvalidKeyPair.NotFound"] * 2, 3),
        # Another program has added the rule meanwhile.
        (["InvalidPermission.Duplicate"], 1),
    ],
)
def test_errors_of_a_step_that_do_not_end_it(launches, codes, requests):
    plan = launches.plan(SPEC)
    rule = Trouble(launches.client, "authorize_security_group_ingress", *map(refused, codes))
    launches.client = rule
    launches.carry_out(plan)
    assert len(rule.requests) == requests
    assert launches.alive() == WHOLE


def test_a_step_that_is_refused_ends_it(launches):
    plan = launches.plan(SPEC)
    launches.client = Trouble(
        launches.client, "create_security_group", refused("UnauthorizedOperation", 403)
    )
    with pytest.raises(AwsError):
        launches.carry_out(plan)
    assert find_instances(launches.client, "demo") == ()
    assert launches.sent == []


def test_instances_that_ec2_numbers_alike_get_indices_of_their_own(launches, faults):
    """AWS does not document that AmiLaunchIndex counts the instances of a spot request."""
    faults(SameIndex())
    spot = ClusterSpec("demo", 3, "g5.12xlarge", market=Market.SPOT, zone="us-east-1a")
    instances = launches.up(spot)
    assert [one.node.name for one in instances] == ["demo-0", "demo-1", "demo-2"]
    found = find_instances(launches.client, "demo")
    assert [one.node.name for one in found] == ["demo-0", "demo-1", "demo-2"]
    assert launches.plan(spot, "second").missing == ()
    # They keep them when one of them is gone.
    launches.client.terminate_instances(InstanceIds=[found[1].node.instance_id])
    assert launches.plan(spot, "third").missing == (1,)
