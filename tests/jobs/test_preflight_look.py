"""What a job will meet on a node: facts about real files, also with the oldest Python."""

from __future__ import annotations

import json
import struct
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import CommandFailed
from clusterctl.jobs.preflight import facts_of_node, facts_to_read
from clusterctl.node.facts import gpus
from clusterctl.node.facts.report import FactReading, FactReport, collect, request_of
from clusterctl.node.facts.software import versions
from clusterctl.node.facts.training import last_training
from clusterctl.transport.call import read_reports
from tests.local_node import HEAD, LocalNode
from tests.pythons import python_or_skip


def records(*sizes):
    return b"".join(struct.pack("<QI", size, 1) + b"x" * size + b"crc." for size in sizes)


@pytest.fixture(params=[None, "3.8"])
def asked(request, weird_home, tmp_path):
    python = python_or_skip(request.param) if request.param else Path(sys.executable)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(python)

    def ask(data_dir=None, log_dir="", script="", results=""):
        run = SimpleNamespace(data_dir=data_dir)
        none = {"python": "/none", "argv": ["/none"], "job_id": "x"}
        paths = {"log_dir": log_dir, "script_path": script, "output": results}
        plan = SimpleNamespace(run=run, **paths, **none)
        node = LocalNode(weird_home, {"PATH": f"{tools}:/usr/bin:/bin"})
        [report] = read_reports(node, [HEAD], facts_to_read(plan), "looking at it").values
        return facts_of_node("demo-0", report)

    return ask


def test_data(asked, weird_home):
    data = weird_home / "tf imagenet"
    data.mkdir()
    contents = {
        "train-00001-of-00006": records(5, 0, 7),
        "train-00002-of-00006": records(5, 0, 70),
        "train-00003-of-00006": records(50, 50, 50),
        "train-00004-of-00006": records(5),
        "train-00005-of-00006": records(5, 0, 7)[:-1],
        "train-00006-of-00006": records(5),
        "validation-00000-of-00001": records(5)[:-1],
        "train-00000-of-00006.gz": b"x",
        "train-0000x-of-00006": b"x",
        "labels.txt": b"x",
    }
    for name, content in contents.items():
        (data / name).write_bytes(content)
    seen = asked(data_dir=str(data))
    names = [name for name in sorted(contents) if name.startswith("train-") and name[-1] == "6"]
    names.remove("train-0000x-of-00006")
    assert dict(seen.training) == {name: len(contents[name]) for name in names}
    assert dict(seen.validation) == {"validation-00000-of-00001": 20}
    # The first and the last file, and the smallest and largest of the others.
    assert dict(seen.records) == {
        "train-00001-of-00006": 3,
        "train-00003-of-00006": 3,
        "train-00004-of-00006": 1,
        "train-00006-of-00006": 1,
        "validation-00000-of-00001": -1,
    }


def test_counting_records(asked, weird_home):
    for content, count in {
        b"": 0,
        records(0): 1,
        records(3, 3)[:-1]: -1,
        records(3)[:7]: -1,
        b"not a record at all, but text": -1,
        struct.pack("<Q", 1 << 63) + b"x" * 30: -1,
    }.items():
        (weird_home / "train-00000-of-00001").write_bytes(content)
        assert asked(data_dir=str(weird_home)).records == {"train-00000-of-00001": count}


def test_nothing_there(asked, weird_home):
    seen = asked(data_dir=str(weird_home / "none"), log_dir=str(weird_home / "a/b/c"))
    assert (seen.training, seen.data_error, seen.checkpoints) == ({}, "", ())
    assert list(seen.versions) == ["kernel"]
    assert seen.free_bytes > 0


def test_a_fact_that_could_not_be_read_is_no_empty_one():
    late = FactReading("x:training_files", "training_files", error="no answer within 60 s")
    with pytest.raises(CommandFailed, match="training_files: no answer within 60 s"):
        facts_of_node("demo-0", FactReport(0.0, 0.0, (late,)))


def test_a_file_where_the_folder_should_be(asked, weird_home):
    (weird_home / "data").write_text("")
    seen = asked(data_dir=str(weird_home / "data"), log_dir=str(weird_home / "data"))
    assert seen.data_error == f"{weird_home}/data: Not a directory"
    assert seen.checkpoints == ()


def test_logs(asked, weird_home):
    names = ("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", "model.ckpt-12.index")
    for name in (*names, "model.ckpt-20.data-00000-of-00001"):
        (weird_home / name).write_bytes(b"x" * 10)
    for name in ("hvd_train.log", "events.out.tfevents.1", "checkpoint", ".hidden"):
        (weird_home / name).touch()
    (weird_home / "metrics.jsonl").write_text(
        '{"run": "a", "kind": "begin", "training_samples": 1281167}\n'
        '{"run": "a", "kind": "train", "step": 1, "epoch": 0.001598542578703636}\n'
    )
    seen = asked(log_dir=str(weird_home))
    # The index is written last: step 20 does not have one yet.
    assert (seen.checkpoints, seen.checkpoint_bytes) == ((7, 12), 40)
    assert seen.images_per_step == 2048


def rows(run, samples, batch, steps):
    begin = {"run": run, "kind": "begin", "training_samples": samples}
    epochs = [(step, step * batch / (samples or 1)) for step in steps]
    return [begin, *({"run": run, "kind": "train", "step": s, "epoch": e} for s, e in epochs)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (rows("a", 1_281_167, 2048, [0, 1, 40, 112_640]), 2048),
        (rows("a", 1_281_167, 2048, [1]) + rows("b", 1_281_167, 3264, [0, 40]), 3264),
        (rows("a", 1_281_167, 2048, [0]), None),
        (rows("a", None, 2048, [1]), None),
        (rows("a", 100, 8, [5])[1:], None),
        (["not JSON", [], {"kind": "train"}, 7, *rows("a", 100, 8, [5]), "{"], 8),
        (rows("a", "many", 1, []) + [{"run": "a", "kind": "train", "step": 1, "epoch": 2}], None),
        (rows("a", 100, -8, [5]), None),
        (rows("a", 100, float("nan"), [5]), None),
    ],
)
def test_images_of_a_step_by_the_metrics_of_a_training(tmp_path, lines, found):
    path = tmp_path / "metrics.jsonl"
    assert last_training(path) == (None, None)
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    path.write_text("\n".join(texts))
    assert last_training(path)[0] == found
    begin, step = rows("a", 100, 8, [5])
    path.write_text(f"{json.dumps({**begin, 'model': 'resnet18'})}\n{json.dumps(step)}")
    assert last_training(path) == (8, "resnet18")


def test_a_program(asked, weird_home):
    program = weird_home / "it's mine.py"
    program.write_text("")
    package = weird_home / "package"
    (weird_home / "folder").mkdir()
    package.mkdir()
    (package / "__main__.py").touch()
    said = {
        "": "",
        str(program): "",
        str(package): "",
        sys.executable: "it is a compiled program, not one in Python",
        str(weird_home / "none.py"): "No such file or directory",
        f"{program}/x.py": "Not a directory",
        str(weird_home / "folder"): "Is a directory",
    }
    assert {path: asked(script=path).script_error for path in said} == said


def test_a_folder_for_results(asked, weird_home):
    (weird_home / "file").touch()
    (weird_home / ".ssh").mkdir(exist_ok=True)
    (weird_home / "keys").symlink_to(weird_home / ".ssh")
    said = {
        "": "",
        str(weird_home / "not yet"): "",
        str(weird_home / "file"): f"{weird_home}/file is no folder",
        f"{weird_home}/file/x": f"{weird_home}/file/x: Not a directory",
        str(weird_home): f"{weird_home}, which the node needs",
        f"{weird_home}/keys": f"{weird_home}/keys ({weird_home}/.ssh), which the node needs",
    }
    assert {path: asked(results=path).output_error for path in said} == said


@pytest.mark.train
def test_versions():
    env = Path("/opt/clusterctl/training/bin")
    seen = versions(str(env / "python"), str(env / "mpirun"))
    assert seen["mpirun"].startswith("mpirun (Open MPI) 5.")
    assert seen["horovod"] == "0.28.1"
    assert seen["tensorflow"] == seen["horovod_built_for"]


@pytest.mark.parametrize(
    ("packages", "known"),
    [
        (
            ["nvidia_cuda_runtime_cu12-12.9.79", "nvidia_cudnn_cu12-9.10.2.21"],
            {"cuda": "12.9.79", "cudnn": "9.10.2.21"},
        ),
        # From CUDA 13 on the names have no number.
        (["nvidia_cuda_runtime-13.0.96", "nvidia-cuda-nvcc-cu12-1"], {"cuda": "13.0.96"}),
        (["nvidia_cudnn_frontend-1.15.0", "my_cuda_runtime-1"], {}),
    ],
)
def test_versions_of_cudas_packages(tmp_path, packages, known):
    for package in packages:
        name, _, version = package.rpartition("-")
        info = tmp_path / f"{package}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    # A package whose description is damaged hides no other.
    (tmp_path / "damaged-1.dist-info").mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    seen = versions(str(python), "/none")
    assert {name: seen[name] for name in ("cuda", "cudnn") if name in seen} == known


def test_capabilities_of_the_gpus(tmp_path, monkeypatch):
    assert gpus.capabilities() == ()  # no driver
    monkeypatch.setattr(gpus, "DRIVER", str(tmp_path))
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for told, known in {
        "10.0\\n9.0\\n10.0\\n": (90, 100),
        "[N/A]\\nNo devices were found\\n": (),
        "": (),
    }.items():
        smi.write_text(f"#!/bin/sh\nprintf '{told}'\n")
        smi.chmod(0o755)
        assert gpus.capabilities() == known


def test_what_babbles_has_no_version_and_what_hangs_is_not_known(tmp_path):
    for name, text in (("hangs", "exec sleep 60"), ("babbles", "echo hello")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    babbles, hangs = (str(tmp_path / name) for name in ("babbles", "hangs"))
    assert versions(babbles, "/none").keys() == {"kernel"}
    for python, mpirun in ((babbles, hangs), (hangs, babbles)):
        fact = partial(versions, python=python, mpirun=mpirun)
        [reading] = collect(request_of([fact], within_s=0.5)).readings
        assert (reading.value, reading.timed_out) == (None, True)
