"""A SageMaker script-mode program on two hosts of the lab: its environment, and its results."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.domain.errors import UsageError
from clusterctl.node.scripts.collect import PACK
from clusterctl.node.scripts.pipe import order
from clusterctl.sagemaker import TensorFlow, TrainingFailed
from tests.lab.running import once_client

pytestmark = [pytest.mark.lab, pytest.mark.train]

PROGRAM = """\
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--model_dir")
parser.add_argument("--epochs", type=int)
parser.add_argument("--name")
args = parser.parse_args()
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
host = os.environ["SM_CURRENT_HOST"]
seen = {
    "args": vars(args),
    "cwd": os.getcwd() == os.environ["SM_MODULE_DIR"],
    "hosts": json.loads(os.environ["SM_HOSTS"]),
    "train": sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])),
    "test": pathlib.Path(os.environ["SM_CHANNEL_TEST"], "t e s t").read_text(),
}
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
(model / "same").write_text("same")
(model / f"of {host}").write_text("own")
if rank == 0:
    (model / "1").mkdir()
    (model / "1" / "saved_model.pb").write_bytes(bytes(range(256)))
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "differs").write_text(str(rank))
print("SEEN", json.dumps(seen), flush=True)
"""


@pytest.fixture
def s3(pair):
    client = once_client(pair.lab, "s3")
    client.create_bucket(Bucket="channels")
    for key in ("train/a.npz", "train/deep/b.npz"):
        client.put_object(Bucket="channels", Key=key, Body=key.encode())
    with pair.instance_profile():
        yield client


def test_a_program_of_sagemakers_and_what_it_leaves(pair, s3, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t e s t").write_text("tests")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "program.py").write_text(PROGRAM)
    status, out, err = pair.ctl(
        *("train", "2", "--script", os.path.relpath(tmp_path / "src" / "program.py")),
        *("--channel", "train=s3://channels/train/", "--channel", f"test=file://{tmp_path}/data"),
        *("--hyperparameter", "epochs=3", "--hyperparameter", "name=two words"),
        *("--model-dir", "s3://channels/models"),
    )
    assert status == 0, err + out
    [job] = pair.jobs()
    with pair.access() as access:
        addresses = [node.private_ip for node in access.cluster.nodes]
    seen = [json.loads(line.partition("SEEN ")[2]) for line in out.splitlines() if "SEEN" in line]
    base = f"/home/ubuntu/.clusterctl/code/{job['job_id']}"
    assert seen == 2 * [
        {
            "args": {"model_dir": f"{base}/model", "epochs": 3, "name": "two words"},
            "cwd": True,
            "hosts": addresses,
            "train": ["a.npz", "deep"],
            "test": "tests",
        }
    ]
    model = {"model/same", "model/1/saved_model.pb", *(f"model/of {one}" for one in addresses)}
    place = f"models/{job['job_id']}/"
    kept = {one["Key"] for one in s3.list_objects_v2(Bucket="channels", Prefix=place)["Contents"]}
    whole = {*model, "output/data/differs", "conflicts/pair-1/output/data/differs"}
    assert kept == {place + name for name in (*whole, "manifest.json")}

    pair.ok("fetch", job["job_id"], str(tmp_path / "kept"))
    manifest = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    for name in whole:
        content = (tmp_path / "kept" / name).read_bytes()
        [told] = [one for one in manifest[name.partition("/")[0]] if name.endswith(one["path"])]
        assert (told["bytes"], told["sha256"]) == (len(content), sha256(content).hexdigest())
    assert (tmp_path / "kept" / "model/1/saved_model.pb").read_bytes() == bytes(range(256))
    assert pair.ctl("fetch", job["job_id"], str(tmp_path / "kept"), "--verify")[0] == 0
    # A folder that cannot be read is an error: it is not left out.
    pair.on(0, f"mkdir -m 0 {base}/model/closed")
    packed = pair.on(0, f"({PACK.format(job['job_id'], 'model')}) 2>&1 >/dev/null || echo failed")
    assert ("model/closed" in packed, packed.endswith("failed\n")) == (True, True)
    pair.on(0, f"rmdir {base}/model/closed")
    (tmp_path / "own" / "model").mkdir(parents=True)
    pair.ends(2, "has its own file model", "fetch", job["job_id"], str(tmp_path / "own"))
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
    assert pair.on(1, "ls ~/.clusterctl/code") == ""


def test_a_training_that_does_not_begin_leaves_nothing_on_the_nodes(pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("pass\n")
    run = ("train", "2", "--script", "program.py", "--model-dir", "s3://none/x")
    pair.ends(1, "no credentials for S3: no instance profile", *run)
    monkeypatch.setattr("clusterctl.operations.train._check_upload", _interrupt)
    for name, value in pair.environ.items():
        monkeypatch.setenv(name, value)
    assert run_command(cli, ["train", pair.name, *run[1:]]) == 130
    assert pair.on_all("ls ~/.clusterctl/code") == ["", ""]


def _interrupt(*_):
    raise KeyboardInterrupt


JOB = """\
entry_point: deep/program.py
source_dir: src
instance_count: 2
distribution: {mpi: {enabled: true, custom_mpi_options: -x T=/opt/ml/output/t}}
hyperparameters: {epochs: 3, name: two words}
inputs: {train: data, test: data}
metric_definitions: [{Name: 'the:loss', Regex: 'SEEN.*"epochs": ([0-9]+)'}]
role: any
"""


@pytest.mark.all
def test_a_job_file(pair, tmp_path):
    for name, text in {
        "data/t e s t": "x",
        "src/deep/program.py": PROGRAM,
        "job.yaml": JOB,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    status, out, err = pair.ctl(
        *("train", "--job-file", str(tmp_path / "job.yaml")),
        *("--model-dir", str(tmp_path / "kept")),
    )
    assert status == 0, err + out
    assert "left to the cluster: role\n" in err
    [job] = pair.jobs()
    assert job["variables"] == {"T": f"/home/ubuntu/.clusterctl/code/{job['job_id']}/output/t"}
    assert (tmp_path / "kept" / "model/1/saved_model.pb").read_bytes() == bytes(range(256))
    [metric] = json.loads(pair.ctl("results", "--json")[1])["metrics"]
    values = [point["value"] for point in metric["points"]]
    assert (metric["name"], values) == ("the:loss", [3.0, 3.0])
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


@pytest.mark.all
def test_an_estimator_whose_job_fails(pair, tmp_path, monkeypatch):
    """Neither the files that it left nor an earlier model are served."""
    (tmp_path / "program.py").write_text(
        "import os; open(os.environ['SM_MODEL_DIR'] + '/half', 'w'); raise SystemExit(3)"
    )
    for name, value in pair.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    estimator = TensorFlow("program.py", cluster=pair.name)
    with pytest.raises(TrainingFailed, match="failed with exit status 3"):
        estimator.fit()
    [job] = pair.jobs()
    assert estimator.latest_training_job.name == job["job_id"]
    with pytest.raises(TrainingFailed, match="failed with exit status 3"):
        estimator.deploy()
    with pytest.raises(TrainingFailed, match="there is no"):
        estimator.fit({"train": "nothing"})
    with pytest.raises(UsageError, match="nothing was trained yet"):
        estimator.deploy()
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


STREAM_PROGRAM = """\
import hashlib, json, os
rank = os.environ["OMPI_COMM_WORLD_RANK"]
seen = {"mode": json.loads(os.environ["SM_INPUT_DATA_CONFIG"])["train"]["TrainingInputMode"]}
for name in ("train", "test"):
    place = os.environ[f"SM_CHANNEL_{name.upper()}"]
    seen[name] = []
    for epoch in range(2):
        with open(f"{place}_{epoch}", "rb") as fifo:
            seen[name].append(hashlib.sha256(fifo.read()).hexdigest())
print("SEEN", rank, json.dumps(seen), flush=True)
"""
STREAM_JOB = """\
entry_point: program.py
source_dir: src
instance_count: 2
distribution: {mpi: {enabled: true, processes_per_host: 1}}
input_mode: Pipe
channels:
  train: {source: 's3://streams/train/', distribution: ShardedByS3Key, shuffle_seed: 3}
  test: data
"""


@pytest.mark.all
def test_streams_of_two_ranks(pair, tmp_path):
    s3 = once_client(pair.lab, "s3")
    s3.create_bucket(Bucket="streams")
    shards = {f"train/{n}": os.urandom(700_000 * n) for n in range(7)}
    for key, body in shards.items():
        s3.put_object(Bucket="streams", Key=key, Body=body)
    for name, text in {
        "src/program.py": STREAM_PROGRAM,
        "job.yaml": STREAM_JOB,
        "data/a": "first",
        "data/b/c": "second",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job = ("train", "--job-file", str(tmp_path / "job.yaml"))
    with pair.instance_profile():
        status, out, err = pair.ctl(*job)
        assert status == 0, err + out
        lines = [line.partition("SEEN ")[2].split(" ", 1) for line in out.splitlines()]
        seen = {int(rank): json.loads(told) for rank, told in (one for one in lines if one[1:])}
        stream = {"objects": [[key, 0, ""] for key in sorted(shards)], "shuffle_seed": 3}
        stream["distribution"] = "ShardedByS3Key"
        for rank in range(2):
            parts = [order(stream, epoch, rank, 2) for epoch in range(2)]
            whole = [b"".join(shards[key] for key, _, _ in one) for one in parts]
            assert seen[rank] == {
                "mode": "Pipe",
                "train": [sha256(one).hexdigest() for one in whole],
                "test": 2 * [sha256(b"firstsecond").hexdigest()],
            }
        # One object for two ranks that share the data: nothing is started.
        jobs = len(json.loads(pair.ctl("jobs", "--json")[1]))
        (tmp_path / "job.yaml").write_text(STREAM_JOB.replace("train/'", "train/3'"))
        pair.ends(2, "channel train: 1 object in s3://streams/train/3 for 2 ranks", *job)
        (tmp_path / "job.yaml").write_text(STREAM_JOB.replace("train/'", "none/'"))
        pair.ends(1, "channel train: there is nothing at s3://streams/none/", *job)
        assert len(json.loads(pair.ctl("jobs", "--json")[1])) == jobs
    assert pair.on(1, "pgrep -fc '[r]ank.pyz' || true").strip() == "0"
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


HEAVY_PROGRAM = """\
import os, pathlib, time
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
(model / "weights").write_bytes(b"w" * 30_000_000)
while not pathlib.Path.home().joinpath("may-end").exists():
    time.sleep(0.1)
"""


@pytest.mark.all
def test_a_disk_that_is_full_when_the_model_is_collected(pair, tmp_path):
    """The job fails, and no incomplete file counts as complete. `fetch` brings the model later."""
    (tmp_path / "program.py").write_text(HEAVY_PROGRAM)
    pair.on(0, "mkdir -p .clusterctl/jobs && mv .clusterctl/jobs /data/")
    pair.on(0, "ln -s /data/jobs .clusterctl/jobs")
    try:
        script = ("--script", os.path.relpath(tmp_path / "program.py"))
        pair.ok("train", "1", *script, "--hyperparameter", "k=1", "--detach")
        [job] = pair.jobs()
        with pair.fault(0, "fill"):
            pair.on(0, "touch may-end")
            assert pair.ctl("wait", job["job_id"])[0] == 1
        [job] = pair.jobs()
        assert job["state"] == "failed"
        assert (
            pair.on(0, f"ls /data/jobs/{job['job_id']} | grep -c 'manifest\\|collecting' || true")
            == "0\n"
        )
        pair.ok("fetch", job["job_id"], str(tmp_path / "kept"))
        assert (tmp_path / "kept/model/weights").read_bytes() == b"w" * 30_000_000
        assert (tmp_path / "kept/manifest.json").exists()
    finally:
        pair.on(0, "rm -f may-end; rm .clusterctl/jobs && mv /data/jobs .clusterctl/jobs")
        pair.ctl("clean-logs", "--jobs", "--force", "--yes")
