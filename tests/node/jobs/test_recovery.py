"""The command that runs again after a node is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Any

import pytest

from clusterctl.jobs.detached import RUNNER
from clusterctl.node.jobs import recovery
from clusterctl.node.jobs.folder import SHIPPED, JobFolder
from clusterctl.node.jobs.recovery import places_on, ranks_that_fit, retry_command
from clusterctl.node.jobs.spec import JobSpec, JobState, JobStep
from clusterctl.node.jobs.written import shipped_files
from clusterctl.node.paths import CONTRACT, PREPARED
from clusterctl.node.record import from_json, to_json

ARGV = ["mpirun", "-np", "8", "--hostfile", "hosts", "t.py", "-b", "96", "--clear_log"]


def spec(tmp_path, argv=ARGV, **more):
    plain = {"ranks": 8, "min_ranks": 2, "workdir": str(tmp_path), "log_name": "l"}
    plain["batch_size"] = 96  # as the trainer's parser says: the flag has three spellings
    return JobSpec(
        tmp_path.name, steps=(JobStep(tuple(argv)),), **{**plain, "log_dir": "logs", **more}
    )


@pytest.mark.parametrize(
    ("slots", "more", "ranks"),
    [
        (9, {}, 8),
        (8, {}, 8),
        (7, {}, 6),  # 8 x 96 images per step cannot be divided by 7
        (7, {"batch_size": None}, 7),
        (7, {"batch_size": 105}, 7),
        (6, {"torchrun": True, "per_host": 2, "batch_size": None}, 6),
        (4, {"torchrun": True, "per_host": 4, "min_ranks": 5}, 0),
        (5, {}, 4),
        (1, {}, 0),
        (7, {"min_ranks": 8}, 0),
    ],
)
def test_how_many_ranks_fit(tmp_path, slots, more, ranks):
    assert ranks_that_fit(spec(tmp_path, **more), slots) == ranks


NODES = tuple({"name": name, "address": f"10.0.0.{name}"} for name in "45")


@pytest.mark.parametrize(
    ("more", "up", "places"),
    [
        ({}, "46", [4, 2]),
        ({"per_host": 3}, "456", [3, 3, 2]),
        ({"per_host": 1}, "4", [1]),
        ({"torchrun": True, "per_host": 4}, "456", [4, 4]),
        ({"torchrun": True, "per_host": 4}, "46", [4]),
        # Only mpirun knows what --map-by numa makes of the hosts.
        ({"maps_ranks": True}, "46", []),
        ({"maps_ranks": True}, "456", [4, 4, 2]),
        # A script-mode program knows its nodes: 5 may come back, so 6 does not take its place.
        ({"model_dir": "", "nodes": NODES}, "46", []),
        ({"model_dir": "", "nodes": NODES}, "456", [4, 4]),
        ({"model_dir": "", "nodes": NODES, "per_host": 1}, "456", [1, 1]),
        ({"model_dir": "", "nodes": tuple({**n, "slots": 2} for n in NODES)}, "456", [2, 2]),
    ],
)
def test_what_the_nodes_that_answer_take_of_a_job(tmp_path, more, up, places):
    hosts = {"10.0.0.4": 4, "10.0.0.5": 4, "10.0.0.6": 2}
    there = {f"10.0.0.{last}" for last in up}
    assert [*places_on(spec(tmp_path, **more), hosts, there).values()] == places


def test_a_job_that_no_smaller_number_suits_waits_for_its_lost_node(tmp_path, monkeypatch):
    """One rank on each node: the four GPUs of the node that answers do not take two of them."""
    monkeypatch.setattr(recovery, "end_on", lambda nodes, job: [None] * len(nodes))
    monkeypatch.setattr(recovery, "WAIT_S", -1.0)
    (tmp_path / "hosts").write_text("10.0.0.4 slots=4\n10.0.0.5 slots=4\n")
    job = spec(tmp_path, per_host=1, ranks=2, nodes=NODES)
    again, said = recovery.wait_for_nodes(job, tmp_path)
    assert again is None
    assert said.endswith("the nodes that answer take 1 of at least 2 ranks")


@pytest.mark.parametrize(
    ("more", "processes", "images"),
    [({}, "4", ["-b", "192"]), ({"torchrun": True, "per_host": 4, "batch_size": None}, "1", [])],
)
def test_fewer_nodes_run_the_job_on(tmp_path, monkeypatch, more, processes, images):
    """mpirun's processes are ranks, or with torchrun nodes; the trainer's step keeps its images,
    however the flag was spelled."""
    monkeypatch.setattr(recovery, "end_on", lambda nodes, job: [None] * len(nodes))
    monkeypatch.setattr(recovery, "START_WITH_FEWER_AFTER_S", -1.0)
    (tmp_path / "hosts").write_text("10.0.0.4 slots=4\n10.0.0.5 slots=4\n")
    argv = ["mpirun", "-np", "8", "--hostfile", "hosts", "t.py", "-b8", "--batch_size=96"]
    job = spec(tmp_path, argv, nodes=NODES, **more)
    again, said = recovery.wait_for_nodes(job, tmp_path)
    assert (again["ranks"], again["hosts"]) == (4, ["4"])
    hosts = str(tmp_path / "hosts")
    program = ["t.py", "-b8", "--batch_size=96", *images]
    assert again["argv"] == ["mpirun", "-np", processes, "--hostfile", hosts, *program]
    assert said == "starting again with 4 ranks on 4"


@pytest.mark.parametrize("had_log", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
def test_the_line_for_fewer_hosts(tmp_path, has_begun, had_log):
    """The node's clock was set back by years after the job had begun."""
    (tmp_path / "logs").mkdir()
    log, rows = tmp_path / "logs" / "l", tmp_path / "logs" / "metrics.jsonl"
    for path in (log, rows) if had_log else ():
        path.write_text("of an earlier job")
    job = JobFolder(tmp_path / "j")
    job.create(spec(tmp_path), [])
    job.append("running", before=job.stamps(spec(tmp_path)))
    for path in (log, rows) if has_begun else ():
        path.write_text("{}")
        os.utime(path, (1, 1))
    assert job.status().state is JobState.LOST
    own = tmp_path / "logs" / "metrics.jsonl" if has_begun else None
    assert job.metrics(spec(tmp_path), job.status()) == own, "what `fetch` brings of a lost job"
    job.keep_metrics(spec(tmp_path), job.status())
    assert (job.path / "metrics.jsonl").exists() is has_begun
    line = retry_command(spec(tmp_path), 6, job.path, {"10.0.0.4": 4, "10.0.0.6": 2})
    clear = [] if has_begun else ["--clear_log"]
    hosts = str(job.path / "hosts")
    program = ["t.py", "-b", "96", *clear, "-b", "128"]
    assert line == ["mpirun", "-np", "6", "--hostfile", hosts, *program]
    assert (job.path / "hosts").read_text() == "10.0.0.4 slots=4\n10.0.0.6 slots=2\n"


@pytest.mark.parametrize("shift", [-3600, 0, 3600])
def test_a_node_that_was_up_all_the_time_was_not_rebooted_whatever_the_clock_says(
    monkeypatch, shift
):
    now, up = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(recovery.processes, "stop_processes", lambda query: [])
    monkeypatch.setattr(recovery, "end_on", lambda nodes, job: ["1800.0\n", "5.0\n"])
    monkeypatch.setattr(time, "time", lambda: now + shift)
    nodes = [{"name": f"demo-{last}"} for last in range(3)]
    assert recovery.sweep("x", nodes, up - 60.0)[:2] == ([], ["demo-2"])


def test_only_the_nodes_of_the_failed_attempt_are_lost_and_by_their_machines_ids(
    tmp_path, monkeypatch
):
    """The second attempt runs on the machine that took the lost node's place."""
    monkeypatch.setattr(recovery.processes, "stop_processes", lambda query: [])
    monkeypatch.setattr(recovery, "end_on", lambda nodes, job: [None] * len(nodes))
    nodes = [
        {"name": f"demo-{last}", "address": f"10.0.0.{last}", "instance_id": f"i-{last}"}
        for last in range(3)
    ]
    for node in nodes:
        node["hourly_usd"] = 1.5
    job = spec(tmp_path, nodes=nodes)
    for hosts, machines in (
        (("demo-0", "demo-1", "demo-2"), {"demo-1": "i-1", "demo-2": "i-2"}),
        (("demo-0", "demo-2", "10.0.0.9"), {"demo-2": "i-2"}),
    ):
        failed = recovery.FailedAttempt(1, 3, 0.0, hosts=hosts)
        attempt = recovery.recover(tmp_path, job, failed)["attempt"]
        assert (attempt["silent"], attempt["machines"]) == ([*hosts[1:]], machines)
    monkeypatch.setattr(recovery, "end_on", lambda nodes, job: ["5.0\n" for _ in nodes])
    attempt = recovery.recover(tmp_path, job, recovery.FailedAttempt(1, 3, -9.0))["attempt"]
    assert attempt["rebooted"] == ["demo-1", "demo-2"] == [*attempt["machines"]]
    # What EC2 has taken costs nothing from then on.
    notice = {"demo-2": {"action": "terminate", "time": "2026-01-01T00:00:00Z"}}
    monkeypatch.setattr(recovery, "notices_of", lambda *_: notice)
    rates = recovery.recover(tmp_path, job, recovery.FailedAttempt(1, 3, -9.0))["rates"]
    assert rates == [(1767225600, 3.0)]


def test_a_cleanup_reaches_the_machine_that_took_a_lost_nodes_place(tmp_path):
    nodes = [{"name": f"demo-{last}", "address": f"10.0.0.{last}"} for last in range(3)]
    job = spec(tmp_path, nodes=nodes)
    others = recovery.other_nodes(job, ("demo-0", "demo-2", "10.0.0.9"))
    assert others == [*nodes[1:], {"name": "10.0.0.9", "address": "10.0.0.9"}]


@pytest.fixture
def nodes_at(tmp_path, monkeypatch):
    """Make the jobs' folder and the code's folder of a head node, and one more node: its home is
    `there`, whatever the address. Return the home."""
    there = tmp_path / "there"
    (there / "ssh").parent.mkdir()
    (there / "ssh").write_text(f'#!/bin/sh\nshift $(($# - 1))\ncd {there}\nexec sh -c "$1"\n')
    (there / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    (tmp_path / "runner.py").write_text(RUNNER.text)
    monkeypatch.setattr(recovery, "JOBS", tmp_path.parent)
    monkeypatch.setattr(recovery, "CODE", tmp_path / "code")
    (tmp_path / "hosts").write_text("10.0.0.4 slots=4\n10.0.0.5 slots=4\n")
    return there


TWO = ({"name": "a", "address": "10.0.0.4"}, {"name": "b", "address": "10.0.0.5"})


def put(folder, **files):
    """Write files below a folder, whose names have `_` for `/`."""
    for name, text in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_node_that_comes_back_has_no_rank_left_and_the_program_when_the_job_begins_anew(
    tmp_path, nodes_at, capsys
):
    """The node did not answer when the ranks of the others were ended, or it is a new machine."""
    code = tmp_path / "code" / tmp_path.name
    (code / "lib").mkdir(parents=True)
    (code / "lib" / "it's.py").write_text("print()")
    job = spec(tmp_path, nodes=TWO, code={"files": ["lib/it's.py"]})
    environ = {**os.environ, "CLUSTERCTL_JOB": tmp_path.name}
    with subprocess.Popen(["sleep", "240"], env=environ) as left:
        again, said = recovery.wait_for_nodes(job, tmp_path)
        ended = left.poll()
        left.kill()
    assert (bool(again), said, ended) == (True, "starting again with 8 ranks on a, b", -15)
    shipped = nodes_at / ".clusterctl" / "code" / tmp_path.name / "lib" / "it's.py"
    assert shipped.read_text() == "print()"
    about = shipped.stat()
    assert shipped_files(str(shipped.parents[1] / SHIPPED)) >= {(about.st_ino, about.st_ctime_ns)}
    assert "the job's program was copied to b, which lacked it" in capsys.readouterr().out
    # A file in the place of its folder has the effect of a full disk.
    shutil.rmtree(nodes_at / ".clusterctl")
    (nodes_at / ".clusterctl").write_text("")
    lacks = f"b lacks ~/.clusterctl/code/{tmp_path.name}, the job's program: it "
    full = f"{lacks}could not be copied there from the head node (is the disk full?)"
    again, said = recovery.wait_for_nodes(job, tmp_path)
    assert (again, said) == (None, f"not started again: {full}")
    shutil.rmtree(code / "lib")
    gone = f"{lacks}cannot be copied from the head node, where {code}/lib/it's.py is missing"
    first = recovery.first_attempt(job, tmp_path)
    assert first == {"argv": [*job.argv], "hosts": ["a", "b"], "cause": gone}
    assert capsys.readouterr().out == "", "what tar prints is no message"


def test_a_queued_script_mode_job_gets_its_program_and_channels_to_a_new_machine(
    tmp_path, nodes_at, capsys
):
    """Of a channel that is a folder of the nodes it gets the link, and the folder is named."""
    code = tmp_path / "code" / tmp_path.name
    files = {"code_train.py": "pass", "rank.pyz": "r", "contract.json": "{}", "model_ck": "mine"}
    put(code, input_data_train_x="1", input_streamed_s_y="2", **files)
    data = tmp_path / "data"
    (code / "input" / "data" / "own").symlink_to(data)
    job = spec(tmp_path, nodes=TWO, code={"files": ["train.py"]}, model_dir="", per_host=4)
    first = recovery.first_attempt(job, tmp_path)
    assert first["cause"] == (
        f"b lacks {data}: copy it there (`clusterctl copy`), then submit the job again"
    )
    there = nodes_at / ".clusterctl" / "code" / tmp_path.name
    given = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert given == {
        *("code/train.py", "rank.pyz", "contract.json", SHIPPED),
        *("input/data/train/x", "input/streamed/s/y"),
    }
    assert (there / "model").is_dir()
    data.mkdir()
    put(there, code_ck="what a rank wrote")
    first = recovery.first_attempt(job, tmp_path)
    assert (first["hosts"], first["cause"]) == (["a", "b"], "")
    assert (there / "code" / "ck").exists(), "what a node has is not written over"
    assert capsys.readouterr().out.count("was copied to b") == 1


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_script_mode_job_goes_on_with_a_machine_of_another_address(
    tmp_path, nodes_at, monkeypatch, is_queued
):
    """On EC2 the machine that replaces another has another address. What the program knows of its
    nodes is written again on all of them, and made again where it is made once."""
    code, there = tmp_path / "code" / tmp_path.name, nodes_at / ".clusterctl/code" / tmp_path.name
    three = [{**one, "slots": 4} for one in (*TWO, {"name": "c", "address": "10.0.0.6"})]
    hosts = [{"address": one["address"], "instance_type": "p3.8xlarge", "gpus": 4} for one in three]
    for place in (code, there):
        put(place, code_train_py="pass", **{".prepared": "python"})
        (place / CONTRACT).write_text(to_json({"job_id": "x", "hosts": hosts}))
    job = spec(tmp_path, nodes=three, code={"files": []}, model_dir="", per_host=4, ranks=12)
    (tmp_path / "hosts").write_text("10.0.0.4 slots=4\n10.0.0.6 slots=4\n")
    monkeypatch.setattr(recovery, "WAIT_S", -1.0)
    first, again = recovery.first_attempt(job, tmp_path), recovery.wait_for_nodes(job, tmp_path)
    assert first["cause"].startswith("b left the hosts file, and no machine with as many slots")
    assert again[0] is None
    more = "10.0.0.7 slots=8\n10.0.0.9 slots=4\n"  # the first has more than `b` had
    (tmp_path / "hosts").write_text(f"10.0.0.4 slots=4\n10.0.0.6 slots=4\n{more}")
    if is_queued:
        again = recovery.first_attempt(job, tmp_path)
    else:
        again, _ = recovery.wait_for_nodes(job, tmp_path)
    assert again["hosts"] == ["a", "10.0.0.9", "c"]
    assert again["argv"][:5] == ["mpirun", "-np", "8", "--hostfile", str(tmp_path / "hosts")]
    assert (tmp_path / "hosts").read_text().split()[::2] == ["10.0.0.4", "10.0.0.9", "10.0.0.6"]
    for place in (code, there):
        assert not (place / PREPARED).exists()
        told = from_json(Any, (place / CONTRACT).read_bytes())
        assert [one["address"] for one in told["hosts"]] == ["10.0.0.4", "10.0.0.9", "10.0.0.6"]
        assert (told["job_id"], told["hosts"][1]["gpus"]) == ("x", 4)
    (code / "contract.new").mkdir()  # as a full disk, it takes no file
    assert recovery.name_hosts(job, three) == "a did not get the addresses of the job's nodes"
    assert from_json(Any, (code / CONTRACT).read_bytes()) == told
    there.rename(nodes_at / "away")
    missed = "b, c did not get the addresses of the job's nodes"
    assert recovery.name_hosts(job, [*three]) == missed


def test_a_folder_that_mpirun_misses_on_a_node_without_a_word_is_named(
    tmp_path, nodes_at, monkeypatch, capsys
):
    monkeypatch.setattr(recovery, "sweep", lambda job, nodes, began: ([], [], {}))
    job = spec(tmp_path, nodes=TWO, code={"files": ["x.py"]}, retries=1)
    lacks = f"b lacks ~/.clusterctl/code/{tmp_path.name}, the job's program: submit the job again"
    for exit_status, is_there in ((1, False), (181, False), (181, True)):
        if is_there:
            put(nodes_at / ".clusterctl" / "code" / tmp_path.name, out="")
        found = recovery.recover(tmp_path, job, recovery.FailedAttempt(exit_status, 8, 0.0))
        is_named = exit_status == 181 and not is_there
        assert found["cause"].startswith(lacks) is is_named
        assert ("the failure is the job's own" in found["attempt"]["message"]) is not is_named
    assert capsys.readouterr().out.count(f"clusterctl: {lacks}") == 1
