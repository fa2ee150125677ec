"""What `diagnose` reads of a job on its head node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.node.diagnosis import job as diagnosis
from clusterctl.node.diagnosis import partners
from clusterctl.node.diagnosis.job import LauncherLog, LogRequest
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import JobFolder
from clusterctl.node.jobs.spec import JobSpec
from tests.lab.running import wait_until

JOB_ID = "20261127-000000-abcd"


def test_the_hosts_are_those_of_the_job_and_not_those_of_today(tmp_path, monkeypatch):
    monkeypatch.setattr(diagnosis, "JOBS", tmp_path)
    (tmp_path / "hosts").write_text("10.0.0.4 slots=8\n10.0.0.9 slots=8\n")
    nodes = tuple(
        {"name": f"demo-{index}", "address": f"10.0.0.{index + 4}", "slots": 8} for index in (0, 1)
    )
    job = JobFolder(tmp_path / JOB_ID)
    job.create(JobSpec(JOB_ID, workdir=str(tmp_path), nodes=nodes), [])

    def hosts():
        return diagnosis._of_record(job.record(), 0)["hosts"]

    assert hosts() == "10.0.0.4 slots=8\n10.0.0.5 slots=8\n"
    (job.path / "hosts").write_text("10.0.0.5 slots=8\n")  # of a retry
    assert hosts() == "10.0.0.5 slots=8\n"


TORCHRUN = """
import os, subprocess, sys
agreed = {"RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}
rank = [sys.executable, "-c", "print('step 1', flush=True); input()"]
subprocess.run(rank, env={**os.environ, **agreed}, stderr=subprocess.DEVNULL)
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Return what starts a launcher by hand, with its output in these files. It is seen alone."""
    started = []

    def start(out, err=subprocess.STDOUT):
        ways = [path.open("ab") if isinstance(path, Path) else path for path in (out, err)]
        started.append(subprocess.Popen(["sleep", "600"], stdout=ways[0], stderr=ways[1]))
        return started[-1].pid

    def found():
        every = [processes.read_process(one.pid) for one in started]
        for one in every:
            one.role = "launcher"
        return every

    monkeypatch.setattr(processes, "find_any", found)
    yield start
    for one in started:
        one.kill()
        one.wait()


def test_each_file_of_each_launcher_by_hand_is_read_once(tmp_path, launched):
    out, err, both = (tmp_path / name for name in ("out", "err", "both"))
    for path in (out, err, both):
        path.write_text(f"from {path.name}\n")
    one, two, no_file = launched(out, err), launched(both), launched(subprocess.DEVNULL)
    found = diagnosis.job_logs(LogRequest())
    assert [(each.job, each.path, each.text) for each in found] == [
        (str(one), str(out), "from out\n"),
        (str(one), str(err), "from err\n"),
        (str(two), str(both), "from both\n"),
        (str(no_file), "", ""),
    ]
    assert [each.path for each in diagnosis.job_logs(LogRequest(str(two)))] == [str(both)]
    assert diagnosis.job_logs(LogRequest("1")) == ()


def test_the_log_of_a_torchrun_by_hand_is_found(tmp_path):
    (tmp_path / "torchrun").write_text(TORCHRUN)
    log = tmp_path / "log"
    argv = [sys.executable, str(tmp_path / "torchrun")]
    ways = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, **ways) as torchrun:
        wait_until(log.read_text, "its rank's line")
        [found] = diagnosis.job_logs(LogRequest(str(torchrun.pid)))
        torchrun.stdin.close()
    assert (found.path, found.text) == (str(log), "step 1\n")


def test_of_a_long_log_the_beginning_and_the_end_are_read_and_the_rest_is_counted(
    tmp_path, launched, monkeypatch
):
    log = tmp_path / "log"
    log.write_text("first" + "." * 90 + "last")
    pid = launched(log)
    monkeypatch.setattr(diagnosis, "MOST_OF_LOGS", 10)
    assert diagnosis.job_logs(LogRequest()) == (
        LauncherLog(str(pid), str(log), 99, "first", ".last", left_out=89),
    )
    monkeypatch.setattr(diagnosis, "MOST_OF_LOGS", 99)
    [whole] = diagnosis.job_logs(LogRequest())
    assert (len(whole.text), whole.last, whole.left_out) == (99, "", 0)


def test_a_log_that_cannot_be_read_is_not_called_no_file(tmp_path, launched, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    pid = launched(log)
    folder = diagnosis.OpenLog(str(tmp_path), str(tmp_path))
    monkeypatch.setattr(diagnosis, "_outputs", lambda _: [folder])
    [found] = diagnosis.job_logs(LogRequest(str(pid)))
    assert (found.path, found.error) == (str(tmp_path), "Is a directory")


def test_a_log_is_found_behind_a_pipe_and_after_its_path_is_gone(tmp_path, launched):
    behind, gone = tmp_path / "behind", tmp_path / "gone"
    tee = subprocess.Popen(["tee", behind], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    piped, deleted = launched(tee.stdin), launched(gone)
    try:
        tee.stdin.write(b"from tee\n")
        tee.stdin.flush()
        wait_until(lambda: behind.exists() and behind.read_text(), "tee's file")
        gone.write_text("from gone\n")
        gone.unlink()
        logs = [(one.job, one.path, one.text) for one in diagnosis.job_logs(LogRequest())]
        evidence = diagnosis._collect(str(piped), 9)
    finally:
        tee.kill()
        tee.communicate()
    assert logs == [
        (str(piped), str(behind), "from tee\n"),
        (str(deleted), f"{gone} (deleted)", "from gone\n"),
    ]
    assert (evidence["log_name"], evidence["log"]) == (str(behind), ["from tee"])


@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        ("step 1\nstep 2\n", False),
        ("step 1\nstep 2\nste", True),
        ("step 1", False),
        ("starts\n\r1/9 [00:01]\r2/9 [00:02]", False),
    ],
)
def test_a_log_that_ends_within_a_line_comes_in_blocks(tmp_path, text, is_cut):
    (tmp_path / "log").write_text(text, newline="")
    assert diagnosis._log(tmp_path / "log", 9)["log_is_cut"] == is_cut


@pytest.mark.skipif(not shutil.which("script"), reason="script(1) is not installed")
@pytest.mark.parametrize(("options", "is_late"), [("-qc", True), ("-qfc", False)])
def test_a_log_is_found_behind_the_terminal_of_script(tmp_path, options, is_late):
    """Without -f it keeps lines back: then it is not known when the last one was printed."""
    path = tmp_path / "typescript"
    line = "echo step 1; exec sleep 600"
    argv = ["script", options, line, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as script:
        try:
            wait_until(path.exists, "the file of script")
            sleeps = wait_until(lambda: child_of(script.pid, "sleep"), "what it has started")
            launcher = processes.read_process(sleeps)
            partners.forget()
            found = diagnosis._of_hand(diagnosis.JobByHand("1", launcher, ()), launcher, 9)
        finally:
            script.terminate()
    assert found["log_name"] == str(path)
    assert found.get("log_is_older", False) == is_late == (found["log_silent_s"] is None)
    assert (found["log"][1:] == ["step 1"]) != is_late


def child_of(pid, name):
    """Return the child of a process, once it runs this program; 0 before."""
    for one in processes.all_processes().values():
        if one.ppid == pid and one.name == name:
            return one.pid
    return 0


def test_the_lines_that_a_rank_adds_to_a_log_of_its_own(tmp_path, launched, monkeypatch):
    log = tmp_path / "rank-0.log"
    log.write_text("step 1\n")
    rank = processes.read_process(launched(log))
    launcher = processes.read_process(launched(tmp_path / "out"))
    monkeypatch.setattr(
        diagnosis, "jobs_by_hand", lambda _: [diagnosis.JobByHand("7", launcher, (rank,))]
    )
    monkeypatch.setattr(time, "sleep", lambda _: log.write_text("step 1\nstep 2\n"))
    found = diagnosis.collect("7", 9, watched_s=1.0)
    assert (found["own_added"], found["log"]) == (["step 2"], [])


def test_what_an_earlier_job_has_left_in_the_log_tells_nothing_of_one_that_appends_to_it(
    tmp_path, launched
):
    """As with nohup, which appends to nohup.out. Another job may write there, too."""
    log = tmp_path / "nohup.out"
    log.write_text("step 90\nTraceback (most recent call last):\n")
    with log.open("ab") as out:
        os.lseek(out.fileno(), 0, os.SEEK_SET)  # where a shell leaves it
        found = diagnosis._collect(str(launched(out)), 9)
    assert (found["log_name"], found["log"], found["log_first"]) == (str(log), [], [])
    assert found["log_silent_s"] < 60


def test_of_a_log_that_is_older_than_its_job_the_lines_of_the_look_are_the_jobs(
    tmp_path, launched, monkeypatch
):
    log = tmp_path / "log"
    log.write_text("step 1\n")
    pid = str(launched(log))
    with monkeypatch.context() as patched:
        patched.setattr(diagnosis, "FUTURE_S", 60.0)  # a busy machine starts the launcher late
        assert diagnosis._collect(pid, 9)["log"] == ["step 1"]
    older = diagnosis._collect(str(launched(Path(__file__))), 9)
    assert (older["log_name"], older["log_is_older"], older["log"]) == (__file__, True, [])

    def append(_):
        log.write_text("step 1\nstep 2\n")

    monkeypatch.setattr(diagnosis, "_was_made_before", lambda *_: True)
    monkeypatch.setattr(time, "sleep", append)
    found = diagnosis.collect(pid, 9, watched_s=1.0)
    assert (found["log"], found["log_first"]) == (["step 2"], [])


def test_a_job_that_appends_to_its_log_by_one_of_two_openings_has_written(tmp_path, launched):
    """As `>>log 2>>log` of a program that logs to stderr only."""
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as out, log.open("ab", buffering=0) as err:
        pid = str(launched(out, err))
        err.write(b"step 1\n")
        assert diagnosis._collect(pid, 9)["log"] == ["step 1"]


def test_what_a_job_has_written_since_is_read_again(tmp_path, launched):
    with (tmp_path / "log").open("wb", buffering=0) as out:
        pid = str(launched(out))
        out.write(b"step 1\nstep 2\n")
    later = diagnosis.later_output(diagnosis.LaterRequest(pid, len("step 1\n")))
    assert (later.log_name, later.log_added) == (str(tmp_path / "log"), ("step 2",))


def test_what_main_threads_write_is_counted_beside_the_log(tmp_path, launched, monkeypatch):
    """Another program writes into the log of a job whose only rank writes nothing, or as much."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        pid = launched(out)
    rank = processes.read_process(launched(tmp_path / "own"))
    jobs = [diagnosis.JobByHand(str(pid), processes.read_process(pid), (rank,))]
    monkeypatch.setattr(diagnosis, "jobs_by_hand", lambda _: jobs)

    monkeypatch.setattr(time, "sleep", lambda _: log.write_text("step 1\n"))
    found = diagnosis.collect(str(pid), 9, watched_s=1.0)
    assert (found["log_added"], found["written_bytes"]) == (["step 1"], {str(rank.pid): 0})
    log.write_text("")
    own = processes.read_process(os.getpid())
    jobs = [diagnosis.JobByHand(str(pid), processes.read_process(pid), (own,))]
    found = diagnosis.collect(str(pid), 9, watched_s=1.0)
    assert found["written_bytes"][str(own.pid)] >= len("step 1\n")
    own.pid = 4194999
    assert diagnosis.collect(str(pid), 9, watched_s=1.0)["written_bytes"] == {}


def test_a_log_into_which_another_job_writes_is_told(tmp_path, launched):
    pids = [launched(tmp_path / name) for name in ("log", "log", "other")]
    found = [diagnosis._collect(str(pid), 9)["log_is_shared"] for pid in pids]
    assert found == [True, True, False]


def test_a_log_is_as_old_as_the_script_that_has_started_the_job(tmp_path, monkeypatch):
    """`nohup ./run.sh`, which works for a while before it starts mpirun."""
    log = tmp_path / "nohup.out"
    with log.open("ab", buffering=0) as out:
        script = subprocess.Popen(["sh", "-c", "echo step 1; sleep 600 & wait"], stdout=out)
    try:
        children = Path(f"/proc/{script.pid}/task/{script.pid}/children")
        [child] = wait_until(lambda: children.read_text().split(), "the launcher")
        launcher = processes.read_process(int(child))
        launcher.role = "launcher"
        monkeypatch.setattr(processes, "find_any", lambda: [launcher])
        ages = {script.pid: 9.0, launcher.pid: 2.0}
        real = processes.describe
        monkeypatch.setattr(
            processes, "describe", lambda one: replace(real(one), age_s=ages.get(one.pid, 0.0))
        )
        monkeypatch.setattr(diagnosis, "_was_made_before", lambda _, age_s: age_s < 9)
        found = diagnosis._collect(child, 9)
        assert (found["log"], found["age_s"]) == (["step 1"], 2.0)
    finally:
        os.kill(int(child), signal.SIGKILL)
        script.wait()


def test_a_clock_that_was_set_forward_makes_no_log_an_earlier_jobs(tmp_path, launched):
    log = tmp_path / "log"
    with log.open("wb", buffering=0) as out:
        pid = str(launched(out))
        out.write(b"step 1\n")
    os.utime(log, (time.time() - 3600,) * 2)
    found = diagnosis._collect(pid, 9)
    assert (found["log"], found["log_silent_s"]) == (["step 1"], None)


def test_the_jobs_by_hand_are_known_apart_by_their_launchers():
    def process(pid, ppid, *argv, **environ):
        environ = {name.encode(): value.encode() for name, value in environ.items()}
        return processes.Process(pid, ppid, argv[0], [*argv], environ)

    meet = {"MASTER_ADDR": "10.0.0.4", "TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "1", "RANK": "0"}
    them = [
        process(5, 1, "bash", "-l"),
        process(6, 5, "python3", "/usr/bin/torchrun", "train.py"),
        process(7, 6, "python3", "train.py", MASTER_PORT="1", **meet),
        process(8, 5, "mpirun", "./ring"),
        process(9, 1, "python3", "train.py", MASTER_PORT="2", **meet),
    ]
    found = processes.job_processes({one.pid: one for one in them}, 99, any_launcher=True)
    jobs = diagnosis.jobs_by_hand(found)
    shown = [(one.name, one.launcher and one.launcher.pid, len(one.ranks)) for one in jobs]
    assert shown == [("6", 6, 1), ("8", 8, 0), ("a:10.0.0.4:2", None, 1)]
