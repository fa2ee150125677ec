"""`kill` on two hosts of the lab: the processes of a job end, other processes of the user stay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.pair import eventually

pytestmark = [pytest.mark.lab]

# Two ranks of /usr/bin/mpirun that ignore SIGTERM and have special characters in their name.
DEAF = """\
import os, signal, sys, time
if len(sys.argv) == 1:
    os.execv(sys.executable, ["deaf\\n\\t\\x1b[31m 'é\\" \\udcff", __file__, "now"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("/data/up", "w").close()
time.sleep(600)
"""
MPIRUN = (
    "cd ~/examples/horovod/tensorflow; setsid /usr/bin/mpirun -np 2 --hostfile hosts"
    " --map-by node python3 /home/ubuntu/deaf.py </dev/null >/dev/null 2>&1 &"
)
OWN = "setsid {} -c 'import time; time.sleep(600)' </dev/null >/dev/null 2>&1 & echo $!"


@pytest.fixture
def deaf(pair):
    """Return the cluster with a user's mpirun that ignores requests to end."""
    pair.put("deaf.py", DEAF)
    for node in (0, 1):
        pair.on(node, "rm -f /data/up")
    pair.on(0, MPIRUN)
    for node in (0, 1):
        eventually(lambda n=node: "up" in pair.on(n, "ls /data"), f"the rank of node {node}")
    yield pair
    pair.ctl("kill", "--all-python")
    for node in (0, 1):
        # End the shells that `kill` leaves alone, and remove what other tests do not need.
        pair.on(node, "pkill -KILL -f '[w]hile :; do sleep 1'; rm -f deaf.py /data/up")


def alive(pair, node, pid):
    return pair.on(node, f"kill -0 {pid} && echo yes || echo no") == "yes\n"


def test_the_jobs_own_end_by_force_and_the_users_stay(deaf):
    own = deaf.on(1, OWN.format("python3")).strip()
    shell = deaf.on(
        1, "setsid sh -c 'while :; do sleep 1; done' </dev/null >/dev/null 2>&1 & echo $!"
    )
    loop = 'trap "" TERM; while :; do sleep 1; done'
    child = deaf.on(
        1, f"CLUSTERCTL_JOB=x setsid sh -c '{loop}' </dev/null >/dev/null 2>&1 & echo $!"
    )
    status, shown, err = deaf.ctl("kill", "--dry-run")
    assert (status, err) == (0, "")
    assert " processes on pair-[0-1]\n" in shown
    assert "would end" in shown
    assert alive(deaf, 1, own)

    status, _, err = deaf.ctl("kill", "20261120-154501-3f2a")
    assert (status, "there is no job 20261120-154501-3f2a" in err) == (1, True)
    with deaf.fault(1, "gpu", "--memory", "14000"):
        status, out, err = deaf.ctl("kill", "--json")
        checked = json.loads(deaf.ctl("doctor", "--json")[1])
    assert status == 1, "what a GPU still holds is no success"
    unowned = [one["host"] for one in checked["findings"] if one["check"] == "gpu.memory"]
    assert unowned == ["pair-1"], "`doctor` finds it later, where `kill` ends nothing any more"
    report = json.loads(out)
    held = {"host": "pair-1", "gpu": 0, "mib": 14000, "pids": []}
    assert (report["left"], report["gpu_memory_held"], report["failures"]) == ([], [held], [])
    ended = report["processes"]
    ranks = {process["rank"]: process for process in ended if process["role"] == "rank"}
    assert {rank: process["host"] for rank, process in ranks.items()} == {0: "pair-0", 1: "pair-1"}
    assert ranks[1]["argv"] == ["deaf\n\t\x1b[31m 'é\" \\xff", "/home/ubuntu/deaf.py", "now"]
    by_pid = {(process["host"], process["pid"]): process["ended"] for process in ended}
    assert by_pid[("pair-1", int(child))] == "killed"
    assert {process["role"] for process in ended} >= {"rank", "launcher", "daemon"}
    assert all(process["ended"] in ("terminated", "killed") for process in ended)

    assert alive(deaf, 1, own)
    assert alive(deaf, 1, shell.strip())
    assert deaf.ctl("kill")[:2] == (0, "nothing to end\n")

    deaf.ok("kill", "--all-python", "--nodes", "0")
    assert alive(deaf, 1, own), "only node 0 was asked for"
    deaf.ok("kill", "--all-python", "--nodes", "1")
    assert not alive(deaf, 1, own)
    assert alive(deaf, 1, shell.strip())


def test_a_hostile_name_stays_on_its_line(deaf):
    """Of hosts without a cluster, named by a hosts file."""
    hosts = replace(deaf, by_hosts_file=True)
    out = hosts.ok("kill")
    table = out.splitlines()
    assert len([row for row in table if row.startswith("10.") and "rank" in row]) >= 2, out
    assert all(row.startswith(("NODE", "10.", "ended")) for row in table), out
    assert "\x1b" not in out
    hosts.ends(2, "--nodes is for nodes of a cluster", "kill", "--nodes", "1")


@pytest.mark.all
def test_a_dead_host_is_one_line_and_the_rest_end(deaf):
    with deaf.cut_off(1):
        status, out, err = deaf.ctl("kill")
        assert status == 255
        assert "on pair-0" in out
        assert [line for line in err.splitlines() if line.startswith("pair-1: ")], err
        assert "rank" in out
    deaf.ok("kill")


def test_a_node_there_is_not(pair):
    pair.ends(2, "has no node 2-7", "kill", "--nodes", "0-7")


@pytest.mark.parametrize(
    "command",
    ["kill", "cancel", "logs", "wait", "diagnose", "watch", "tuning", "results", "s3sync --cancel"],
)
def test_an_empty_job_is_not_all_that_runs(pair, command):
    """`kill NAME "$JOB"` has an empty job if the variable is not set."""
    status, _, err = pair.ctl(command, "")
    usage = 3 if command == "diagnose" else 2  # docs/exit-status.md
    said = "'' is empty" if command.startswith("s3sync") else "not the id of a job: ''"
    assert (status, said in err) == (usage, True), err
