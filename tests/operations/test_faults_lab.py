"""A cluster of real hosts: each change is broken once, and repeating the command repairs it."""

from __future__ import annotations

import pytest

from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.session import Clients
from clusterctl.lab import lifecycle
from tests.cli.running import CommandLine
from tests.lab.running import account_of
from tests.operations.leaks import everything

pytestmark = pytest.mark.lab

NAME = "breaks"
UP = ("up", NAME, "--instance-type", "p3.2xlarge", "--nodes")
ALWAYS = 0
ERROR = {"kind": "error", "code": "InternalError", "after": True}
LOST = {"kind": "lost"}
# The fault of a call and its count, the command, the user's next command, and the nodes then.
LIFE = [
    (LOST, "RunInstances", 1, (*UP, "2"), (*UP, "2"), [0, 1]),
    (LOST, "CreateTags", ALWAYS, ("add", NAME, "1"), ("add", NAME, "1"), [0, 1, 2]),
    (ERROR, "RunInstances", ALWAYS, ("replace", NAME, "1"), (*UP, "3"), [0, 1, 2]),
    (LOST, "TerminateInstances", ALWAYS, ("replace", NAME, "0"), (*UP, "3"), [0, 1, 2]),
    (LOST, "StopInstances", ALWAYS, ("stop", NAME), ("stop", NAME), [0, 1, 2]),
    (LOST, "StartInstances", 1, ("start", NAME), ("start", NAME), [0, 1, 2]),
    (LOST, "CreateTags", ALWAYS, ("remove", NAME, "1"), ("remove", NAME, "1"), [0, 2]),
    (LOST, "TerminateInstances", ALWAYS, ("down", NAME), ("down", NAME), []),
    (LOST, "DeleteSecurityGroup", ALWAYS, ("down", NAME), ("down", NAME), []),
]
CONFIRMED = ("down", "remove", "replace")


@pytest.fixture
def clusterctl(lab, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    line = CommandLine(lab.home, capsys, ["--lab"])
    yield lambda name, *words: line(name, *words, *(["--yes"] if name in CONFIRMED else []))
    lifecycle.request_page(lab, "/_lab/faults", "DELETE")
    line("down", NAME, "--yes", "--discard-results")


@pytest.fixture
def ec2(lab):
    account = account_of(lab)
    return Clients(account).ec2


@pytest.mark.all
def test_a_life_full_of_failures(lab, clusterctl, ec2):
    before = everything(ec2)
    for fault, action, times, command, again, nodes in LIFE:
        [one] = [
            lifecycle.request_page(
                lab, "/_lab/faults", "POST", {**fault, "action": action, "times": times}
            )
        ]
        broken = clusterctl(*command)
        assert "Traceback" not in broken.err
        standing = {found["id"] for found in lifecycle.request_page(lab, "/_lab/faults")["faults"]}
        if one["id"] in standing:
            lifecycle.request_page(lab, f"/_lab/faults?id={one['id']}", "DELETE")
        ran = clusterctl(*again)
        assert ran.status == 0, (command, broken.err, ran.err)
        assert [found.node.index for found in find_instances(ec2, NAME)] == nodes, command
        if nodes and command[0] != "stop":
            assert len((lab.home / NAME / "hosts").read_text().split("\n")) == len(nodes) + 1
    assert everything(ec2) <= before  # leftovers of earlier tests may disappear meanwhile
