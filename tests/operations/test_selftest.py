"""The story of `selftest`: which steps run after which end, what is removed, what is masked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.cluster import ClusterSpec, Limits
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.money.costs import CostEstimate, CostLine, LoadCost
from clusterctl.operations import selftest as story
from clusterctl.operations.down import Leftovers
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.selftest import (
    STEPS,
    Hang,
    Passed,
    Selftest,
    StepNotRun,
    is_named,
    most_usd,
    run_steps,
    selftest_spec,
)
from clusterctl.operations.selftest_report import SelftestReport, masked, render
from tests.clock import FakeClock
from tests.diagnosis.made_up import JOB, job_of, own, samples, with_rank

SPEC = ClusterSpec("selftest", 2, "g5.xlarge")
NAMES = [step.name for step in STEPS]


@pytest.fixture
def test():
    folder = ClusterFolder(Path("/nowhere/selftest"))
    launcher = Launcher(SimpleNamespace(), folder, timeouts=Timeouts(clock=FakeClock()))
    return Selftest(launcher, SPEC, lambda: None, lambda text: None, lambda chunk: None)


def ending(**ends):
    """Return the steps, each of which passes or raises its end, and the order in which they ran."""
    ran: list[str] = []

    def run(name):
        def act(_):
            ran.append(name)
            if name in ends:
                raise ends[name]
            return Passed(f"{name} is well")

        return act

    return [replace(step, run=run(step.name)) for step in STEPS], ran


def outcome(test, steps):
    """Run the steps. Return the report, and the verdicts by name."""
    kept = []
    results = run_steps(test, steps, lambda so_far: kept.append(len(so_far)))
    report = SelftestReport("v", "m", "b", "p", "e", "", results)
    return report, {one.name: one.verdict.value for one in results}, kept


@pytest.mark.parametrize(
    ("fails", "not_run"),
    [
        ("launch", NAMES[1:8]),
        ("install", ["train", "network", "nccl-tests", "hang", "diagnose", "resume"]),
        ("train", ["hang", "diagnose", "resume"]),
        ("network", ["nccl-tests"]),
        ("hang", ["diagnose", "resume"]),
        ("diagnose", []),
        ("remove", []),
    ],
)
def test_what_needs_a_step_that_fails_is_not_run_and_all_is_removed(test, fails, not_run):
    capacity = AwsError("InsufficientInstanceCapacity", "there are none", "try later")
    steps, ran = ending(**{fails: capacity})
    report, verdicts, _ = outcome(test, steps)
    assert [name for name, verdict in verdicts.items() if verdict == "not run"] == not_run
    assert verdicts[fails] == "failed"
    assert ran == [name for name in NAMES if name not in not_run]
    assert report.exit_status == 1
    told = render(report)
    reason = "InsufficientInstanceCapacity: there are none\n    hint: try later\n"
    assert f"{fails}: failed\n    {reason}" in told
    for name in not_run:
        assert f"{name}: not run\n    it needs the step " in told


def test_a_fault_of_the_program_removes_everything_and_is_in_the_file(test):
    steps, ran = ending(network=KeyError("rtt"))
    report, verdicts, _ = outcome(test, steps)
    assert (ran[-2:], verdicts["network"]) == (["remove", "verify"], "failed")
    assert report.exit_status == 1
    assert "a fault of clusterctl's: KeyError: 'rtt'" in render(report)
    assert "LAST LINES OF NETWORK\n  Traceback" in render(report)


@pytest.mark.parametrize("name", NAMES[:8])
def test_ctrl_c_removes_everything(test, name):
    steps, ran = ending(**{name: KeyboardInterrupt()})
    report, verdicts, kept = outcome(test, steps)
    at = NAMES.index(name)
    assert ran == [*NAMES[: at + 1], "remove", "verify"]
    assert verdicts[name] == "interrupted"
    assert {verdicts[later] for later in NAMES[at + 1 : 8]} <= {"not run"}
    assert report.exit_status == 130
    assert kept[-1] == len(NAMES), "the file is written once more after the removal"


def test_ctrl_c_while_the_file_is_written_removes_everything(test):
    steps, ran = ending()

    def keep(so_far):
        if len(so_far) == 2:
            raise KeyboardInterrupt

    results = run_steps(test, steps, keep)
    assert ran == ["launch", "install", "remove", "verify"]
    assert [one.verdict.value for one in results[1:3]] == ["passed", "not run"]


def test_what_has_nothing_to_run_on_is_no_failure(test):
    steps, _ = ending(**{"nccl-tests": StepNotRun("there is no GPU")})
    report, verdicts, _ = outcome(test, steps)
    assert (report.exit_status, report.summary) == (0, "9 passed, 1 not run")
    assert "nccl-tests: not run\n    there is no GPU" in render(report)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ClusterctlError("no network")])
def test_a_removal_is_tried_again_until_the_third_time(test, monkeypatch, error):
    ends = [error, error]

    def down(*_):
        if ends:
            raise ends.pop()
        return Leftovers(nodes=("selftest-0", "selftest-1"))

    monkeypatch.setattr(story, "down", down)
    assert story.remove(test).message == "2 nodes, and all that was made for them"
    ends += [error, error, error]
    with pytest.raises(type(error)):
        story.remove(test)
    assert ends == []


def test_only_the_stopped_rank_counts_as_named():
    stopped = samples(own("load"), state="T", syscall="futex")
    evidence = with_rank(job_of(), 5, samples=stopped)
    [host] = [one.host for one in evidence.hosts if any(rank.rank == 5 for rank in one.ranks)]
    found = diagnose(evidence)
    assert is_named(found, Hang(JOB, host, 5, (1,), 9))
    assert not is_named(found, Hang(JOB, host, 4, (1,), 9))
    assert not is_named(found, Hang(JOB, "demo-9", 5, (1,), 9))
    assert not is_named(diagnose(job_of()), Hang(JOB, host, 5, (1,), 9))


def test_the_nodes_have_the_limits_of_the_self_test_alone():
    """With an idle limit, EC2 would stop a node that is out of time, and bill its disk."""
    mine = replace(
        SPEC,
        nodes=4,
        min_nodes=3,
        or_types=("p3.2xlarge",),
        zone="us-east-1b",
        limits=Limits(max_hours=100, idle_minutes=30, stopped_days=3),
    )
    spec = selftest_spec(mine, "g5.xlarge", 5.0)
    assert spec == replace(SPEC, zone="us-east-1b", limits=Limits(max_hours=2, budget_usd=4.5))
    assert spec.limits.at_power_off == "terminate"
    for cost in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError):
            selftest_spec(SPEC, "g5.xlarge", cost)


def test_the_most_that_it_costs():
    machines, disks = CostLine("m", 2, 1.0), CostLine("d", 2, 0.25)
    assert most_usd(CostEstimate((machines, disks), once=LoadCost(2, 100, 1000))) == 5 + 2 * 1.2
    assert most_usd(CostEstimate((machines, CostLine("d", 2, None)))) is None
    assert most_usd(None) is None


SECRETS = """\
OMPI host ip-10-0-1-7.ec2.internal and 10.0.1.7:22, 54.12.3.4, 172.31.0.0/20, fe80::8:45ff:fe1:2
arn:aws:iam::123456789012:role/x AKIAIOSFODNN7EXAMPLE password=hunter2 /home/me/x
-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAA
-----END OPENSSH PRIVATE KEY-----
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI me
12:34:56 loss 6.123, 0000:00:1e.0, NCCL 2.16.5, 1281167 images\
"""


def test_the_file_has_no_secrets_addresses_and_accounts():
    names = {"10.0.1.7": "selftest-1", "ip-10-0-1-7": "selftest-1", "/home/me": "~"}
    assert masked(SECRETS.splitlines(), names) == [
        "OMPI host selftest-1.ec2.internal and selftest-1:22, [address], [address]/20, [address]",
        "arn:aws:iam::[account]:role/x [redacted] password=[redacted] ~/x",
        *["[redacted]"] * 3,
        "ssh-ed25519 [key] me",
        "12:34:56 loss 6.123, 0000:00:1e.0, NCCL 2.16.5, 1281167 images",
    ]
    assert masked(["at 10.0.1.70 and 110.0.1.7."], names) == ["at [address] and [address]."]


def test_a_step_is_masked_with_what_the_launch_has_learnt(test):
    test.names["10.0.1.7"] = "selftest-1"
    told = ClusterctlError("no answer from 10.0.1.7 of account 123456789012")
    steps, _ = ending(train=told)

    def install(test):
        test.say("\x1b[31mssh 10.0.1.7\x1b[0m token=abc\x07")
        return Passed("ready", ["on 10.0.1.7"], {"cudnn": "8.9.4.25", "key": "a\nb=$SECRET"})

    steps[1] = replace(steps[1], run=install)
    report, *_ = outcome(test, steps)
    text = render(report)
    assert "10.0.1.7" not in text
    assert "no answer from selftest-1 of account [account]" in text
    assert "LAST LINES OF INSTALL\n  ssh selftest-1 token=[redacted]\n" in text
    assert report.versions == {"cudnn": "8.9.4.25"}
