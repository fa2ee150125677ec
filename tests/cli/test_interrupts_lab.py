"""Ctrl-C and kill -9 on real commands with real hosts. The printed advice is then followed."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from clusterctl.ec2.instances import find_instances
from tests.cli.running import CommandLine
from tests.lab.running import client
from tests.operations.leaks import everything

pytestmark = pytest.mark.lab

NAME = "cutoff"
UP = f"up {NAME} --nodes 2 --instance-type p3.2xlarge"
INT, KILL = signal.SIGINT, signal.SIGKILL
GO_ON = "to go on"


@dataclass(frozen=True)
class Cut:
    """A command that is cut off, and the result after its user goes on.

    The fields are the command, the message after which it is cut off, the signal, and the printed
    advice that the user follows (by default: the same command again). In the end there are `nodes`,
    and `new` machines have been launched.
    """

    command: str
    message: str
    by: signal.Signals
    nodes: tuple[int, ...]
    new: int = 0
    way: str = GO_ON


LIFE = [
    Cut(UP, "-1: preparing", INT, (0, 1), new=2),
    Cut(f"add {NAME} 1", "-2: preparing", KILL, (0, 1, 2), new=1),
    Cut(f"replace {NAME} 1 --yes", "-1: starting", INT, (0, 1, 2), new=1),
    Cut(f"remove {NAME} 1 --yes", "-0: preparing", KILL, (0, 2)),
    Cut(f"stop {NAME}", "stopping", INT, (0, 2)),
    Cut(f"start {NAME}", "-0: preparing", INT, (0, 2)),
    Cut(f"add {NAME} 1", "-1: starting", INT, (0, 2), new=1, way="to do without them"),
    Cut(f"remove {NAME} 2 --yes", "terminating", INT, (0,), way=f"clusterctl up {NAME}"),
    Cut(f"down {NAME} --yes", "terminating", INT, ()),
]


@pytest.fixture
def clusterctl(lab, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    line = CommandLine(lab.home, capsys, ["--lab"])
    yield line
    line("down", NAME, "--yes", "--discard-results")


def cut_off(cut: Cut) -> str | None:
    """Return the output of the interrupted command, or None if it finished before the signal."""
    with subprocess.Popen(
        [sys.executable, "-m", "clusterctl", *cut.command.split(), "--lab"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        said = list(itertools.takewhile(lambda line: cut.message not in line, process.stderr))
        process.send_signal(cut.by)
        said += process.stderr.readlines()
    if process.returncode == 0:
        return None
    assert process.returncode == (130 if cut.by is INT else -KILL), (cut, said)
    return "".join(said)


def way_on(cut: Cut, said: str | None) -> list[str]:
    if cut.by is KILL or said is None:
        return cut.command.split()
    if cut.way.startswith("clusterctl"):
        return shlex.split(cut.way)[1:]
    [way] = re.findall(rf"{cut.way}: python -m clusterctl (.*)", said)
    words = shlex.split(way)
    assert "--lab" in words, way
    if cut.way == GO_ON:
        assert words == [*cut.command.split(), "--lab"]
    words.remove("--lab")
    return words if "--yes" in words or words[0] != "remove" else [*words, "--yes"]


@pytest.mark.all
def test_a_life_of_interrupts(lab, clusterctl):
    ec2 = client(lab)
    before = everything(ec2)
    ever: set[str] = set()
    for cut in LIFE:
        said = cut_off(cut)
        command, *words = way_on(cut, said)
        ran = clusterctl(command, *words)
        assert ran.status == 0, (cut, said, ran)
        there = find_instances(ec2, NAME)
        assert tuple(found.node.index for found in there) == cut.nodes, (cut, said, ran)
        # EC2 shows terminated instances for an hour.
        all_ever = {found.node.instance_id for found in find_instances(ec2, NAME, states=())}
        assert len(all_ever - ever) == cut.new, (cut, said, ran)
        ever |= all_ever
        if cut.nodes:
            status = clusterctl("status", NAME, "--json").data
            assert not any(status["unfinished"].values()), cut
            assert (status["leaving"], status["missing"]) == ([], []), cut
        if cut.nodes and not cut.command.startswith("stop"):
            check_views(clusterctl, [found.node.private_ip for found in there])
    assert everything(ec2) <= before  # leftovers of earlier tests may disappear meanwhile
    assert not (lab.home / NAME).exists()


def check_views(clusterctl, addresses: list[str]) -> None:
    """Check the hosts file here and on all nodes, the trusted keys, and login by plain ssh."""
    here = (clusterctl.home / NAME / "hosts").read_text()
    assert [line.split()[0] for line in here.splitlines()] == addresses
    known = " ".join((clusterctl.home / NAME / "known_hosts").read_text().split())
    assert all(address in known for address in addresses)
    ran = clusterctl("run", NAME, "--json", "cat ~/examples/horovod/tensorflow/hosts")
    assert {one["stdout"] for one in ran.data["nodes"]} == {here}
    hops = " && ".join(f"ssh {address} true" for address in addresses)
    trusted = "grep -o '^10[^, ]*' ~/.ssh/clusterctl_known_hosts"
    ran = clusterctl("run", NAME, "--head", "--json", f"{hops} && {trusted}")
    assert [one["exit_status"] for one in ran.data["nodes"]] == [0], ran
    assert set(ran.data["nodes"][0]["stdout"].split()) == set(addresses)
    argv = ["ssh", "-F", str(clusterctl.home / NAME / "ssh_config"), addresses[-1], "true"]
    assert subprocess.run(argv, check=False, env=os.environ).returncode == 0
