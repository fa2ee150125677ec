"""Nodes that do not answer: a quick report with EC2's state and a remedy; Ctrl-C ends commands."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from clusterctl.domain.cluster import Cluster, Market, NodeState
from clusterctl.domain.errors import AwsError, HostUnreachable
from clusterctl.ec2.health import gone_nodes
from clusterctl.ec2.instances import Instance
from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobStatus
from clusterctl.operations.access import Access
from clusterctl.operations.logs import lost_in, with_reasons
from clusterctl.operations.status import (
    ClusterStatus,
    Ec2Explanation,
    describe_state,
    unreachable_hint,
)
from clusterctl.transport.dial import Target
from tests.lab.running import client
from tests.operations.clusters import cluster, node
from tests.pair import NAME, eventually, quiet_command_ends

RUNNING, STOPPED = NodeState.RUNNING, NodeState.STOPPED
SINCE = "2026-11-01 00:00:00 UTC"
BACK = "if it does not come back in some minutes"
AGAIN = f"{BACK}, a new machine in its place, its disks are lost: clusterctl replace demo"


def instance(index: int = 1, state: NodeState = RUNNING, **fields) -> Instance:
    found = replace(node(index), state=state, **fields.pop("node", {}))
    common = {"ssh_user": "ubuntu", "wanted": (), "image_id": "", "key_name": ""}
    return Instance(found, "demo", launch_token="", **common, **fields)


@pytest.mark.parametrize(
    ("found", "impaired", "words"),
    [
        (instance(), "", f"running since {SINCE}"),
        (instance(), "its system status check fails", f"running since {SINCE}, its system status "
         "check fails"),
        (instance(state=NodeState.PENDING), "", f"pending since {SINCE}"),
        (
            instance(
                state=STOPPED,
                transition_reason="User initiated (2026-11-02 03:04:05 GMT)",
                state_reason="Client.UserInitiatedShutdown: User initiated shutdown",
            ),
            "",
            "stopped: a request to EC2's API at 2026-11-02 03:04 UTC "
            "(Client.UserInitiatedShutdown)",
        ),
        # A machine switched itself off: EC2 does not show when.
        (
            instance(state=STOPPED, state_reason="Client.InstanceInitiatedShutdown"),
            "",
            "stopped: a shutdown on the node itself, by a command or a limit "
            "(Client.InstanceInitiatedShutdown)",
        ),
    ],
)  # fmt: skip
def test_the_words(found, impaired, words):
    assert describe_state(found, impaired) == words


@pytest.mark.parametrize(
    ("index", "state", "impaired", "timed_out", "command"),
    [
        (1, NodeState.PENDING, False, True, "clusterctl up demo"),
        (1, NodeState.STOPPING, False, False, "clusterctl start demo"),
        (1, STOPPED, False, True, "clusterctl start demo"),
        (1, NodeState.TERMINATED, False, True, "clusterctl up demo"),
        (1, RUNNING, False, True, "clusterctl up demo lets it in; else if it does not"),
        (1, RUNNING, True, True, f"{AGAIN} 1"),
        (1, RUNNING, False, False, f"{AGAIN} 1"),
        # The head node's disk has the jobs, so it is not replaced.
        (0, RUNNING, True, True, "clusterctl stop demo --force; clusterctl start demo"),
    ],
)
def test_what_helps(index, state, impaired, timed_out, command):
    assert command in unreachable_hint(instance(index, state), impaired, timed_out)


def test_a_spot_head_node_which_cannot_be_stopped_is_replaced():
    hint = unreachable_hint(instance(0, market=Market.SPOT), True, True)
    assert hint == f"{AGAIN} 0"


class Told:
    """Clients that show these instances, or fail."""

    def __init__(self, monkeypatch, *instances: Instance, refused: AwsError | None = None) -> None:
        self.asked = 0
        self.ec2_at_once = self

        def find(ec2, name, states):
            self.asked += 1
            if refused:
                raise refused
            return instances

        monkeypatch.setattr("clusterctl.operations.status.find_instances", find)
        monkeypatch.setattr("clusterctl.operations.status.impaired_checks", lambda ec2, ids: {})


TARGET = Target("demo-1", "10.0.0.5", "ubuntu")
LOST = HostUnreachable("demo-1", "did not answer in time", "a hint")


def test_nodes_that_fail_together_are_asked_for_once(monkeypatch):
    told = Told(monkeypatch, instance(0), instance(1))
    explain = Ec2Explanation(told, "demo")  # type: ignore[arg-type]
    said = [explain(replace(TARGET, host=f"demo-{index}"), LOST) for index in (0, 1, 1)]
    assert told.asked == 1
    assert said[1].message == f"did not answer in time; EC2 has i-1 as running since {SINCE}"
    assert not any(error.is_off for error in said)


def test_the_instance_that_a_replaced_node_left_behind_is_not_meant(monkeypatch):
    gone = instance(1, NodeState.TERMINATED, node={"instance_id": "i-old"})
    said = Ec2Explanation(Told(monkeypatch, instance(1), gone), "demo")(TARGET, LOST)  # type: ignore[arg-type]
    assert "i-1 as running" in said.message


def test_an_address_that_is_another_by_now(monkeypatch):
    moved = instance(1, node={"public_ip": "198.51.100.9"})
    said = Ec2Explanation(Told(monkeypatch, moved), "demo")(TARGET, LOST)  # type: ignore[arg-type]
    assert said.message.endswith(", at 198.51.100.9")
    assert said.hint == "the addresses here are out of date: clusterctl up demo"


def test_what_ec2_does_not_say_is_not_claimed(monkeypatch):
    refused = AwsError("ExpiredToken", "the session has ended")
    said = Ec2Explanation(Told(monkeypatch, refused=refused), "demo")(TARGET, LOST)  # type: ignore[arg-type]
    assert (said.message, said.hint) == (
        "did not answer in time; EC2 does not say why: the session has ended",
        "a hint",
    )


def test_the_machine_launched_in_place_of_a_lost_node_is_not_the_lost_one(monkeypatch):
    """A job's record has the lost machine's id. Its name is the new machine's, too."""
    code = "Server.SpotInstanceTermination"
    taken = instance(1, NodeState.TERMINATED, state_reason=code, node={"instance_id": "i-old"})
    notice = {"action": "terminate", "time": "2026-11-28T11:16:49Z"}
    explain = Ec2Explanation(Told(monkeypatch, taken, instance(1)), "demo")  # type: ignore[arg-type]
    why = "a spot interruption at 2026-11-28 11:16 UTC"
    assert explain.why_lost("demo-1", "i-old", notice) == f"{why} (Server.SpotInstanceTermination)"
    # An hour later EC2 shows it no more.
    assert explain.why_lost("demo-1", "i-older", notice).endswith("notice at 2026-11-28 11:16 UTC")
    runs = f"the reason is not known: EC2 has i-1 as running since {SINCE}"
    assert explain.why_lost("demo-1", "i-1", {}) == runs
    given = f"{runs}, and had given notice: terminate at 2026-11-28T11:16:49Z"
    assert explain.why_lost("demo-1", "i-1", notice) == given


def test_of_nodes_that_have_booted_only_another_machine_is_a_lost_one():
    """It answers at the address of the machine that it replaced."""
    attempt = {
        "lost": True,
        "silent": [],
        "rebooted": ["demo-1", "demo-2"],
        "machines": {"demo-1": "i-old", "demo-2": "i-2"},
    }
    access = Access(cluster(node(0), node(1), node(2)), *2 * [None])  # type: ignore[arg-type]
    access = replace(access, why_lost=lambda name, machine, notice: f"{machine} was taken")
    job = JobRecord(JobSpec("j"), JobStatus(attempts=(attempt,)))
    [found] = with_reasons(access, job).status.attempts
    assert found["reasons"] == {"demo-1": "i-old was taken"}
    assert lost_in(found) == "demo-1: i-old was taken; demo-2"


def test_a_node_behind_a_head_that_is_gone_has_nothing_to_say_for_itself(monkeypatch):
    told = Told(monkeypatch, instance(1))
    behind = HostUnreachable("demo-1", "cannot be reached through demo-0: …")
    behind.__cause__ = HostUnreachable("demo-0", "…")
    assert Ec2Explanation(told, "demo")(TARGET, behind) is behind  # type: ignore[arg-type]
    assert told.asked == 0


def ids(pair) -> list[str]:
    with pair.access() as access:
        return [node.instance_id for node in access.cluster.nodes]


@pytest.mark.lab
@pytest.mark.parametrize(
    ("fault", "message", "helps"),
    [
        ("freeze", "takes connections and answers none in time", "clusterctl replace pair 1"),
        ("cut", "its instance status check fails since ", "clusterctl replace pair 1"),
    ],
)
@pytest.mark.all
def test_a_node_that_does_not_answer(pair, fault, message, helps):
    assert "yes" in pair.ctl("status")[1]
    instance_id = ids(pair)[1]
    with pair.fault(1, fault):
        status, out, err = pair.ctl("ssh", "1", "--", "true")
        assert (status, out) == (255, "")
        assert err.startswith("error: pair-1: ")
        # Without a command, the system's ssh opens a shell, and waits.
        assert pair.ctl("ssh", "1")[0] == 255
        status, listed, _ = pair.ctl("run", "-n", "--json", "hostname")
        assert status == 255
        described = pair.ctl("status", "--json")
        nodes = json.loads(described[1])["nodes"]
        table = pair.ctl("status")[1]
    [unreachable] = json.loads(listed)["failures"]
    for text in (err, unreachable["message"] + unreachable["hint"]):
        assert message in text
        assert f"EC2 has {instance_id} as running since " in text
        assert helps in text
    assert [one["reachable"] for one in nodes] == [True, False]
    assert message in nodes[1]["unreachable_because"]
    assert [line.split()[-1] for line in table.splitlines()[1:3]] == ["yes", "no"]
    eventually(lambda: pair.answers(1), "the node to be back")


@pytest.mark.lab
@pytest.mark.all
def test_a_node_that_switched_itself_off(pair):
    pair.on(1, "setsid sudo -n sh -c 'sleep 0.3; poweroff' </dev/null >/dev/null 2>&1 &")
    ec2 = client(pair.lab)
    ec2.get_waiter("instance_stopped").wait(InstanceIds=ids(pair)[1:], WaiterConfig={"Delay": 1})
    try:
        status, _, err = pair.ctl("ssh", "1", "--", "true")
        assert status == 255
        assert "as stopped: a shutdown on the node itself" in err
        assert "clusterctl start pair" in err
        status, listed, err = pair.ctl("run", "-n", "--json", "hostname")
        [answered], [silent] = (json.loads(listed)[key] for key in ("nodes", "failures"))
        assert (status, err, answered["exit_status"]) == (255, "", 0)
        assert silent["message"].startswith("its instance is stop")
        nodes = json.loads(pair.ctl("status", "--json")[1])["nodes"]
        assert [(one["state"], one["reachable"]) for one in nodes] == [
            ("running", True),
            ("stopped", False),
        ]
    finally:
        # It starts with another public address, for which the key has to be pinned.
        pair.ok("start")
        eventually(lambda: pair.answers(1), "the node to be back")
        assert pair.ctl("ssh", "--", "runclust", "hosts", "true") == (0, "", "")


@pytest.mark.lab
def test_a_command_on_a_node_that_freezes_is_given_up(pair):
    timeouts = quiet_command_ends(pair.access, 1)  # not given up, though it prints nothing
    with pair.access(timeouts) as access:
        target = access.targets[1]
        access.connections.run(target, "true", timeout_s=240)
        with pair.fault(1, "freeze"), pytest.raises(HostUnreachable) as caught:
            access.connections.run(target, "true")
    assert "as running since" in caught.value.message


def left(pair, command: str) -> str:
    return pair.on(1, f"pgrep -fx {command!r} || echo none")


@pytest.mark.lab
def test_an_interrupted_command_ends_on_the_node(pair):
    """With pipes, its two outputs stay separate and unchanged."""
    process = pair.start("ssh", "1", "--", "echo begun; echo aside >&2; sleep 4242; echo no")
    assert process.stdout.readline() == "begun\n"
    assert process.stderr.readline() == "aside\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "interrupted"
    eventually(lambda: left(pair, "sleep 4242") == "none\n", "it to end")


@pytest.mark.lab
def test_ctrl_c_on_a_terminal(pair):
    """The driver of this machine's terminal sends the signal: the node has no terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = "tty <&1; echo begun; exec sleep 4343"
        argv = [sys.executable, "-m", "clusterctl", "ssh", NAME, "1", "--", command]
        os.execve(argv[0], argv, pair.environ)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(terminal, 1024)
    assert b"not a tty" in shown
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    eventually(lambda: left(pair, "sleep 4343") == "none\n", "it to end")


@pytest.mark.lab
def test_the_exit_status_is_the_commands_and_so_is_what_is_piped_in_and_out(pair):
    for command, status in (("exit 7", 7), ("kill -9 $$", 137)):
        assert pair.ctl("ssh", "1", "--", command)[0] == status
    argv = [sys.executable, "-m", "clusterctl", "ssh", NAME, "--", "tr a b; echo '\x01' >&2"]
    given = b"a\xff\r\n" * 200_000
    done = subprocess.run(
        argv, input=given, env=pair.environ, capture_output=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, given.replace(b"a", b"b"))


def test_a_node_whose_machine_is_being_replaced_is_not_said_to_be_gone():
    there = (instance(0), instance(1, retired=True))
    cluster = Cluster("demo", "us-east-1", "ubuntu", (there[0].node,), (0, 1))
    [found] = ClusterStatus(cluster, there, gone_nodes([], cluster.missing, there)).findings
    assert (found.host, found.message) == (
        "demo-1",
        "it is being replaced, and its new machine is not launched yet",
    )
