from __future__ import annotations

import io
import urllib.error

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.launch.plan import group_steps
from clusterctl.ec2.network import vpcs as network
from clusterctl.ec2.network.vpcs import SecurityGroup, Vpc, caller_cidr, parse_cidr, read_group
from clusterctl.ec2.resources import ResourceKind, details_of, find_resources
from clusterctl.ec2.session import is_local
from tests.moto_ec2 import REGION

GROUP = ResourceKind.SECURITY_GROUP
VPC = Vpc("vpc-1", "172.31.0.0/16")
AWS = "https://ec2.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:5000", True),
        ("http://localhost:5000", True),
        ("http://[::1]:5000", True),
        (AWS, False),
        ("http://127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_an_endpoint_on_this_machine(url, local):
    assert is_local(url) is local


@pytest.mark.parametrize(
    ("answer", "cidr"),
    [(b"203.0.113.7\n", "203.0.113.7/32"), (b"2001:db8::7\n", "2001:db8::7/128")],
)
def test_the_callers_own_address(monkeypatch, answer, cidr):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(answer))
    assert caller_cidr(AWS, VPC) == cidr
    # A local EC2 sees callers at addresses in its own VPC.
    assert caller_cidr("http://127.0.0.1:5000", VPC) == "172.31.0.0/16"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>log in to the hotel wifi</html>", ""),
        (b"\xff\xfe", ""),
        (urllib.error.URLError("no route"), "no route"),
    ],
)
def test_an_address_that_is_not_to_be_found_out(monkeypatch, answer, said):
    def urlopen(*_, **__):
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(ClusterctlError) as caught:
        caller_cidr(AWS, VPC)
    assert said in caught.value.message
    assert "--ssh-from" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "cidr"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        (" 2001:db8::/32 ", "2001:db8::/32"),
    ],
)
def test_cidr(text, cidr):
    assert parse_cidr(text) == cidr


@pytest.mark.parametrize("text", ["", "me", "10.0.0.0/33", "10.0.0.1; rm"])
def test_not_a_cidr(text):
    with pytest.raises(UsageError):
        parse_cidr(text)


def rule(protocol, first=None, last=None, cidrs=(), groups=()):
    ports = {} if first is None else {"FromPort": first, "ToPort": last}
    return {
        "IpProtocol": protocol,
        **ports,
        "IpRanges": [{"CidrIp": cidr} for cidr in cidrs],
        "UserIdGroupPairs": [{"GroupId": group} for group in groups],
    }


@pytest.mark.parametrize(
    ("rules", "ssh_from", "members"),
    [
        ([], (), False),
        ([rule("tcp", 22, 22, ["1.2.3.4/32"])], ("1.2.3.4/32",), False),
        ([rule("tcp", 80, 80, ["0.0.0.0/0"])], (), False),
        ([rule("udp", 22, 22, ["0.0.0.0/0"])], (), False),
        ([rule("-1", groups=["sg-1"])], (), True),
        ([rule("-1", groups=["sg-other"])], (), False),
        ([rule("tcp", 22, 22, groups=["sg-1"])], (), False),
    ],
)
def test_what_a_group_lets_through(rules, ssh_from, members):
    described = {"GroupId": "sg-1", "IpPermissions": rules, "IpPermissionsEgress": rules}
    assert read_group(described) == SecurityGroup("sg-1", ssh_from, members, members)


@pytest.mark.parametrize(
    ("allowed", "cidr", "inside"),
    [
        ("1.2.3.4/32", "1.2.3.4/32", True),
        ("0.0.0.0/0", "1.2.3.4/32", True),
        ("1.2.3.4/32", "1.2.3.5/32", False),
        ("::/0", "1.2.3.4/32", False),
    ],
)
def test_who_is_let_in(allowed, cidr, inside):
    assert SecurityGroup("sg-1", (allowed,), True, True).lets_in(cidr) is inside


def test_an_address_that_up_ran_from_is_let_in_until_it_runs_from_another(client):
    vpc = network.find_vpc(client)
    by_hand = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    history = [
        # The address where `up` runs, the value of --ssh-from, and the addresses let in afterwards.
        ("203.0.113.1/32", None, {"203.0.113.1/32"}),
        ("203.0.113.2/32", None, {"203.0.113.2/32"}),
        ("10.0.0.0/8", "10.0.0.0/8", {"10.0.0.0/8"}),
        ("203.0.113.3/32", None, {"10.0.0.0/8", "203.0.113.3/32"}),
        ("10.1.0.0/16", "10.1.0.0/16", {"10.1.0.0/16"}),
        ("10.1.2.3/32", None, {"10.1.0.0/16"}),
        ("2001:db8::7/128", None, {"10.1.0.0/16", "2001:db8::7/128"}),
        ("", None, {"10.1.0.0/16", "2001:db8::7/128"}),  # the address is unknown
        ("203.0.113.1/32", None, {"10.1.0.0/16", "203.0.113.1/32"}),
    ]
    group = None
    for address, given, let_in in history:
        spec = ClusterSpec("demo", 1, "c5.xlarge", ssh_from=given)
        observed = Observed(spec, REGION, vpc, ssh_from=address, group=group)
        results: dict[str, str] = {}
        for step in group_steps(observed):
            answer = getattr(client, step.operation)(**step.resolved(results))
            results.update({key: answer[key] for key in step.gives})
        if group is None:
            [group] = details_of(find_resources(client, "demo", GROUP), SecurityGroup)
            own = {**by_hand, "IpRanges": [{"CidrIp": "192.0.2.1/32", "Description": "mine"}]}
            client.authorize_security_group_ingress(GroupId=group.group_id, IpPermissions=[own])
        [group] = details_of(find_resources(client, "demo", GROUP), SecurityGroup)
        assert set(group.ssh_from) == {*let_in, "192.0.2.1/32"}


def test_a_missing_default_vpc_is_an_error(client):
    class Empty:
        meta = client.meta

        def describe_vpcs(self, **_):
            return {"Vpcs": []}

    with pytest.raises(AwsError) as caught:
        network.find_vpc(Empty())
    assert "create-default-vpc" in caught.value.hint
