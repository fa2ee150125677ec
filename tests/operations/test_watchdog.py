"""`train --watchdog` on two hosts of the lab: the head node diagnoses a job that hangs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from clusterctl.diagnosis.bundle import load
from clusterctl.node.jobs.spec import JobSpec
from clusterctl.node.record import to_json
from clusterctl.operations import watchdog
from tests.clock import FakeClock
from tests.pair import eventually
from tests.variants import usual

# Makes steps until /data/hang exists. Horovod's messages about the stall do not count as steps.
HANGS = """\
import os, sys, time
while True:
    if not os.path.exists("/data/hang"):
        print("step", flush=True)
    else:
        print("Missing ranks:\\n1: [grads/conv1]", flush=True)
    time.sleep(0.5)
"""


@pytest.fixture
def hanging(pair):
    """Return the cluster with the program. The end removes its jobs."""
    pair.put("hangs.py", HANGS)
    yield pair
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
    for node in (0, 1):
        pair.on(node, "rm -f /data/hang hangs.py")


def job(pair):
    return json.loads(pair.ctl("jobs", "--json")[1])[-1]


def folder_of(job_id):
    return f".clusterctl/jobs/{job_id}"


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.parametrize("cancels", usual(1, [True, False]))
def test_a_job_that_hangs_is_diagnosed_without_this_machine(hanging, tmp_path, cancels):
    run = ("train", "2", "--detach", "--json", "--script", "~/hangs.py", "--watchdog", "3s")
    status, out, err = hanging.ctl(*run, *(("--watchdog-cancel",) if cancels else ()))
    assert status == 0, err
    job_id = json.loads(out)["id"]
    eventually(lambda: hanging.ctl("logs")[1].count("step") > 24, "steps for longer than its start")
    assert job(hanging)["watchdog"] == []

    for node in (0, 1):
        hanging.on(node, "touch /data/hang")
    [said, *_] = eventually(lambda: job(hanging)["watchdog"], "the watchdog")
    assert " UTC: no step for " in said
    log = hanging.ctl("logs")[1]
    assert "clusterctl watchdog, " in log
    folder = folder_of(job_id)
    bundle = tmp_path / "bundle"
    bundle.write_bytes(base64.b64decode(hanging.on(0, f"base64 {folder}/diagnosis.gz")))
    seen = load(bundle)
    assert {host.host: host.error for host in seen.hosts} == {"pair-0": "", "pair-1": ""}
    ranks = [rank for host in seen.hosts for rank in host.ranks]
    assert [rank.rank for rank in ranks] == [0, 1]
    assert all(rank.samples[-1].stacks for rank in ranks), "py-spy went there with the job"
    if cancels:
        eventually(lambda: job(hanging)["state"] == "cancelled", "the job's end")
        for node in (0, 1):
            assert hanging.on(node, "pgrep -f 'hangs[.]py|prte[d]|prteru[n]' || echo none") == (
                "none\n"
            )
    else:
        stalls = hanging.ctl("logs")[1].count("Missing ranks")
        eventually(
            lambda: hanging.ctl("logs")[1].count("Missing ranks") > stalls + 24,
            "the job hanging for twice as long again",
        )
        state = job(hanging)
        told = [" UTC: no step for " in one for one in state["watchdog"]]
        assert (state["state"], told) == ("running", [True, False]), "it is told once"
        assert hanging.ctl("cancel")[0] == 0
    eventually(
        lambda: hanging.on(0, "pgrep -f '[c]lusterctl-watchdog' || echo none") == "none\n",
        "the watchdog's end",
    )


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.all
def test_a_job_is_ended_where_the_diagnosis_cannot_be_kept(hanging):
    hanging.on(0, "touch /data/hang")
    run = ("train", "1", "--detach", "--json", "--script", "~/hangs.py")
    status, _, err = hanging.ctl(*run, "--watchdog", "1ms", "--watchdog-cancel")
    assert (status, "give it 1s or more" in err) == (2, True), err
    status, out, err = hanging.ctl(*run, "--watchdog", "1s", "--watchdog-cancel")
    assert status == 0, err
    hanging.on(0, f"mkdir -p {folder_of(json.loads(out)['id'])}/diagnosis.gz/x")
    eventually(lambda: job(hanging)["state"] == "cancelled", "the job's end")
    said = "\n".join(job(hanging)["watchdog"])
    assert "not all is kept: cannot write the bundle" in said
    assert said.endswith("the job is ended, as --watchdog-cancel asks")


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a job whose log folder has rows of an earlier job."""
    for name, text in (
        ("spec.json", to_json(JobSpec("j", workdir=str(tmp_path), log_dir="logs"))),
        ("log", ""),
        ("exit_status", ""),
        ("after.py", "print('waits', flush=True)\ninput()\n"),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.jsonl").write_text("{}\n")
    return tmp_path


def test_what_is_a_step_and_how_long_may_pass_without_one(folder):
    clock = FakeClock()
    progress = watchdog.JobProgress(folder, clock)

    def silent_after(seconds, name="log", text=""):
        with (folder / name).open("a") as file:
            file.write(text)
        clock.advance(seconds)
        progress.look()
        return progress.silent_s(60)

    assert silent_after(170) is None, "three times as long before the first row"
    (folder / "logs" / "metrics.jsonl").write_text("")
    assert (silent_after(5), progress.has_stepped) == (None, False), "an earlier job's rows go"
    assert silent_after(10) == 185
    assert silent_after(1, "logs/metrics.jsonl", "{}\n") is None
    for tag in ("", "[1,0]<stderr>:", "[prterun-demo-0-77@1,0]<stderr>: "):
        assert silent_after(1, text=f"{tag}loss 0.1\n") is None
        stall = f"{tag}Missing ranks:\n{tag}1: [grads/conv1]\n{tag}\n"
        assert silent_after(61, text=stall) == 61, tag


def test_a_job_that_waits_for_a_lost_node_does_not_hang(folder):
    clock = FakeClock()
    progress = watchdog.JobProgress(folder, clock)
    (folder / "logs" / "metrics.jsonl").write_text("{}\n{}\n")
    progress.look()
    argv = [sys.executable, str(folder / "after.py")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as after:
        after.stdout.readline()
        clock.advance(900)
        progress.look()
        assert progress.silent_s(60) is None
        after.stdin.close()
    os.utime(folder / "exit_status", (1, 1))  # the job starts again
    clock.advance(70)
    progress.look()
    assert (progress.silent_s(60), progress.has_stepped) == (None, False)
    clock.advance(170)
    progress.look()
    assert progress.silent_s(60) is None
    clock.advance(11)
    assert progress.silent_s(60) == 181
