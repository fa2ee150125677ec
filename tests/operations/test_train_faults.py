"""Jobs that are interrupted, cancelled or cut off, or have full disks, on two hosts of the lab."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]


def test_ctrl_c_leaves_the_job_running(quiet):
    process = quiet.start("train", "2", "--script", "~/stay.py")
    # mpirun may first warn about setpgid, for which parent and child race.
    for rank in (0, 1):
        eventually(lambda: "is here" in process.stdout.readline(), f"rank {rank}")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "clusterctl logs pair 20" in err
    assert "clusterctl cancel pair" in err
    assert [job["state"] for job in quiet.jobs()] == ["running"]

    status, _, err = quiet.ctl("train", "1", "--synthetic")
    assert status == 1
    assert ("is running on pair" in err, "(--queue)" in err) == (True, True), err
    assert "--force" in err

    follower = quiet.start("logs", "-f")
    eventually(lambda: "is here" in follower.stdout.readline(), "the log")
    quiet.ctl("run", "touch /data/go")
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert "rank 0 goes" in out
    assert [job["state"] for job in quiet.jobs()] == ["succeeded"]


@pytest.mark.all
def test_a_lost_connection_is_taken_up_again(quiet):
    process = quiet.start("train", "1", "--script", "~/stay.py")
    eventually(lambda: process.stdout.readline() == "rank 0 is here\n", "rank 0")
    end_sessions = "sleep 0.3; pkill -f ^sshd:.ubuntu"
    quiet.on(0, f"setsid sudo -n sh -c {json.dumps(end_sessions)} </dev/null >/dev/null 2>&1 &")
    line = process.stderr.readline()
    while "the connection was lost" not in line or "Trying again" not in line:
        assert line, "the loss went unnoticed"
        line = process.stderr.readline()
    quiet.on(0, "touch /data/go")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, "rank 0 goes\n"), err


def test_cancel_leaves_nothing_on_any_node(quiet, stay):
    job_id = stay(2)
    out = quiet.ok("cancel")
    assert f"job {job_id} cancelled after " in out, "its mpirun's own status says nothing"
    for node in (0, 1):
        assert quiet.on(node, "pgrep -f 'stay[.]py|prte[d]|prteru[n]' || echo none") == "none\n"
    assert quiet.ctl("cancel")[:2] == (0, "nothing is running\n")
    assert [job["state"] for job in quiet.jobs()] == ["cancelled"]
    status, out, _ = quiet.ctl("cancel", job_id)
    assert (status, "cancelled" in out) == (0, True)


@pytest.mark.all
def test_what_a_lost_rank_left_is_found_and_keeps_a_job_from_starting(quiet, stay):
    run = ("train", "1", "--script", "~/stay.py")
    job_id = stay(2)
    quiet.on(1, "pkill -9 -u $(id -u) -f '[p]rted'")
    eventually(lambda: quiet.jobs()[0]["state"] != "running", "mpirun to notice")
    # mpirun's exit status is usually 0 in this case.
    assert (quiet.jobs()[0]["state"], quiet.jobs()[0]["exit_status"]) == ("failed", 255)
    # Of the job itself nothing is left there. This is as a rank that nothing could end.
    eventually(lambda: not quiet.on(1, "pgrep -f 'stay[.]py' || :"), "the rank's end")
    rank = f"export OMPI_COMM_WORLD_RANK=1 CLUSTERCTL_JOB={job_id}"
    pid = quiet.on(1, f"{rank}; setsid python3 ~/stay.py >/dev/null 2>&1 & echo $!").strip()
    own = quiet.on(
        1, "exec setsid python3 -c 'import time; time.sleep(600)' >/dev/null 2>&1 & echo $!"
    )

    quiet.on(0, "touch /data/go")
    status, _, err = quiet.ctl(*run)
    said = f"pair-1: process {pid} of an earlier job is still there: "
    assert (status, said in err, "clusterctl kill pair" in err) == (1, True, True), err
    assert "/stay.py" in err.partition(said)[2].partition("\n")[0]
    quiet.ends(0, f"warning: {said}", *run, "--force")

    with quiet.fault(1, "cut"):
        for verb, said in (("cancel", "nothing is running"), ("kill", "nothing to end")):
            status, out, err = quiet.ctl(verb)
            assert (status, out) == (255, f"{said} on pair-0\n")
            assert err.startswith("pair-1: ")
    status, out, err = quiet.ctl("kill")
    assert (status, f"pair-1  {pid} " in out, "none left" in out) == (0, True, True), (out, err)
    assert quiet.ctl(*run)[0] == 0
    assert quiet.on(1, f"kill {own}") == "", "a program of the user's own had stayed"


@pytest.mark.all
def test_a_cut_link_ends_the_job_in_seconds_and_kill_finds_what_is_left(quiet, stay):
    # The default of a minute is long for a test.
    keep_alives = "--prtemca plm_ssh_args '-o ServerAliveInterval=2 -o ServerAliveCountMax=3'"
    stay(2, "--mpi-arg", keep_alives)
    with quiet.cut_off(1):
        eventually(lambda: quiet.jobs()[0]["state"] == "failed", "mpirun to notice")
    # The rank on the cut-off node could not be reached and ended.
    out = quiet.ok("kill")
    assert "none left" in out or out == "nothing to end\n"


STRAY = """\
import subprocess, time
subprocess.Popen(["/usr/bin/setsid", "env", "-i", "/usr/bin/sleep", "7177"])
print("rank is here", flush=True)
time.sleep(600)
"""
# On which node, and what is killed there with `kill -9`.
KILLED = {
    "daemon": (1, "pkill -9 -n -x prted"),
    "supervisor of the daemon": (1, "pkill -9 -n -f '^python3.*[s]tart_daemon.py'"),
    "outer supervisor": (1, "pkill -9 -o -f '^python3.*[s]tart_daemon.py'"),
    "mpirun": (0, "pkill -9 -x prterun"),
    "ssh": (0, "pkill -9 -f '^/usr/bin/[s]sh -x.*PRTE_PREFIX'"),
    "runner": (0, "pkill -9 -o -f '[r]unner.py'"),
    "supervisor": (0, "pkill -9 -n -f '[r]unner.py'"),
}


@pytest.mark.all
@pytest.mark.parametrize("victim", KILLED)
def test_whatever_is_killed_no_process_of_the_job_stays_on_any_node(quiet, victim):
    quiet.on_all("cat >stray.py", STRAY.encode())
    quiet.ok("train", "2", "--detach", "--script", "~/stray.py")
    eventually(lambda: quiet.ctl("logs")[1].count("rank is here\n") == 2, "both ranks")
    quiet.on(*KILLED[victim])
    eventually(lambda: quiet.jobs()[0]["state"] != "running", "its end")
    status = {"mpirun": 137, "supervisor": 137, "runner": None}.get(victim, 255)
    state = "lost" if victim == "runner" else "failed"
    assert (quiet.jobs()[0]["state"], quiet.jobs()[0]["exit_status"]) == (state, status)
    left = "pgrep -fa '^/usr/bin/[s]leep 7177|[s]tray.py|[p]rted' || :"
    eventually(lambda: not any(quiet.on_all(left)), "nothing to be left")


@pytest.mark.all
def test_ten_seconds_of_silence_do_not_end_a_job(quiet, stay):
    stay(2)
    with quiet.fault(1, "freeze"):
        time.sleep(10)
    quiet.ctl("run", "touch /data/go")
    status, out, err = quiet.ctl("logs", "-f")
    assert (status, "rank 1 goes" in out) == (0, True), err


@pytest.fixture
def jobs_on_data(quiet):
    """Move the folder of jobs to the head node's /data, which can be filled."""
    quiet.on(0, "mkdir -p .clusterctl/jobs && mv .clusterctl/jobs /data/")
    quiet.on(0, "ln -s /data/jobs .clusterctl/jobs")
    yield quiet
    quiet.ctl("cancel")
    quiet.on(0, "rm .clusterctl/jobs && mv /data/jobs .clusterctl/jobs")


@pytest.mark.all
def test_a_full_disk_hides_no_job_and_no_end(jobs_on_data, stay):
    pair = jobs_on_data
    run = ("train", "1", "--detach", "--script", "~/stay.py")
    for cancelled, ends in (
        (False, [("failed", 7)]),
        (True, [("cancelled", 1), ("cancelled", 143)]),
    ):
        stay(1, "--", "7")
        with pair.fault(0, "fill"):
            pair.ends(1, "its disk is full", *run, "--force")
            assert [job["state"] for job in pair.jobs()][-1] == "running"
            if cancelled:
                assert pair.ctl("cancel")[0] == 0
            else:
                pair.on(0, "touch /data/go")
            eventually(lambda: pair.jobs()[-1]["state"] != "running", "its end")
            last = pair.jobs()[-1]
            assert (last["state"], last["exit_status"]) in ends
        pair.on(0, "rm -f /data/go")
    assert len(pair.jobs()) == 2, "of the jobs that did not start nothing is left"


@pytest.mark.all
def test_a_job_is_ended_where_nothing_can_be_written(jobs_on_data, stay):
    pair = jobs_on_data
    stay(1)
    with pair.fault(0, "readonly"):
        status, _, err = pair.ctl("cancel")
        assert (status, pair.on(0, "pgrep -f 'stay[.]py' || echo none")) == (0, "none\n"), err
