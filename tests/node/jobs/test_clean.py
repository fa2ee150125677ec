"""`node/jobs/clean.py` on real folders: with any --log_dir, files of other programs stay."""

from __future__ import annotations

import os

import pytest

from clusterctl.node.jobs.clean import Cleaning, NodeLogs
from clusterctl.node.jobs.clean import clean as clean_node
from clusterctl.transport.call import NodeCall, call
from tests.local_node import HEAD, LocalNode

OURS = (
    *("hvd_train.log", "eval_hvd_train.log", "model.ckpt-7.index"),
    *("model.ckpt-7.data-00000-of-00001", ".model.ckpt-9_temp/part-00000-of-00001"),
    *("events.out.tfevents.1.node.v2", "checkpoint", "metrics.jsonl"),
)
OTHERS = (
    *("thesis.tex", ".ssh/authorized_keys", "model.ckpt-best/weights", "model.ckpt-notes"),
    *("my hvd_train.log", "sub/model.ckpt-7.index", "sub/hvd_train.log"),
)


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"run": "x"' if name == "metrics.jsonl" else name)


def tree(top):
    return {os.path.relpath(path, top) for path in top.rglob("*")}


@pytest.fixture
def node(tmp_path):
    home = tmp_path / "we ird'\" é"
    home.mkdir()
    return LocalNode(home)


def clean(node, *folders, **changes):
    logs = tuple((folder, "hvd_train.log") for folder in folders)
    cleaning = Cleaning(logs, dumps=str(node.home), **changes)
    return call(node, HEAD, NodeCall(clean_node, cleaning, "removing", 60.0))


@pytest.mark.parametrize("name", ["rün ☃ a'b\"c\n", "-rf", "*", "."])
def test_a_folder_with_other_files_keeps_them(node, name):
    folder = node.home / name
    fill(folder, (*OURS, *OTHERS))
    said = clean(node, f"{folder}/", dry_run=True)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} > {*OURS, *OTHERS}
    assert [(one.checkpoints, one.others) for one in said.folders] == [(1, 6)]
    assert clean(node, f"{folder}/") == said
    assert tree(folder) == {*OTHERS, ".ssh", "model.ckpt-best", "sub"}
    assert clean(node, f"{folder}/").folders == ()


def test_the_last_checkpoints_stay_with_all_else(node):
    runs = node.home / "runs"
    parts = ("index", "data-00000-of-00001")
    fill(runs, [f"model.ckpt-{step}.{part}" for step in (5, 40, 100) for part in parts])
    fill(runs, ["hvd_train.log", "model.ckpt-200.data-00000-of-00001", "metrics.jsonl"])
    jobs = node.home / ".clusterctl/jobs"
    # The first job was submitted last, by a laptop whose clock is slow.
    for number, day in enumerate((2, 3, 1)):
        fill(jobs, [f"2026112{day}-000000-aaaa/spec.json"])
        os.utime(jobs / f"2026112{day}-000000-aaaa" / "spec.json", (number, number))
    before = tree(node.home)
    said = clean(node, "~/runs", keep_last=2, jobs=True)
    going = {f"runs/model.ckpt-5.{part}" for part in parts}
    first = ".clusterctl/jobs/20261122-000000-aaaa"
    going |= {first, f"{first}/spec.json"}
    assert before - tree(node.home) == going
    assert [one.checkpoints for one in said.folders] == [1, 0]
    assert clean(node, "~/runs", keep_last=4, jobs=True).folders == ()


def test_metrics_of_another_program_stay(node):
    fill(node.home / "runs", ["model.ckpt-7.index"])
    (node.home / "runs/metrics.jsonl").write_text('{"loss": 1}\n')
    clean(node, "~/runs")
    assert tree(node.home / "runs") == {"metrics.jsonl"}


def test_the_home_folder_and_one_that_holds_nothing_else(node):
    fill(node.home, (*OURS, *OTHERS))
    fill(node.home / "runs", OURS)
    said = clean(node, "~", "~/runs", "~/none")
    assert [one.path for one in said.folders] == [str(node.home), f"{node.home}/runs"]
    assert tree(node.home) == {*OTHERS, ".ssh", "model.ckpt-best", "sub"}


@pytest.mark.parametrize("ending", ["", "/", "/./"])
def test_links_are_left_alone(node, ending):
    real, other = node.home / "real", node.home / "other"
    fill(real, OURS)
    fill(other, ["model.ckpt-1.index"])
    (node.home / "runs").symlink_to(real)
    said = clean(node, f"~/runs{ending}")
    assert said == NodeLogs(links=(f"{node.home}/runs is a link to {real}",))
    # Targets of links among the files stay as well. A parent folder may be a link.
    (real / "model.ckpt-2.index").symlink_to(other / "model.ckpt-1.index")
    (real / "model.ckpt-3_temp").symlink_to(other)
    (node.home / "on the way").symlink_to(node.home)
    clean(node, "~/on the way/real")
    assert tree(real) == {"model.ckpt-2.index", "model.ckpt-3_temp"}
    assert tree(other) == {"model.ckpt-1.index"}


def test_the_folder_of_a_job_that_runs_stays(node):
    fill(node.home / "runs", OURS)
    before = tree(node.home)
    said = clean(node, "~/runs", str(node.home / "runs"), keep=(f"{node.home}/runs/",), force=True)
    assert (said.folders, tree(node.home)) == ((), before)


def test_what_cannot_be_read_or_is_no_folder(node):
    fill(node.home, ["file"])
    assert clean(node, "~/file", "/", "/proc/1/fd/x").folders == ()
    assert (node.home / "file").exists()


def test_dumps_of_the_flight_recorder_go_with_their_job(node):
    """The job's record is on the head node; another node has the dumps only."""
    ended, running = "20261120-154503-c1ea", "20261120-154504-c1ea"
    dumps = [f"clusterctl.{job}.flight.{rank}" for job in (ended, running) for rank in (0, 1)]
    fill(node.home, [*dumps, "clusterctl.notes"])
    assert clean(node, jobs=True, running=(running,), dry_run=True).folders
    [gone] = clean(node, jobs=True, running=(running,)).folders
    assert gone.path == f"{node.home}/{dumps[0]}"
    assert tree(node.home) == {*dumps[2:], "clusterctl.notes"}


def test_of_the_jobs_folder_only_jobs_go(node):
    jobs = node.home / ".clusterctl" / "jobs"
    # Names that no other test uses, because the check for running jobs sees all processes here.
    names = ("20261120-154501-c1ea", "20261120-154501-c1ea-old", "my-own-notes")
    fill(jobs, [f"{name}/log" for name in names])
    fill(node.home / "elsewhere", ["log"])
    (jobs / "20261120-154502-c1ea").symlink_to(node.home / "elsewhere")
    said = clean(node, jobs=True)
    assert [one.path for one in said.folders] == [f"{jobs}/20261120-154501-c1ea"]
    link = f"{jobs}/20261120-154502-c1ea is a link to {node.home}/elsewhere"
    assert (said.failed, said.links) == ((), (link,))
    assert (node.home / "elsewhere" / "log").exists()
    left = {path.name for path in jobs.iterdir()}
    assert left == {".lock", *names[1:], "20261120-154502-c1ea"}


def test_a_program_that_was_shipped_for_a_job_that_is_not_submitted_yet_stays(node):
    code = node.home / ".clusterctl" / "code"
    young, old = "20261120-154501-c1eb", "20261120-154501-c1ec"
    fill(code, [f"{name}/train.py" for name in (young, old)])
    os.utime(code / old, (1e9, 1e9))
    clean(node, jobs=True)
    assert [path.name for path in code.iterdir()] == [young]
    # Of a job that the head node has recorded it goes, on the nodes that have no records.
    clean(node, jobs=True, recorded=(young,))
    assert [*code.iterdir()] == []
