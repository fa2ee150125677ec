"""up, down, status, list and hosts as a user sees them. EC2 answers, but there are no hosts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
from botocore.exceptions import ClientError
from moto.ec2 import ec2_backends

from clusterctl.domain.errors import AwsError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Clock, Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch import execution as launch_module
from clusterctl.ec2.resources import ResourceKind, find_key_pairs, find_resources
from clusterctl.node.record import to_data
from clusterctl.operations import down as down_module
from clusterctl.operations import up as up_module
from clusterctl.operations.gc import GarbageCollector
from clusterctl.operations.interrupts import Interrupts
from clusterctl.operations.local_state import keep_key, local_key
from clusterctl.operations.losses import Losses, Written
from tests.cli.programs import BIN
from tests.cli.running import DEMO, CommandLine, launched, type_on_terminal
from tests.clock import LabClock
from tests.lab.running import client as lab_client
from tests.lab.running import wait_until
from tests.moto_ec2 import NEW_IMAGE, OLD_IMAGE, REGION, clients_of
from tests.programs import completed

CREATED = {
    *("import_key_pair", "create_security_group", "authorize_security_group_ingress"),
    *("authorize_security_group_egress", "create_placement_group", "run_instances"),
    *("allocate_address", "associate_address"),
}


def test_dry_run_makes_nothing_here_or_there(clusterctl, client):
    ran = clusterctl("up", *DEMO, "--dry-run")
    assert ran.status == 0
    assert not clusterctl.home.exists()
    assert find_instances(client, "demo") == ()
    assert find_resources(client, "demo", ResourceKind.SECURITY_GROUP) == ()
    assert find_key_pairs(client, "demo") == ()


def test_the_plan_that_is_shown_is_the_one_that_is_executed(clusterctl, client):
    shown = clusterctl("up", *DEMO, "--dry-run", "--json").data
    told, sent = [], {}

    def record(params, model, **_):
        told.append(model.name)
        sent[model.name] = params

    client.meta.events.register("provide-client-params.ec2", record)
    original = up_module.carry_out
    plans = []

    def carry_out(client, plan, *rest):
        plans.append(plan)
        return original(client, plan, *rest)

    up_module.carry_out = carry_out
    try:
        launched(clusterctl)
    finally:
        up_module.carry_out = original
        client.meta.events.unregister("provide-client-params.ec2", record)
    [plan] = plans
    steps = json.loads(json.dumps(shown["steps"]))
    assert [step["operation"] for step in steps] == [step.operation for step in plan.steps]
    assert {step.operation for step in plan.steps} == CREATED
    for step, planned in zip(steps, plan.steps):
        shown_text = json.dumps(step["arguments"], default=str)
        planned_text = json.dumps(to_data(planned.arguments), default=bytes.decode)
        # Each plan has a new key and a new launch id.
        hide = r"[0-9a-f]{32}|AAAA[\w+/=]+"
        assert re.sub(hide, "*", shown_text) == re.sub(hide, "*", planned_text)


def test_up_again_launches_nothing_new(clusterctl, client):
    launched(clusterctl)
    before = [found.node.instance_id for found in find_instances(client, "demo")]
    launched(clusterctl)
    assert [found.node.instance_id for found in find_instances(client, "demo")] == before
    ran = clusterctl("up", *DEMO, "--dry-run")
    # The nodes may still lack what `up` does after EC2's part: their keys, their preparation.
    idle = "nothing to launch or change in EC2; up makes sure that each node is ready\n"
    assert (ran.out, ran.err) == ("", idle)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ("demo", "--nodes", "2", "--instance-type", "p9.huge"),
            1,
            "EC2 has no instance type p9.huge in us-east-1 [type.unknown]",
        ),
        (("Demo!", "--nodes", "1", "--instance-type", "p4d.24xlarge"), 2, "not a cluster name"),
        (("demo", "--nodes", "2"), 2, "a new cluster demo needs --instance-type"),
    ],
)
def test_refused(clusterctl, client, arguments, status, message):
    clusterctl.ends(status, message, "up", *arguments)
    assert not (clusterctl.home / "demo").exists()
    assert find_resources(client, "demo", ResourceKind.SECURITY_GROUP) == ()


def test_user_data_and_image_and_ssh_from(clusterctl, client, tmp_path):
    script = tmp_path / "user data.sh"
    script.write_bytes(b"#!/bin/sh\necho \xc3\xbc\n")
    extra = ("--image", OLD_IMAGE, "--ssh-from", "203.0.113.7", "--user-data", str(script))
    steps = clusterctl("up", *DEMO, *extra, "--dry-run", "--json").data["steps"]
    by_name = {step["operation"]: step["arguments"] for step in steps}
    assert by_name["run_instances"]["ImageId"] == OLD_IMAGE
    assert by_name["run_instances"]["UserData"] == "#!/bin/sh\necho ü\n"
    [ssh, _] = by_name["authorize_security_group_ingress"]["IpPermissions"]
    given = {"CidrIp": "203.0.113.7/32", "Description": "clusterctl: given with --ssh-from"}
    assert ssh["IpRanges"] == [given]


def test_status(clusterctl, client, monkeypatch):
    # There are no hosts here. tests/operations/test_unreachable.py tests hosts that do not answer.
    monkeypatch.setattr("clusterctl.cli.status._log_in", lambda *_: ((), []))
    launched(clusterctl)
    ran = clusterctl("status", "demo")
    assert ran.status == 0
    assert ran.err == ""
    first = find_instances(client, "demo")[0].node.instance_id
    client.terminate_instances(InstanceIds=[first])
    ran = clusterctl("status", "demo")
    assert "demo-0" not in ran.out
    assert "missing: 1 node (0)" in ran.err
    data = clusterctl("status", "demo", "--json").data
    assert (data["state"], data["missing"]) == ("1 running, 1 missing", [0])
    assert [(node["index"], node["reachable"]) for node in data["nodes"]] == [(1, None)]


def test_hosts(clusterctl, client):
    launched(clusterctl)
    addresses = [found.node.private_ip for found in find_instances(client, "demo")]
    expected = "".join(f"{address} slots=8\n" for address in addresses)
    assert clusterctl("hosts", "demo").out == expected
    assert clusterctl("hosts", "demo", "--json").data == [
        {"host": address, "slots": 8} for address in addresses
    ]
    shown = {
        style: clusterctl("hosts", "demo", "--format", style).out.splitlines()
        for style in ("openmpi", "mpich", "addresses", "names")
    }
    assert shown == {
        "openmpi": expected.splitlines(),
        "mpich": [f"{address}:8" for address in addresses],
        "addresses": addresses,
        "names": ["demo-0", "demo-1"],
    }


@pytest.mark.parametrize(
    ("answer", "seen", "status", "left", "said"),
    [
        ("n\n", True, 130, 2, "Terminate the 2 nodes of demo?"),
        ("y\n", True, 0, 0, "Terminate the 2 nodes of demo?"),
        ("y\n", False, 2, 2, "no terminal to show this question: Terminate the 2 nodes of demo?"),
    ],
)
def test_down_asks_on_a_terminal(clusterctl, client, monkeypatch, answer, seen, status, left, said):
    launched(clusterctl)
    type_on_terminal(monkeypatch, answer, seen)
    ran = clusterctl("down", "demo")
    assert ran.status == status
    assert said in ran.err + ran.out
    assert len(find_instances(client, "demo")) == left


def test_down_does_not_forget_a_machine_that_has_lost_its_tag(clusterctl, client):
    launched(clusterctl)
    assert client.describe_addresses()["Addresses"]
    clusterctl.timeouts = Timeouts(shown_s=0.3)
    lost = find_instances(client, "demo")[1].node.instance_id
    client.delete_tags(Resources=[lost], Tags=[{"Key": tags.CLUSTER}])
    ran = clusterctl("down", "demo", "--yes", "--discard-results")
    assert (ran.status, find_instances(client, "demo")) == (1, ())
    assert f"error: {lost}: launched with the key of demo, but without its tag" in ran.err
    # An address without an instance is billed, too.
    assert client.describe_addresses()["Addresses"] == []
    client.terminate_instances(InstanceIds=[lost])
    # A machine with GPUs takes minutes to shut down, and nothing of it is billed.
    machine = ec2_backends["123456789012"][REGION].get_instance(lost)
    machine._state.name = "shutting-down"
    assert clusterctl("down", "demo", "--yes").status == 0


def test_down_looks_again_after_an_answer_that_took_long(clusterctl, client, monkeypatch):
    """A job was started meanwhile, from another machine."""
    launched(clusterctl)
    clock = LabClock()
    clusterctl.timeouts = Timeouts(clock)
    there = [Losses(), Losses(jobs=("j1",))]
    monkeypatch.setattr("clusterctl.cli.cluster._losses", lambda *_: there[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    class Slow(io.StringIO):
        def isatty(self):
            return True

        def readline(self, *size):
            clock.advance(3600)
            del there[:-1]
            return super().readline(*size)

    monkeypatch.setattr("sys.stdin", Slow("y\nn\n"))
    ran = clusterctl("down", "demo")
    assert (ran.status, len(find_instances(client, "demo"))) == (130, 2)
    assert "job j1 has not ended, and ends with the nodes" in ran.err
    # Nothing else would be lost than what was shown, though a job writes on: there is one question.
    sizes = iter(range(1, 9))
    monkeypatch.setattr(
        "clusterctl.cli.cluster._losses",
        lambda *_: Losses(("j1",), (), (Written("demo-0", "j1", "out", "files", 1, next(sizes)),)),
    )
    monkeypatch.setattr("sys.stdin", Slow("y\n"))
    assert clusterctl("down", "demo").status == 0
    assert find_instances(client, "demo") == ()


def test_up_and_down_do_nothing_where_nobody_can_answer(clusterctl, client, monkeypatch):
    """`up 2>&1 | tee log` shows no question before it could be answered; a script has no answer."""
    with monkeypatch.context() as patched:
        type_on_terminal(patched, "y\n", seen=False)
        for command in (("up", *DEMO), ("up", *DEMO, "--json")):
            clusterctl.ends(2, "show this question: Launch?", *command)
        assert find_instances(client, "demo") == ()
        launched(clusterctl, "--yes")
        clusterctl.ends(2, "show this question: Launch?", "add", "demo", "1")
    for command in ("down demo", "remove demo 1", "replace demo 1", "gc --cluster demo --delete"):
        err = clusterctl.ends(2, "no terminal to answer this question: ", *command.split())
        assert "in a script, give --yes" in err
    assert len(find_instances(client, "demo")) == 2


def test_a_script_does_not_remove_what_another_machine_launched(
    clusterctl, client, monkeypatch, tmp_path
):
    """`clusterctl up demo || clusterctl down demo --yes --discard-results`, elsewhere."""
    launched(clusterctl)
    theirs = [one.node.instance_id for one in find_instances(client, "demo")]
    # A home without a folder of the cluster, and one that has the key of a cluster of that name.
    for home in (tmp_path / "none", tmp_path / "key"):
        monkeypatch.setenv("CLUSTERCTL_HOME", str(home))
        folder = ClusterFolder(home / "demo")
        if home.name == "key":
            keep_key(folder, local_key(folder, "demo"))
        clusterctl.ends(1, "the key of cluster demo is not on", "up", *DEMO)
        ran = clusterctl("down", "demo", "--yes", "--discard-results")
        assert ran.status == 1, ran
        assert (
            f"not made from here: node demo-0 ({theirs[0]}), node demo-1 ({theirs[1]})" in ran.err
        )
        assert "--launched-elsewhere" in ran.err
        if home.name == "key":
            for command in ("stop demo --force", "remove demo 1 --yes --force", "add demo 1"):
                clusterctl.ends(1, "the key of cluster demo is not on", *command.split())
        with monkeypatch.context() as patched:
            type_on_terminal(patched, "n\n")
            ran = clusterctl("down", "demo")
        assert (ran.status, "Remove demo, with what was not made from here?" in ran.err) == (130, 1)
        assert f"node demo-1 ({theirs[1]})" in ran.err
    assert [one.node.instance_id for one in find_instances(client, "demo")] == theirs
    ran = clusterctl("down", "demo", "--yes", "--launched-elsewhere")
    anyway = "--yes --discard-results --launched-elsewhere"
    assert (ran.status, anyway in ran.err) == (1, True), ran
    ran = clusterctl("down", "demo", *anyway.split())
    assert (ran.status, ran.out) == (0, "removed demo: 2 nodes, and all that was made for it\n")
    assert find_instances(client, "demo") == ()


def test_what_a_lost_node_cost_is_recorded_once_another_takes_its_place(clusterctl, client):
    """EC2 shows the lost one for an hour, and no command knows then that a node was lost."""
    launched(clusterctl)
    clusterctl.timeouts = Timeouts(LabClock())
    lost = find_instances(client, "demo")[1].node.instance_id
    client.terminate_instances(InstanceIds=[lost])
    assert "this leaves out the cost of demo-1: gone, " in clusterctl("costs", "demo").err
    for _ in range(2):
        launched(clusterctl)
    [ended] = clusterctl("costs", "demo", "--since", "1d", "--json").data["ended"]
    assert list(ended["usd"]) == [lost]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_a_removal_with_a_message(clusterctl, client, monkeypatch, number):
    """The shell and the kernel each send a SIGHUP."""
    launched(clusterctl)

    def end(*_, **__):
        signal.raise_signal(number)
        signal.raise_signal(number)

    def run(*argv):
        interrupts = Interrupts(Clock())
        with interrupts.handled():
            return interrupts.interruptible(lambda: clusterctl(*argv))

    monkeypatch.setattr(down_module, "terminate", end)
    ran = run("down", "demo", "--yes")
    assert ran.status == 130, ran
    assert "something may be left\nto go on: clusterctl down" in ran.err
    monkeypatch.setattr(GarbageCollector, "remove", end)
    ran = run("gc", "--cluster", "demo", "--delete", "--yes")
    assert (ran.status, "interrupted: 0 of " in ran.err) == (130, True), ran


def test_down_does_not_know_what_a_head_node_has_that_cannot_be_asked(
    clusterctl, client, monkeypatch
):
    """A cluster that was never ready has nothing to lose. Later, this machine must ask it."""
    launched(clusterctl)
    [head, _] = find_instances(client, "demo")
    folder = clusterctl.home / "demo"
    pin = f"{head.node.private_ip} ssh-ed25519 AAAA {head.node.instance_id}\n"
    (folder / "known_hosts").write_text(pin)
    client.stop_instances(InstanceIds=[head.node.instance_id])
    ran = clusterctl("down", "demo", "--yes")
    assert ran.status == 1, ran
    assert "demo-0: not known what is left there: its instance is stopp" in ran.err
    assert " --yes --discard-results\n" in ran.err
    (folder / "id_ed25519").unlink()
    client.get_waiter("instance_stopped").wait(
        InstanceIds=[head.node.instance_id], WaiterConfig={"Delay": 1}
    )
    client.start_instances(InstanceIds=[head.node.instance_id])
    client.get_waiter("instance_running").wait(
        InstanceIds=[head.node.instance_id], WaiterConfig={"Delay": 1}
    )
    told = clusterctl("down", "demo", "--yes", "--json").data
    assert "the key of cluster demo is not on this machine" in told["findings"][0]["message"]
    assert len(find_instances(client, "demo")) == 2
    assert clusterctl("down", "demo", "--yes", "--discard-results").status == 0
    assert find_instances(client, "demo") == ()


def test_down_in_the_wrong_region_is_no_success(clusterctl, client, moto_url):
    launched(clusterctl)
    elsewhere = CommandLine(
        clusterctl.home, clusterctl._capsys, ["--endpoint-url", moto_url, "--region", "us-west-2"]
    )
    ran = elsewhere("down", "demo", "--yes")
    assert ran.status == 2
    assert "demo is in us-east-1" in ran.err
    assert len(find_instances(client, "demo")) == 2


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("at", "options", "says"),
    [
        ((up_module, "make_ready"), (), "there are 2 instances, which cost money"),
        ((up_module, "observe"), (), "no instance yet"),
        (
            (launch_module._Execution, "_search"),
            ("--private",),
            "no instance yet, but an elastic address, which costs money",
        ),
    ],
)
def test_ctrl_c_says_what_is_left(clusterctl, monkeypatch, at, options, says):
    monkeypatch.setattr(*at, interrupted)
    err = clusterctl.ends(130, says, "up", *DEMO, *options)
    if "which cost" in says:
        assert "to remove it all: clusterctl down demo" in err
        assert f"to go on: clusterctl up {clusterctl.typed} {' '.join(DEMO)}" in err


def test_what_fails_after_the_launch_says_what_runs_and_what_it_costs(
    clusterctl, client, monkeypatch
):
    def refuse(*_):
        raise AwsError("Gateway.NotAttached", "no gateway")

    monkeypatch.setattr(launch_module._Execution, "_associate", refuse)
    err = clusterctl.ends(1, "no gateway", "up", *DEMO, "--private")
    [told] = [line for line in err.splitlines() if "run now" in line]
    assert re.match(
        r"2 nodes of demo run now: that costs \$\d+\.\d\d an hour\. clusterctl stop", told
    )
    assert "clusterctl down demo " in told
    # Nothing runs that did not run before.
    monkeypatch.setattr(up_module, "make_ready", lambda *_: pytest.fail("it is not launched"))
    before = {one.node.instance_id for one in find_instances(client, "demo")}
    monkeypatch.setattr(launch_module._Execution, "_search", refuse)
    ran = clusterctl("up", "demo", "--nodes", "3")
    assert (ran.status, "run now" in ran.err) == (1, False)
    assert {one.node.instance_id for one in find_instances(client, "demo")} == before


def test_what_fails_unforeseen_after_the_launch_says_so_too(clusterctl, client, monkeypatch):
    def fail(*_):
        raise KeyError("bug")

    monkeypatch.setattr(up_module, "make_ready", fail)
    ran = clusterctl("up", *DEMO, "--json")
    assert "\n2 nodes of demo run now: that costs $" in ran.err
    assert "\nerror: KeyError: 'bug'\n  hint: this is a fault of clusterctl: report it" in ran.err
    assert (ran.status, ran.data["exit_status"]) == (1, 1)


def test_down_names_the_reservation_that_goes_on_costing(clusterctl, client):
    one = client.create_capacity_reservation(
        InstanceType="g5.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=f"{REGION}a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    up = ("up", "demo", "--nodes", "1", "--instance-type", "g5.xlarge")
    clusterctl(*up, "--capacity-reservation", one, "--timeout", "0.01s")
    ran = clusterctl("down", "demo", "--yes")
    client.cancel_capacity_reservation(CapacityReservationId=one)
    assert ran.status == 0
    assert f"{one} goes on costing" in ran.err
    assert f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {one}" in ran.err


def test_ctrl_c_that_cuts_an_import_short(clusterctl, monkeypatch):
    """An incomplete module then does not show as an error of this program."""

    def find_instances(*_):
        raise AttributeError("module 'boto3' has no attribute 'utils'")

    monkeypatch.setattr(up_module, "observe", interrupted)
    monkeypatch.setattr("clusterctl.ec2.instances.find_instances", find_instances)
    clusterctl.ends(130, "there may be instances", "up", *DEMO)


def test_a_folder_that_cannot_be_used_is_one_message(clusterctl):
    """Here, a folder is in the place of a file; another user's folder has the same effect."""
    name = ("other", "--nodes", "1", "--instance-type", "g5.xlarge")
    for file, command, status in (
        ("lock", ("up", *name), 1),
        ("lock", ("down", "other", "--yes"), 1),
        ("launch.json", ("up", *name, "--dry-run"), 1),
        ("launch.json", ("gc",), 0),
        ("ssh_config", ("ssh", "other"), 1),
    ):
        there = clusterctl.home / "other" / file
        there.mkdir(parents=True)
        ran = clusterctl(*command)
        assert ran.status == status, (command, ran)
        assert status == 0 or str(there.parent) in ran.err, (command, ran)
        there.rmdir()


def test_ctrl_c_during_down(clusterctl, monkeypatch):
    launched(clusterctl)
    monkeypatch.setattr("clusterctl.operations.down.delete_all", interrupted)
    ran = clusterctl("down", "demo", "--yes")
    assert ran.status == 130, ran.err
    assert f"to go on: clusterctl down {clusterctl.typed} demo --yes\n" in ran.err


@pytest.mark.parametrize(
    ("arguments", "index", "command"),
    [
        (["demo"], 0, ""),
        (["demo", "1"], 1, ""),
        (["demo", "--", "1"], 0, "1"),
        (["demo", "1", "--", "ls", "-l", "a b"], 1, "ls -l a b"),
    ],
)
def test_a_login_is_the_systems_ssh_and_a_command_is_not(
    clusterctl, monkeypatch, arguments, index, command
):
    launched(clusterctl)
    called = []
    monkeypatch.setattr(
        "clusterctl.cli.ssh.run_in_foreground", lambda argv: called.append(argv) or 3
    )
    monkeypatch.setattr("clusterctl.cli.ssh._reach", lambda *given: called.append(given[2:]) or 3)
    assert clusterctl("ssh", *arguments).status == 3
    config = str(clusterctl.home / "demo" / "ssh_config")
    assert called == [(index, command) if command else ["ssh", "-F", config, f"demo-{index}"]]


@pytest.mark.parametrize("index", ["7", "-1", "x"])
def test_ssh_to_a_node_there_is_not(clusterctl, monkeypatch, index):
    launched(clusterctl)
    monkeypatch.setattr(
        "clusterctl.cli.ssh.run_in_foreground", lambda *_: pytest.fail("ssh was called")
    )
    assert clusterctl("ssh", "demo", index).status == 2


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("InsufficientInstanceCapacity", 500, "not enough machines"),
        ("VcpuLimitExceeded", 400, "quota"),
        ("UnauthorizedOperation", 403, "not allowed"),
    ],
)
def test_what_ec2_refuses_is_one_message(clusterctl, client, monkeypatch, code, status, message):
    from clusterctl.ec2.launch import execution as launch

    class Refuses:
        allocate_address = client.allocate_address

        def run_instances(self, **_):
            raise ClientError(
                {
                    "Error": {"Code": code, "Message": "EC2's own words"},
                    "ResponseMetadata": {"HTTPStatusCode": status},
                },
                "RunInstances",
            )

    monkeypatch.setattr(launch, "without_retries", lambda _: Refuses())
    clusterctl.timeouts = Timeouts(LabClock())
    err = clusterctl.ends(1, message, "up", *DEMO)
    assert "hint: " in err
    assert "Traceback" not in err
    assert find_instances(client, "demo") == ()
    assert clusterctl("down", "demo", "--yes").status == 0


def on_a_terminal(home, account, arguments, answer=""):
    """Run `clusterctl` for a user who types `answer` at a question. Return output and status."""
    ours, theirs = pty.openpty()
    environ = {
        **os.environ,
        "CLUSTERCTL_HOME": str(home),
        "CLUSTERCTL_LAB": "0",
        "TERM": "xterm",
        "COLUMNS": "200",
        **account,
    }
    said = b""
    answers = select.poll()
    answers.register(ours, select.POLLIN)
    with subprocess.Popen(
        # A new session with this terminal, so that Ctrl-C reaches it.
        ["setsid", "--ctty", BIN / "clusterctl", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
    ) as process:
        os.close(theirs)
        with contextlib.ExitStack() as failing:
            failing.callback(process.kill)
            with contextlib.suppress(OSError):  # Linux's end of file on a terminal
                more, answered = b"?", False
                while more:
                    silent = not answers.poll(5000)
                    if not silent:
                        more = os.read(ours, 4096)
                        said += more
                    # Python handles a signal that arrives between the question and the read of
                    # its answer only after the read. So Ctrl-C is sent again if nothing happens.
                    again = silent and answer == "\x03"
                    if answer and b"? [y/N]: " in said and (again or not answered):
                        os.write(ours, answer.encode())
                        answered = True
            failing.pop_all()
        os.close(ours)
    return process.returncode, said.replace(b"\r\n", b"\n").decode()


USD = r"\$[\d.,]+"
PRICE = rf"price of {{name}}: {{nodes}}, {USD} an hour, {USD} a day, {USD} per GPU-hour \(.*2026"


@pytest.mark.lab
@pytest.mark.all
def test_on_a_terminal_money_is_asked_for(lab, tmp_path):
    """It uses the lab's API, but as an AWS account that costs money, not as the lab."""
    name, home = "asked", tmp_path / "home"
    key = lab.key_named(None)
    account = {"AWS_ACCESS_KEY_ID": key.id, "AWS_SECRET_ACCESS_KEY": key.secret}
    at = ["--endpoint-url", lab.endpoint_url, "--region", lab.region]
    ec2 = lab_client(lab)

    def run(verb, *more, answer=""):
        return on_a_terminal(home, account, [verb, name, *at, *more], answer)

    def price(nodes, said):
        return re.search(PRICE.format(name=name, nodes=nodes), said)

    def states():
        return {one.node.state.value for one in find_instances(ec2, name)}

    up = ("up", "--nodes", "2", "--instance-type", "p3.2xlarge", "--timeout", "0.1s")
    try:
        # "n", Enter and Ctrl-C create nothing, neither here nor in EC2.
        for answer in ("n\n", "\n", "\x03"):
            status, said = run(*up, answer=answer)
            assert status == 130
            assert price("2 nodes", said), said
            assert "no supported Deep Learning AMI has TensorFlow or Horovod on it" in said
            assert said.rstrip().endswith("nothing was done"), said
            assert (
                find_instances(ec2, name),
                find_resources(ec2, name, ResourceKind.SECURITY_GROUP),
            ) == ((), ())
            assert find_key_pairs(ec2, name) == ()
            assert not list(home.glob(f"{name}/*"))
        assert "Launch? [y/N]: y\n" in run(*up, answer="y\n")[1]
        assert len(find_instances(ec2, name)) == 2
        # For an existing cluster there is no question.
        said = run(*up)[1]
        assert ("[y/N]" in said, price("2 nodes", said)) == (False, None)
        status, said = run("add", "1", answer="n\n")
        assert (status, bool(price("3 nodes", said))) == (130, True)
        assert len(find_instances(ec2, name)) == 2
        wait_until(lambda: states() == {"running"}, "all to run")
        assert run("stop")[0] == 0
        status, said = run("start", answer="n\n")
        assert status == 130
        assert price("2 nodes", said) and "Start? [y/N]" in said
        assert states() == {"stopped"}
        # With --yes, or without a terminal, the price is printed and `up` continues.
        said = run("start", "--yes", "--timeout", "0.1s")[1]
        assert ("[y/N]" in said, bool(price("2 nodes", said))) == (False, True)
        done = completed(
            [BIN / "clusterctl", "add", name, "1", *at, "--timeout", "0.1s"],
            env={**os.environ, "CLUSTERCTL_HOME": str(home), "CLUSTERCTL_LAB": "0", **account},
            stdin=subprocess.DEVNULL,
        )
        assert price("3 nodes", done.stderr), done.stderr
        assert len(find_instances(ec2, name)) == 3
        status, said = run("disk", "--grow", "1000", answer="n\n")
        assert status == 130, said
        assert re.search(rf"\d+ GiB more cost {USD} a month.*\nGrow\? \[y/N\]", said), said
        assert {one.disk.size_gib for one in find_instances(ec2, name)} != {1000}
    finally:
        assert run("down", "--yes")[0] == 0


def test_an_unknown_price_is_said_and_asked_about(clusterctl, moto_url, tmp_path):
    account = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    up = ["up", "odd", "--nodes", "1", "--instance-type", "m1.small", "--image", NEW_IMAGE]
    role = ["--instance-profile", "new", "--data-bucket", "my-data/x"]
    at = ["--endpoint-url", moto_url, "--region", REGION]
    status, said = on_a_terminal(tmp_path / "home", account, [*up, *role, *at], "n\n")
    assert status == 130
    assert "price of odd: 1 node (hourly price unknown)" in said
    assert (
        "role clusterctl-odd-us-east-1: the nodes, and whoever logs in to them, may read "
        "s3://my-data/x/ (" in said
    )
    assert said.count("[y/N]") == said.count("Launch? [y/N]") == 1
    assert clients_of(moto_url).iam.list_roles()["Roles"] == []
