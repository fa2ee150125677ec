"""A spot interruption under a running job: each command that meets the lost node names it."""

from __future__ import annotations

import json

import pytest

from tests.operations.conftest import STAY
from tests.pair import LabCluster, eventually

pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.all]

SPOT = "a spot interruption at 20"
CODE = "(Server.SpotInstanceTermination)"
KEEP_ALIVES = "--prtemca plm_ssh_args '-o ServerAliveInterval=2 -o ServerAliveCountMax=3'"


@pytest.fixture(scope="module")
def spot(lab):
    """Yield a spot cluster of two nodes whose worker is interrupted while a job runs on both."""
    cluster = LabCluster(lab, "spotty")
    kinds = ("--nodes", "2", "--instance-type", "p3.2xlarge", "--spot", "--max-hours", "8")
    cluster.ok("up", *kinds, "--yes")
    try:
        cluster.put("stay.py", STAY)
        job = ("2", "--script", "~/stay.py", "--mpi-arg", KEEP_ALIVES, "--detach")
        cluster.ok("train", *job)
        eventually(lambda: cluster.ctl("logs")[1].count(" is here\n") == 2, "both ranks")
        with cluster.access() as access:
            worker = access.cluster.nodes[1].instance_id
        # Longer than the guards' polls, so that the head node has the notice before.
        cluster.lab_fault("interrupt", worker, "--in", "25s")
        eventually(lambda: cluster.ctl("status")[2].count(SPOT), "the interruption")
        yield cluster
    finally:
        cluster.ctl("down", "--yes", "--discard-results")


def test_every_command_says_that_it_was_a_spot_interruption(spot):
    # While the job still waits for the lost rank, or after mpirun has noticed.
    status, out, err = spot.ctl("diagnose", "--json")
    [gone] = [one for one in json.loads(out)["findings"] if one["check"] == "host.off"]
    assert (status, gone["severity"]) == (2, "error"), err
    assert (SPOT in gone["message"], CODE in gone["message"]) == (True, True)
    assert "clusterctl up spotty" in gone["hint"]

    waits = spot.start("wait")
    _, err = waits.communicate(timeout=240)
    assert waits.returncode == 255
    lost = f"lost spotty-1: {SPOT}"
    assert f"its last failed attempt {lost}" in err

    shown = json.loads(spot.ctl("status", "--json")[1])
    [node] = shown["gone"]
    assert (node["name"], node["by"]) == ("spotty-1", "a spot interruption")
    assert node["at"].startswith("20")
    assert (shown["missing"], shown["costs"]["complete"]) == ([1], False)

    [job] = spot.jobs()
    assert job["attempts"][0]["reasons"]["spotty-1"].startswith(SPOT)
    assert job["attempts"][0]["notices"]["spotty-1"]["action"] == "terminate"
    for command, status, said in (
        (("status",), 0, SPOT),
        (("jobs",), 0, lost),
        (("logs",), 0, "EC2 had given notice for spotty-1: terminate at 20"),
        (("doctor",), 1, SPOT),
        (("costs",), 0, SPOT),
        (("run", "true"), 0, f"spotty-1: it is gone: {SPOT}"),
        (("train", "2", "--synthetic", "--dry-run"), 2, f"spotty-1: it is gone: {SPOT}"),
        (("ssh", "1", "--", "true"), 255, f"as terminated: {SPOT}"),
    ):
        ended, out, err = spot.ctl(*command)
        assert (ended, said in out + err) == (status, True), (command, out, err)
