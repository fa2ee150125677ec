"""The story of `selftest`: which steps run after which end, what is removed, what is masked."""

from __future__ import annotations

import errno
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.cluster import ClusterSpec, Limits
from clusterctl.domain.errors import AwsError, ClusterctlError, NoSuchCluster, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.money.costs import CostEstimate, CostLine, LoadCost
from clusterctl.ec2.money.prices import Price
from clusterctl.operations import selftest as story
from clusterctl.operations.down import RemovedCluster
from clusterctl.operations.gc import Sweep
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.selftest import (
    STEPS,
    Hang,
    Passed,
    Selftest,
    SelftestStep,
    StepNotRun,
    at_most,
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
    clients = SimpleNamespace(ec2=SimpleNamespace(meta=SimpleNamespace(region_name="us-east-1")))
    launcher = Launcher(clients, folder, timeouts=Timeouts(clock=FakeClock()))
    return Selftest(launcher, SPEC, lambda: None, lambda text: None, lambda chunk: None)


@pytest.fixture
def launched(test, monkeypatch):
    """The same, once its launch has begun, and nobody else uses its name."""
    monkeypatch.setattr(story, "_spare_others", lambda test: None)
    test.launch_id = "run"
    return test


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


def removing(monkeypatch, *ends):
    """Let `down` call these in turn, and then remove two nodes. Return what it has been called."""
    calls: list[int] = []

    def down(*_):
        calls.append(len(calls))
        if len(calls) <= len(ends):
            ends[len(calls) - 1]()
        return RemovedCluster(nodes=("selftest-0", "selftest-1"))

    monkeypatch.setattr(story, "down", down)
    return calls


def raising(error):
    def end():
        raise error

    return end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_file_is_written_removes_everything(test, number):
    steps, ran = ending()

    def keep(so_far):
        if len(so_far) == 2:
            signal.raise_signal(number)

    with test.interrupts.handled():
        results = run_steps(test, steps, keep)
    assert ran == ["launch", "install", "remove", "verify"]
    assert [one.verdict.value for one in results[1:3]] == ["passed", "not run"]
    assert story.report_of(test, results[:-1]).exit_status == 130


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyError("x")])
def test_results_that_cannot_be_kept_do_not_end_the_self_test(test, error):
    steps, ran = ending()
    run_steps(test, steps, lambda so_far: raising(error)())
    assert ran == NAMES


def test_a_second_signal_at_any_line_leaves_nothing(launched, monkeypatch):
    """bash and the kernel send a SIGHUP each when a terminal is closed."""
    traced = {story.__file__, sys.modules["clusterctl.operations.interrupts"].__file__}
    wait_for, line = 0, 0

    def trace(frame, event, argument):
        nonlocal line
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            line += 1
            if line == wait_for:
                sys.settrace(None)
                signal.raise_signal(signal.SIGHUP)
        return trace

    def close_terminal(test):
        sys.settrace(trace)
        signal.raise_signal(signal.SIGHUP)

    remove = next(step for step in STEPS if step.name == "remove")
    steps = [SelftestStep("launch", "launching", (), close_terminal), remove]
    before = sys.gettrace()
    while line >= wait_for:
        wait_for, line = wait_for + 1, 0
        calls = removing(monkeypatch)
        test = replace(launched, launch_id="run")
        try:
            with test.interrupts.handled():
                results = run_steps(test, steps, lambda so_far: None)
                sys.settrace(before)
        finally:
            sys.settrace(before)
        verdicts = [one.verdict.value for one in results]
        assert (calls, verdicts) == ([0], ["interrupted", "passed"]), f"at line {wait_for}"
    assert wait_for > 50


def test_what_has_nothing_to_run_on_is_no_failure(test):
    steps, _ = ending(**{"nccl-tests": StepNotRun("there is no GPU")})
    report, verdicts, _ = outcome(test, steps)
    assert (report.exit_status, report.summary) == (0, "9 passed, 1 not run")
    assert "nccl-tests: not run\n    there is no GPU" in render(report)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ClusterctlError("no network"), OSError(errno.ENOSPC, "full")]
)
def test_a_removal_is_tried_again_until_the_third_time(launched, monkeypatch, error):
    calls = removing(monkeypatch, *[raising(error)] * 2)
    assert story.remove(launched).message == "2 nodes, and all that was made for them"
    calls = removing(monkeypatch, *[raising(error)] * 9)
    with pytest.raises(type(error)):
        story.remove(launched)
    assert len(calls) == 3


def pressing(clock, numbers, gap_s):
    """Return what sends these signals, so many seconds apart."""

    def press():
        for number in numbers:
            clock.advance(gap_s)
            signal.raise_signal(number)

    return press


@pytest.mark.parametrize(
    ("numbers", "gap_s", "tries"),
    [
        ([signal.SIGINT] * 9, 0.2, 2),  # one press: it begins again, and is finished
        ([signal.SIGHUP] * 9, 60.0, 1),  # nobody presses that
        ([signal.SIGHUP, signal.SIGTERM, signal.SIGCONT], 0.001, 1),
    ],
)
def test_what_is_one_press_does_not_end_a_removal(launched, monkeypatch, numbers, gap_s, tries):
    press = pressing(launched.launcher.timeouts.clock, numbers, gap_s)
    calls = removing(monkeypatch, press, press)
    launched.interrupts.note()
    with launched.interrupts.handled():
        assert story.remove(launched).message.startswith("2 nodes")
    assert len(calls) == tries


def test_three_presses_end_a_removal(launched, monkeypatch):
    press = pressing(launched.launcher.timeouts.clock, [signal.SIGINT], 3.0)
    calls = removing(monkeypatch, *[press] * 9)
    with launched.interrupts.handled(), pytest.raises(KeyboardInterrupt):
        story.remove(launched)
    assert len(calls) == 3


def test_ctrl_c_in_the_pause_after_a_failure_ends_only_the_pause(launched, monkeypatch):
    def wait(waits):
        if launched.launcher.timeouts.clock.waits[-1] == story.REMOVAL_GAP_S:
            signal.raise_signal(signal.SIGINT)

    launched.launcher.timeouts.clock.after_wait = wait
    calls = removing(monkeypatch, raising(ClusterctlError("no network")))
    with launched.interrupts.handled():
        assert story.remove(launched).message.startswith("2 nodes")
    assert len(calls) == 2


def test_ignored_signals_stay_ignored(test):
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with test.interrupts.handled():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_launch_of_which_ec2_shows_nothing_is_not_called_removed(launched, monkeypatch):
    calls = removing(monkeypatch, *[raising(NoSuchCluster("there is nothing"))] * 9)
    steps = [step for step in STEPS if step.name == "remove"]
    [result] = run_steps(launched, steps, lambda so_far: None)
    assert (len(calls), result.verdict.value) == (3, "failed")


def sweeping(monkeypatch, *shown):
    """Let EC2's lists show these resources in turn, and then the last for ever."""
    left = list(shown)

    class Collector:
        def __init__(self, *_):
            pass

        def sweep(self):
            ids = left.pop(0) if left[1:] else left[0]
            found = [
                SimpleNamespace(
                    resource=SimpleNamespace(
                        cluster="selftest", id=one, kind=SimpleNamespace(value="volume")
                    )
                )
                for one in ids
            ]
            return Sweep(tuple(found))

    monkeypatch.setattr(story, "GarbageCollector", Collector)


def test_one_list_without_resources_does_not_show_that_nothing_is_left(launched, monkeypatch):
    sweeping(monkeypatch, [], ["vol-1"])
    with pytest.raises(ClusterctlError, match="still there: volume vol-1"):
        story.verify(launched)
    sweeping(monkeypatch, ["vol-1"], ["vol-1"], [])
    assert story.verify(launched).message == "EC2 in us-east-1 has nothing of selftest"


@pytest.mark.parametrize(
    ("state", "left"), [("running", True), ("terminated", False), ("unknown", False)]
)
def test_nodes_are_also_asked_for_by_their_ids(launched, monkeypatch, state, left):
    def describe_instance_status(InstanceIds, IncludeAllInstances):
        if state == "unknown":
            return {"InstanceStatuses": []}
        return {
            "InstanceStatuses": [
                {"InstanceId": one, "InstanceState": {"Name": state}} for one in InstanceIds
            ]
        }

    launched.launcher.clients.ec2.describe_instance_status = describe_instance_status
    launched.instance_ids.add("i-1")
    sweeping(monkeypatch, [])
    monkeypatch.setattr(story, "down", lambda *_: RemovedCluster())
    steps = [step for step in STEPS if step.always]
    results = run_steps(launched, steps, lambda so_far: None)
    assert [one.verdict.value for one in results] == ["failed" if left else "passed"] * 2
    assert ("still there: instance i-1" in results[1].message) == left


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
    both = CostEstimate((machines, disks), once=LoadCost(2, 100, 1000))
    hours = story.MAX_HOURS + story.UNCOUNTED_HOURS
    assert most_usd(both) == 2.5 * hours + 2 * 1.2
    assert most_usd(CostEstimate((machines, CostLine("d", 2, None)))) is None
    assert most_usd(None) is None


def test_spot_may_become_as_dear_as_on_demand():
    spot = CostEstimate((CostLine("m", 2, 0.1), CostLine("d", 2, 0.25)), "today's spot price")
    dear = at_most(spot, Price(1.0, "AWS's price list", "2026-11-01"))
    assert dear.hourly_usd == 2.5
    assert dear.price_source == (
        "AWS's price list, 2026-11-01, on demand: the most that spot can cost"
    )
    assert most_usd(at_most(spot, None)) is None


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


def test_ids_of_resources_stay_whole():
    """An id has twelve digits in a row, now and then."""
    names_it = "this self-test did not make i-b5b068343161440f8 and sg-12345678901234567"
    assert masked([f"{names_it} of 123456789012"]) == [f"{names_it} of [account]"]


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
