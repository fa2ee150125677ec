"""Jobs with real processes on this machine: whatever is killed, frozen or full, the state is true,
and nothing is left."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.jobs.detached import RUNNER, tail_command
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import EVENTS, JobFolder
from clusterctl.node.jobs.jobs import Submission, cancel, submit
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.jobs.runner import Runner
from clusterctl.node.jobs.spec import JobSpec, JobState, JobStep, When, fold
from clusterctl.node.packer import program_of
from clusterctl.node.procfs import boot_id
from clusterctl.node.record import name_of, to_json
from tests.lab.running import wait_until
from tests.transport.sleepers import NUMBERS, sleepers

pytestmark = pytest.mark.slow

IDS = itertools.count(1)
CALL = program_of("clusterctl.node.jobs.jobs", "clusterctl.node.agent")
# A process in a session of its own, without the job's mark, that ignores TERM.
HIDDEN = "env -i setsid sh -c 'trap \"\" TERM; echo ready; {0}; {0}'"


class Head:
    """A home folder whose jobs run on this machine."""

    def __init__(self, home: Path) -> None:
        self.home, self.jobs = home, home / ".clusterctl" / "jobs"
        self.number = next(NUMBERS)
        self.sleep = f"sleep {self.number}"  # as no other process of this machine

    def spec(self, shell, *more, **fields):
        job_id = f"20261125-{next(IDS):06d}-{os.getpid() % 65536:04x}"
        steps = (JobStep(("sh", "-c", shell)), *more)
        return JobSpec(job_id, steps=steps, workdir=str(self.home), **{"grace_s": 1.0, **fields})

    def call(self, function, request, attachment=b"", **options):
        """Start a process that calls a function of jobs.py."""
        process = subprocess.Popen(
            CALL.argv(name_of(function), python=sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(self.home)},
            **options,
        )
        try:
            process.stdin.write(CALL.stdin(f"{to_json(request)}\n".encode() + attachment))
            process.stdin.close()
        except BrokenPipeError:  # it was killed
            pass
        return process

    def submit(self, spec, how="refuse", **options):
        return self.call(submit, Submission(spec, how), RUNNER.text.encode(), **options)

    def start(self, shell, *more, how="refuse", **fields):
        spec = self.spec(shell, *more, **fields)
        process = self.submit(spec, how)
        assert answer(process)["busy"] == ""
        return JobFolder(self.jobs / spec.job_id)

    def sleepers(self):
        return sleepers(self.number)

    def cancel(self, job):
        return answer(self.call(cancel, job.job_id))


def accepted(process):
    """Return the record of the accepted job."""
    found = answer(process)
    assert found["busy"] == ""
    return found["job"]


def answer(process):
    out, err = process.stdout.read(), process.stderr.read()
    assert process.wait() == 0, err
    return json.loads(out)


@pytest.fixture
def head(tmp_path):
    home = Head(tmp_path)
    home.jobs.mkdir(parents=True)
    yield home
    for path in home.jobs.glob("[.2]*"):
        JobFolder(path).signal_runner(signal.SIGTERM)


def until(reached, what="the job"):
    wait_until(reached, what, 120.0)


def lines(job):
    return (job.path / "log").read_text().splitlines()


def is_ready(job, count=1):
    until(lambda: lines(job).count("ready") >= count, "its output")


def ended(job, state, code="any"):
    """Wait for the job's recorded end, and check that nothing of it is left."""
    until(lambda: job.status().has_ended and not job.is_run())
    status = job.status()
    assert (status.state, status.cleanup["left"]) == (state, []), status
    assert code in ("any", status.exit_status), status
    assert not processes.find(ProcessQuery(job.job_id))
    return status


def test_the_steps_of_a_job(head):
    evaluate = JobStep(("sh", "-c", "printf top-1"), When.SUCCESS)
    collect = JobStep(("sh", "-c", "echo collected"), When.ALWAYS)
    # A line that the work left incomplete is no part of the next one.
    fine = head.start("printf trained", evaluate, collect)
    failed = head.start("exit 3", evaluate, collect, claims=())
    late = head.start("true", JobStep(("sh", "-c", "exit 5"), When.SUCCESS), claims=())
    ended(fine, JobState.SUCCEEDED, 0)
    assert lines(fine) == ["trained", "+ sh -c 'printf top-1'", "top-1", "collected"]
    ended(failed, JobState.FAILED, 3)
    assert lines(failed) == ["collected"]
    ended(late, JobState.FAILED, 5)
    none = head.start("true", claims=())
    ended(none, JobState.SUCCEEDED, 0)


def test_a_runner_keeps_the_earliest_and_the_latest_time_that_the_clock_has_shown(
    tmp_path, monkeypatch
):
    job = JobFolder(tmp_path / "job")
    job.create(JobSpec("job"), [])
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    runner = Runner(job, {})
    assert job.clock_range() == (float("inf"), 0.0)
    for clock[0] in (1000.0, 400.0, 700.0):
        runner.read_clock()
    runner.write_heartbeat()
    assert (job.heartbeat_at(), job.clock_range()) == (700.0, (400.0, 1000.0))
    runner.forget_clock()
    runner.write_heartbeat()
    assert job.clock_range() == (700.0, 700.0)


def test_a_command_that_does_not_exist_is_said(head):
    spec = head.spec("")
    spec = JobSpec(spec.job_id, steps=(JobStep(("/no/such", "x")),), workdir=str(head.home))
    answer(head.submit(spec))
    job = JobFolder(head.jobs / spec.job_id)
    ended(job, JobState.FAILED, 127)
    assert lines(job) == [
        "/no/such: No such file or directory",
        "clusterctl: the command ended with exit status 127",
    ]


def test_nothing_survives_a_killed_runner_and_the_job_is_lost(head):
    plain = head.start(f"echo ready; exec {head.sleep}")
    stubborn = head.start(
        f"trap '' TERM; {HIDDEN.format(head.sleep)} & echo ready; {head.sleep}; {head.sleep}",
        claims=(),
    )
    is_ready(plain)
    is_ready(stubborn, 2)
    for job in (plain, stubborn):
        job.signal_runner(signal.SIGKILL)
        until(lambda job=job: not job.is_run(), "the kernel to free the lock")
        status = job.status()
        assert (status.state, status.has_ended) == (JobState.LOST, False)
        assert status.reason.startswith("its end was not recorded")
    until(lambda: not processes.find(ProcessQuery(plain.job_id)), "the end of its processes")
    assert head.cancel(plain)
    assert head.cancel(stubborn)
    for job in (plain, stubborn):
        ended(job, JobState.CANCELLED)
    assert not head.sleepers()


# In a namespace where a disk can be read-only, even for root.
READ_ONLY = """
import os, signal, subprocess, sys
from pathlib import Path
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.jobs.spec import STILL_RUN
from tests.node.jobs.test_runner import Head, is_ready, until

home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "none", home], check=True)
head = Head(home)
head.jobs.mkdir(parents=True)
job = head.start("echo ready; exec sleep 1961", log_dir="logs")
is_ready(job)
runner, _ = job.holder()
[supervisor] = [one for one in processes.find(ProcessQuery(job.job_id)) if one.ppid == runner]
os.kill(supervisor.pid, signal.SIGSTOP)
for pid in (runner, supervisor.pid):
    os.kill(pid, signal.SIGKILL)
until(lambda: not job.is_run())
(home / "logs").mkdir()
(home / "logs" / "metrics.jsonl").write_text("{}")
subprocess.run(["mount", "-o", "remount,ro", home], check=True)
before = len(processes.find(ProcessQuery(job.job_id)))
print(job.record().status.reason.endswith(STILL_RUN), end=" ")
print(before, head.cancel(job), len(processes.find(ProcessQuery(job.job_id))), job.is_held())
"""


@pytest.mark.lab  # needs user namespaces, too
def test_what_a_lost_job_has_left_is_ended_though_the_disk_is_read_only(tmp_path):
    argv = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", READ_ONLY]
    done = subprocess.run([*argv, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "True 1 True 0 False\n", done.stderr


@pytest.mark.parametrize("victim", ["supervisor", "command"])
def test_a_killed_supervisor_or_command_fails_the_job_and_leaves_nothing(head, victim):
    writer = "(env -i setsid sh -c 'while :; do echo x; sleep 0.02; done' &)"  # writes for ever
    job = head.start(f"{writer}; {HIDDEN.format(head.sleep)} & echo ready; {head.sleep}")
    is_ready(job, 2)
    runner, _ = job.holder()
    [supervisor] = [one for one in processes.find(ProcessQuery(job.job_id)) if one.ppid == runner]
    found = [one for one in processes.find(ProcessQuery(job.job_id)) if one.ppid == supervisor.pid]
    command = next(one for one in found if one.argv[:2] == ["sh", "-c"])
    os.kill(supervisor.pid if victim == "supervisor" else command.pid, signal.SIGKILL)
    ended(job, JobState.FAILED, 137)
    assert job.status().reason == "exit status 137 (SIGKILL)"
    log = (job.path / "log").read_text()
    assert "clusterctl: the command ended with exit status 137 (SIGKILL)\n" in log
    assert not head.sleepers()


def test_processes_in_sessions_of_their_own_without_the_mark_end_with_the_job(head):
    job = head.start(f"env -i setsid {head.sleep} & env -i setsid {head.sleep} & exit 4")
    ended(job, JobState.FAILED, 4)
    assert not head.sleepers()


def test_term_to_the_runner_that_nobody_has_requested_is_as_at_a_shutdown(head):
    job = head.start(f"echo ready; exec {head.sleep}")
    is_ready(job)
    job.signal_runner(signal.SIGTERM)
    status = ended(job, JobState.LOST, None)
    assert (status.reason, status.rebooted) == ("ended by signal 15, as at a shutdown", False)
    events = (job.path / EVENTS).read_text()
    (job.path / EVENTS).write_text(events.replace(boot_id(), "the boot before"))
    assert job.status().rebooted


def test_a_job_can_be_cancelled_at_any_moment(head):
    rng = random.Random(7)
    for number in range(6):
        spec = head.spec(f"exec {head.sleep}", JobStep((*head.sleep.split(),), When.SUCCESS))
        process, job = head.submit(spec), JobFolder(head.jobs / spec.job_id)
        until(job.path.exists, "its folder")
        time.sleep(rng.random() * 0.2 * (number % 3))
        assert head.cancel(job)
        assert ended(job, JobState.CANCELLED).reason == "by user"
        answer(process)


def test_ranks_that_ignore_term_are_ended(head):
    job = head.start(f"trap '' TERM; echo ready; {head.sleep}; {head.sleep}")
    is_ready(job)
    assert head.cancel(job)
    ended(job, JobState.CANCELLED, 137)
    assert not head.sleepers()


@pytest.mark.all
def test_a_frozen_runner_is_killed_by_who_cancels(head):
    job = head.start(f"echo ready; exec {head.sleep}")
    is_ready(job)
    job.signal_runner(signal.SIGSTOP)
    assert head.cancel(job)
    ended(job, JobState.CANCELLED)
    assert not head.sleepers()


def test_a_queue_runs_one_after_the_other_without_the_cancelled_ones(head):
    shell = f"while [ ! -e {head.home}/go ]; do sleep 0.05; done"
    first, second, third = (head.start(shell, how="queue") for _ in range(3))
    other = head.start("true", claims=("path:/data",))
    assert answer(head.submit(head.spec("true")))["busy"] == first.job_id
    assert third.record().status.waits_for == (first.job_id, second.job_id)
    assert third.record().state is JobState.QUEUED
    ended(other, JobState.SUCCEEDED)
    assert head.cancel(second)
    assert ended(second, JobState.CANCELLED).exit_status is None, "it has never begun"
    (head.home / "go").touch()
    before, after = ended(first, JobState.SUCCEEDED), ended(third, JobState.SUCCEEDED)
    assert before.ended_at <= after.started_at


def test_a_queued_job_whose_program_a_node_lacks_is_not_started_and_the_reason_is_recorded(
    head, tmp_path, monkeypatch
):
    """A node was replaced while the job waited, and the program is gone from the head node, too."""
    (tmp_path / "there").mkdir()
    (tmp_path / "ssh").write_text(
        f'#!/bin/sh\nshift $(($# - 1))\ncd {tmp_path}/there\nexec sh -c "$1"\n'
    )
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (head.home / "hosts").write_text("10.0.0.4 slots=1\n10.0.0.5 slots=1\n")
    nodes = ({"name": "a", "address": "10.0.0.4"}, {"name": "b", "address": "10.0.0.5"})
    head.start("while [ ! -e go ]; do sleep 0.05; done")
    job = head.start("echo ran", how="queue", nodes=nodes, ranks=2, code={"files": ["x.py"]})
    (head.home / "go").touch()
    status = ended(job, JobState.FAILED, 1)
    place = f".clusterctl/code/{job.job_id}"
    cause = f"b lacks ~/{place}, the job's program: it cannot be copied from the head node, where "
    assert status.reason == f"not started: {cause}{head.home}/{place}/x.py is missing"
    assert lines(job) == [f"clusterctl: {status.reason}"]


def test_the_next_in_the_queue_first_ends_what_a_killed_job_has_left(head):
    first = head.start(f"trap '' TERM; echo ready; {head.sleep}; {head.sleep}")
    second = head.start(f"pgrep -xf '{head.sleep}' || echo none", how="queue")
    is_ready(first)
    first.signal_runner(signal.SIGKILL)
    after = ended(second, JobState.SUCCEEDED, 0)
    before = ended(first, JobState.LOST)
    assert before.cleanup["ended"] >= 0
    assert before.ended_at <= after.started_at
    assert lines(second) == ["none"]


def test_a_lost_job_stays_lost_while_what_it_left_is_ended_and_the_cleaner_is_not_its_runner(head):
    waits = f"while [ ! -e {head.home}/go ]; do sleep 0.1; done"
    first = head.start(f"trap '' TERM; echo ready; {waits}", grace_s=600.0)
    second = head.start(f"echo ready; exec {head.sleep}", how="queue")
    is_ready(first)
    first.signal_runner(signal.SIGKILL)
    until(lambda: first.is_held() and not first.is_run(), "the clean-up by the second job's runner")
    status = first.status()
    assert (status.state, status.has_ended) == (JobState.LOST, False)
    assert second.record().state is JobState.QUEUED
    # Whoever follows it waits for no other process, and whoever cancels it ends none.
    environ = {**os.environ, "HOME": str(head.home)}
    follow = ["sh", "-c", tail_command(first.job_id, 0, until_end=True, silent=True)]
    with subprocess.Popen(follow, env=environ) as follower:
        (head.home / "go").touch()
        assert follower.wait(600) == 0  # the second one sleeps longer
    assert head.cancel(first)
    ended(first, JobState.LOST)
    is_ready(second)
    assert head.cancel(second)
    ended(second, JobState.CANCELLED)


def test_what_a_lost_job_has_left_is_ended_on_its_other_nodes_and_silent_ones_are_said(
    head, tmp_path, monkeypatch
):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    answers = f'*" 10.0.0.5 "*) touch {tmp_path}/asked; for last; do :; done; exec sh -c "$last"'
    ssh.write_text(f'#!/bin/sh\ncase "$*" in {answers};; esac\nexit 255\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    nodes = tuple({"name": f"demo-{last}", "address": f"10.0.0.{4 + last}"} for last in range(3))
    job = head.start(f"echo ready; exec {head.sleep}", nodes=nodes)
    is_ready(job)
    job.signal_runner(signal.SIGKILL)
    until(lambda: not job.is_run())
    ended(head.start("true"), JobState.SUCCEEDED)
    assert ended(job, JobState.LOST).cleanup["silent"] == ["demo-2"]
    assert (tmp_path / "asked").exists()


def test_a_process_that_nobody_can_end_is_said_and_does_not_hold_up_the_job(head):
    """As one of another user's: here no signal of the runner's and its supervisors' has an effect
    until the file `go` is there."""
    kill = f"os.kill = lambda *to, kill=os.kill: os.path.exists('{head.home}/go') and kill(*to)"
    stays = "echo $$ >pid; while echo x; do sleep 0.01; done"
    spec = head.spec(f"env -i setsid sh -c '{stays}' & exit 3")
    program = f"import os\n{kill}\n{RUNNER.text}"
    answer(head.call(submit, Submission(spec), program.encode()))
    job = JobFolder(head.jobs / spec.job_id)
    until(lambda: any("could not be ended" in line for line in lines(job)), "the message")
    (head.home / "go").touch()
    ended(job, JobState.FAILED, 3)
    pid = (head.home / "pid").read_text().strip()
    assert f"clusterctl: process {pid} of the job could not be ended" in lines(job)


def test_a_signal_goes_to_the_process_of_this_job_and_this_boot_alone(head):
    job = head.start(f"echo ready; exec {head.sleep}")
    is_ready(job)
    lock = job.path / "lock"
    own = lock.read_text()
    with subprocess.Popen(head.sleep.split()) as other:
        for text in (f"{other.pid} {boot_id()}", own.replace(boot_id(), "another")):
            lock.write_text(text.ljust(64))
            job.signal_runner(signal.SIGKILL)
        lock.write_text(own)
        assert (other.poll(), job.is_run()) == (None, True)
        other.kill()
    assert head.cancel(job)
    ended(job, JobState.CANCELLED)


def test_a_lost_node_is_255_whatever_the_launcher_ends_with(head):
    lost = "PRRTE has lost communication with a remote daemon"
    # Open MPI 4 after kill -9 of its ssh, and after an end of the connection.
    ended_ssh = "ORTE was unable to reliably start one or more daemons."
    for message, code in ((lost, 0), (lost, 205), (ended_ssh, 9), (ended_ssh, 255)):
        job = head.start(f"echo '{message}'; exit {code}")
        status = ended(job, JobState.FAILED, 255)
        [attempt] = status.attempts
        assert (attempt["lost"], attempt["exit_status"]) == (True, 255)
    job = head.start(f"echo '{ended_ssh}'; exit 127")  # no orted there
    [attempt] = ended(job, JobState.FAILED, 127).attempts
    assert attempt["lost"] is False


def test_a_job_is_started_again_after_a_lost_node_and_not_after_its_own_failure(head):
    (head.home / "hosts").write_text("10.0.0.4 slots=2\n")
    lost = "echo 'PRRTE has lost communication with a remote daemon'; exit 0"
    shell = f'n=$(cat n); echo x$n >n; [ "$n" = xx ] || {{ {lost}; }}'
    (head.home / "n").touch()
    retry = {"retries": 2, "ranks": 2, "min_ranks": 2}
    nodes = ({"name": "a", "address": "10.0.0.4"},)
    job = head.start(shell, nodes=nodes, **retry)
    status = ended(job, JobState.SUCCEEDED, 0)
    assert [one["retried"] for one in status.attempts] == [True, True]
    own = head.start("exit 5", nodes=nodes, **retry)
    [attempt] = ended(own, JobState.FAILED, 5).attempts
    assert attempt["message"] == "not started again: no node was lost, the failure is the job's own"


def test_nodes_that_ssh_does_not_reach_are_named(head, tmp_path, monkeypatch):
    """ssh ends without having read what is sent to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    there = f'[ "$host" = 10.0.0.6 ] && cd {folder} && exec sh -c "$line"'
    words = "for line; do host=$before before=$line; done"
    (folder / "ssh").write_text(f"#!/bin/sh\n{words}\n{there}\nexit 255\n")
    (folder / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    nodes = [{"name": name, "address": f"10.0.0.{at}"} for at, name in enumerate("abc", 4)]
    lost = "echo 'PRRTE has lost communication with a remote daemon'; exit 0"
    job = head.start(lost, nodes=tuple(nodes))
    status = ended(job, JobState.FAILED, 255)
    assert (status.attempts[0]["silent"], status.cleanup["silent"]) == (["b"], ["b"])
    assert "clusterctl: the job lost b" in lines(job)


def test_two_runners_and_the_same_request_again(head):
    job = head.start("echo ready; while [ ! -e go ]; do sleep 0.05; done")
    is_ready(job)
    argv = [sys.executable, "-IS", "runner.py", job.job_id, "1", "0", "0"]
    second = subprocess.run(argv, cwd=job.path, capture_output=True, text=True, check=False)
    assert (second.returncode, "it is run by another process" in second.stderr) == (1, True)
    assert accepted(head.submit(job.spec()))["status"]["waits_for"] == []
    waits = f"while [ ! -e {head.home}/go ]; do sleep 0.05; done"
    race = [head.submit(head.spec(waits, claims=("one",))) for _ in range(4)]
    assert [answer(one)["busy"] for one in race].count("") == 1
    (head.home / "go").touch()
    ended(job, JobState.SUCCEEDED)
    assert lines(job) == ["ready"]


def test_a_submission_that_is_killed_and_sent_again_is_one_job(head):
    rng = random.Random(3)
    for _ in range(8):
        spec = head.spec(f"echo $CLUSTERCTL_JOB >>{head.home}/runs", claims=())
        process = head.submit(spec, start_new_session=True)
        time.sleep(rng.random() * 1.0)
        process.kill()
        process.wait()
        assert accepted(head.submit(spec))["status"]["waits_for"] == []
        ended(JobFolder(head.jobs / spec.job_id), JobState.SUCCEEDED)
    runs = (head.home / "runs").read_text().split()
    assert len(runs) == len(set(runs)) == 8
    ended(head.start("true"), JobState.SUCCEEDED)
    assert not list(head.jobs.glob(".new-*"))


@pytest.mark.parametrize("times", [5, pytest.param(40, marks=pytest.mark.all)])
def test_a_runner_that_is_killed_at_a_random_moment_leaves_a_true_record(head, times):
    rng = random.Random(times)
    for _ in range(times):
        job = head.start("sleep 0.1; exit 6", JobStep(("sleep", "0.05"), When.ALWAYS), claims=())
        time.sleep(rng.random() * 1.5)
        job.signal_runner(signal.SIGKILL)
        until(lambda job=job: not job.is_run(), "the lock")
        assert head.cancel(job)
        status = ended(job, job.status().state)
        assert status.state in (JobState.FAILED, JobState.CANCELLED)


def test_a_record_that_a_crash_has_cut_short(head):
    job = head.start("true", JobStep(("true",), When.ALWAYS))
    ended(job, JobState.SUCCEEDED)
    raw = (job.path / EVENTS).read_bytes()
    for size in range(0, len(raw) + 1, 7):
        (job.path / EVENTS).write_bytes(raw[:size])
        status = job.status()
        assert status.has_ended == (size >= len(raw) - 1), size
        assert status.has_ended or status.state is JobState.LOST
    (job.path / EVENTS).write_bytes(raw[:-9])
    assert head.cancel(job)
    ended(job, JobState.CANCELLED)
    assert fold([]).state is JobState.LOST


@pytest.fixture
def small(tmp_path):
    """Return a head node whose home is a file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    home = Head(place)
    home.jobs.mkdir(parents=True)
    yield home
    for path in home.jobs.glob("[.2]*"):
        JobFolder(path).signal_runner(signal.SIGTERM)
    subprocess.run(["umount", "-l", str(place)], check=True)


FILL = "while echo >>fill; do dd if=/dev/zero bs=1k >>fill; done 2>/dev/null"


def test_a_full_disk_hides_neither_the_end_nor_a_lost_node_nor_a_cancellation(small, tmp_path):
    wait = f"touch {tmp_path}/full; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    lost = "echo lost communication with a remote daemon"
    full = small.start(f"{FILL}; {wait}; yes 0 | head -c 99999; {lost}")
    until((tmp_path / "full").exists, "the disk to be full")
    for _ in range(100):  # 20 KiB of events: more than the blocks that were in use
        full.append("message", text="." * 150)
    refused = small.submit(small.spec("true", claims=()))
    err = refused.stderr.read()
    assert (refused.wait(), b"No space left on device" in err) == (1, True), err
    (tmp_path / "go").touch()
    status = ended(full, JobState.FAILED, 255)
    assert (len(status.messages), status.lost_bytes > 9999) == (100, True)
    assert not list(small.jobs.glob(".new*"))
    (small.home / "fill").unlink()
    cancelled = small.start(f"{FILL}; touch {tmp_path}/again; exec {small.sleep}")
    until((tmp_path / "again").exists, "the disk to be full")
    assert small.cancel(cancelled)
    ended(cancelled, JobState.CANCELLED, 143)
    (small.home / "fill").unlink()
    freed = small.start(f"{FILL}; yes x | head -c 99999; sleep 0.3; rm fill; sleep 0.3; echo b")
    assert ended(freed, JobState.SUCCEEDED, 0).lost_bytes == 0, "the log has them"
    text = (freed.path / "log").read_text()
    assert "bytes of output are lost: the disk was full\n" in text
    assert text.endswith("b\n")


def test_a_job_that_a_reboot_has_ended_stays_one_when_what_it_left_was_ended(head):
    job = head.start(f"echo ready; exec {head.sleep}")
    is_ready(job)
    job.signal_runner(signal.SIGKILL)
    until(lambda: not processes.find(ProcessQuery(job.job_id)), "the end of its processes")
    events = (job.path / EVENTS).read_text()
    (job.path / EVENTS).write_text(events.replace(boot_id(), "the boot before"))
    assert (job.status().state, job.status().rebooted) == (JobState.LOST, True)
    ended(head.start("true", how="queue"), JobState.SUCCEEDED)
    status = ended(job, JobState.LOST)
    assert (status.rebooted, status.reason) == (True, "the head node was rebooted")
    assert status.ended_at < time.time() - 0.01, "the time of its last heartbeat"


def test_a_job_whose_end_is_recorded_is_in_nobodys_way_while_its_runner_ends(head):
    before = head.start("true")
    ended(before, JobState.SUCCEEDED)
    # As a runner that is slow to end: this process holds the lock.
    assert before.take()
    try:
        assert accepted(head.submit(head.spec("true")))["status"]["waits_for"] == []
    finally:
        before.release()
