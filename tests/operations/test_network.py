"""`network up`, `down`, `status`: from any state to the requested one, or to a clear error."""

from __future__ import annotations

import functools
import threading

import pytest

from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.ec2 import tags
from clusterctl.ec2.network.plan import Action, NetworkRequest, NetworkSettings, stack_name
from clusterctl.ec2.network.stack import StackFailed, template_version
from clusterctl.operations import network
from clusterctl.operations.launcher import StepProgress
from clusterctl.operations.network import network_status, plan_network
from tests.clock import FakeClock
from tests.ec2.cloudformation import REASON, CloudFormation
from tests.moto_ec2 import NEW_IMAGE, clients_of

SETTINGS = NetworkSettings("net", "10.20.0.0/16", ("us-east-1a", "us-east-1b"), "203.0.113.7/32")
WISH = NetworkRequest("net", ssh_from="203.0.113.7/32")
NAME = stack_name("net")
CLOCK = FakeClock()
network_up = functools.partial(network.network_up, clock=CLOCK)
network_down = functools.partial(network.network_down, clock=CLOCK)


class Steps(StepProgress):
    """The messages to a user."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def clients(client, moto_url, monkeypatch):
    """moto's EC2 with a CloudFormation that takes its time."""
    clients = clients_of(moto_url)
    # All tests of a worker share these clients.
    monkeypatch.setitem(clients.__dict__, "cloudformation", CloudFormation(client))
    return clients


def instance(clients, subnet_id: str, cluster: str | None = None) -> str:
    named = [{"ResourceType": "instance", "Tags": tags.tag_list({tags.CLUSTER: cluster or ""})}]
    made = clients.ec2.run_instances(
        ImageId=NEW_IMAGE,
        InstanceType="p4d.24xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=subnet_id,
        **({"TagSpecifications": named} if cluster else {}),
    )
    return str(made["Instances"][0]["InstanceId"])


def test_from_nothing_and_again_and_away(clients):
    steps = Steps()
    made = network_up(clients, WISH, progress=steps)
    assert made.done is Action.CREATE
    assert made.network == network_status(clients, "net").network
    assert [subnet.zone for subnet in made.network.subnets] == ["us-east-1a", "us-east-1b"]
    assert steps.said == [f"creating stack {NAME}", "Vpc: created"]
    again = network_up(clients, WISH)
    assert (again.done, again.network) == (Action.NOTHING, made.network)
    assert clients.cloudformation.requests == ["create"]
    assert network_down(clients, "net", progress=steps) is True
    assert steps.said[-1] == "Vpc: deleted"
    assert network_down(clients, "net") is False
    assert network_up(clients, WISH).done is Action.CREATE


def test_ssh_from_elsewhere_is_put_in_place_twice(clients):
    network_up(clients, WISH)
    for number in (1, 2):
        request = NetworkRequest("net", ssh_from=f"198.51.100.{number}/32")
        assert network_up(clients, request).done is Action.UPDATE
        assert network_status(clients, "net").ssh_from == f"198.51.100.{number}/32"
    # Who does not say from where changes nothing.
    assert network_up(clients, NetworkRequest("net")).done is Action.NOTHING


@pytest.mark.parametrize(
    ("status", "ahead", "requests"),
    [
        ("ROLLBACK_COMPLETE", (), ["delete", "create"]),
        ("CREATE_FAILED", (), ["delete", "create"]),
        (
            "ROLLBACK_IN_PROGRESS",
            ("ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE"),
            ["delete", "create"],
        ),
        ("DELETE_IN_PROGRESS", ("DELETE_IN_PROGRESS", "DELETE_COMPLETE"), ["create"]),
    ],
)
def test_what_an_earlier_run_left(clients, status, ahead, requests):
    clients.cloudformation.put(NAME, status, SETTINGS.parameters(), *ahead)
    report = network_up(clients, WISH)
    assert report.done in (Action.REPLACE, Action.CREATE)
    assert clients.cloudformation.requests == requests
    assert network_status(clients, "net").network == report.network


def test_what_another_run_is_making_is_waited_for(clients):
    network_up(clients, WISH)
    [stack] = clients.cloudformation.stacks.values()
    stack["StackStatus"] = "CREATE_IN_PROGRESS"
    ended = iter([*["CREATE_IN_PROGRESS"] * 3, "CREATE_COMPLETE"])
    clients.cloudformation._ahead[stack["StackId"]] = ended
    steps = Steps()
    assert network_up(clients, WISH, progress=steps).done is Action.NOTHING
    assert steps.said[0] == f"stack {NAME} is CREATE_IN_PROGRESS: waiting for it"
    assert clients.cloudformation.requests == ["create"]


def test_two_at_once_make_one(clients, monkeypatch):
    """The other run starts between this one's snapshot and its request."""
    look = network.find_stack
    seen = []

    def late(client, name):
        found = look(client, name)
        if not seen:
            seen.append(name)
            thread = threading.Thread(target=network_up, args=(clients, WISH))
            thread.start()
            thread.join(60)
        return found

    monkeypatch.setattr(network, "find_stack", late)
    assert network_up(clients, WISH).done is Action.NOTHING
    assert len(clients.cloudformation.stacks) == 1


def test_a_creation_that_fails_says_why(clients):
    clients.cloudformation.fails = REASON
    steps = Steps()
    with pytest.raises(StackFailed) as caught:
        network_up(clients, WISH, progress=steps)
    assert caught.value.message == (
        f"stack {NAME} could not be created, it is ROLLBACK_COMPLETE:\n"
        f"  Vpc (AWS::EC2::VPC): {REASON}"
    )
    assert f"failed: Vpc (AWS::EC2::VPC): {REASON}" in steps.said
    status = network_status(clients, "net")
    assert (status.status, status.network) == ("ROLLBACK_COMPLETE", None)
    assert network_down(clients, "net") is True


def test_an_update_that_fails_leaves_the_network(clients):
    before = network_up(clients, WISH).network
    clients.cloudformation.fails = "The rule already exists"
    with pytest.raises(StackFailed, match="UPDATE_ROLLBACK_COMPLETE(.|\n)*already exists"):
        network_up(clients, NetworkRequest("net", ssh_from="198.51.100.1/32"))
    assert network_status(clients, "net").network == before
    assert network_status(clients, "net").ssh_from == "203.0.113.7/32"


def test_a_removal_that_fails_says_why_and_goes_on_later(clients):
    network_up(clients, WISH)
    clients.cloudformation.fails = "The vpc has dependencies and cannot be deleted."
    with pytest.raises(StackFailed, match="it is DELETE_FAILED(.|\n)*dependencies"):
        network_down(clients, "net")
    with pytest.raises(ClusterctlError, match="something of it is left"):
        network_up(clients, WISH)
    assert network_down(clients, "net") is True


def test_removed_while_it_is_changed(clients):
    network_up(clients, WISH)
    [stack] = clients.cloudformation.stacks.values()
    stack["StackStatus"] = "UPDATE_IN_PROGRESS"
    ended = iter(["UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_COMPLETE"])
    clients.cloudformation._ahead[stack["StackId"]] = ended
    assert network_down(clients, "net") is True
    assert clients.cloudformation.requests == ["create", "delete"]


def test_a_network_in_use_stays(clients):
    subnet = network_up(clients, WISH).network.subnets[0].subnet_id
    # A cluster's name may look like an instance's id.
    ids = [instance(clients, subnet, "i-web"), instance(clients, subnet, "i-web")]
    ids.append(instance(clients, subnet))
    found = network_status(clients, "net")
    assert (found.clusters, found.instances) == ({"i-web": 2}, [ids[2]])
    assert found.network.subnets[0].free_addresses == 16379 - 3
    with pytest.raises(ClusterctlError) as caught:
        network_down(clients, "net")
    assert caught.value.message == f"network net is in use by cluster i-web (2 instances), {ids[2]}"
    alone = f"aws ec2 terminate-instances --instance-ids {ids[2]}"
    assert caught.value.hint == f"remove what is in it first: clusterctl down i-web; {alone}"
    assert clients.cloudformation.requests == ["create"]
    clients.ec2.terminate_instances(InstanceIds=ids)
    gone = clients.ec2.get_waiter("instance_terminated")
    gone.wait(InstanceIds=ids, WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    assert network_down(clients, "net") is True


def test_what_a_stack_left_behind_is_said(clients):
    tagged = [{"ResourceType": "vpc", "Tags": tags.tag_list({"clusterctl:network": "net"})}]
    made = clients.ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=tagged)
    with pytest.raises(ClusterctlError, match=f"is left: {made['Vpc']['VpcId']}"):
        network_down(clients, "net")
    assert network_down(clients, "other") is False


def test_nothing_is_changed_by_a_plan(clients):
    plan = plan_network(
        clients, NetworkRequest("net", "10.30.0.0/16", ("c", "b"), "203.0.113.0/24")
    )
    assert plan.action is Action.CREATE
    assert plan.settings == NetworkSettings(
        "net", "10.30.0.0/16", ("us-east-1c", "us-east-1b"), "203.0.113.0/24"
    )
    assert clients.cloudformation.requests == []


def test_a_plan_for_a_type(clients):
    offered = {
        offer["Location"]
        for offer in clients.ec2.describe_instance_type_offerings(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": ["p4d.24xlarge"]}],
        )["InstanceTypeOfferings"]
    }
    settings = plan_network(clients, NetworkRequest("net", for_type="p4d.24xlarge")).settings
    assert settings is not None
    assert settings.zones[0] == min(offered)
    with pytest.raises(UsageError, match="no zone of us-east-1 offers"):
        plan_network(clients, NetworkRequest("net", for_type="p99.metal"))


def test_a_caller_at_an_ipv6_address_has_to_say_from_where(clients, monkeypatch):
    monkeypatch.setattr(network, "caller_cidr", lambda *_: "2001:db8::7/128")
    with pytest.raises(UsageError, match="not an IPv4 network"):
        network_up(clients, NetworkRequest("net"))
    assert clients.cloudformation.requests == []


def test_the_deadline_says_how_to_go_on(clients):
    clients.cloudformation.put(
        NAME, "CREATE_IN_PROGRESS", SETTINGS.parameters(), *["CREATE_IN_PROGRESS"] * 10000
    )
    with pytest.raises(ClusterctlError, match="is still CREATE_IN_PROGRESS") as caught:
        network_up(clients, WISH, timeout_s=0.05)
    assert "run the command again" in caught.value.hint


def test_a_lost_answer_is_an_error_and_again_goes_on(clients, monkeypatch):
    create = clients.cloudformation.create_stack

    def lost(**request):
        from botocore.exceptions import ReadTimeoutError

        create(**request)
        raise ReadTimeoutError(endpoint_url="https://cloudformation")

    with monkeypatch.context() as once:
        once.setattr(clients.cloudformation, "create_stack", lost)
        with pytest.raises(AwsError):
            network_up(clients, WISH)
    assert network_up(clients, WISH).done is Action.NOTHING
    assert len(clients.cloudformation.stacks) == 1


@pytest.mark.parametrize("operation_", [network_status, network_down])
def test_hostile_names(clients, operation_):
    for name in ("", "../x", "a b", "--help", "ü", "x" * 200):
        with pytest.raises(UsageError, match="not a network name"):
            operation_(clients, name)


def test_a_stack_of_that_name_that_is_not_ours(clients):
    clients.cloudformation.put(NAME, "CREATE_COMPLETE", {"Vpc": "theirs"})
    for act in (lambda: network_up(clients, WISH), lambda: network_down(clients, "net")):
        with pytest.raises(ClusterctlError, match="not one that clusterctl made"):
            act()
    assert clients.cloudformation.requests == []


def test_what_an_older_clusterctl_made_is_brought_up_to_date(clients):
    network_up(clients, WISH)
    [stack] = clients.cloudformation.stacks.values()
    stack["Tags"] = tags.tag_list({"clusterctl:template": "older"})
    assert network_up(clients, NetworkRequest("net")).done is Action.UPDATE
    assert tags.tag_dict(stack["Tags"])["clusterctl:template"] == template_version()
