"""Merging the files of several nodes into one folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from clusterctl.jobs.detached import COLLECT
from clusterctl.node.jobs.spec import JobEvent, JobSpec
from clusterctl.node.record import to_json
from clusterctl.node.scripts.collect import NotCollected, fetch_results, merge, upload
from tests.pythons import python_or_skip


def left(tmp_path, **nodes):
    """Return a job's folder with the files of its nodes, {node: {path: content}}."""
    for node, files in nodes.items():
        for name, content in files.items():
            path = tmp_path / "collecting" / node / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return tmp_path, tmp_path / "collecting", list(nodes)


@pytest.mark.parametrize(("first", "second"), [("model/x", "model/x/y"), ("model/x/y", "model/x")])
def test_a_file_here_and_a_folder_there(tmp_path, first, second):
    folder, *nodes = left(tmp_path, a={first: "of a"}, b={second: "of b"}, c={second: "of b"})
    manifest = merge(folder, *nodes)
    assert [(one["path"], one["host"]) for one in manifest["model"]] == [(first, "a")]
    assert [(one["path"], one["host"]) for one in manifest["conflicts"]] == [(second, "b")]
    assert (folder / first).read_text() == "of a"
    assert (folder / "conflicts" / "b" / second).read_text() == "of b"


def test_two_collections_at_once_are_one(tmp_path):
    job_id = "20261127-000000-abcd"
    folder = tmp_path / ".clusterctl" / "jobs" / job_id
    folder.mkdir(parents=True)
    node = {"name": "a", "address": "10.0.0.4"}
    (folder / "spec.json").write_text(to_json(JobSpec(job_id, nodes=(node,))))
    model = tmp_path / ".clusterctl" / "code" / job_id / "model"
    model.mkdir(parents=True)
    (model / "weights").write_bytes(bytes(1 << 20))
    # Without output, nothing complains about it in the job's log.
    program = tmp_path / "collect.py"
    program.write_text(COLLECT.text)
    argv = [python_or_skip("3.8"), "-ISu", program, folder]
    environ = {**os.environ, "HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    streams = {"stdout": pipe, "stderr": pipe, "text": True}
    running = [subprocess.Popen(argv, env=environ, **streams) for _ in range(3)]
    outputs, errors = zip(*(one.communicate(timeout=120) for one in running))
    assert errors == ("", "", ""), "they are in the job's log"
    assert [one.returncode for one in running] == [0, 0, 0]
    [told] = filter(None, outputs)
    assert told.startswith("clusterctl: collected 1 file of model (1048576 bytes)")
    assert (folder / "model" / "weights").stat().st_size == 1 << 20


def test_a_model_that_is_no_folder(tmp_path):
    with pytest.raises(NotCollected, match="model is a file on b"):
        merge(*left(tmp_path, a={"model/x": ""}, b={"model": ""}))


def test_what_a_node_could_not_read_is_the_reason(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / ".clusterctl" / "code" / "ID" / "model"
    model.mkdir(parents=True)
    (model / "x").symlink_to("/sys/devices/system/cpu/online")  # tar: it is shorter than its size
    staging = tmp_path / "staging"
    staging.mkdir()
    node = {"name": "demo-0"}
    with pytest.raises(NotCollected, match="not all came from demo-0: tar: model/x: "):
        fetch_results(node, node, "ID", staging)
    assert "tar: model/x: " in capfd.readouterr().err, "all of it is in the job's log"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"model/bad\xff", r"are UTF-8, and this one is not: model/bad\\xff$"),
        (b"/".join([b"model", *[b"x" * 200] * 5]), "of at most 1024 bytes, not 1033: model/xxx"),
    ],
)
def test_a_name_that_s3_cannot_have_is_named_before_anything_is_uploaded(tmp_path, name, why):
    folder = tmp_path / "20261120-154501-3f2a"
    path = folder / os.fsdecode(name)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(NotCollected, match=why):
        upload(folder, "s3://bucket/m")


@pytest.fixture
def head(tmp_path, monkeypatch):
    """A head node with a model of its own, and with folders for the homes of nodes, by address: one
    that has none does not answer. Return a function that collects as a job's end does, or, with
    more arguments, as `fetch` does; it returns what is printed."""
    folder = tmp_path / ".clusterctl" / "jobs" / "ID"
    nodes = tuple({"name": f"demo-{at}", "address": f"n{at}"} for at in range(2))
    for home in (tmp_path, tmp_path / "n1"):
        (home / ".clusterctl" / "code" / "ID" / "model").mkdir(parents=True)
    (tmp_path / ".clusterctl" / "code" / "ID" / "model" / "weights").write_text("of the head")
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(to_json(JobSpec("ID", nodes=nodes, model_dir="")))
    (tmp_path / "ssh").write_text(
        f"""#!/bin/sh
shift $(($# - 2))
[ -d {tmp_path}/$1 ] || {{ echo "ssh: connect to host $1 port 22: No route" >&2; exit 255; }}
cd {tmp_path}/$1
HOME=$PWD exec sh -c "$2"
"""
    )
    (tmp_path / "ssh").chmod(0o700)
    (tmp_path / "collect.py").write_text(COLLECT.text)

    def run(*more):
        environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        argv = [sys.executable, "-ISu", tmp_path / "collect.py", folder, *more]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is (folder / "manifest.json").exists()
        return done.stdout + done.stderr

    return run


def test_what_a_new_machine_does_not_have_is_said_and_the_rest_is_collected(tmp_path, head):
    shutil.rmtree(tmp_path / "n1" / ".clusterctl")
    assert head() == (
        "clusterctl: collected 1 file of model (11 bytes) and 0 files of output (0 bytes); "
        "nothing of demo-1, whose machine has no folder of this job\n"
    )
    assert (tmp_path / ".clusterctl/jobs/ID/model/weights").read_text() == "of the head"


def test_a_node_that_does_not_answer_is_waited_for_unless_its_machine_is_gone(tmp_path, head):
    (tmp_path / "n1").rename(tmp_path / "away")
    why = "ssh: connect to host n1 port 22: No route"
    failed = f"{why}\nclusterctl: the model was not collected: not all came from demo-1: {why}"
    assert head("fetch") == f"{failed}\n", "no line of tar's, and not to run `fetch` to run it"
    assert head() == (
        f"{failed}; what the job left is still on the nodes, in ~/.clusterctl/code/ID: "
        "fetch it with clusterctl fetch\n"
    )
    assert "collected 1 file of model" in head("fetch", "demo-1")


def test_of_a_job_that_went_on_elsewhere_the_nodes_of_the_latest_attempt_are_asked(tmp_path, head):
    (tmp_path / "n1").rename(tmp_path / "10.0.0.9")
    (tmp_path / "10.0.0.9/.clusterctl/code/ID/model/more").write_text("of the new machine")
    attempt = {"argv": [], "ranks": 2, "hosts": ["demo-0", "10.0.0.9"], "hourly_usd": None}
    events = [JobEvent("submitted", 1.0, {"after": [], "boot_id": ""}), JobEvent("running", 2.0)]
    events.append(JobEvent("attempt", 3.0, attempt))
    text = "".join(f"{to_json(one)}\n" for one in events)
    (tmp_path / ".clusterctl/jobs/ID/events.jsonl").write_text(text)
    assert "collected 2 files of model" in head()
