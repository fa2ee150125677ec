"""The metadata of hosts at 169.254.169.254, and the interruption notice of a spot instance."""

from __future__ import annotations

import functools
import json
from datetime import datetime, timezone
from ipaddress import IPv4Network
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.lab import lifecycle
from clusterctl.lab.faults import interruptions
from clusterctl.lab.hosts.daemon.network import hardware_address
from clusterctl.lab.hosts.metadata import Tokens, lookup
from tests.cli.running import CommandLine
from tests.lab.running import client, make_profile, ssh, wait_until

SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}
PAGE = "/_lab/interruptions"
# Sends one request, without curl, which some machines lack: METHOD PATH [HEADER=VALUE ...].
ASK = """
import sys, urllib.error, urllib.request
method, path, *headers = sys.argv[1:]
url = "http://169.254.169.254" + path
request = urllib.request.Request(url, method=method, headers=dict(h.split("=", 1) for h in headers))
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code)
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", b"text"),
        ("/b/c/", b"deep"),
        ("b", b"c\nd/"),
        ("", b"a\nb/"),
        ("a/b", None),
        ("x", None),
        ("b/d", b""),
        ("b/../a", None),
    ],
)
def test_lookup(path, found):
    assert lookup({"a": "text", "b": {"c": b"deep", "d": {}}}, path) == found


def test_a_token_is_for_one_instance_and_a_while():
    now = [0.0]
    tokens = Tokens(lambda: now[0])
    mine = tokens.make("i-1", 10)
    assert tokens.admits(mine, "i-1")
    assert not tokens.admits(mine, "i-2")
    assert not tokens.admits("", "i-1")
    now[0] = 10
    assert not tokens.admits(mine, "i-1")


def test_two_tokens_made_at_the_same_time_are_good():
    tokens, others = Tokens(lambda: 0.0), []

    class Known(dict):
        def items(self):
            if not others:
                others.append("")
                others.append(tokens.make("i-2", 10))
            return super().items()

    tokens._known = Known()
    assert tokens.admits(tokens.make("i-1", 10), "i-1")
    assert tokens.admits(others[1], "i-2")


def test_a_notice_that_runs_out_on_a_stopped_instance_is_void(monkeypatch):
    now = datetime.now(timezone.utc)
    monkeypatch.setitem(interruptions.NOTICES, "i-1", interruptions.Notice(now, now))
    one = SimpleNamespace(id="i-1", state="stopped")
    interruptions.terminate_if_due(one)
    assert "i-1" not in interruptions.NOTICES


@pytest.fixture
def ask(instances):
    """Return `ask(instance, path, method, **headers)`, which returns the status and the text."""

    def request(one, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        words = [f"{name.replace('_', '-')}={value}" for name, value in headers.items()]
        quoted = " ".join(f"'{word}'" for word in (ASK, method, path, *words))
        status, _, text = instances.run(one, f"python3 -c {quoted}").partition(" ")
        return int(status), text

    return request


def token_of(ask, one) -> dict[str, str]:
    ttl = {"X_aws_ec2_metadata_token_ttl_seconds": "21600"}
    status, token = ask(one, "/latest/api/token", "PUT", **ttl)
    assert status == 200
    return {"X_aws_ec2_metadata_token": token}


@pytest.mark.lab
def test_a_host_knows_what_it_is(instances, ask):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a:b", "Value": "c d"}]}]
    arn = make_profile(client(instances.lab, service="iam"), "reader")
    one = instances.up(
        UserData="#!/bin/sh\ntrue\n",
        TagSpecifications=tags,
        IamInstanceProfile={"Name": "reader"},
        MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
    )[0]
    assert ask(one, "/latest/meta-data/instance-id")[0] == 401
    assert ask(one, "/latest/meta-data/", X_aws_ec2_metadata_token="guessed")[0] == 401
    for ttl in ("0", "21601", "x"):
        headers = {"X_aws_ec2_metadata_token_ttl_seconds": ttl}
        assert ask(one, "/latest/api/token", "PUT", **headers)[0] == 400
    token = token_of(ask, one)
    expected = {
        "instance-id": one["InstanceId"],
        "ami-id": one["ImageId"],
        "ami-launch-index": "0",
        "instance-type": one["InstanceType"],
        "local-ipv4": one["PrivateIpAddress"],
        "public-ipv4": one["PublicIpAddress"],
        "local-hostname": one["PrivateDnsName"],
        "hostname": one["PrivateDnsName"],
        "mac": one["NetworkInterfaces"][0]["MacAddress"],
        "placement/availability-zone": one["Placement"]["AvailabilityZone"],
        "placement/region": instances.lab.region,
        "security-groups": "default",
        "instance-life-cycle": "on-demand",
        "tags/instance/a:b": "c d",
    }
    for path, text in expected.items():
        assert (path, ask(one, f"/latest/meta-data/{path}", **token)) == (path, (200, text))
    names = ask(one, "/2021-07-15/meta-data", **token)[1].splitlines()
    assert {"placement/", "mac", "tags/"} <= set(names)
    assert expected["mac"] == instances.run(one, "cat /sys/class/net/eth0/address")
    for path in ("spot/instance-action", "events/recommendations/rebalance", "no"):
        assert ask(one, f"/latest/meta-data/{path}", **token)[0] == 404
    keys = "/latest/meta-data/iam/security-credentials/"
    assert ask(one, keys, **token) == (200, "reader")
    assert json.loads(ask(one, f"{keys}reader", **token)[1])["Code"] == "Success"
    about = json.loads(ask(one, "/latest/meta-data/iam/info", **token)[1])
    assert about["InstanceProfileArn"] == arn
    assert ask(one, "/latest/user-data", **token) == (200, "#!/bin/sh\ntrue")
    document = json.loads(ask(one, "/latest/dynamic/instance-identity/document", **token)[1])
    assert (document["instanceId"], document["region"]) == (one["InstanceId"], instances.lab.region)


@pytest.mark.lab
def test_version_one_where_tokens_are_optional_and_nothing_where_it_is_off(instances, ask):
    optional = {"MetadataOptions": {"HttpTokens": "optional"}, "MinCount": 2, "MaxCount": 2}
    one, other = instances.up(**optional)
    for host in (one, other):
        assert ask(host, "/latest/meta-data/instance-id") == (200, host["InstanceId"])
    assert ask(one, "/latest/user-data")[0] == 404
    assert ask(one, "/latest/meta-data/tags/")[0] == 404
    # A token is not valid for another instance.
    assert ask(other, "/latest/meta-data/mac", **token_of(ask, one))[0] == 401
    third = instances.up(MetadataOptions={"HttpEndpoint": "disabled"})[0]
    assert ask(third, "/latest/meta-data/instance-id")[0] == 403


# Root on a host takes the address of another host.
POSE = """
while pgrep -u ubuntu sshd >/dev/null; do sleep 0.1; done
ip link set eth0 down; ip link set eth0 address {their_mac}; ip link set eth0 up
ip address add {theirs}/32 dev eth0; ip route add default via {gateway} src {theirs}
timeout 4 python3 -c 'import urllib.request as u
print(u.urlopen("http://169.254.169.254/latest/meta-data/instance-id").read())'
echo over
"""


@pytest.mark.lab
def test_who_takes_anothers_address_is_not_told_what_is_its(instances, lab):
    if lab.mode == "single":
        pytest.skip("nobody is root on a host")
    options = {"HttpTokens": "optional", "HttpEndpoint": "enabled"}
    one, other = instances.up(MinCount=2, MaxCount=2, MetadataOptions=options)
    addresses = [each["PrivateIpAddress"] for each in (one, other)]
    their_mac = hardware_address(addresses[1])
    gateway = str(IPv4Network(lab.network)[1])
    pose = POSE.format(their_mac=their_mac, theirs=addresses[1], gateway=gateway)
    done = ssh(lab, instances.key, addresses[0], "cat >pose", given=pose)
    assert done.returncode == 0
    # The command runs on its console: a login meanwhile would make this machine learn a wrong MAC
    # address.
    instances.run(one, "(sudo setsid sh -c 'sh pose >/proc/1/fd/1' </dev/null >said 2>&1 &)")

    def over():
        said = instances.ec2.get_console_output(InstanceId=one["InstanceId"]).get("Output", "")
        return "over\n" in said and said

    assert other["InstanceId"] not in wait_until(over, "the end")


@pytest.mark.lab
def test_a_spot_instance_gets_notice_and_ends(instances, lab, ask):
    one = instances.up(**SPOT)[0]
    id, action = one["InstanceId"], "/latest/meta-data/spot/instance-action"
    token = token_of(ask, one)
    assert ask(one, "/latest/meta-data/instance-life-cycle", **token) == (200, "spot")
    assert ask(one, action, **token)[0] == 404
    lifecycle.request_page(lab, PAGE, "POST", {"instance_id": id, "seconds": 3600})
    notice = json.loads(ask(one, action, **token)[1])
    assert notice["action"] == "terminate"
    ended = ask(one, "/latest/meta-data/spot/termination-time", **token)[1]
    assert notice["time"] == ended
    assert ask(one, "/latest/meta-data/events/recommendations/rebalance", **token)[0] == 200
    assert instances.state(id) == "running"
    lifecycle.request_page(lab, PAGE, "POST", {"instance_id": id, "seconds": 0})
    instances.in_state(id, "terminated")
    assert instances.see(id)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    shown = instances.ec2.describe_spot_instance_requests(
        SpotInstanceRequestIds=[one["SpotInstanceRequestId"]]
    )["SpotInstanceRequests"][0]
    assert shown["Status"]["Code"] == "instance-terminated-no-capacity"


@pytest.mark.lab
def test_what_is_no_interruption(instances, lab, monkeypatch, capsys):
    for body, said in (
        ({"instance_id": "i-0123456789abcdef0"}, "no instance"),
        ({"instance_id": None}, "no instance"),
        ({}, "instance_id"),
        ("x", "instance_id"),
    ):
        with pytest.raises(UsageError, match=said):
            lifecycle.request_page(lab, PAGE, "POST", body)
    on_demand = instances.request()[0]["InstanceId"]
    for seconds in (1, -1, "soon"):
        with pytest.raises(UsageError, match="no spot instance"):
            lifecycle.request_page(
                lab, PAGE, "POST", {"instance_id": on_demand, "seconds": seconds}
            )
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    interrupt = functools.partial(CommandLine(lab.home, capsys, []), "lab", "fault", "interrupt")
    id = instances.request(**SPOT)[0]["InstanceId"]
    assert interrupt(id, "--in", "soon").status == 2
    assert "no instance" in interrupt("i-0123456789abcdef0").err
    ran = interrupt(id, "--in", "0")
    assert (ran.status, ran.out.startswith(f"{id}: terminated at ")) == (0, True)
    instances.in_state(id, "terminated")
