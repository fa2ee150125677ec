"""A script-mode program gets the same variables and arguments as from sagemaker-training 5.1.4.

The JSON file beside this has the toolkit's output (Environment().to_env_vars(), to_cmd_args()) for
the same hyperparameters, channels and host, with the folder /opt/ml.
"""

from __future__ import annotations

import json
from pathlib import Path

from clusterctl.node.scripts.contract import arguments, configuration, environment

REAL = json.loads(Path(__file__).with_name("sagemaker-training-5.1.4.json").read_text())
CONTRACT = {
    "job_id": "20261120-154501-3f2a",
    "entry_point": "t.py",
    "framework": "tensorflow",
    "hosts": [{"address": "algo-1"}],
    "processes_per_host": 1,
    "hyperparameters": {"batch-size": 256, "k": 3, "opt": "adam", "raw": "007", "flag": True,
        "nothing": None, "list": [1, 2], "map": {"a": 1, "b": [1, 2]}, "é": "a b'\""},
    "channels": {name: {"source": "s3://b", "mode": "File"} for name in ("train", "test")},
    "distribution": "",
    "mpi_options": "",
}  # fmt: skip
HOST = {
    "address": "algo-1",
    "cpus": 2,
    "gpus": 0,
    "interface": "eth0",
    "instance_type": "ml.p3.16xlarge",
}


def test_variables_and_arguments_are_the_toolkits():
    ours, theirs = environment(CONTRACT, HOST, "/opt/ml"), dict(REAL["vars"])
    assert (ours.pop("TRAINING_JOB_NAME"), ours.pop("TRAINING_JOB_ARN")) == (CONTRACT["job_id"], "")
    named = json.loads(theirs["SM_TRAINING_ENV"]) | {"job_name": CONTRACT["job_id"]}
    # The file has an addition of its estimator: MPI, not enabled.
    named["additional_framework_parameters"] = {}
    assert json.loads(ours.pop("SM_TRAINING_ENV")) == named
    del theirs["SM_TRAINING_ENV"]
    assert ours == {**theirs, "SM_FRAMEWORK_PARAMS": "{}"}
    assert arguments(CONTRACT["hyperparameters"]) == REAL["args"]


def test_the_files_of_input_config():
    files = configuration(CONTRACT, HOST)
    hyperparameters = files["hyperparameters.json"]
    assert {name: json.loads(text) for name, text in hyperparameters.items()} == CONTRACT[
        "hyperparameters"
    ]
    assert files["inputdataconfig.json"] == json.loads(REAL["vars"]["SM_INPUT_DATA_CONFIG"])
    assert files["resourceconfig.json"] == json.loads(REAL["vars"]["SM_RESOURCE_CONFIG"])


def test_what_mpi_and_parameter_servers_are_told():
    def told(**more):
        return json.loads(environment({**CONTRACT, **more}, HOST, "/b")["SM_FRAMEWORK_PARAMS"])

    assert told(distribution="mpi", processes_per_host=2, mpi_options="-verbose") == {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": 2,
        "sagemaker_mpi_custom_mpi_options": "-verbose",
    }
    assert told(distribution="parameter_server") == {"sagemaker_parameter_server_enabled": True}
