"""Results of a cluster: a job's log, and the log folder of the head node. Real SSH, real mpirun."""

from __future__ import annotations

import json

import pytest

from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.operations.results import NoResults, results_of_cluster
from tests.jobs.training_logs import HEADER, banner, evaluation, rows
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

FOLDER = "examples/horovod/tensorflow"
EARLIER = banner(2) + HEADER + rows([0, 1, 50, 100, 150])
LATER = banner(2) + HEADER + rows([100, 150, 200]) + "Finished in 12.5\n" + evaluation(210, 1.5)
# Says its text, as the trainer does: once there is a file `go`.
TALK = f"""\
import os, sys, time
sys.stderr.write({LATER!r}.partition("Finished")[0])
while not os.path.exists("/data/go"):
    time.sleep(0.05)
sys.stderr.write({LATER!r}[{LATER.index("Finished")}:])
"""


@pytest.fixture
def quiet(pair):
    """The cluster without jobs and logs, and with a trainer of ours."""
    pair.on(0, f"mkdir -p mine {FOLDER}/'lo gs'; rm -f /data/go")
    pair.on(0, "cat > mine/train_imagenet_resnet_hvd.py", TALK.encode())
    yield pair
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
    pair.on(0, f"rm -rf mine 'lo gs' {FOLDER}/'lo gs'")


def write(pair, path, text):
    pair.on(0, f"mkdir -p \"$(dirname '{path}')\" && cat > '{path}'", text.encode())


def steps(run):
    return [row.step for row in run.rows]


def test_a_job_its_log_folder_and_a_folder_by_itself(quiet, tmp_path):
    with quiet.access() as access:
        with pytest.raises(NoResults, match="no job has run on pair") as none:
            results_of_cluster(access)
        assert "start one: clusterctl train pair" in none.value.hint

        # train.sh and train_synthetic.sh by hand: no job, but log folders.
        by_hand = [f"imagenet_resnet{kind}/hvd_train.log" for kind in ("", "_synthetic")]
        for path in by_hand:
            write(quiet, f"{FOLDER}/{path}", EARLIER)
        found = results_of_cluster(access)
        assert found.sources == tuple(f"pair-0:{path}" for path in by_hand)
        assert (steps(found.runs[0]), found.job) == ([0, 1, 50, 100, 150], None)

        # A job that goes on from a checkpoint of an earlier one, in a folder of its own.
        write(quiet, f"{FOLDER}/lo gs/hvd_train.log", EARLIER + LATER.partition("Finished")[0])
        arguments = ("--script", "~/mine/train_imagenet_resnet_hvd.py", "--", "--log_dir", "lo gs")
        status, out, err = quiet.ctl("train", "1", "--detach", "--json", *arguments)
        assert status == 0, err
        job_id = json.loads(out)["id"]
        eventually(lambda: 200 in steps(results_of_cluster(access).runs[-1]), "the table")
        running = results_of_cluster(access)
        assert running.job is not None
        assert running.job.running
        [run] = running.runs
        assert steps(run) == [0, 1, 50, 100, 150, 200]
        assert (run.resumed_at, run.facts.finished_in_s) == ((100,), None)
        # Followed: rows are on the screen and in the file before the job ends.
        kept = tmp_path / "rows.csv"
        following = quiet.start("results", job_id, "--follow", "--csv", str(kept))
        assert following.stdout
        shown = [following.stdout.readline().split()[0] for _ in range(4)]
        assert shown == ["STEP", "100", "150", "200"]
        assert [line.split(",")[2] for line in kept.read_text().splitlines()] == [
            *("step", "100", "150", "200")
        ]
        quiet.on(0, "touch /data/go")
        out, err = following.communicate(timeout=240)
        assert (following.returncode, "Traceback" in err) == (0, False)
        assert out.startswith("step 210, epoch 90.0: top-1 1.500 %")
        assert kept.read_text().splitlines()[-1].startswith("1,eval,210,90.0,")
        eventually(lambda: not results_of_cluster(access).job.running, "the end")

        ended = results_of_cluster(access)
        assert ended.sources == ("pair-0:lo gs/hvd_train.log", f"the log of job {job_id}")
        assert ended.runs[0].evaluations[0].top1 == 1.5
        [alone] = results_of_cluster(access, job_id).runs
        assert steps(alone) == [100, 150, 200]
        [hand] = results_of_cluster(access, log_folder=f"~/{FOLDER}/imagenet_resnet").runs
        assert steps(hand) == [0, 1, 50, 100, 150]
        with pytest.raises(UsageError, match="there is no job 20010101-000000-abcd"):
            results_of_cluster(access, "20010101-000000-abcd")
        with pytest.raises(UsageError, match="there is no folder nada on pair-0"):
            results_of_cluster(access, log_folder="nada")
        with pytest.raises(NoResults, match="there is no hvd_train.log in ~/mine on pair-0"):
            results_of_cluster(access, log_folder="~/mine")
        quiet.on(0, "mkdir -p 'lo gs/hvd_train.log'")
        with pytest.raises(CommandFailed, match=r"cannot read ~/lo gs/hvd_train.log: cat: "):
            results_of_cluster(access, log_folder="~/lo gs")

    status, out, err = quiet.ctl("results", "--json")
    assert status == 0, err
    shown = json.loads(out)
    assert (shown["job"]["id"], len(shown["runs"][0]["rows"])) == (job_id, 6)


def test_a_cancelled_job_is_called_so(quiet):
    arguments = ("--script", "~/mine/train_imagenet_resnet_hvd.py", "--", "--log_dir", "lo gs")
    status, out, err = quiet.ctl("train", "1", "--detach", "--json", *arguments)
    assert status == 0, err
    job_id = json.loads(out)["id"]
    eventually(lambda: quiet.ctl("results", job_id)[0] == 0, "the table")
    assert quiet.ctl("cancel")[0] == 0
    status, out, err = quiet.ctl("results")
    assert status == 0, err
    assert f"job {job_id} was cancelled after " in err
    assert "; not finished" in out
