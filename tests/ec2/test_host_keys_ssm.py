"""Host keys over Systems Manager: agents that are there, come late, fail or say nonsense."""

from __future__ import annotations

import boto3
import pytest
from botocore.stub import Stubber

from clusterctl.ec2 import host_keys
from clusterctl.ec2.host_keys import COMMAND, DOCUMENT, NOT_MANAGED, ask_host_keys
from tests.ec2.test_console import ECDSA, ED25519

ID = "00000000-0000-4000-8000-{:012}"


def instance(number: int) -> str:
    return f"i-{number:017x}"


def invocation(instance_id, output="", status="Success", details=None):
    return {
        "InstanceId": instance_id,
        "Status": status,
        "StatusDetails": details or status,
        "CommandPlugins": [{"Name": "aws:runShellScript", "Output": output}],
    }


class Agents:
    """Systems Manager's answers, in the order in which it is asked; checks the questions."""

    def __init__(self):
        self.client = boto3.client(
            "ssm", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.stub = Stubber(self.client)
        self.commands = 0

    def online(self, ids, online=None, status="Online"):
        entries = [
            {"InstanceId": one, "PingStatus": status} for one in (ids if online is None else online)
        ]
        self.stub.add_response(
            "describe_instance_information",
            {"InstanceInformationList": entries},
            {"Filters": [{"Key": "InstanceIds", "Values": list(ids)}], "MaxResults": 50},
        )

    def sent(self, ids):
        self.commands += 1
        self.stub.add_response(
            "send_command",
            {"Command": {"CommandId": ID.format(self.commands)}},
            {
                "InstanceIds": list(ids),
                "DocumentName": DOCUMENT,
                "Comment": "clusterctl: host keys",
                "TimeoutSeconds": 30,
                "Parameters": {"commands": [COMMAND]},
            },
        )

    def answered(self, *invocations, token=None, after=None):
        question = {"CommandId": ID.format(self.commands), "Details": True, "MaxResults": 50}
        page = {"CommandInvocations": list(invocations)}
        self.stub.add_response(
            "list_command_invocations",
            {**page, **({"NextToken": token} if token else {})},
            {**question, **({"NextToken": after} if after else {})},
        )

    def ask(self, ids, within_s=60.0):
        with self.stub:
            answers = ask_host_keys(self.client, ids, within_s)
            self.stub.assert_no_pending_responses()
        return answers


@pytest.fixture
def agents(monkeypatch):
    monkeypatch.setattr(host_keys.time, "sleep", lambda gap_s: None)
    return Agents()


A, B, C = map(instance, range(3))


def test_one_command_for_all(agents):
    agents.online([A, B])
    agents.sent([A, B])
    agents.answered(invocation(A, f"{ECDSA} root@a\n{ED25519}\n"), invocation(B, ED25519))
    answers = agents.ask([A, B])
    assert answers.keys == {A: (ECDSA, ED25519), B: (ED25519,)}
    assert answers.reasons == {}


def test_answers_come_late_and_on_pages(agents):
    agents.online([A, B])
    agents.sent([A, B])
    agents.answered()
    agents.answered(invocation(A, status="InProgress"), invocation(B, status="Pending"))
    agents.answered(invocation(A, ED25519), token="more")
    agents.answered(invocation(B, status="InProgress"), after="more")
    agents.answered(invocation(A, ED25519), invocation(B, ECDSA))
    assert agents.ask([A, B]).keys == {A: (ED25519,), B: (ECDSA,)}


def test_more_nodes_than_a_call_takes(agents):
    ids = [instance(number) for number in range(120)]
    for group in (ids[:50], ids[50:100], ids[100:]):
        agents.online(group)
        agents.sent(group)
        agents.answered(*(invocation(one, ED25519) for one in group))
    assert set(agents.ask(ids).keys) == set(ids)


def test_a_node_without_an_agent_hides_no_other(agents):
    agents.online([A, B, C], online=[B])
    agents.sent([B])
    agents.answered(invocation(B, ED25519))
    answers = agents.ask([A, B, C])
    assert answers.keys == {B: (ED25519,)}
    assert answers.reasons == {A: NOT_MANAGED, C: NOT_MANAGED}


def test_an_agent_that_was_lost(agents):
    agents.online([A], status="ConnectionLost")
    assert agents.ask([A]).reasons == {A: NOT_MANAGED}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (invocation(A), "sent no host key"),
        (invocation(A, "cat: /etc/ssh/ssh_host_*_key.pub: No such file"), "sent no host key"),
        (invocation(A, ED25519[:-9]), "sent no host key"),
        (invocation(A, status="Failed"), "could not read them: Failed"),
        (invocation(A, status="TimedOut", details="DeliveryTimedOut"), "DeliveryTimedOut"),
        (invocation(A, status="Cancelled"), "Cancelled"),
        ({"InstanceId": A, "Status": "Success"}, "sent no host key"),
    ],
)
def test_an_agent_that_fails(agents, said, reason):
    agents.online([A])
    agents.sent([A])
    agents.answered(said)
    answers = agents.ask([A])
    assert answers.keys == {}
    assert reason in answers.reasons[A]


def test_an_agent_that_does_not_answer(agents):
    agents.online([A])
    agents.sent([A])
    agents.answered(invocation(A, status="InProgress"))
    assert "not answered in time" in agents.ask([A], within_s=0.0).reasons[A]


@pytest.mark.parametrize("call", ["describe_instance_information", "send_command"])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDeniedException", "not authorized to perform: ssm:SendCommand"),
        ("InvalidInstanceId", "Instances not in a valid state for account"),
        ("ThrottlingException", "Rate exceeded"),
    ],
)
def test_what_is_refused_is_a_reason(agents, call, code, message):
    if call == "send_command":
        agents.online([A])
    agents.stub.add_client_error(call, code, message)
    answers = agents.ask([A])
    assert answers.keys == {}
    assert message in answers.reasons[A]


def test_moto_has_no_agents(moto_ssm):
    """moto does not know who is managed: a reason, no error."""
    answers = ask_host_keys(moto_ssm, [A])
    assert answers.keys == {}
    assert answers.reasons[A]


@pytest.fixture
def moto_ssm(moto_url):
    return boto3.client(
        "ssm",
        region_name="us-east-1",
        endpoint_url=moto_url,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
