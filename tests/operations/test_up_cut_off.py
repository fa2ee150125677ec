"""`up` and `down` cut off before and after every API call: `down` leaves nothing, `up` goes on."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.ec2 import launch as launch_module
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.keypairs import find_key_pairs
from clusterctl.ec2.network import find_groups
from clusterctl.ec2.record import read_launches
from clusterctl.ec2.teardown import NOT_TERMINATED
from clusterctl.operations import down as down_module
from clusterctl.operations.folder import ClusterFolder
from tests.operations.cut_off import NAME, SPEC, CutOff, interrupt, launch, remove

UP_CALLS = [
    "DescribeInstanceTypes",
    "DescribeVpcs",
    "DescribeInstances",
    "DescribeKeyPairs",
    "DescribeSecurityGroups",
    "DescribeImages",
    "ImportKeyPair",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "RunInstances",
    "DescribeInstances",
]
DOWN_CALLS = [
    "DescribeInstances",
    "TerminateInstances",
    "DescribeInstances",
    "DescribeSecurityGroups",
    "DeleteSecurityGroup",
    "DescribeKeyPairs",
    "DeleteKeyPair",
]
CHANGING = ("Import", "Create", "Authorize", "Run", "Terminate", "Delete")


def events(calls: list[str], changing_only: bool = False):
    return [
        pytest.param(number, when, id=f"{when}-{number}-{call}")
        for (number, call), when in itertools.product(enumerate(calls), ("before", "after"))
        if call.startswith(CHANGING) or not changing_only
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # moto shows an instance as soon as it has made it.
    monkeypatch.setattr(down_module, "LAUNCH_SHOWS_WITHIN_S", 0.0)
    return ClusterFolder(tmp_path / NAME)


def run_cut_off(client, action, folder, number, when, monkeypatch) -> CutOff:
    cut_off = CutOff(number, when, interrupt)
    monkeypatch.setattr(launch_module, "without_retries", lambda watched: watched)
    with pytest.raises(KeyboardInterrupt):
        action(cut_off.watch(client), folder)
    cut_off.leave(client)
    return cut_off


def killed(action: str, moto_url: str, folder: ClusterFolder, number: int, when: str) -> None:
    argv = [sys.executable, "-m", "tests.operations.cut_off"]
    done = subprocess.run(
        [*argv, action, moto_url, str(folder.path), str(number), when],
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL


def assert_nothing_left(client, folder: ClusterFolder) -> None:
    assert find_instances(client, NAME, NOT_TERMINATED) == ()
    assert find_groups(client, NAME) == ()
    assert find_key_pairs(client, NAME) == ()
    assert not folder.path.exists()


def assert_complete(client, folder: ClusterFolder) -> None:
    instances = find_instances(client, NAME)
    assert [found.node.index for found in instances] == list(range(SPEC.nodes))
    [group] = find_groups(client, NAME)
    assert group.ssh_from
    assert group.members_in
    assert group.members_out
    [pair] = find_key_pairs(client, NAME)
    assert pair.holds(folder.key.with_name(folder.key.name + ".pub").read_text())
    assert read_launches(folder.launch) == ()


def test_the_calls_are_those_cut_off_here(client, folder, monkeypatch):
    whole = CutOff()
    monkeypatch.setattr(launch_module, "without_retries", lambda watched: watched)
    launch(whole.watch(client), folder)
    launched = list(whole.calls)
    remove(client, folder)
    whole.leave(client)
    assert launched == UP_CALLS
    assert whole.calls[len(launched) :] == DOWN_CALLS


@pytest.mark.parametrize(("number", "when"), events(UP_CALLS))
def test_down_after_up_was_interrupted(client, moto_url, folder, monkeypatch, number, when):
    run_cut_off(client, launch, folder, number, when, monkeypatch)
    remove(client, folder)
    assert_nothing_left(client, folder)


@pytest.mark.parametrize(("number", "when"), events(UP_CALLS))
def test_up_after_up_was_interrupted(client, folder, monkeypatch, number, when):
    run_cut_off(client, launch, folder, number, when, monkeypatch)
    launch(client, folder)
    assert_complete(client, folder)


@pytest.mark.parametrize(("number", "when"), events(DOWN_CALLS))
def test_down_after_down_was_interrupted(client, folder, monkeypatch, number, when):
    launch(client, folder)
    run_cut_off(client, remove, folder, number, when, monkeypatch)
    remove(client, folder)
    assert_nothing_left(client, folder)


@pytest.mark.parametrize(("number", "when"), events(DOWN_CALLS))
def test_up_after_down_was_interrupted(client, folder, monkeypatch, number, when):
    launch(client, folder)
    run_cut_off(client, remove, folder, number, when, monkeypatch)
    launch(client, folder)
    assert_complete(client, folder)


@pytest.mark.parametrize(("number", "when"), events(UP_CALLS, changing_only=True))
def test_down_after_up_was_killed(client, moto_url, folder, number, when):
    killed("up", moto_url, folder, number, when)
    remove(client, folder)
    assert_nothing_left(client, folder)


@pytest.mark.parametrize(("number", "when"), events(UP_CALLS, changing_only=True))
def test_up_after_up_was_killed(client, moto_url, folder, number, when):
    killed("up", moto_url, folder, number, when)
    launch(client, folder)
    assert_complete(client, folder)


@pytest.mark.parametrize(("number", "when"), events(DOWN_CALLS, changing_only=True))
def test_down_after_down_was_killed(client, moto_url, folder, number, when):
    launch(client, folder)
    killed("down", moto_url, folder, number, when)
    remove(client, folder)
    assert_nothing_left(client, folder)


@pytest.mark.parametrize(("number", "when"), events(UP_CALLS))
def test_down_without_the_folder(client, folder, monkeypatch, tmp_path, number, when):
    run_cut_off(client, launch, folder, number, when, monkeypatch)
    elsewhere = ClusterFolder(tmp_path / "another machine" / NAME)
    remove(client, elsewhere)
    assert_nothing_left(client, elsewhere)
