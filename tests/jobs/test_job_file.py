"""job.yaml: the notebooks' estimators as files, and refusals that name the nearest key."""

from __future__ import annotations

import io
import os
import re
import shlex
from pathlib import Path

import pytest

from clusterctl.domain.errors import NotEnoughGpus, UsageError
from clusterctl.domain.hostsfile import HostsFile, HostSlots
from clusterctl.jobs.job_file import JobFile, parse_job, read_job_file, split_mpi_options
from clusterctl.jobs.script_mode import Channel, ScriptMode

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"
CIFAR10 = """\
entry_point: keras_cifar10.py
source_dir: source
hyperparameters: {epochs: 10, batch-size: 256}
metric_definitions:
  - {Name: 'train:loss', Regex: '.*loss: ([0-9\\.]+) - acc: [0-9\\.]+.*'}
framework_version: 1.15.2
py_version: py3
role: arn:aws:iam::123456789012:role/x
train_instance_count: 2
train_instance_type: ml.p3.2xlarge
distributions: {mpi: {enabled: true, processes_per_host: 1}}
base_job_name: cifar10-tf-dist
tags: [{Key: Project, Value: cifar10}]
input_mode: Pipe
inputs:
  train: s3://bucket/train
  validation: {source: s3://bucket/validation, input_mode: File}
  eval: data
"""


def test_the_estimator_of_a_notebook(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(CIFAR10.replace("framework_version: 1.15.2", "framework_version: '1.15.2'"))
    source = os.path.relpath(tmp_path / "source")
    assert read_job_file(path) == JobFile(
        script=f"{source}/keras_cifar10.py",
        source_dir=source,
        mode=ScriptMode(
            channels=(
                Channel("train", "s3://bucket/train", "Pipe"),
                Channel("validation", "s3://bucket/validation", "File"),
                Channel("eval", f"file://{tmp_path}/data", "Pipe"),
            ),
            hyperparameters={"epochs": 10, "batch-size": 256},
            distribution="mpi",
            metrics={"train:loss": ".*loss: ([0-9\\.]+) - acc: [0-9\\.]+.*"},
        ),
        hosts=2,
        per_host=1,
        ignored=(
            *("framework_version", "py_version", "role", "train_instance_type"),
            *("base_job_name", "tags"),
        ),
    )


def test_the_example_has_all_settings_of_the_notebooks():
    job = read_job_file(EXAMPLES / "cifar10" / "job.yaml")
    assert job.variables == (
        "HOROVOD_TIMELINE=/opt/ml/output/timeline.json",
        "HOROVOD_FUSION_THRESHOLD=33554432",
        "HOROVOD_CYCLE_TIME=5",
    )
    assert (job.hosts, job.per_host, job.ignored) == (2, 1, ())
    assert [one.is_here for one in job.mode.channels] == [False] * 3
    line = (
        "9/9 [==] - 2s 22ms/step - loss: 1.3 - accuracy: 0.5 - val_loss: 0.27 - val_accuracy: 0.96"
    )
    found = {name: re.search(regex, line)[1] for name, regex in job.mode.metrics.items()}
    assert found == {
        "train:loss": "1.3",
        "train:accuracy": "0.5",
        "validation:loss": "0.27",
        "validation:accuracy": "0.96",
    }


def test_custom_mpi_options():
    text = "-verbose --NCCL_DEBUG=INFO -x HOROVOD_TIMELINE=/t --mca btl ^openib"
    assert split_mpi_options(text) == (
        ("NCCL_DEBUG=INFO", "HOROVOD_TIMELINE=/t"),
        ("--verbose --mca btl '^openib'",),
    )
    [quoted] = split_mpi_options("b' --mca x \"y")[1]
    assert shlex.split(quoted) == ["b'", "--mca", "x", '"y'], "quotes have no meaning"
    assert split_mpi_options("--NCCL_DEBUG WARN") == (("NCCL_DEBUG=WARN",), ())
    assert split_mpi_options("") == ((), ())


def test_ranks_on_a_cluster(tmp_path):
    hosts = HostsFile((HostSlots("10.0.0.4", 8), HostSlots("10.0.0.5", 8)))

    def ranks(**said):
        return parse_job({"entry_point": "a.py", **said}, tmp_path).ranks(hosts, "demo")

    mpi = {"mpi": {"enabled": True}}
    assert ranks(instance_count=2, distribution=mpi) == 16
    assert ranks(instance_count=1, distribution=mpi) == 8
    assert ranks(instance_count=2) == 2
    assert ranks(instance_count=2, distribution={"parameter_server": {"enabled": True}}) == 2
    with pytest.raises(NotEnoughGpus, match="instance_count is 3, and demo has 2 nodes"):
        ranks(instance_count=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "entry_point is missing"),
        ("[]", "a job: keys and values are wanted"),
        ("entry_point: [a]", "entry_point: text is wanted"),
        ("entry_point: a\nsource_dir: s3://x/y", ":2: source_dir is a path on this machine"),
        ("entry_point: a\noutput_path: 'out 8'", ":2: output_path: it is a URL of S3, not 'out 8'"),
        (
            "entry_point: a\noutput_path: 'out 8'",
            "for a folder here leave it out: train --model-dir 'out 8'",
        ),
        ("entry_point: s3://x/y/p.py", ":1: entry_point is a path on this machine"),
        ("entrypoint: a.py", "a job has no key 'entrypoint'; did you mean entry_point?"),
        ("{instance_count: 1, train_instance_count: 1}", "are the same"),
        ("{entry_point: a, distribution: {mpi: {processes_per_hosts: 2}}}", "processes_per_host?"),
        (
            "{entry_point: a, checkpoint_s3_uri: s3://x/y}",
            "key 'checkpoint_s3_uri'; save them below SM_",
        ),
        ("{entry_point: a, distribution: {pytorchddp: {enabled: true}}}", "--launcher torchrun"),
        ("{entry_point: a, environment: {A: true}}", "A: text is wanted, not 'True'"),
        ("{entry_point: a, metric_definitions: [{Name: a}]}", "each has a Name and a Regex"),
        ("{entry_point: a, instance_count: 0}", "a number of 1 or more"),
        ("{entry_point: a, instance_count: true}", "a number of 1 or more"),
        ("{entry_point: a, input_mode: Pip}", "one of File, Pipe"),
        ("{entry_point: a, channels: {train: {surce: x}}}", "did you mean source?"),
        (
            "{entry_point: a, channels: {t: {source: s3://x/y, s3_data_type: ManifestFile}}}",
            "channel t has no key 's3_data_type'; leave S3Prefix out; copy what a manifest lists",
        ),
        ("{entry_point: a, channels: {train: ''}}", "channel train has no source"),
        ("{entry_point: a, metric_definitions: {Name: x}}", "is a list of Name and Regex"),
        ("{entry_point: a, metric_definitions: [{Name: x, Regex: '('}]}", "not a regular"),
        ("{entry_point: a, distribution: {mpi: {enabled: 'false'}}}", "true or false is wanted"),
        ("{entry_point: a, hyperparameters: {x: !!set {a}}}", ":1: a YAML tag that means nothing"),
        ("entry_point: a\nhyperparameters: {x: !!float 1_0}", ":2: '1_0' is no float as JSON"),
        ("entry_point: a\nhyperparameters: {x: 1e999}", ":2: a number that is too large: 1e999"),
        (f"hyperparameters: {{x: {'9' * 5000}}}", ":1: a number that is too large: 999"),
        ("entry_point: a\nentry_point: b", ":2: the key 'entry_point' is there twice"),
        ("entry_point: 'a", ":1: not YAML"),
        ("a: &a [*a]", "levels deep, or an alias of itself"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcde", "bcdef")),
            "more than 100000 values, with all aliases",
        ),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_job_file(path)
    assert message in f"{refused.value.message} {refused.value.hint}"
    assert str(path) in refused.value.message


WRONG = """\
entry_point: train.py
instance_count: none
hyperparametres: {epochs: 3}
channels:
  train: s3://bucket/train
  eval: {source: s3://bucket/eval, shuffle: 1}
  test: ''
metric_definitions:
  - {Name: loss, Regex: 'loss: (.*)'}
  - {Name: x, Regex: '('}
distribution: {mpi: {enabled: yes}}
"""


def test_all_that_is_wrong_is_told_at_once_with_its_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(WRONG)
    with pytest.raises(UsageError) as refused:
        read_job_file(path)
    head, *lines = refused.value.message.splitlines()
    assert head == f"{path} has 6 problems:"
    assert [int(line.split(":")[1]) for line in lines] == [2, 3, 6, 7, 10, 11]
    path.write_text(WRONG.replace("entry_point: train.py\n", ""))
    with pytest.raises(UsageError) as refused:
        read_job_file(path)
    assert f"{path}:1: entry_point is missing; entry_point: train.py" in refused.value.message
    assert len(refused.value.message.splitlines()) == 8


def test_of_standard_input_the_problems_are_told_as_such(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"entry_pint: train.py\n")))
    with pytest.raises(UsageError, match=r"standard input:1: a job has no key 'entry_pint'"):
        read_job_file(Path("-"))


def test_a_channel_is_checked_with_the_files_input_mode(tmp_path):
    """Another error in the file does not make its channels wrong."""
    path = tmp_path / "job.yaml"
    channels = "{a: {source: s3://data/x, distribution: ShardedByS3Key, shuffle_seed: 1}}"
    for mode, lines in (("Pipe", [3]), ("Pip", [2, 3]), ("File", [1, 3])):
        path.write_text(
            f"channels: {channels}\ninput_mode: {mode}\nhyperparams: {{}}\nentry_point: a\n"
        )
        with pytest.raises(UsageError) as refused:
            read_job_file(path)
        told = refused.value.message.splitlines()
        found = sorted(int(line.split(":")[1]) for line in told[len(told) > 1 :])
        assert found == lines, refused.value.message


def test_arguments_of_the_sdk_that_mean_nothing_here_and_its_environment(tmp_path):
    given = {"entry_point": "a.py", "train_use_spot_instances": True, "max_wait": 60, "rules": []}
    job = parse_job({**given, "environment": {"A": "b c", "N": 5}}, tmp_path)
    assert job.ignored == ("train_use_spot_instances", "max_wait", "rules")
    assert job.variables == ("A=b c", "N=5")


def test_scalars_are_numbers_where_jsons_grammar_says_so(tmp_path):
    path = tmp_path / "job.yaml"
    given = "1e-5, 1E5, 3, -0.5, 1.0, true, false, null, 0123, 1:30, on, yes, True, 1_000, 0x1f, "
    given += ".5, 5., +1, 1e, ~, .nan, 2026-01-01, 1.15.2, '1', \"true\", =, !!str 5, 12e03"
    path.write_text(f"entry_point: a\nhyperparameters: {{x: [{given}]}}\n")
    [found] = read_job_file(path).mode.hyperparameters.values()
    assert [*map(repr, found)] == [
        *("1e-05", "100000.0", "3", "-0.5", "1.0", "True", "False", "None", "'0123'", "'1:30'"),
        *("'on'", "'yes'", "'True'", "'1_000'", "'0x1f'", "'.5'", "'5.'", "'+1'", "'1e'", "'~'"),
        *("'.nan'", "'2026-01-01'", "'1.15.2'", "'1'", "'true'", "'='", "'5'", "12000.0"),
    ]


def test_both_distributions_are_too_many(tmp_path):
    both = {"mpi": {"enabled": True}, "parameter_server": {"enabled": True}}
    with pytest.raises(UsageError, match="both enabled"):
        parse_job({"entry_point": "a.py", "distribution": both}, tmp_path)
