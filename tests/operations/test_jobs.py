"""`jobs`, `wait`, `fetch`, the queue and retries on the head node, on two hosts of the lab."""

from __future__ import annotations

import json

import pytest

from clusterctl.explain.catalogue import catalogue
from clusterctl.operations.logs import FIRST_STEP, first_error
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]


def started(pair, *options):
    status, out, err = pair.ctl("train", *options[:1], "--detach", "--json", *options[1:])
    assert status == 0, err
    return json.loads(out)["job_id"], err


def test_a_queue_runs_in_order_and_a_job_is_taken_out(quiet, tmp_path):
    stay = ("1", "--script", "~/stay.py")
    first, _ = started(quiet, *stay)
    second, told = started(quiet, *stay, "--queue", "--", "7")
    assert f"waits for job {first}, 1 job before it" in told
    third, told = started(quiet, *stay, "--queue")
    assert f"waits for job {second}, 2 jobs before it" in told
    assert [job["state"] for job in quiet.jobs()] == ["running", "queued", "queued"]
    eventually(lambda: "rank 0 is here" in quiet.ctl("logs")[1], "the log of what runs")
    assert quiet.ctl("cancel", third)[0] == 0
    assert [job["state"] for job in quiet.jobs()] == ["running", "queued", "cancelled"]
    quiet.on(0, "touch /data/go")
    status, _, err = quiet.ctl("wait", second)
    place = quiet.lab.home / "failed_jobs" / second
    assert (status, f"its record and logs are in {place}" in err) == (7, True), err
    assert [job["state"] for job in quiet.jobs()] == ["succeeded", "failed", "cancelled"]
    began = {job["job_id"]: job for job in quiet.jobs()}
    assert began[second]["started_at"] >= began[first]["ended_at"]
    # A folder that nobody may read hides no other job.
    quiet.on(0, f"chmod 0 .clusterctl/jobs/{third}")
    status, out, err = quiet.ctl("jobs")
    quiet.on(0, f"chmod 700 .clusterctl/jobs/{third}")
    assert (status, first in out, err.count("spec.json: Permission denied")) == (0, True, 1), out

    for _ in range(2):
        quiet.ok("fetch", second, str(tmp_path / "run"))
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert (record["exit_status"], record["argv"][1:3]) == (7, ["-np", "1"])
    [node] = record["nodes"]
    assert (node["name"], node["ranks"], node["instance_type"]) == ("pair-0", 1, "p3.2xlarge")
    assert node["image"].startswith("ami-")
    assert node["hourly_usd"] > 3
    assert {"tensorflow", "horovod", "mpirun", "kernel"} <= node["versions"].keys()
    assert "rank 0 goes" in (tmp_path / "run" / "log").read_text()
    quiet.ends(2, f"holds job {second}", "fetch", first, str(tmp_path / "run"))


TALKS = """\
import os, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
os.write(2, f"rank {rank} is here\\n".encode())
for fd, text in ((1, b"x" * (1 << 20) + b"\\n"), (2, bytes(range(11, 128)) + b"\\n")):
    while text:
        text = text[os.write(fd, text):]
while not os.path.exists("/data/go"):
    time.sleep(0.1)
for _ in range(8):
    print("y" * (1 << 20))
print(f"rank {rank} goes")
"""


def test_what_a_rank_writes_is_shown_followed_and_fetched(quiet, tmp_path):
    quiet.put("talks.py", TALKS)
    job_id, _ = started(quiet, "2", "--script", "~/talks.py")
    eventually(lambda: "xxxx" in quiet.ctl("logs", "--rank", "1")[1], "its long line")
    follower = quiet.start("logs", "-f", "--rank", "1")
    quiet.ctl("run", "touch /data/go")
    out, err = follower.communicate(timeout=240)
    assert (follower.returncode, out.count("is here"), "rank 1 goes" in out) == (0, 1, True), err
    assert quiet.ctl("fetch", job_id, str(tmp_path / "run"))[0] == 0
    for rank in (0, 1):
        said = (tmp_path / "run" / f"log-{rank}").read_bytes()
        lines = [b"rank %d is here" % rank, b"x" * (1 << 20), b"rank %d goes" % rank]
        lines += [b"y" * (1 << 20)] * 8  # mpirun ends right after them
        assert sorted(said.split(b"\n")) == sorted([*lines, bytes(range(11, 128)), b""])
    log = quiet.ctl("logs")[1]
    assert ("<std" in log, log.count("is here"), log.count("goes")) == (False, 2, 2)
    status, _, err = quiet.ctl("logs", "--rank", "2")
    assert (status, "has no rank 2" in err, "--rank 0 to 1" in err) == (2, True, True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log").write_text("mine")
    quiet.ends(2, "has its own file log", "fetch", job_id, str(tmp_path / "mine"))
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]


@pytest.mark.all
def test_what_a_full_disk_loses_of_a_log_is_said_and_a_reboot_loses_the_queue(quiet):
    quiet.put(
        "more.py", "import time\nwhile True: print('x' * 9999, flush=True); time.sleep(0.1)\n"
    )
    quiet.on(0, "mkdir -p .clusterctl/jobs && mv .clusterctl/jobs /data/")
    quiet.on(0, "ln -s /data/jobs .clusterctl/jobs")
    try:
        first, _ = started(quiet, "1", "--script", "~/more.py")
        second, _ = started(quiet, "1", "--script", "~/stay.py", "--queue")
        eventually(lambda: "xxx" in quiet.ctl("logs")[1], "its output")
        with quiet.fault(0, "fill"):
            eventually(lambda: quiet.ctl("logs") == quiet.ctl("logs"), "the disk to be full")
        said = "bytes of output are lost: the disk was full\nxxx"
        eventually(lambda: said in quiet.ctl("logs", "--rank", "0")[1], "what was lost")
        assert said in quiet.ctl("logs")[1]
        assert [job["state"] for job in quiet.jobs()] == ["running", "queued"]
        quiet.ok("reboot", "0", "--force")
        assert [(job["state"], job["head_rebooted"]) for job in quiet.jobs()] == [
            ("lost", True)
        ] * 2
        told = quiet.ctl("jobs")[2]
        for job_id in (first, second):
            assert f"job {job_id} was lost: the head node was rebooted" in told
        quiet.ends(1, "the head node was rebooted", "wait", second)
    finally:
        quiet.on(0, "rm .clusterctl/jobs && mv /data/jobs .clusterctl/jobs")


@pytest.mark.all
def test_a_lost_node_is_a_reason_to_start_again_and_an_exception_is_none(quiet):
    job_id, _ = started(quiet, "2", "--script", "~/stay.py", "--retries", "2", "--", "7")
    eventually(lambda: "rank 1 is here" in quiet.ctl("logs")[1], "both ranks")
    quiet.on(1, "pkill -9 -u $(id -u) -f '[p]rted'")
    eventually(lambda: quiet.ctl("logs")[1].count("rank 1 is here") == 2, "both ranks again")
    log = quiet.ctl("logs")[1]
    assert "clusterctl: starting again with 2 ranks on pair-0, pair-1" in log
    assert quiet.on(1, "pgrep -fc 'stay[.]py'") == "1\n", "the lost rank was ended"
    quiet.ctl("run", "touch /data/go")
    status, _, err = quiet.ctl("wait", job_id)
    assert status == 7, err
    first, second = quiet.jobs()[0]["attempts"]
    assert (first["lost"], first["retried"]) == (True, True)
    # The supervisor of the daemon that was killed may have ended the rank first.
    assert first["killed"].get("pair-1", 1) == 1
    assert (second["lost"], second["retried"]) == (False, False)
    assert "the failure is the job's own" in second["message"]


@pytest.mark.parametrize(
    ("line", "hint", "has_more"),
    [
        ("OSError: [Errno 28] No space left on device", "a disk: `df -h PATH`", True),
        ("bash: line 1: orted: command not found", "it is installed there: call mpirun by", True),
        ("FP8 reduction support begins with sm90 capable devices", "BF16 for what is", False),
    ],
)
def test_the_hint_of_a_first_error_is_one_step_and_where_the_others_are(
    tmp_path, line, hint, has_more
):
    log = tmp_path / "log"
    log.write_text(f"{line}\n")
    first, _, step, *more = first_error(log)
    assert first == f"first error, line 1: {line}"
    assert step.startswith(f"  hint: {hint}") and "; " not in step
    assert more == [f"  other causes and hints: clusterctl explain {log}"] * has_more


def test_that_a_lost_node_did_not_answer_is_not_explained_by_what_ec2_denies(tmp_path):
    log = tmp_path / "log"
    log.write_text("ssh: connect to host 10.0.0.7 port 22: Connection timed out\n")
    assert len(first_error(log)) > 1
    text = log.read_text().strip()
    assert first_error(log, is_lost=True) == [f"first error, line 1, 10.0.0.7: {text}"]


def test_the_first_step_of_each_remedy_is_whole():
    for remedy in (do for one in catalogue() for _, do in one.remedies):
        first = FIRST_STEP.findall(remedy)[0]
        assert first.count("(") == first.count(")") or remedy.count("(") != remedy.count(")"), first
