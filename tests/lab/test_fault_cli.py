"""`clusterctl lab fault`: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import json
import shlex

import pytest

from clusterctl.cli.lab_fault import fault
from tests.lab.running import LabHome, wait_until

pytestmark = pytest.mark.lab


@pytest.fixture
def said(lab, capsys):
    """Runs `clusterctl lab fault ...`: exit status, stdout, stderr."""

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
        ("capacity p5.48xlarge us-west-2a 4", "4 more p5.48xlarge in us-west-2a"),
        ("throttle RunInstances --rate 2 --burst 5", "RunInstances: 2 a second, 5 at once"),
        ("throttle '*' --rate 0.5 --burst 1", "every action: 0.5 a second, 1 at once"),
        ("error RunInstances InternalError", "RunInstances: answered with InternalError"),
        ("error GetParameter X --after --times 0", "GetParameter: carried out, then X"),
        ("error GetProducts X --status 503 --message 'a b ü' --skip 3", "GetProducts: answered"),
        ("lost CreateStack --times 2", "CreateStack: carried out, never answered"),
        ("delay '*' 1.5m", "every action: 90 s late"),
        ("delay '*' 0", "every action: 0 s late"),
        ("boot --slow 2m --node 0-2,5", "node 0,1,2,5: 120 s late"),
        ("boot --silent --times 3", "the next host: never starts sshd"),
        ("boot --dies Server.InternalError", "the next host: dies with Server.InternalError"),
        ("lag --visible 0", "instances 0 s late"),
        ("lag --visible 5s --console 30s", "instances 5 s late, consoles 30 s late"),
        ("quota L-417A185B 128", "L-417A185B is 128"),
        ("shape all --rate 160mbit", "every host: 160 Mbit/s down and up"),
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
        ("capacity '' us-east-1a 1", "not an instance type: ''"),
        ("capacity 'p3 2xlarge' us-east-1a 1", "not an instance type: 'p3 2xlarge'"),
        ("capacity p3.2xlarge us-east-1e 1", "no p3.2xlarge is offered in us-east-1e"),
        ("capacity p3.2xlarge us-east-1 1", "no p3.2xlarge is offered in us-east-1"),
        ("capacity p3.2xlarge '' 1", "not an availability zone: ''"),
        ("capacity p3.2xlarge us-east-1ä 1", "not an availability zone: 'us-east-1ä'"),
        ("capacity p3.2xlarge us-east-1a -1", "No such option"),
        ("capacity p3.2xlarge us-east-1a -- -1", "-1"),
        ("capacity p3.2xlarge us-east-1a many", "many"),
        ("capacity p3.2xlarge us-east-1a 9999999", "9999999"),
        ("capacity p3.2xlarge us-east-1a", "Missing argument 'N'"),
        ("throttle RunInstance --rate 1 --burst 1", "did you mean RunInstances?"),
        ("throttle runinstances --rate 1 --burst 1", "not an API action: 'runinstances'"),
        ("throttle '' --rate 1 --burst 1", "not an API action: ''"),
        ("throttle RunInstances --rate 1", "Missing option '--burst'"),
        ("throttle RunInstances --rate -1 --burst 1", "the rate: a number from 0"),
        ("throttle RunInstances --rate nan --burst 1", "the rate: a number from 0"),
        ("throttle RunInstances --rate inf --burst 1", "the rate: a number from 0"),
        ("throttle RunInstances --rate 1 --burst 0", "--burst"),
        ("error RunInstances 'Inter nal'", "not an error code: 'Inter nal'"),
        ("error RunInstances ''", "not an error code: ''"),
        ("error RunInstances X --status 200", "from 400 to 599, not 200"),
        ("error RunInstances X --status -1", "HTTP status"),
        ("error RunInstances X --times -1", "--times"),
        ("error RunInstances X --skip x", "--skip"),
        ("error RunInstances X --message 'a\nb'", "the message is one line"),
        ("lost '<b>'", "not an API action"),
        ("delay RunInstances -1", "No such option"),
        ("delay RunInstances soon", "not a duration: 'soon'"),
        ("delay RunInstances 999d", "the delay: a number from 0 to 86400"),
        ("boot", "a boot is slow, or silent, or dies"),
        ("boot --slow 0", "a boot is slow, or silent, or dies"),
        ("boot --slow 1 --silent", "choose one of them"),
        ("boot --dies ''", "--dies needs a code"),
        ("boot --dies 'not a code'", "not a StateReason code"),
        ("boot --silent --node x", "--node"),
        ("boot --silent --node -1", "--node"),
        ("boot --silent --node ''", "--node"),
        ("lag", "nothing lags"),
        ("lag --visible -5", "--visible"),
        ("quota L-1 5", "not a quota code"),
        ("quota L-417A185B -- -5", "-5"),
        ("freeze i-0123456789abcdef0", "no instance i-0123456789abcdef0"),
        ("freeze ''", "no instance ''"),
        ("cut ../../etc", "no instance '../../etc'"),
        ("thaw i-0123456789abcdef0", "is not frozen"),
        ("mend ''", "no instance ''"),
        ("mend demo-99", "no instance 'demo-99'"),
        ("boot --silent --node demo-1", "--node"),
        ("shape all", "no rate is given"),
        ("shape all --rate 160", "not a rate: '160'"),
        ("shape all --rate 1kbit", "a whole number from 1000000"),
        ("shape ''  --rate 10mbit", "no instance ''"),
        ("shape i-0123456789abcdef0 --rate 10mbit", "no instance i-0123456789abcdef0"),
        ("unshape all", "is not shaped"),
        ("fill all", "not an instance id: 'all'"),
        ("fill i-0123456789abcdef0 --left much", "not a size: 'much'"),
        ("fill i-0123456789abcdef0 --left -1", "--left"),
        ("fill i-0123456789abcdef0 --left 9999TiB", "is not from 0 B to 1024.0 TiB"),
        ("drain i-0123456789abcdef0", "is not filled"),
        ("readonly i-0123456789abcdef0", "no instance i-0123456789abcdef0"),
        ("writable i-0123456789abcdef0", "is not read-only"),
        ("clear f999999", "no fault 'f999999'"),
        ("clear ''", "no fault ''"),
        ("clear 'f1&id=f2'", "no fault"),
        ("clear ü", "no fault 'ü'"),
        ("nonsense", "No such command"),
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
    assert f"{id}: 1 Gbit/s down and up" in said(f"shape {id} --rate 1gbit")[1]
    assert f"{id}: /data is full but for 10.0 MiB" in said(f"fill {id} --left 10MiB")[1]
    assert f"{id}: /data is read-only" in said(f"readonly {id}")[1]
    for undo in ("unshape", "drain", "writable"):
        assert "cleared" in said(f"{undo} {id}")[1]
    assert "cleared" in said("mend faulty-1")[1]
    assert "cleared" in said(f"thaw {id}")[1]
    instances.ec2.terminate_instances(InstanceIds=[id])
    instances.in_state(id, "terminated")
    status, _, err = said(f"freeze {id}")
    assert (status, f"{id} is terminated, not running" in err) == (2, True)


def test_an_instance_that_is_gone_takes_its_faults_along(said, instances):
    id = instances.up()[0]["InstanceId"]
    said(f"cut {id}")
    instances.ec2.terminate_instances(InstanceIds=[id])
    wait_until(lambda: said("list")[1] == "no faults\n", "no faults")


@pytest.mark.parametrize("name", sorted(fault.commands))
def test_every_command_has_help_and_an_example(name):
    command = fault.commands[name]
    assert f"clusterctl lab fault {name}" in command.help
    for parameter in command.params:
        assert parameter.param_type_name == "argument" or parameter.help, parameter.name
