"""The job file of `train --job-file`: YAML with the arguments of a SageMaker estimator as keys.

Keys are those of the SageMaker Python SDK, version 1 (train_instance_count, distributions) and
version 2. An unknown key is an error that proposes the nearest key.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.config import problems_message
from clusterctl.configuration import yaml_tree
from clusterctl.configuration.yaml_tree import Problem
from clusterctl.copy.request import is_s3
from clusterctl.domain.errors import NotEnoughGpus, UsageError, did_you_mean
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.logs import parse_definitions
from clusterctl.jobs.script_mode import FRAMEWORKS, MODES, Channel, ScriptMode

# Names of version 1 of the SDK, and of estimator.fit(), with the names that this module uses.
RENAMED = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "train_volume_size": "volume_size",
    "image_name": "image_uri",
    "distributions": "distribution",
    "inputs": "channels",
}
# Keys that are accepted and have no effect: the cluster decides on machines, image and rights, and
# SageMaker's debugger, profiler and metrics are not here.
IGNORED = (
    *("base_job_name", "code_location", "container_log_level", "debugger_hook_config"),
    *("disable_profiler", "enable_sagemaker_metrics", "framework_version", "image_uri"),
    *("instance_type", "keep_alive_period_in_seconds", "max_wait", "profiler_config", "py_version"),
    *("role", "rules", "script_mode", "security_group_ids", "subnets", "tags"),
    *("use_spot_instances", "volume_size"),
)
_CHECKPOINTS = "save them below SM_OUTPUT_DATA_DIR; fetch copies them here, aws s3 sync to S3"
_TORCHRUN = "torchrun starts one: clusterctl train NAME GPUS --script FILE --launcher torchrun"
# What to do in place of a key of the SDK that would have an effect and has none here.
INSTEAD = {
    "attribute_names": "write them into the objects, as TFRecord or RecordIO",
    "checkpoint_local_path": _CHECKPOINTS,
    "checkpoint_s3_uri": _CHECKPOINTS,
    "dependencies": "put these folders into source_dir",
    "encrypt_inter_container_traffic": "leave it out: what ranks send is not encrypted",
    "git_config": "clone it here, and name the folder: source_dir",
    "instance_groups": "leave it out: every node has every channel",
    "output_kms_key": "set the bucket's default encryption",
    "pytorchddp": _TORCHRUN,
    "s3_data": "source: s3://BUCKET/PREFIX",
    "s3_data_type": "leave S3Prefix out; copy what a manifest lists below a prefix: source",
    "shuffle_config": "shuffle_seed: 1",
    "torch_distributed": _TORCHRUN,
}
KEYS = (
    *("channels", "distribution", "entry_point", "environment", "framework", "hyperparameters"),
    *("input_mode", "instance_count", "max_run", "metric_definitions", "model_dir", "output_path"),
    *("source_dir", *IGNORED),
)
CHANNEL_KEYS = (
    *("source", "input_mode", "shuffle_seed", "distribution", "compression", "content_type"),
    "record_wrapping",
)
_NO_PROGRAM = ("entry_point is missing", "entry_point: train.py")
MPI_KEYS = ("enabled", "processes_per_host", "custom_mpi_options")


@dataclass(frozen=True)
class JobFile:
    """The content of a job file. `script` and `source_dir` are paths on this machine.

    `hosts` is the number of nodes, `per_host` that of ranks on each; None for as many as a node has
    GPUs. `variables` and `mpi_arguments` are texts as for -x and --mpi-arg. `ignored` are those of
    the file's keys that have no effect.
    """

    script: str
    source_dir: str
    mode: ScriptMode
    hosts: int = 1
    per_host: int | None = None
    variables: tuple[str, ...] = ()
    mpi_arguments: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def ranks(self, hosts: HostsFile, cluster: str) -> int:
        """Return the number of ranks on a cluster. Raises NotEnoughGpus if it has too few nodes."""
        there = len(hosts.entries)
        if self.hosts > there:
            raise NotEnoughGpus(
                f"instance_count is {self.hosts}, and {cluster} has {count(there, 'node')}",
                f"write instance_count: {there}, or add nodes: "
                f"clusterctl up {cluster} --nodes {self.hosts}",
            )
        return sum(self.per_host or entry.slots for entry in hosts.entries[: self.hosts])


def read_job_file(path: Path) -> JobFile:
    """Read a job file, `-` from standard input. Raises UsageError if it cannot be read, is no YAML,
    or makes no sense: with all that is wrong in it, each with its line."""
    called = "standard input" if str(path) == "-" else str(path)
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        found = yaml_tree.load(data)
    except OSError as error:
        raise UsageError(f"cannot read {called}: {error.strerror}") from None
    except yaml_tree.Unreadable as error:
        raise UsageError(error.problem.at(called)) from None
    try:
        return parse_job(found, path.parent)
    except UsageError as error:
        message = problems_message(called, tuple(_problems(data, found, error, path.parent)))
        raise UsageError(message) from None


def _problems(data: bytes, found: Any, error: UsageError, folder: Path) -> list[Problem]:
    """Return all problems of a file for which parse_job has raised `error`."""
    root = yaml_tree.compose(yaml_tree.decode(data))
    tree = root and yaml_tree.read_tree(root)
    # Channels depend on the mode. If it is wrong itself, Pipe takes all that they may have.
    mode = found.get("input_mode", MODES[0]) if isinstance(found, dict) else MODES[0]
    common = {"entry_point": "any.py", "input_mode": mode if mode in MODES else "Pipe"}
    problems: list[Problem] = []
    for item in tree.items if isinstance(tree, yaml_tree.Mapping) else ():
        name = str(item.key)
        for line, value in _apart(name, found[name], item):
            # Each by itself, so that one error does not hide the others.
            try:
                parse_job({**common, name: value}, folder)
            except UsageError as wrong:
                problems.append(_problem(line, wrong))
    known, whole = {problem.message for problem in problems}, [_problem(1, error)]
    if isinstance(found, dict) and not found.get("entry_point"):
        whole = [_problem(1, UsageError(*_NO_PROGRAM))]
        try:
            parse_job({**found, "entry_point": "any.py"}, folder)
        except UsageError as more:
            whole.append(_problem(1, more))
    return [*(one for one in whole if one.message not in known), *problems]


def _problem(line: int, error: UsageError) -> Problem:
    return Problem(line, "", "; ".join(filter(None, [error.message, error.hint])))


def _apart(name: str, value: Any, item: yaml_tree.Item) -> Iterator[tuple[int, Any]]:
    """Yield the parts of a key's value that can be wrong each by itself, with their lines."""
    tree = yaml_tree.read_tree(item.node)
    if RENAMED.get(name, name) == "channels" and isinstance(tree, yaml_tree.Mapping):
        for one in tree.items:
            yield one.line, {one.key: value[str(one.key)]}
    elif name == "metric_definitions" and isinstance(tree, yaml_tree.Sequence):
        for node, row in zip(tree.items, value):
            yield node.start_mark.line + 1, [row]
    else:
        yield item.line, value


def parse_job(content: Any, folder: Path) -> JobFile:
    """Return the job in a file's content. Raises UsageError.

    Paths in the content are relative to `folder`.
    """
    known = _mapping(content, "a job", (*KEYS, *RENAMED))
    keys: dict[str, Any] = {}
    for name, value in known.items():
        new = RENAMED.get(name, name)
        if new in keys:
            raise UsageError(f"{name} and {new} are the same", "leave one out")
        keys[new] = value
    source_dir, entry_point = _program(keys, folder)
    distribution, per_host, options = _distribution(keys.get("distribution"))
    variables, arguments = split_mpi_options(options)
    environment = _mapping(keys.get("environment"), "environment")
    for name, value in environment.items():
        text = str(value) if type(value) is int else _text(environment, name)
        variables = (*variables, f"{name}={text}")
    max_run = _number(keys, "max_run")
    if max_run:
        arguments = (*arguments, f"--timeout {max_run}")
    mode = ScriptMode(
        channels=_channels(keys.get("channels"), _choice(keys, "input_mode", MODES), folder),
        hyperparameters={
            **_mapping(keys.get("hyperparameters"), "hyperparameters"),
            **({"model_dir": keys["model_dir"]} if "model_dir" in keys else {}),
        },
        model_url=_model_url(keys),
        framework=_choice(keys, "framework", FRAMEWORKS),
        distribution=distribution,
        mpi_options=options,
        metrics=_metrics(keys.get("metric_definitions")),
    )
    return JobFile(
        script=os.path.join(source_dir, entry_point),  # noqa: PTH118
        source_dir=source_dir,
        mode=mode,
        hosts=_number(keys, "instance_count") or 1,
        per_host=per_host,
        variables=variables,
        mpi_arguments=arguments,
        ignored=tuple(name for name in known if RENAMED.get(name, name) in IGNORED),
    )


def _program(keys: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """Return the folder of the program's files, as a relative path, and the program in it."""
    source, entry_point = _text(keys, "source_dir", "."), _text(keys, "entry_point")
    for name, text in (("source_dir", source), ("entry_point", entry_point)):
        if "://" in text:
            raise UsageError(
                f"{name} is a path on this machine, not {text!r}",
                "download it, and give the path from this file's folder",
            )
    if not entry_point:
        raise UsageError(*_NO_PROGRAM)
    # A path with a slash in front is one on the nodes, as with --script.
    return os.path.relpath(folder / source), entry_point


def _model_url(keys: Mapping[str, Any]) -> str:
    output = _text(keys, "output_path")
    if output and not is_s3(output):
        raise UsageError(
            f"output_path: it is a URL of S3, not {output!r}",
            "s3://BUCKET/PREFIX; for a folder here leave it out: train --model-dir "
            f"{shlex.quote(output)}",
        )
    return output


def split_mpi_options(options: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the variables and the options of mpirun in SageMaker's `custom_mpi_options`.

    They are texts as for -x and --mpi-arg. As in SageMaker's toolkit, words are split at blanks,
    quotes have no meaning, and `--NCCL_DEBUG X` sets the variable NCCL_DEBUG.
    """
    variables: list[str] = []
    arguments: list[str] = []
    words = iter(options.split())
    for word in words:
        name, given, value = word.lstrip("-").partition("=")
        if word == "-x":
            variables.append(next(words, ""))
        elif name == "NCCL_DEBUG" and word.startswith("-"):
            variables.append(f"NCCL_DEBUG={value if given else next(words, 'INFO')}")
        else:
            arguments.append("--verbose" if word == "-verbose" else word)
    return tuple(variables), tuple([shlex.join(arguments)] if arguments else [])


def _distribution(content: Any) -> tuple[str, int | None, str]:
    """Return the distribution's name, the ranks per host (None: its GPUs) and mpirun's options.

    Without mpi or parameter_server the name is empty, for one process on each host.
    """
    found = _mapping(content, "distribution", ("mpi", "parameter_server"))
    servers = _mapping(found.get("parameter_server"), "parameter_server", ("enabled",))
    mpi = _mapping(found.get("mpi"), "mpi", MPI_KEYS)
    for enabled in (one.get("enabled", False) for one in (servers, mpi)):
        if not isinstance(enabled, bool):
            raise UsageError(f"enabled: true or false is wanted, not {str(enabled)[:60]!r}")
    if servers.get("enabled") and mpi.get("enabled"):
        raise UsageError("mpi and parameter_server are both enabled", "enable one of them")
    if mpi.get("enabled"):
        return "mpi", _number(mpi, "processes_per_host"), _text(mpi, "custom_mpi_options")
    return "parameter_server" if servers.get("enabled") else "", 1, ""


def _channels(content: Any, mode: str, folder: Path) -> tuple[Channel, ...]:
    """Return the channels, with local paths made absolute.

    A text instead of a mapping is the source of the channel `training`, as in estimator.fit().
    """
    if isinstance(content, str):
        content = {"training": content}
    channels = []
    for name, value in _mapping(content, "channels").items():
        described = {"source": value} if isinstance(value, str) else value
        options = dict(_mapping(described, f"channel {name}", CHANNEL_KEYS))
        source = str(options.pop("source", ""))
        own_mode = str(options.pop("input_mode", mode))
        channel = Channel(str(name), source, own_mode, options)
        if channel.is_here and not source.startswith("file://"):
            channel = replace(channel, source=f"file://{folder.absolute() / source}")
        channels.append(channel)
    return tuple(channels)


def _metrics(content: Any) -> dict[str, str]:
    if content is None:
        return {}
    if not isinstance(content, list):
        raise UsageError("metric_definitions is a list of Name and Regex")
    rows = [_mapping(row, "metric_definitions", ("Name", "Regex")) for row in content]
    metrics = {_text(row, "Name"): _text(row, "Regex") for row in rows}
    if not all([*metrics, *metrics.values()]):
        raise UsageError("metric_definitions: each has a Name and a Regex")
    parse_definitions(f"{name}={regex}" for name, regex in metrics.items())
    return metrics


def _mapping(content: Any, what: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return `content` as it is, or an empty mapping for None. `what` names it in messages.

    Raises UsageError if it is no mapping, or if it has a key that is not in `known`.
    """
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{what}: keys and values are wanted, not {str(content)[:60]!r}")
    for name in content:
        if not isinstance(name, str) or (known and name not in known):
            near = did_you_mean(str(name), [one.replace("_", "-") for one in known])
            raise UsageError(
                f"{what} has no key {str(name)[:60]!r}"
                + ("" if name in INSTEAD else near.replace("-", "_")),
                INSTEAD.get(name, ""),
            )
    return content


def _text(keys: Mapping[str, Any], name: str, default: str = "") -> str:
    value = keys.get(name, default)
    if not isinstance(value, str):
        raise UsageError(f"{name}: text is wanted, not {str(value)[:60]!r}")
    return value


def _number(keys: Mapping[str, Any], name: str) -> int | None:
    value = keys.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise UsageError(f"{name}: a number of 1 or more is wanted, not {str(value)[:60]!r}")
    return value


def _choice(keys: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = _text(keys, name, choices[0])
    if value not in choices:
        raise UsageError(f"{name}: no {value[:60]!r}", f"one of {', '.join(choices)}")
    return value
