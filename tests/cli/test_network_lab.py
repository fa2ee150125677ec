"""A network and a private cluster in it, made and removed as a user does, with real hosts."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cli.forks import run_one
from tests.lab.running import client

pytestmark = pytest.mark.lab


@pytest.fixture
def clusterctl(lab):
    environ = {**os.environ, "CLUSTERCTL_HOME": str(lab.home), "CLUSTERCTL_LAB": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.CompletedProcess(arguments, *run_one(arguments, environ))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    yield run
    run("down", "private", "--yes", "--discard-results")
    run("network", "down", "training")


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.all
def test_a_private_cluster_in_a_network_of_its_own(clusterctl, lab, tmp_path):
    network = json.loads(ok(clusterctl("network", "up", "training", "--json")))
    launch = ("--network", "training", "--private", "--nodes", "3")
    ok(clusterctl("up", "private", *launch, "--instance-type", "p3.2xlarge"))

    ran = json.loads(
        ok(clusterctl("run", "private", "--json", "hostname -I; echo $SSH_CONNECTION"))
    )
    said = [result["stdout"].split() for result in ran["nodes"]]
    inside = [words[0] for words in said]
    assert all(address.startswith("10.20.") for address in inside)
    # The head node is reached from outside, the workers from the head node.
    assert said[0][1] != inside[0]
    assert [words[1] for words in said[1:]] == [inside[0]] * 2
    assert ok(clusterctl("ssh", "private", "2", "--", "hostname", "-I")).split() == inside[2:]
    # Nodes without a public address reach S3 through the network's endpoint.
    ok(clusterctl("run", "private", "bash -c '</dev/tcp/${AWS_ENDPOINT_URL_S3#http://}/80'"))
    source = tmp_path / "data"
    source.write_text("content")
    ok(clusterctl("copy", "private", str(source), "data"))
    assert ok(clusterctl("run", "private", "cat data")).count("content") == 3
    ok(clusterctl("up", "private", *launch, "--instance-type", "p3.2xlarge"))

    status = json.loads(ok(clusterctl("network", "status", "training", "--json")))
    assert (status["clusters"], status["instances"]) == ({"private": 3}, [])
    refused = clusterctl("network", "down", "training")
    assert refused.returncode == 1
    assert "in use by cluster private (3 instances)" in refused.stderr

    ok(clusterctl("down", "private", "--yes", "--discard-results"))
    ok(clusterctl("network", "down", "training"))
    assert "nothing to do" in clusterctl("network", "down", "training").stderr
    vpcs = client(lab).describe_vpcs()["Vpcs"]
    assert network["network"]["vpc_id"] not in [vpc["VpcId"] for vpc in vpcs]


@pytest.mark.all
def test_a_head_node_that_is_away(clusterctl, lab):
    ok(clusterctl("network", "up", "training"))
    launch = ("--network", "training", "--private", "--nodes", "2")
    ok(clusterctl("up", "private", *launch, "--instance-type", "p3.2xlarge"))
    ec2 = client(lab)
    head = json.loads(ok(clusterctl("status", "private", "--json")))["nodes"][0]["instance_id"]
    ec2.stop_instances(InstanceIds=[head])
    ec2.get_waiter("instance_stopped").wait(InstanceIds=[head], WaiterConfig={"Delay": 1})
    ran = clusterctl("run", "private", "--json", "true")
    assert ran.returncode == 255
    head_says, worker_says = (result["message"] for result in json.loads(ran.stdout)["failures"])
    assert head_says.startswith("its instance is stopped: a request to EC2's API at ")
    assert worker_says == f"cannot be reached through private-0: {head_says}"


def test_a_name_is_given_to_one_stack_however_many_ask_at_once(lab):
    """`network up` waits for the stack of a faster run, which AWS reports as existing."""
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.30.0.0/16"}}
    # The largest template that CloudFormation accepts: the lab reads it long enough for the others
    # to arrive.
    template = {"Resources": {"Vpc": vpc}, "Metadata": {"numbers": list(range(8000))}}
    stack = {"StackName": "at-once", "TemplateBody": json.dumps(template)}

    def create(asking):
        try:
            return asking.create_stack(**stack)["StackId"].partition(":")[0]
        except asking.exceptions.AlreadyExistsException:
            return "AlreadyExistsException"

    clients = [client(lab, service="cloudformation") for _ in range(8)]
    try:
        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(create, clients)) == ["AlreadyExistsException"] * 7 + ["arn"]
    finally:
        clients[0].delete_stack(StackName="at-once")
