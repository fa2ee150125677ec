"""A program in SageMaker's script mode: the requested channels, hyperparameters and model.

From these comes the contract, a JSON file that every node gets (docs/script-mode.md).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.copy.s3 import parse_source
from clusterctl.domain.errors import UsageError
from clusterctl.jobs.plan import SAGEMAKER_BASE, JobPlan
from clusterctl.node.record import RecordError, from_json

# SageMaker's limits, from its API reference: CreateTrainingJob and Channel. Lengths in characters.
CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
LONGEST_NAME, LONGEST_VALUE, MOST_HYPERPARAMETERS = 256, 2500, 100
MODES = ("File", "Pipe")
# The options of a stream and their values, in SageMaker's words. The first value is the default.
STREAM_OPTIONS = {
    "distribution": ("FullyReplicated", "ShardedByS3Key"),
    "compression": ("None", "Gzip"),
    "record_wrapping": ("None", "RecordIO"),
}
# Folder below the job's, for files of this machine that are streamed to the program.
STREAMED = "input/streamed"
FRAMEWORKS = ("tensorflow", "pytorch", "mxnet")


@dataclass(frozen=True)
class Channel:
    """Input data under a name. Raises UsageError.

    `source` is `s3://BUCKET/PREFIX`, a path on this machine (`data`, `file:///data`) or a path on
    the nodes (`~/data`, `/data`), as with --script. `mode` is File (all data are there before the
    program starts) or Pipe (a stream for each rank and epoch). `options` are those of a stream
    (node/scripts/pipe.py).
    """

    name: str
    source: str
    mode: str = "File"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not CHANNEL_NAME.fullmatch(self.name):
            raise UsageError(
                f"not the name of a channel: {self.name!r}",
                "1 to 64 letters, digits, dots, hyphens and underscores",
            )
        if self.mode not in MODES:
            raise UsageError(
                f"channel {self.name}: no input mode {self.mode!r}", " or ".join(MODES)
            )
        for name, choices in STREAM_OPTIONS.items():
            value = self.options.get(name, choices[0])
            if value not in choices:
                raise UsageError(f"channel {self.name}: no {name} {value!r}", " or ".join(choices))
            if value != choices[0] and self.mode != "Pipe":
                raise UsageError(
                    f"channel {self.name}: {name} {value} is for streams", "input_mode: Pipe"
                )
        seed = self.options.get("shuffle_seed")
        if seed is not None and (self.mode != "Pipe" or type(seed) is not int):
            raise UsageError(
                f"channel {self.name}: shuffle_seed {seed!r}",
                "it is a whole number, for streams: input_mode: Pipe",
            )
        if not self.source:
            raise UsageError(
                f"channel {self.name} has no source", f"{self.name}=s3://BUCKET/PREFIX"
            )
        if "://" in self.source and not self.is_here:
            if not self.source.startswith("s3://"):
                raise UsageError(
                    f"channel {self.name}: {self.source} is neither s3:// nor file://",
                    "copy it to the nodes (clusterctl copy) and name the folder there",
                )
            parse_source(self.source)

    @property
    def is_here(self) -> bool:
        """Whether the source is a path on this machine."""
        return self.source.startswith("file://") or not (self.is_on_nodes or "://" in self.source)

    @property
    def is_on_nodes(self) -> bool:
        return self.source.startswith(("~", "/"))

    @property
    def is_stream(self) -> bool:
        return self.mode == "Pipe"

    @property
    def path(self) -> str:
        """The path of a source on this machine or on the nodes; not for one in S3."""
        return self.source[len("file://") :] if self.source.startswith("file://") else self.source


@dataclass(frozen=True)
class ScriptMode:
    """What the user requests besides the program. Raises UsageError.

    `model_url`: where the model is uploaded when the job has ended, into a folder named after the
    job; if empty, it stays on the head node, for `fetch`. `distribution`: mpi, parameter_server, or
    empty for one process on each host. `metrics`: regular expressions by name, which `results` uses
    for this job by default.
    """

    channels: tuple[Channel, ...] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    model_url: str = ""
    framework: str = "tensorflow"
    distribution: str = "mpi"
    mpi_options: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [channel.name for channel in self.channels]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise UsageError(f"channel {twice} is given twice", "one source for each name")
        if len(self.hyperparameters) > MOST_HYPERPARAMETERS:
            raise UsageError(
                f"{len(self.hyperparameters)} hyperparameters, at most {MOST_HYPERPARAMETERS}"
            )
        for name, value in self.hyperparameters.items():
            _check_hyperparameter(name, value)
        if self.model_url:
            parse_source(self.model_url)

    def contract(self, plan: JobPlan, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the contract that node/scripts/contract.py reads. `nodes` are as in a JobSpec.

        Paths of SageMaker, /opt/ml, in hyperparameters are replaced with the job's own folder.
        """
        base = posixpath.dirname(plan.code)
        named = {
            name: value.replace(SAGEMAKER_BASE, f"{base}/") if isinstance(value, str) else value
            for name, value in self.hyperparameters.items()
        }
        # SageMaker's TensorFlow estimator passes model_dir to every program, unless it is False.
        if self.framework == "tensorflow":
            named.setdefault("model_dir", f"{base}/model")
        if named.get("model_dir") is False:
            del named["model_dir"]
        return {
            "job_id": plan.job_id,
            "entry_point": posixpath.relpath(plan.script_path, plan.code),
            "framework": self.framework,
            "hosts": [
                {
                    "address": node["address"],
                    "instance_type": node["instance_type"],
                    "gpus": node["slots"] if plan.preset != "cpu" else 0,
                }
                for node in nodes
            ],
            "processes_per_host": nodes[0]["ranks"],
            "hyperparameters": named,
            "channels": {
                one.name: {
                    "source": f"{base}/{STREAMED}/{one.name}"
                    if one.is_stream and one.is_here
                    else one.source,
                    "mode": one.mode,
                    **one.options,
                }
                for one in self.channels
            },
            "distribution": self.distribution,
            "mpi_options": self.mpi_options,
            "port": plan.port,
        }


def parse_channel(text: str, mode: str = "File") -> Channel:
    """Return the channel in a text such as `train=s3://BUCKET/PREFIX`. Raises UsageError."""
    name, given, source = text.partition("=")
    if not given:
        raise UsageError(f"not a channel: {text!r}", "--channel train=s3://BUCKET/PREFIX")
    return Channel(name, source, mode)


def parse_hyperparameters(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of hyperparameters by name. Raises UsageError, also for one given twice."""
    found = dict(map(parse_hyperparameter, texts))
    for name in found:
        if sum(text.partition("=")[0] == name for text in texts) > 1:
            raise UsageError(f"hyperparameter {name} is given twice", "leave one out")
    return found


def parse_hyperparameter(text: str) -> tuple[str, Any]:
    """Return name and value of a hyperparameter in a text such as `epochs=10`. Raises UsageError.

    The value is parsed as JSON; what is no JSON is text as it is, such as `adam` or `007`.
    """
    name, given, value = text.partition("=")
    if not given:
        raise UsageError(f"not a hyperparameter: {text!r}", "--hyperparameter epochs=10")
    try:
        return name, from_json(Any, value)
    except RecordError:  # no JSON, or an integer with more digits than Python converts
        return name, value


def _check_hyperparameter(name: str, value: Any) -> None:
    """Raise UsageError for a name or a value that is not within SageMaker's limits."""
    if not name or len(name) > LONGEST_NAME or "\0" in name:
        raise UsageError(f"not the name of a hyperparameter: {name[:80]!r}")
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # for example a YAML date or set
        raise UsageError(
            f"hyperparameter {name}: {str(value)[:60]} is nothing that JSON has",
            "in quotes it is text",
        ) from None
    if len(text) > LONGEST_VALUE or "\0" in text:
        raise UsageError(
            f"hyperparameter {name}: its value has {len(text)} characters",
            f"at most {LONGEST_VALUE}, without a zero byte: put it into a file next to the program",
        )
