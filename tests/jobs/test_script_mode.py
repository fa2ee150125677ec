"""Requests to run a script-mode program, and requests that are refused before anything starts."""

from __future__ import annotations

import os

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.script_mode import (
    Channel,
    ScriptMode,
    parse_channel,
    parse_hyperparameter,
    parse_hyperparameters,
)
from tests.cli.forks import run_one


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("epochs=10", 10),
        ("lr=2.3e-05", 2.3e-05),
        ("opt=adam", "adam"),
        ("id=007", "007"),
        ("flag=true", True),
        ("nothing=null", None),
        ("list=[1, 2]", [1, 2]),
        ("text=a=b c", "a=b c"),
        ("empty=", ""),
        # Python refuses to parse a number with this many digits.
        ("huge=" + "9" * 5000, "9" * 5000),
    ],
)
def test_a_hyperparameters_value(text, value):
    name, _, _ = text.partition("=")
    assert parse_hyperparameter(text) == (name, value)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("s3://bucket/prefix/", "s3"),
        ("data", "here"),
        ("./data", "here"),
        ("file:///srv/data", "here"),
        ("~/data", "nodes"),
        ("/srv/data", "nodes"),
    ],
)
def test_where_a_channels_data_are(source, where):
    channel = parse_channel(f"train={source}")
    assert (channel.is_here, channel.is_on_nodes) == (where == "here", where == "nodes")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: parse_channel("train"),
        lambda: parse_channel("=s3://bucket"),
        lambda: parse_channel("tr ain=s3://bucket"),
        lambda: parse_channel("../x=data"),
        lambda: parse_channel("train="),
        lambda: parse_channel("train=s3://"),
        lambda: parse_channel("train=https://example.com/x"),
        lambda: parse_channel("train=gs://bucket"),
        lambda: Channel("train", "data", "Pope"),
        lambda: ScriptMode((Channel("a", "x"), Channel("a", "y"))),
        lambda: parse_hyperparameter("epochs"),
        lambda: parse_hyperparameters(("epochs=1", "lr=2", "epochs=1")),
        lambda: ScriptMode(hyperparameters={"": 1}),
        lambda: ScriptMode(hyperparameters={"x": float("nan")}),
        lambda: ScriptMode(hyperparameters={"x": "a\0b"}),
        lambda: ScriptMode(hyperparameters={"x": "a" * 3000}),
        lambda: ScriptMode(hyperparameters={f"x{n}": 1 for n in range(101)}),
        lambda: ScriptMode(model_url="/tmp/model"),
    ],
)
def test_what_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()


def test_the_contract():
    job_id = "20261120-154501-3f2a"
    node = {"address": "10.0.0.4", "instance_type": "p3.2xlarge", "slots": 1, "ranks": 1}
    nodes = [node]
    code = {"code": "/base/code", "script_path": "/base/code/t.py"}
    plan = JobPlan(job_id, 1, "gpu", False, "/work", ("mpirun",), port=28514, **code)
    mode = ScriptMode((Channel("train", "s3://bucket"),), {"k": 1}, framework="pytorch")
    assert mode.contract(plan, nodes) == {
        "job_id": job_id,
        "entry_point": "t.py",
        "framework": "pytorch",
        "hosts": [{"address": "10.0.0.4", "instance_type": "p3.2xlarge", "gpus": 1}],
        "processes_per_host": 1,
        "hyperparameters": {"k": 1},
        "channels": {"train": {"source": "s3://bucket", "mode": "File"}},
        "distribution": "mpi",
        "mpi_options": "",
        "port": 28514,
    }

    def named(**asked):
        return ScriptMode(**asked).contract(plan, nodes)["hyperparameters"]

    # Like SageMaker's TensorFlow estimator.
    assert named() == {"model_dir": "/base/model"}
    assert named(hyperparameters={"model_dir": False, "k": 1}) == {"k": 1}
    assert named(hyperparameters={"model_dir": "/opt/ml/m"}) == {"model_dir": "/base/m"}
    assert named(hyperparameters={"model_dir": "s3://bucket/m"}) == {"model_dir": "s3://bucket/m"}


def test_fewer_nodes_than_it_was_told_of_are_refused(tmp_path):
    environ = {**os.environ, "CLUSTERCTL_HOME": str(tmp_path)}
    words = ["train", "demo", "2", "--script", "a.py", "--hyperparameter", "k=1"]
    status, _, err = run_one([*words, "--retries", "1", "--min-gpus", "1"], environ)
    assert (status, "as many hosts as it began with" in err) == (2, True), err
