"""`clusterctl lab fault`: valid faults, and the messages about invalid ones."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.lab.running import LabHome, wait_until

pytestmark = pytest.mark.lab


@pytest.fixture
def said(lab, capsys):
    """Return a function that runs `clusterctl lab fault ...`: (exit status, stdout, stderr)."""

    def run(line):
        capsys.readouterr()
        status = LabHome(lab.home).run("fault", *shlex.split(line))
        return (status, *capsys.readouterr())

    yield run
    assert run("clear")[0] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("capacity p3.2xlarge us-east-1a 0", "0 more p3.2xlarge in us-east-1a"),
        ("throttle '*' --rate 0.5 --burst 1", "every action: 0.5 a second, 1 at once"),
        ("error GetParameter X --after --times 0", "GetParameter: carried out, then X"),
        ("lost CreateStack --times 2", "CreateStack: carried out, never answered"),
        ("delay '*' 1.5m", "every action: 90 s late"),
        ("boot --silent --times 3", "the next host: never starts sshd"),
        ("lag --visible 5s --console 30s", "instances 5 s late, consoles 30 s late"),
        (
            "lag --tags 4s --spot 1m --reordered",
            "tags 4 s late, spot requests 60 s late, half of the reads in time",
        ),
        ("quota L-417A185B 128", "L-417A185B is 128"),
        ("shape all --rate 1gbit --up 10Mbit/s", "every host: 1 Gbit/s down, 10 Mbit/s up"),
    ],
)
def test_a_fault_is_set_listed_and_cleared(said, line, words):
    status, out, err = said(line)
    assert (status, err) == (0, "")
    id, _, text = out.strip().partition(": ")
    assert text.startswith(words)
    assert text in said("list")[1]
    one = json.loads(said("list --json")[1])["faults"][0]
    assert (one["id"], one["kind"], one["text"]) == (id, shlex.split(line)[0], text)
    assert said(f"clear {id}")[1] == f"{id}: cleared ({text})\n"
    assert said("list")[1] == "no faults\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("capacity p9.huge us-east-1a 1", "the lab has no instance type p9.huge"),
        ("capacity p3.2xlarge us-east-1e 1", "no p3.2xlarge is offered in us-east-1e"),
        ("capacity p3.2xlarge us-east-1a -1", "No such option"),
        ("throttle RunInstance --rate 1 --burst 1", "did you mean RunInstances?"),
        ("throttle RunInstances --rate 1", "Missing option '--burst'"),
        ("lost '<b>'", "not an API action"),
        ("delay RunInstances soon", "not a duration: 'soon'"),
        ("boot", "a boot is slow, or silent, or dies"),
        ("boot --slow 1s --silent", "choose one of them"),
        ("lag", "nothing lags"),
        ("quota L-1 5", "not a quota code"),
        ("freeze i-0123456789abcdef0", "no instance i-0123456789abcdef0"),
        ("clear demo-99", "no instance 'demo-99'"),
        ("freeze i-1", "no instance 'i-1'"),  # a node of a cluster i
        ("shape all", "no rate is given"),
        ("shape all --rate 160", "not a rate: '160'"),
        ("fill all", "not an instance id: 'all'"),
        ("fill i-0123456789abcdef0 --left much", "not a size: 'much'"),
        ("clear f999999", "no fault 'f999999'"),
    ],
)
def test_what_makes_no_sense_is_one_message(said, line, message):
    status, out, err = said(line)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert said("list")[1] == "no faults\n"


def test_without_a_lab(tmp_path, capsys):
    assert LabHome(tmp_path).run("fault", "list") == 1
    assert "clusterctl lab start" in capsys.readouterr().err


def test_the_faults_of_a_host_are_set_and_undone(said, instances):
    id = instances.up()[0]["InstanceId"]
    assert f"{id}: stands still" in said(f"freeze {id}")[1]
    instances.ec2.create_tags(Resources=[id], Tags=[{"Key": "Name", "Value": "faulty-1"}])
    assert f"{id}: its link is down" in said("cut faulty-1")[1]
    # A cluster may be called `i`: then a node's name begins as an id does.
    instances.ec2.create_tags(Resources=[id], Tags=[{"Key": "Name", "Value": "i-1"}])
    assert f"{id}: 1 Gbit/s down and up" in said(f"shape {id} --rate 1gbit")[1]
    assert f"{id}: /data is full but for 10.0 MiB" in said(f"fill {id} --left 10MiB")[1]
    assert f"{id}: /data is read-only" in said(f"readonly {id}")[1]
    said("capacity p3.2xlarge us-east-1a 9")
    assert said(f"clear {id}")[1].count("cleared") == 5
    assert said("clear i-1") == (0, "", "no fault was set for i-1\n")
    said("shape all --rate 1gbit")
    assert said("clear all")[1].count("cleared") == 1
    assert said("clear")[1].count("cleared") == 1
    # The end of an instance removes its faults.
    said(f"cut {id}")
    instances.ec2.terminate_instances(InstanceIds=[id])
    instances.in_state(id, "terminated")
    wait_until(lambda: said("list")[1] == "no faults\n", "no faults")
    status, _, err = said(f"freeze {id}")
    assert (status, f"{id} is terminated, not running" in err) == (2, True)
