"""A plan carried out against moto, with EC2 refusing, throttling or not answering in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2.instances import find_instances, launched_with
from clusterctl.ec2.launch import attempt
from clusterctl.ec2.launch import execution as launch
from clusterctl.ec2.launch.attempt import SETTLED_AFTER_S, SentLaunch, read_launches, write_launches
from clusterctl.ec2.launch.observe import exactly, observe
from clusterctl.ec2.launch.plan import plan_launch
from tests.moto_ec2 import NEW_IMAGE, clients_with

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpKsSb4iRTaMhcPcU3cYKcwWxW8oXhGJFRSgkE3Jd2k x"
SPEC = ClusterSpec("demo", 3, "p4d.24xlarge")


def refused(code, status=400, operation="RunInstances"):
    response = {
        "Error": {"Code": code, "Message": f"says EC2: {code}"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, operation)


class Trouble:
    """Wraps a client: one method raises these errors, one per call, before or after the call."""

    def __init__(self, client, method, *errors, after=False):
        self._client = client
        self._method = method
        self._errors = list(errors)
        self._after = after
        self.requests = []

    def __getattr__(self, name):
        if name != self._method:
            return getattr(self._client, name)
        return self._call

    def _call(self, **arguments):
        self.requests.append(arguments)
        error = self._errors.pop(0) if self._errors else None
        if error and not self._after:
            raise error
        answer = getattr(self._client, self._method)(**arguments)
        if error:
            raise error
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No waiting between attempts."""
    monkeypatch.setattr(attempt.time, "sleep", lambda _: None)
    monkeypatch.setattr(launch, "without_retries", lambda client: client)


@pytest.fixture
def record(tmp_path):
    return tmp_path / "launch.json"


def planned(client, record, spec=SPEC, launch_id="launch"):
    prices = record.with_name("prices.json")
    seen = observe(clients_with(client), spec.name, exactly(spec), record, prices)
    return plan_launch(seen, PUBLIC_KEY, launch_id)


def carry_out(client, record, spec=SPEC, launch_id="launch"):
    return launch.carry_out(client, planned(client, record, spec, launch_id), record)


def indices(client):
    return [found.node.index for found in find_instances(client, "demo")]


def test_from_nothing(client, record):
    told = []
    plan = planned(client, record)
    instances = launch.carry_out(client, plan, record, told.append)
    assert told == [step.describe() for step in plan.steps]
    assert [found.node.name for found in instances] == ["demo-0", "demo-1", "demo-2"]
    assert {found.image_id for found in instances} == {NEW_IMAGE}
    assert {found.node.gpus for found in instances} == {8}
    assert read_launches(record) == ()


def test_the_launch_is_written_down_before_it_is_sent(client, record):
    seen = []

    class Looks:
        def __getattr__(self, name):
            if name == "run_instances":
                seen.append(read_launches(record))
            return getattr(client, name)

    carry_out(Looks(), record)
    [[before]] = seen
    assert before.request["ClientToken"] == "launch-0"
    assert before.request["MinCount"] == 3
    assert before.request["NetworkInterfaces"][0]["Groups"][0].startswith("sg-")


def test_what_is_missing_is_launched_and_nothing_else(client, record):
    carry_out(client, record)
    first = find_instances(client, "demo")
    client.terminate_instances(InstanceIds=[first[1].node.instance_id])
    again = carry_out(client, record, launch_id="second")
    assert [found.node.index for found in again] == [0, 1, 2]
    assert [found.node.instance_id for found in again][::2] == [
        found.node.instance_id for found in first
    ][::2]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("VcpuLimitExceeded", 400),
        ("UnauthorizedOperation", 403),
        ("InvalidParameterValue", 400),
    ],
)
def test_a_refusal_is_final_and_asked_once(client, record, code, status):
    trouble = Trouble(client, "run_instances", refused(code, status))
    with pytest.raises(AwsError) as caught:
        carry_out(trouble, record)
    assert caught.value.code == code
    assert len(trouble.requests) == 1
    assert read_launches(record) == ()
    assert indices(client) == []


@pytest.mark.parametrize(
    "error",
    [refused("RequestLimitExceeded", 503), refused("InternalError", 500)],
    ids=lambda error: error.response["Error"]["Code"],
)
def test_throttled_or_failed_is_sent_again_with_the_same_token(client, record, error):
    trouble = Trouble(client, "run_instances", error, error)
    carry_out(trouble, record)
    assert [request["ClientToken"] for request in trouble.requests] == ["launch-0"] * 3
    assert indices(client) == [0, 1, 2]
    assert read_launches(record) == ()


def test_throttled_to_the_end_leaves_nothing_unsettled(client, record):
    trouble = Trouble(client, "run_instances", *[refused("RequestLimitExceeded", 503)] * 9)
    with pytest.raises(AwsError) as caught:
        carry_out(trouble, record)
    assert caught.value.code == "RequestLimitExceeded"
    assert read_launches(record) == ()


def test_no_answer_keeps_the_token_and_the_next_up_uses_it(client, record):
    silence = ReadTimeoutError(endpoint_url="https://ec2")
    with pytest.raises(AwsError) as caught:
        carry_out(Trouble(client, "run_instances", *[silence] * 9), record)
    assert "not known" in caught.value.message
    assert "nothing is launched twice" in caught.value.hint
    [kept] = read_launches(record)
    watched = Trouble(client, "run_instances")
    carry_out(watched, record, launch_id="second")
    assert [request["ClientToken"] for request in watched.requests] == [kept.token]
    assert indices(client) == [0, 1, 2]
    assert read_launches(record) == ()


def test_launched_but_the_answer_was_lost(client, record):
    """moto knows no tokens, so this also shows that the nodes are found and not launched again."""
    with pytest.raises(KeyboardInterrupt):
        carry_out(Trouble(client, "run_instances", KeyboardInterrupt(), after=True), record)
    [kept] = read_launches(record)
    assert launched_with(client, [kept.token, "never sent"]) == {kept.token}
    carry_out(client, record, launch_id="second")
    assert indices(client) == [0, 1, 2]
    assert read_launches(record) == ()


def test_an_old_launch_that_shows_nothing_never_happened(client, record, monkeypatch):
    request = {"ClientToken": "old", "MinCount": 7}
    write_launches(record, [SentLaunch(request, attempt.time.time() - SETTLED_AFTER_S - 1)])
    carry_out(client, record)
    assert indices(client) == [0, 1, 2]
    assert read_launches(record) == ()


def test_a_recent_launch_with_other_settings_is_not_skipped(client, record):
    write_launches(record, [SentLaunch({"ClientToken": "x", "MinCount": 7}, attempt.time.time())])
    with pytest.raises(ClusterctlError) as caught:
        carry_out(client, record)
    assert "cut off" in caught.value.message
    assert len(read_launches(record)) == 1


def test_of_two_launches_the_first_stays_written_until_both_show(client, record):
    carry_out(client, record, replace(SPEC, nodes=5))
    nodes = [found.node for found in find_instances(client, "demo")]
    client.terminate_instances(InstanceIds=[nodes[0].instance_id, nodes[3].instance_id])
    trouble = Trouble(client, "run_instances", None, refused("InsufficientInstanceCapacity", 500))
    with pytest.raises(AwsError):
        carry_out(trouble, record, replace(SPEC, nodes=5), "second")
    assert [sent.token for sent in read_launches(record)] == ["second-0"]
    carry_out(client, record, replace(SPEC, nodes=5), "third")
    assert indices(client) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("code", ["InvalidGroup.NotFound", "InvalidKeyPair.NotFound"])
def test_what_was_just_made_may_not_be_known_yet(client, record, code):
    trouble = Trouble(client, "authorize_security_group_ingress", refused(code), refused(code))
    carry_out(trouble, record)
    assert len(trouble.requests) == 3
    assert indices(client) == [0, 1, 2]


def test_a_rule_that_somebody_else_has_added_meanwhile(client, record):
    error = refused("InvalidPermission.Duplicate")
    carry_out(Trouble(client, "authorize_security_group_ingress", error), record)
    assert indices(client) == [0, 1, 2]


def test_a_step_that_is_refused_ends_it(client, record):
    error = refused("UnauthorizedOperation", 403)
    with pytest.raises(AwsError):
        carry_out(Trouble(client, "create_security_group", error), record)
    assert find_instances(client, "demo") == ()


def test_instances_that_never_show(client, record, monkeypatch):
    monkeypatch.setattr(attempt, "VISIBLE_WITHIN_S", 0.0)
    monkeypatch.setattr(attempt, "find_instances", lambda *_, **__: ())
    with pytest.raises(ClusterctlError) as caught:
        carry_out(client, record)
    assert "does not show" in caught.value.message
    assert len(read_launches(record)) == 1
