"""Whether a job's files count as fetched: any change since counts, also one that hides itself."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.node.jobs import folder, written
from clusterctl.node.jobs.folder import EVENTS, LIST_SHIPPED, SHIPPED, JobFolder
from clusterctl.node.jobs.spec import JobEvent, JobSpec, JobStep
from clusterctl.node.jobs.written import (
    CHECKPOINTS,
    FETCHED,
    FILES,
    FetchedOutput,
    OutputFolder,
    fetched_of,
    found_in,
    list_trees,
    note_fetched,
    overview,
    trees_of,
)
from clusterctl.node.procfs import boot_id
from clusterctl.node.record import to_json

NAMES = st.sampled_from(["weights", "a/b"])
FOLDERS = (".", "a", "a/b", "a/b/c", "d")
CONTENT = {"weights": b"old content", "a/b": b"other"}


def rewrite(path: Path) -> None:
    """Write as many bytes, and set the times back, as `cp -p` and a restored backup do."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_over(path: Path) -> None:
    before = path.stat()
    new = path.with_name("new")
    new.write_bytes(bytes(before.st_size))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def read(path: Path) -> None:
    shutil.copy2(path, path.parents[2] / "copy")


CHANGES = {
    "rewrite": rewrite,
    "rename over": rename_over,
    "append": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "remove": lambda path: path.unlink(missing_ok=True),
    "read": read,
}


def let_time_pass(folder: Path) -> None:
    """Wait until the file system's clock has moved on: it has ticks of some milliseconds."""
    probe, known = folder / "probe", max(path.stat().st_ctime_ns for path in folder.rglob("*"))
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > known:
            return


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), NAMES), max_size=3))
def test_files_count_as_fetched_until_one_is_changed(changes):
    with tempfile.TemporaryDirectory() as made:
        top = Path(made, "tree", "of a job")
        for name, content in CONTENT.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(content)
        tree = OutputFolder("x", str(top), FILES)
        fetched = found_in(tree)
        let_time_pass(Path(made))
        for change, name in changes:
            if (top / name).exists():
                CHANGES[change](top / name)
        found = found_in(tree)
        is_same = all(change == "read" for change, _ in changes)
        assert (bool(found) and found.digest == fetched.digest) == is_same


@settings(max_examples=30)
@given(st.sets(st.sampled_from(sorted(FOLDERS))), st.sampled_from([FILES, CHECKPOINTS]))
def test_what_cannot_be_read_is_named_and_hides_nothing_else(closed, kind):
    scan = os.scandir

    def scandir(path):
        if os.path.relpath(path, top) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    with tempfile.TemporaryDirectory() as made:
        top = Path(made)
        for folder in FOLDERS:
            (top / folder).mkdir(exist_ok=True)
            (top / folder / "weights").touch()
        (top / "model.ckpt-40.index").touch()
        with mock.patch.object(os, "scandir", scandir):
            found = found_in(OutputFolder("x", made, kind), named=True)
    # Of two folders, of which one is below the other, only the upper one can be seen.
    seen = [one for one in FOLDERS if not closed & {str(up) for up in Path(one).parents}]
    names = {str(Path(one, "weights")) for one in seen if one not in closed}
    if "." in closed:
        seen, names = ["."], set()
    elif kind == CHECKPOINTS or names:
        names.add("model.ckpt-40.index")
    assert found
    assert {*found.names} == names
    assert len(found.unread) == len(closed.intersection(seen))
    assert all(text.endswith(": Permission denied") for text in found.unread)


def test_a_folder_that_the_node_needs_is_not_searched_nor_are_keys(tmp_path, monkeypatch):
    """Also if a link leads there that was made since the job began."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (".ssh/key", ".clusterctl/jobs/J/log", "out/.ssh/key", "out/weights"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path)
    found = found_in(OutputFolder("x", str(tmp_path / "out"), FILES), named=True)
    assert found
    assert found.names == ("weights",)
    for needed in ("", ".ssh", ".clusterctl/jobs", "link"):
        found = found_in(OutputFolder("x", str(tmp_path / needed), FILES), named=True)
        assert found
        assert (found.names, len(found.unread)) == ((), 1)


def test_the_hosts_file_that_follows_the_cluster_is_no_result(tmp_path, monkeypatch):
    """A quarantine rewrites it while a job runs next to it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    examples = tmp_path / "examples/horovod/tensorflow"
    for path in (examples / "hosts", examples / "own/hosts"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("10.0.0.4 slots=8\n")
    found = found_in(OutputFolder("", str(examples), FILES, since=1.0), named=True)
    assert found is not None
    assert found.names == ("own/hosts",)


def test_one_job_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "JOBS", tmp_path)
    ids = [f"20261127-00000{n}-abcd" for n in range(3)]
    jobs = [JobFolder(tmp_path / name) for name in ids]
    for job in jobs:
        job.create(JobSpec(job.job_id, steps=(JobStep(("x",)),)), [])
        assert job.take()
    record = JobFolder.record

    def fail(job):
        if job.job_id == ids[1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(job.path / "log"))
        return record(job)

    monkeypatch.setattr(JobFolder, "record", fail)
    found = overview(None)
    for job in jobs:
        job.release()
    assert [one.id for one in found.jobs] == [ids[0], ids[2]]
    assert list(found.unknown) == [ids[1]]


def test_what_a_job_writes_counts_though_the_clock_was_set_back_since_its_program_came(tmp_path):
    (tmp_path / "main.py").write_text("print()")
    subprocess.run(["sh", "-c", f"umask 077; {LIST_SHIPPED}"], cwd=tmp_path, check=True)
    listed = (tmp_path / SHIPPED).read_text()
    tree = OutputFolder("x", str(tmp_path), FILES, shipped=str(tmp_path / SHIPPED))
    assert found_in(tree) is None
    (tmp_path / "weights").write_bytes(b"w")
    let_time_pass(tmp_path)
    (tmp_path / "probe").unlink()
    (tmp_path / SHIPPED).write_text(listed)  # as after the clock was set back, it is the newest
    found = found_in(tree, named=True)
    assert found
    assert found.names == ("weights",)
    rewrite(tmp_path / "main.py")
    found = found_in(tree, named=True)
    assert found
    assert found.names == ("main.py", "weights")


@pytest.mark.parametrize("state", ["runs", "lost", "ended"])
def test_what_a_program_of_the_nodes_writes_counts_though_the_clock_was_set_meanwhile(
    tmp_path, monkeypatch, state
):
    monkeypatch.setattr(written, "CODE", tmp_path / "code")
    workdir = tmp_path / "examples"
    workdir.mkdir()
    (workdir / "result").write_text("r")
    at = (workdir / "result").stat().st_ctime
    job = JobFolder(tmp_path / "20261127-000000-abcd")
    steps, hosts = (JobStep(("mpirun", "program.py")),), ("demo-0", "demo-1")
    job.create(JobSpec(job.job_id, steps=steps, workdir=str(workdir), hosts=hosts), [])
    events = [JobEvent("submitted", at + 5000, {"after": [], "boot_id": boot_id()})]
    events.append(JobEvent("running", at + 5000))  # then the clock is set back
    for host in ("demo-1", "10.0.0.9", "10.0.0.7"):
        attempt = {"argv": [], "ranks": 2, "hosts": ["demo-0", host], "hourly_usd": None}
        events.append(JobEvent("attempt", at + 5000, attempt))
    if state == "ended":
        events.append(JobEvent("ended", at - 5000, {"state": "failed"}))
    (job.path / EVENTS).write_text("".join(f"{to_json(one)}\n" for one in events))
    assert job.take() if state == "runs" else True
    job.write_heartbeat(at - 5000, at + 5000)
    assert state == "ended" or job.heartbeat_at() == pytest.approx(time.time(), abs=60)
    [tree] = trees_of(job.path)
    found = found_in(tree, named=True)
    assert found
    assert found.names == ("result",)
    assert tree.hosts == ("demo-1", "10.0.0.9", "10.0.0.7"), "ranks ran there, too"


TRAINS = ("resumes", "clears")
DOES = (*TRAINS, "evaluates", "fails at once", "is queued")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(DOES), min_size=1, max_size=4))
def test_no_job_has_a_later_trainings_checkpoints_and_all_are_some_jobs(does):
    """By `fetch`, and by `down`, which name the same job for each."""
    with (
        tempfile.TemporaryDirectory() as made,
        mock.patch.multiple(written, JOBS=Path(made), CODE=Path(made, "code")),
        mock.patch.object(folder, "JOBS", Path(made)),
    ):
        log_dir = Path(made, "run")
        log_dir.mkdir()
        ids = [f"20261127-00000{number}-abcd" for number in range(len(does))]
        for number, (job_id, what) in enumerate(zip(ids, does)):
            job = JobFolder(Path(made, job_id))
            spec = JobSpec(job_id, steps=(JobStep(("x",)),), workdir=made, log_dir="run")
            job.create(spec, [])
            os.utime(job.path / "spec.json", (number, number))
            if what != "is queued":
                job.append("running", before=job.stamps(spec))
            if what == "clears":
                shutil.rmtree(log_dir)
                log_dir.mkdir()
            if what in TRAINS:
                for name in ("hvd_train.log", "metrics.jsonl", f"model.ckpt-{number}.index"):
                    (log_dir / name).write_text(f"{number}" * (number + 1))
                (log_dir / f".model.ckpt-{number + 1}_temp").mkdir(exist_ok=True)
                (log_dir / f".model.ckpt-{number + 1}_temp" / "part").touch()
            elif what == "evaluates":
                (log_dir / "eval_hvd_train.log").write_text(f"{number}")
                with (log_dir / "metrics.jsonl").open("a") as file:
                    file.write("eval")
        trained = [number for number, what in enumerate(does) if what in TRAINS]
        brought = {
            job_id: [one for one in list_trees(job_id) if one.job == job_id] for job_id in ids
        }
        if trained:
            latest = ids[trained[-1]]
            assert [job_id for job_id, trees in brought.items() if trees] == [latest]
            assert [one.job for one in written.all_trees()[0]] == [latest]
            found = found_in(brought[latest][0], named=True)
            assert found
            assert f"model.ckpt-{trained[-1]}.index" in found.names
            assert not [name for name in found.names if "_temp" in name], "half a checkpoint"
        else:
            assert not [one for trees in brought.values() for one in trees if found_in(one)]


def test_by_a_damaged_record_nothing_was_fetched(tmp_path):
    (tmp_path / FETCHED).write_text('{"demo-0": {"/data/x": "a1"}}')
    assert fetched_of(tmp_path) == {"demo-0": {"/data/x": "a1"}}
    for content in ("", "{", "[]", '{"demo-0": ["/data/x"]}'):
        (tmp_path / FETCHED).write_text(content)
        assert fetched_of(tmp_path) == {}


def test_a_fetch_of_a_job_that_was_removed_meanwhile_is_not_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(written, "JOBS", tmp_path)
    note_fetched(FetchedOutput("gone", {"demo-0": {"/data/x": "a1"}}))
    assert list(tmp_path.iterdir()) == []
