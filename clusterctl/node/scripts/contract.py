"""The variables, arguments and configuration files of a SageMaker script-mode program.

All of it is computed from the job's contract, which is the same on every node:

    job_id, entry_point (below code/), framework (tensorflow, pytorch, mxnet)
    hosts               [{"address", "instance_type", "gpus": N}], the head node first
    processes_per_host  ranks on each host
    hyperparameters     {NAME: VALUE}, values as JSON has them
    channels            {NAME: {"source", "mode": "File" or "Pipe", ...}}; more in pipe.py
    distribution        "mpi", "parameter_server" or "" (a process on each host)
    mpi_options         custom_mpi_options as given
    port                the first of the ports for parameter servers; more in parameter_servers.py

Names, formats and special cases are those of sagemaker-training 5.1.4, whose output a test compares
with this module's (tests/node/scripts/test_contract.py). The value of a variable is JSON without
spaces and with sorted keys. A string is not quoted, and None is empty.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIPES = "input/pipes"  # FIFOs, in a folder for each rank
# The name that SageMaker gives the only group of instances of a job.
GROUP = "homogeneousCluster"
LOG_LEVEL = 20  # logging.INFO


def arguments(hyperparameters: dict[str, Any]) -> list[str]:
    """Return the program's arguments, sorted by name: `--epochs 10`, or `-k 3` for a name of one
    letter.

    True becomes `True`, a list `[1, 2]`, a mapping `a=1,b=2`. A flag without a value is impossible.
    """
    words = []
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        text = "" if value is None else str(value)
        if isinstance(value, dict):
            text = ",".join(f"{key}={inner}" for key, inner in value.items())
        words += ["-" * min(len(name), 2) + name, text]
    return words


def environment(contract: dict[str, Any], host: dict[str, Any], base: str) -> dict[str, str]:
    """Return the SM_ variables of the program. `base` is the job's folder, in place of /opt/ml.

    `host` is what the node itself adds: address, instance_type, cpus, gpus, interface, rank.
    """
    hyperparameters = contract["hyperparameters"]
    channels = sorted(contract["channels"])
    # Each rank has FIFOs of its own: two processes that read one would share its bytes.
    places = {
        name: f"{base}/{PIPES}/{host['rank']}/{name}"
        if contract["channels"][name]["mode"] == "Pipe"
        else f"{base}/input/data/{name}"
        for name in channels
    }
    addresses = [one["address"] for one in contract["hosts"]]
    entry_point = contract["entry_point"]
    module = entry_point[:-3] if entry_point.endswith(".py") else entry_point
    folders = {
        "model_dir": f"{base}/model",
        "input_dir": f"{base}/input",
        "input_config_dir": f"{base}/input/config",
        "output_dir": f"{base}/output",
        "output_data_dir": f"{base}/output/data",
        "output_intermediate_dir": f"{base}/output/intermediate",
    }
    known: dict[str, Any] = {
        **folders,
        "hosts": addresses,
        "current_host": host["address"],
        "num_cpus": host["cpus"],
        "num_gpus": host["gpus"],
        "num_neurons": 0,
        "network_interface_name": host["interface"],
        "log_level": LOG_LEVEL,
        "input_data_config": input_data_config(contract),
        "resource_config": resource_config(contract, host),
        "current_instance_type": host["instance_type"],
        "current_instance_group": GROUP,
        "current_instance_group_hosts": addresses,
        "instance_groups": [GROUP],
        "instance_groups_dict": {GROUP: _group(addresses, host)},
        "distribution_instance_groups": [],
        "is_hetero": False,
    }
    training = {
        **known,
        "additional_framework_parameters": framework_parameters(contract),
        "distribution_hosts": [],
        "channel_input_dirs": places,
        "framework_module": None,
        "hyperparameters": hyperparameters,
        "is_master": host["address"] == addresses[0],
        "is_modelparallel_enabled": None,
        "is_smddpmprun_installed": False,
        "is_smddprun_installed": False,
        "job_name": contract["job_id"],
        "master_hostname": addresses[0],
        "module_dir": f"{base}/code",
        "module_name": module,
        "topology": [],
        "user_entry_point": entry_point,
    }
    values = {
        **known,
        "channels": channels,
        "framework_module": None,
        "framework_params": framework_parameters(contract),
        "hps": hyperparameters,
        "module_dir": f"{base}/code",
        "module_name": module,
        "user_args": arguments(hyperparameters),
        "user_entry_point": entry_point,
        "training_env": training,
        **{f"channel_{name}": place for name, place in places.items()},
        **{f"hp_{name}": value for name, value in hyperparameters.items()},
    }
    # As in the toolkit, names are only upper-cased. No shell can use `SM_HP_BATCH-SIZE`.
    toolkit = {f"SM_{name.upper()}": _text(value) for name, value in values.items()}
    return {**toolkit, "TRAINING_JOB_NAME": contract["job_id"], "TRAINING_JOB_ARN": ""}


def configuration(contract: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
    """Return the files of input/config by name. As in SageMaker, the values in hyperparameters.json
    are JSON as strings: {"epochs": "10", "optimizer": "\\"adam\\""}."""
    named = contract["hyperparameters"].items()
    return {
        "hyperparameters.json": {name: json.dumps(value) for name, value in named},
        "inputdataconfig.json": input_data_config(contract),
        "resourceconfig.json": resource_config(contract, host),
    }


def input_data_config(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the content of inputdataconfig.json: the options of each channel."""
    return {
        name: {
            "TrainingInputMode": channel["mode"],
            "S3DistributionType": channel.get("distribution", "FullyReplicated"),
            "RecordWrapperType": channel.get("record_wrapping", "None"),
            **({"ContentType": channel["content_type"]} if channel.get("content_type") else {}),
        }
        for name, channel in contract["channels"].items()
    }


def resource_config(contract: dict[str, Any], host: dict[str, Any]) -> dict[str, Any]:
    """Return the content of resourceconfig.json: the hosts, and this host's own data."""
    addresses = [one["address"] for one in contract["hosts"]]
    return {
        "current_group_name": GROUP,
        "current_host": host["address"],
        "current_instance_type": host["instance_type"],
        "hosts": addresses,
        "instance_groups": [_group(addresses, host)],
        "network_interface_name": host["interface"],
    }


def _group(addresses: list[str], host: dict[str, Any]) -> dict[str, Any]:
    return {
        "instance_group_name": GROUP,
        "instance_type": host["instance_type"],
        "hosts": addresses,
    }


def framework_parameters(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that SageMaker's estimator adds to the hyperparameters."""
    if contract["distribution"] == "parameter_server":
        return {"sagemaker_parameter_server_enabled": True}
    if contract["distribution"] != "mpi":
        return {}
    return {
        "sagemaker_mpi_enabled": True,
        "sagemaker_mpi_num_of_processes_per_host": contract["processes_per_host"],
        "sagemaker_mpi_custom_mpi_options": contract["mpi_options"],
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
