"""What `diagnose` reads of a job on its head node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node.diagnosis import job as diagnosis
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
    assert [(each.launcher, each.path, each.text) for each in found] == [
        (one, str(out), "from out\n"),
        (one, str(err), "from err\n"),
        (two, str(both), "from both\n"),
        (no_file, "", ""),
    ]
    assert [each.path for each in diagnosis.job_logs(LogRequest(two))] == [str(both)]
    assert diagnosis.job_logs(LogRequest(1)) == ()


def test_the_log_of_a_torchrun_by_hand_is_found(tmp_path):
    (tmp_path / "torchrun").write_text(TORCHRUN)
    log = tmp_path / "log"
    argv = [sys.executable, str(tmp_path / "torchrun")]
    pipe = subprocess.PIPE
    with log.open("wb") as out, subprocess.Popen(argv, stdin=pipe, stdout=out) as torchrun:
        wait_until(log.read_text, "its rank's line")
        [found] = diagnosis.job_logs(LogRequest(torchrun.pid))
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
        LauncherLog(pid, str(log), 99, "first", ".last", left_out=89),
    )
    monkeypatch.setattr(diagnosis, "MOST_OF_LOGS", 99)
    [whole] = diagnosis.job_logs(LogRequest())
    assert (len(whole.text), whole.last, whole.left_out) == (99, "", 0)


def test_a_log_that_cannot_be_read_is_not_called_no_file(tmp_path, launched, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    pid = launched(log)
    monkeypatch.setattr(diagnosis, "_open_paths", lambda *args: [str(tmp_path)] * len(args[0]))
    [found] = diagnosis.job_logs(LogRequest(pid))
    assert (found.path, found.error) == (str(tmp_path), "Is a directory")
