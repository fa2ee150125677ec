"""The command that runs again after a node is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from clusterctl.jobs.detached import AFTER
from clusterctl.node.jobs import after, jobs
from clusterctl.node.jobs.after import has_lost, ranks_that_fit, retry_command
from clusterctl.node.jobs.spec import JobSpec, Step
from clusterctl.node.record import to_json

ARGV = ["mpirun", "-np", "8", "--hostfile", "hosts", "t.py", "-b", "96", "--clear_log"]


def spec(tmp_path, argv=ARGV, **more):
    plain = {"ranks": 8, "min_ranks": 2, "workdir": str(tmp_path), "log_name": "l"}
    return JobSpec(
        tmp_path.name, steps=(Step(tuple(argv)),), **{**plain, "log_dir": "logs", **more}
    )


@pytest.mark.parametrize(
    ("slots", "more", "ranks"),
    [
        (9, {}, 8),
        (8, {}, 8),
        (7, {}, 6),  # 8 x 96 images per step cannot be divided by 7
        (7, {"log_dir": ""}, 7),
        (5, {}, 4),
        (1, {}, 0),
        (7, {"min_ranks": 8}, 0),
        (7, {"argv": ["torchrun", "t.py"]}, 0),
    ],
)
def test_how_many_ranks_fit(tmp_path, slots, more, ranks):
    assert ranks_that_fit(spec(tmp_path, **more), slots) == ranks


def test_a_restart_is_a_new_beginning_for_boots_and_none_for_what_the_job_has_written(
    tmp_path, monkeypatch, capsys
):
    """metrics.jsonl is kept if it is newer than exit_status, also that of the first attempt."""
    began = []
    sweep = lambda job, nodes, at: began.append(at) or ([], ["b"], {})  # noqa: E731
    monkeypatch.setattr(after, "sweep", sweep)
    monkeypatch.setattr(after, "end_on", lambda nodes, job: ["" for _ in nodes])
    (tmp_path / "hosts").write_text("10.0.0.4 slots=8\n")
    (tmp_path / "spec.json").write_text(to_json(spec(tmp_path, retries=2)))
    (tmp_path / "exit_status").touch()
    os.utime(tmp_path / "exit_status", (100, 100))
    assert [after.after(tmp_path, 255, 0) for _ in range(3)] == [True, True, False]
    assert (tmp_path / "exit_status").stat().st_mtime == 100
    assert began[0] == 100
    assert began[1] <= began[2] == (tmp_path / "again").stat().st_mtime
    assert began[1] > 100


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_line_for_fewer_hosts(tmp_path, has_begun):
    (tmp_path / "logs").mkdir()
    (tmp_path / "spec.json").touch()
    (tmp_path / "logs" / "l").touch()
    os.utime(tmp_path / "logs" / "l", (9e9, 9e9) if has_begun else (1, 1))
    line = retry_command(spec(tmp_path), 6, tmp_path, {"10.0.0.4": 4, "10.0.0.6": 2})
    clear = [] if has_begun else ["--clear_log"]
    hosts = str(tmp_path / "hosts")
    assert line == ["mpirun", "-np", "6", "--hostfile", hosts, "t.py", "-b", "128", *clear]
    assert (tmp_path / "hosts").read_text() == "10.0.0.4 slots=4\n10.0.0.6 slots=2\n"


@pytest.mark.parametrize("before", [0, 50, (1 << 20) - 10, (1 << 20) + 5])
def test_what_mpirun_says_of_a_lost_node_is_found_behind_the_offset_alone(tmp_path, before):
    log = tmp_path / "log"
    log.write_bytes(
        b"\xff" * before + b"ORTE has lost communication with a remote daemon." + b"x" * 9
    )
    assert has_lost(log, 0)
    assert not has_lost(log, before + 20)


def test_a_node_that_comes_back_has_no_rank_left_and_the_program_when_the_job_begins_anew(
    tmp_path, monkeypatch, capsys
):
    """The node did not answer when the ranks of the others were ended, or it is a new machine."""
    there = tmp_path / "there"
    (there / "ssh").parent.mkdir()
    (there / "ssh").write_text(f'#!/bin/sh\nshift $(($# - 1))\ncd {there}\nexec sh -c "$1"\n')
    (there / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    (tmp_path / "after.py").write_text(AFTER.text)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "after.py")])
    monkeypatch.setattr(jobs, "CODE", tmp_path / "code")
    (tmp_path / "code" / tmp_path.name / "lib").mkdir(parents=True)
    (tmp_path / "code" / tmp_path.name / "lib" / "it's.py").write_text("print()")
    job = spec(tmp_path, code={"files": ["lib/it's.py"]})
    (tmp_path / "hosts").write_text("10.0.0.4 slots=4\n10.0.0.5 slots=4\n")
    environ = {**os.environ, "CLUSTERCTL_JOB": tmp_path.name}
    with subprocess.Popen(["sleep", "240"], env=environ) as left:
        nodes = [{"name": "a", "address": "10.0.0.4"}, {"name": "b", "address": "10.0.0.5"}]
        again, said = after.wait_for_nodes(job, nodes, tmp_path)
        ended = left.poll()
        left.kill()
    assert (again, said, ended) == (True, "starting again with 8 ranks on a, b", -15)
    shipped = there / ".clusterctl" / "code" / tmp_path.name / "lib" / "it's.py"
    assert shipped.read_text() == "print()"
    assert "could not be put" not in capsys.readouterr().out
    # A file in the place of its folder has the effect of a full disk.
    shutil.rmtree(there / ".clusterctl")
    (there / ".clusterctl").write_text("")
    after.give_code(job, nodes[1:])
    assert "the job's program could not be put on b" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "code" / tmp_path.name / "lib")
    after.give_code(job, nodes[1:])
    said = capsys.readouterr().out
    assert "could not be packed" in said
    assert "it's.py" in said
