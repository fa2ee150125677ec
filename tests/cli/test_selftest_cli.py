"""`clusterctl selftest`: what it refuses, what it leaves, and one whole rehearsal in the lab."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.request import Step
from clusterctl.operations import selftest as story
from clusterctl.operations.local_state import locked
from tests.cli.running import DEMO, CommandLine, type_on_terminal
from tests.clock import LabClock
from tests.lab import running
from tests.operations.leaks import everything

NAME = "selftest"
FIVE = ("selftest", "--max-cost", "5")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Run commands in an empty folder. Return it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def file_of(folder) -> str:
    [path] = folder.iterdir()
    assert re.fullmatch(r"selftest-\d{8}-\d{6}\.txt", path.name)
    return path.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-cost", "3"], "2 nodes of g5.xlarge cost up to about $4."),
        (["--max-cost", "inf"], "'inf' is not a number such as 8 or 0.5"),
        (["--max-cost", "0"], "0.0 is not in the range x>0"),
        (["--max-cost", "5", "--instance-type", "p4d.24xlarge"], "--max-cost allows $5.00"),
        (["--max-cost", "5", "--instance-type", "p9.huge"], "p9.huge"),
        (["--max-cost", "5", "--file", "/proc/none/report"], "cannot write the report"),
        ([], "--max-cost"),
    ],
)
def test_what_is_refused_launches_nothing(clusterctl, client, here, options, words):
    ran = clusterctl("selftest", *options)
    assert ran.status == (2 if "Invalid value" in ran.err or not options else 1), ran
    assert words in ran.err
    assert "--budget" not in ran.err
    assert (find_instances(client, NAME, ()), list(here.iterdir())) == ((), [])


def test_what_is_too_dear_and_cannot_be_launched_either_is_refused_for_both(
    clusterctl, client, here, monkeypatch
):
    monkeypatch.setenv("CLUSTERCTL_IMAGE", "nothing of that name")
    ran = clusterctl("selftest", "--max-cost", "0.5")
    assert ran.status == 1
    assert re.findall(r"\[(\S+)\]\n", ran.err) == ["image.none", "cost.budget"], ran.err
    assert "--max-cost allows $0.50" in ran.err and "--budget" not in ran.err


@pytest.mark.parametrize(("seen", "status"), [(True, 130), (False, 2)])
def test_it_asks_before_it_spends(clusterctl, client, here, monkeypatch, seen, status):
    """Answered with no, or where the question cannot be seen."""
    type_on_terminal(monkeypatch, "n\n", seen)
    ran = clusterctl(*FIVE)
    assert ran.status == status, ran
    assert "at most about $4.62: 2 nodes of g5.xlarge for 2 hours, and 15 minutes" in ran.err
    assert "also if this program is killed" in ran.err
    assert (find_instances(client, NAME, ()), list(here.iterdir())) == ((), [])


def test_a_cluster_of_that_name_is_left_alone(clusterctl, client, here):
    clusterctl("up", NAME, *DEMO[1:], "--timeout", "0.01s")
    clusterctl.ends(1, "cluster selftest exists", *FIVE)
    assert len(find_instances(client, NAME)) == 2
    assert list(here.iterdir()) == []


def answering(monkeypatch, meanwhile):
    """Answer the question with yes, once `meanwhile` has been called."""
    terminal = type_on_terminal(monkeypatch, "y\n")
    read = terminal.readline

    def answer(*size):
        meanwhile()
        return read(*size)

    terminal.readline = answer


def verdicts_of(folder) -> dict[str, str]:
    found = re.findall(r"^  ([a-z-]+): (passed|failed|not run|interrupted)", file_of(folder), re.M)
    return dict(found)


NOTHING_DONE = {"launch": "failed", "remove": "not run", "verify": "not run"}


def test_what_is_launched_while_the_question_waits_is_left_alone(
    clusterctl, client, here, monkeypatch
):
    other = CommandLine(clusterctl.home, clusterctl._capsys, clusterctl._account)
    answering(monkeypatch, lambda: other("up", NAME, *DEMO[1:], "--timeout", "0.01s", "--yes"))
    ran = clusterctl(*FIVE)
    assert ran.status == 1, ran
    verdicts = verdicts_of(here)
    assert {name: verdicts[name] for name in NOTHING_DONE} == NOTHING_DONE
    found = find_instances(client, NAME)
    assert [one.limits_text for one in found] == ["", ""], "and it got no limits"
    assert "may be left" not in ran.err
    assert "this self-test launched nothing" in file_of(here)


def test_a_cluster_that_another_command_changes_is_left_alone(
    clusterctl, client, here, monkeypatch
):
    """The other one has only begun: EC2 has nothing of it yet."""
    with ExitStack() as held:
        folder = ClusterFolder(clusterctl.home / NAME)
        answering(monkeypatch, lambda: held.enter_context(locked(folder)))
        ran = clusterctl(*FIVE)
        (folder.path / "id_ed25519").write_text("theirs")
    assert ran.status == 1, ran
    assert "is at work on selftest" in ran.err
    verdicts = verdicts_of(here)
    assert {name: verdicts[name] for name in NOTHING_DONE} == NOTHING_DONE
    assert (folder.path / "id_ed25519").read_text() == "theirs"


@pytest.mark.parametrize("kind", ["folder", "key", "address"])
def test_what_an_ended_cluster_has_left_is_left_alone(clusterctl, client, here, kind):
    labels = [{"Key": tags.CLUSTER, "Value": NAME}]
    if kind == "key":
        marked = {"ResourceType": "key-pair", "Tags": labels}
        client.create_key_pair(
            KeyName="clusterctl-selftest", KeyType="ed25519", TagSpecifications=[marked]
        )
    elif kind == "address":
        marked = {"ResourceType": "elastic-ip", "Tags": labels}
        client.allocate_address(Domain="vpc", TagSpecifications=[marked])
    else:
        (clusterctl.home / NAME).mkdir(parents=True)
        (clusterctl.home / NAME / "id_ed25519").write_text("a key")
    before = everything(client)
    err = clusterctl.ends(1, kind, *FIVE)
    assert "clusterctl down selftest" in err
    assert (everything(client), list(here.iterdir())) == (before, [])
    assert (clusterctl.home / NAME).exists() == (kind == "folder")


def test_of_two_clusters_of_one_name_only_the_own_nodes_are_terminated(
    clusterctl, client, here, monkeypatch
):
    """A colleague launches the same name from another machine at the same time."""
    theirs: list[str] = []
    wait = story.start_up

    def start_up(*of):
        try:
            return wait(*of)
        finally:
            [one, *_] = find_instances(client, NAME)
            labels = {tags.CLUSTER: NAME, tags.LAUNCH: "theirs-0"}
            marked = {"ResourceType": "instance", "Tags": tags.tag_list(labels)}
            made = client.run_instances(
                ImageId=one.image_id,
                InstanceType="g5.xlarge",
                MinCount=1,
                MaxCount=1,
                TagSpecifications=[marked],
            )
            theirs.append(made["Instances"][0]["InstanceId"])

    monkeypatch.setattr(story, "start_up", start_up)
    monkeypatch.setenv("CLUSTERCTL_TIMEOUT", "0.01s")
    clusterctl.timeouts = Timeouts(clock=LabClock())
    ran = clusterctl(*FIVE)
    assert ran.status == 1, ran
    assert [one.node.instance_id for one in find_instances(client, NAME)] == theirs
    assert f"remove: failed: this self-test did not make {theirs[0]}" in ran.err
    assert "clusterctl down" not in ran.err.partition("remove: failed")[2]
    client.terminate_instances(InstanceIds=theirs)
    clusterctl("down", NAME, "--yes")


def test_an_elastic_address_that_is_left_is_named(clusterctl, client, here, monkeypatch):
    terminal = type_on_terminal(monkeypatch, "n\n")
    assert "elastic address" not in clusterctl(*FIVE).err
    terminal.seek(0)
    monkeypatch.setattr(story, "plan_up", with_address(story.plan_up))
    assert "an elastic address, which costs $0.0050 an hour until" in clusterctl(*FIVE).err


def with_address(plan_up):
    """Let the plan be one of a private cluster."""

    def plan(launcher, request):
        planned = plan_up(launcher, request)
        return replace(planned, steps=(*planned.steps, Step("allocate_address", {}, "for it")))

    return plan


def test_nodes_that_do_not_get_ready_are_removed(clusterctl, client, here, monkeypatch):
    """moto has no hosts."""
    monkeypatch.setenv("CLUSTERCTL_TIMEOUT", "0.01s")
    monkeypatch.setenv("CLUSTERCTL_IDLE_STOP", "30m")
    clusterctl.timeouts = replace(Timeouts(), shown_s=0.1)
    before = everything(client)
    ran = clusterctl(*FIVE, "--json")
    assert ran.status == 1, ran
    steps = {one["name"]: one["verdict"] for one in ran.data["results"]}
    assert steps.pop("launch") == "failed"
    assert (steps.pop("remove"), steps.pop("verify")) == ("passed", "passed")
    assert set(steps.values()) == {"not run"}
    assert everything(client) == before
    [limits] = {one.limits_text for one in find_instances(client, NAME, ())}
    assert limits == "max-hours=2 budget=4.5", "and no idle limit, which would keep the disks"
    text = file_of(here)
    assert "launch: failed" in text
    assert "not ready" in text
    assert re.search(r"spent +\$0\.\d+ by list prices\n", text)


def test_what_cannot_be_removed_is_named(clusterctl, client, here, monkeypatch):
    def refused(*_):
        raise AwsError("UnauthorizedOperation", "not allowed to terminate")

    monkeypatch.setattr(story, "down", refused)
    monkeypatch.setenv("CLUSTERCTL_TIMEOUT", "0.01s")
    clusterctl.timeouts = Timeouts(clock=LabClock())
    clusterctl.ends(1, "something may be left, and cost money: clusterctl down selftest", *FIVE)
    text = file_of(here)
    [left] = re.findall(r"verify: failed.*\n    still there: (.*)", text)
    there = {one.node.instance_id for one in find_instances(client, NAME)}
    assert there
    assert there <= set(re.findall(r"i-[0-9a-f]+", left))
    assert "remove: failed" in text
    assert "UnauthorizedOperation: not allowed to terminate" in text
    assert clusterctl("down", NAME, "--yes").status == 0


@pytest.fixture
def in_lab(lab, here, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    line = CommandLine(lab.home, capsys, ["--lab"], Timeouts(clock=LabClock()))
    ec2 = running.client(lab)
    before = everything(ec2)
    yield line
    line("down", NAME, "--yes", "--discard-results")
    line.anywhere()("lab fault clear")
    assert everything(ec2) <= before
    assert not (lab.home / NAME).exists()


@pytest.mark.lab
def test_no_capacity_anywhere(in_lab, lab, here):
    fault = ("RunInstances", "InsufficientInstanceCapacity", "--times", "99")
    in_lab.anywhere()("lab fault error", *fault)
    ran = in_lab(*FIVE)
    assert ran.status == 1, ran
    assert "launch: failed" in ran.err
    assert "InsufficientInstanceCapacity; RunInstances: 2 x g5.xlarge" in file_of(here)
    assert "CLUSTERCTL_CAPACITY_TIMEOUT=2h clusterctl selftest" in ran.err
    assert re.search(r"^verify +passed ", ran.out, re.M), ran.out


# clusterctl, which looks only a moment for what EC2 may show late: the local EC2 is not late.
IMPATIENT = """
import sys
from clusterctl.cli.main import cli, run_command
from clusterctl.domain.timeouts import Timeouts
sys.exit(run_command(cli, obj=Timeouts(shown_s=0.5)))
"""


def cut_off(lab, message: str, by: signal.Signals) -> tuple[int, str]:
    """Start a self-test, and send a signal after a message. Return its status and its stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *FIVE, "--lab"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        told = list(itertools.takewhile(lambda line: message not in line, process.stderr))
        process.send_signal(by)
        told += process.stderr.readlines()
    return process.returncode, "".join(told)


@pytest.mark.lab
@pytest.mark.parametrize(
    ("by", "message"),
    [
        (signal.SIGINT, "-1: preparing"),
        pytest.param(signal.SIGHUP, "RunInstances: 2 x", marks=pytest.mark.all),
        pytest.param(signal.SIGTERM, "installing", marks=pytest.mark.all),
    ],
)
def test_ctrl_c_leaves_the_file_and_nothing_else(in_lab, lab, here, by, message):
    status, told = cut_off(lab, message, by)
    assert status == 130, told
    text = file_of(here)
    assert re.search(r"^  (launch|install): interrupted$", text, re.M), text
    assert re.search(r"^  verify: passed", text, re.M), text
    assert find_instances(running.client(lab), NAME) == ()


@pytest.mark.lab
@pytest.mark.all
def test_after_kill_9_the_nodes_have_their_limits_and_the_next_run_is_refused(in_lab, lab, here):
    status, told = cut_off(lab, "install: installing", signal.SIGKILL)
    assert status == -signal.SIGKILL, told
    left = find_instances(running.client(lab), NAME)
    assert {one.limits_text for one in left} == {"max-hours=2 budget=4.5"}
    guards = in_lab("run", NAME, "pgrep -f '[g]uard'")
    assert guards.status == 0, guards
    assert "launch: passed" in file_of(here)
    ran = in_lab(*FIVE)
    assert (ran.status, "clusterctl down selftest" in ran.err) == (1, True), ran
