"""Results of a cluster: a job's log, and a log folder on the head node. Real SSH and mpirun."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.domain.errors import AwsError, CommandFailed, NotFound
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.cloudwatch import Point
from clusterctl.jobs.metrics.logs import EvaluationRow, MetricPoint, MetricSeries, TrainingRow
from clusterctl.jobs.metrics.runs import Run
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations.cloudwatch import points_of, push
from clusterctl.operations.results import NoResults, Results, results_of_cluster
from tests.job_records import job_record
from tests.jobs.training_logs import HEADER, banner, evaluation, rows
from tests.lab.refusals import fault, refused, service
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

FOLDER = "examples/horovod/tensorflow"
EARLIER = banner(2) + HEADER + rows([0, 1, 50, 100, 150])
LATER = banner(2) + HEADER + rows([100, 150, 200]) + "Finished in 12.5\n" + evaluation(210, 1.5)
# Prints text like the trainer, once there is a file `go`.
TALK = f"""\
import os, sys, time
sys.stderr.write({LATER!r}.partition("Finished")[0])
while not os.path.exists("/data/go"):
    time.sleep(0.05)
sys.stderr.write({LATER!r}[{LATER.index("Finished")}:])
"""


@pytest.fixture
def quiet(pair):
    """Return the cluster without jobs and logs, with a fake trainer."""
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
        with pytest.raises(NoResults, match="no job is on record on pair") as none:
            results_of_cluster(access)
        assert "start one: clusterctl train pair" in none.value.hint

        # train.sh and train_synthetic.sh by hand make no job, but log folders.
        by_hand = [f"imagenet_resnet{kind}/hvd_train.log" for kind in ("", "_synthetic")]
        for path in by_hand:
            write(quiet, f"{FOLDER}/{path}", EARLIER)
        found = results_of_cluster(access)
        assert found.sources == tuple(f"pair-0:{path}" for path in by_hand)
        assert (steps(found.runs[0]), found.job) == ([0, 1, 50, 100, 150], None)

        # A job that resumes from a checkpoint of an earlier job, in its own folder.
        write(quiet, f"{FOLDER}/lo gs/hvd_train.log", EARLIER + LATER.partition("Finished")[0])
        arguments = ("--script", "~/mine/train_imagenet_resnet_hvd.py", "--", "--log_dir", "lo gs")
        out = quiet.ok("train", "1", "--detach", "--json", *arguments)
        job_id = json.loads(out)["job_id"]
        eventually(lambda: 200 in steps(results_of_cluster(access).runs[-1]), "the table")
        running = results_of_cluster(access)
        assert running.job is not None
        assert running.job.is_active
        [run] = running.runs
        assert steps(run) == [0, 1, 50, 100, 150, 200]
        assert (run.resumed_at, run.facts.finished_in_s) == ((100,), None)
        # With --follow, rows are on the screen and in the file before the job ends.
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
        eventually(lambda: not results_of_cluster(access).job.is_active, "the end")

        ended = results_of_cluster(access)
        assert ended.sources == ("pair-0:lo gs/hvd_train.log", f"the log of job {job_id}")
        assert ended.runs[0].evaluations[0].top1 == 1.5
        [alone] = results_of_cluster(access, job_id).runs
        assert steps(alone) == [100, 150, 200]
        [hand] = results_of_cluster(access, log_folder=f"~/{FOLDER}/imagenet_resnet").runs
        assert steps(hand) == [0, 1, 50, 100, 150]
        with pytest.raises(NotFound, match="there is no job 20010101-000000-abcd"):
            results_of_cluster(access, "20010101-000000-abcd")
        with pytest.raises(NotFound, match="there is no folder nada on pair-0"):
            results_of_cluster(access, log_folder="nada")
        with pytest.raises(NoResults, match="there is no hvd_train.log in ~/mine on pair-0"):
            results_of_cluster(access, log_folder="~/mine")
        quiet.on(0, "mkdir -p 'lo gs/hvd_train.log'")
        with pytest.raises(CommandFailed, match=r"cannot read ~/lo gs/hvd_train.log: cat: "):
            results_of_cluster(access, log_folder="~/lo gs")

    out = quiet.ok("results", "--json")
    shown = json.loads(out)
    assert (shown["job_id"], len(shown["runs"][0]["rows"])) == (job_id, 6)


def test_rows_are_in_cloudwatch_once_without_what_it_refuses(lab, tmp_path):
    now, day = time.time(), 86400.0
    job = job_record(duration_s=20 * day)
    rows = [TrainingRow(n, 0.1, 1.0, 1.0, 2.0, 0.1, time=now - 9000 + n) for n in range(2000)]
    rows[7] = replace(rows[7], loss=math.nan)
    rows[8] = replace(rows[8], time=now + 3 * 3600)
    old = [
        replace(rows[0], time=now - age * day) for age in (21, 15)
    ]  # of an earlier job, and of this one
    scores = EvaluationRow(2000, 0.1, 75.0, 92.0, 0.9, "", time=now)
    run = Run(rows=(*old, *rows[:1500], replace(rows[0], time=None)))
    found, folder = Results((), (run,), job=job), ClusterFolder(tmp_path / "demo")

    def count(metric):
        place = [{"Name": "Cluster", "Value": "demo"}, {"Name": "Job", "Value": job.job_id}]
        asked = {"Namespace": "Runs", "MetricName": metric, "Dimensions": place, "Period": 86400}
        said = service(lab, "cloudwatch").get_metric_statistics(
            **asked, StartTime=now - 2 * day, EndTime=now + day, Statistics=["SampleCount", "Sum"]
        )["Datapoints"]
        return sum(one["SampleCount"] for one in said), sum(one["Sum"] for one in said)

    home = {"CLUSTERCTL_HOME": str(lab.home), "CLUSTERCTL_LAB": "1"}
    clients = AppContext(load_settings({**os.environ, **home})).clients
    with (
        fault(lab, kind="error", action="PutMetricData", code="AccessDenied", times=2),
        pytest.raises(AwsError, match="not allowed"),
    ):
        push(clients, folder, found, "Runs")
    done = push(clients, folder, found, "Runs")
    assert (done.sent, done.metrics, done.before, done.untimed) == (5995, 4, 0, 1)
    left = done.left_out
    assert (left.no_numbers, left.too_old, left.too_new) == (1, 4, 4)
    assert (count("images_per_s"), count("loss")) == ((1499, 1499), (1498, 1498))
    # The job has continued: only new rows are sent.
    on = replace(found, runs=(replace(run, rows=tuple(rows), evaluations=(scores,)),))
    done = push(clients, folder, on, "Runs")
    assert (done.sent, done.before) == (2003, 5996)
    assert push(clients, folder, on, "Runs").sent == 0
    assert (count("images_per_s"), count("top1")) == ((1999, 1999), (1, 75))
    assert push(clients, folder, on, "Elsewhere").sent == 7998


def test_a_logs_metrics_are_spread_over_the_time_that_is_not_sent():
    began = datetime.fromtimestamp(1000, timezone.utc)
    job = job_record(JobState.SUCCEEDED, 0, began=began, duration_s=100.0)
    points = tuple(MetricPoint(line, None, line / 2) for line in (10, 50, 100))
    found = Results((), metrics=(MetricSeries("loss", points),), job=job)
    told = [Point("loss", 10, 1010, 5), Point("loss", 50, 1050, 25), Point("loss", 100, 1100, 50)]
    assert list(points_of(found, found.job, {})) == told
    assert [point.at for point in points_of(found, found.job, {"loss": (50, 1080)})][1:] == [
        1080,
        1100,
    ]


def test_the_lab_refuses_what_cloudwatch_refuses(lab):
    client, now = service(lab, "cloudwatch"), time.time()
    wrong = (
        ("AWS/EC2", {}),
        *(("x", {"Value": value}) for value in (math.nan, math.inf, 2.0**361)),
        *(("x", {"Timestamp": now + late}) for late in (-15 * 86400, 3 * 3600)),
    )
    for namespace, said in wrong:
        datum = {"MetricName": "x", "Value": 1.0, **said}
        code, _, _ = refused(client.put_metric_data, Namespace=namespace, MetricData=[datum])
        assert code == "InvalidParameterValue", said
    many = [{"MetricName": "x", "Value": 1.0}] * 1001
    assert refused(client.put_metric_data, Namespace="x", MetricData=many)[0] == code
