"""`train --watchdog` on two hosts of the lab: the head node diagnoses a job that hangs."""

from __future__ import annotations

import base64
import json

import pytest

from clusterctl.diagnosis.bundle import load
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
    out = hanging.ok(*run, *(("--watchdog-cancel",) if cancels else ()))
    job_id = json.loads(out)["job_id"]
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
    hanging.ends(2, "give it 1s or more", *run, "--watchdog", "1ms", "--watchdog-cancel")
    out = hanging.ok(*run, "--watchdog", "1s", "--watchdog-cancel")
    hanging.on(0, f"mkdir -p {folder_of(json.loads(out)['job_id'])}/diagnosis.gz/x")
    eventually(lambda: job(hanging)["state"] == "cancelled", "the job's end")
    said = "\n".join(job(hanging)["watchdog"])
    assert "not all is kept: cannot write the bundle" in said
    assert said.endswith("the job is ended, by --watchdog-cancel")
