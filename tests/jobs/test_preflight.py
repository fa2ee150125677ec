"""Problems of a training run, found from the nodes' state: each check alone, then all together."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest

from clusterctl.bootstrap.training import SHELL
from clusterctl.domain.findings import Severity
from clusterctl.domain.hostsfile import HostsFile, HostSlots
from clusterctl.domain.releases import FIRST_WITHOUT_KERNELS, RUNS_ON, SERIES
from clusterctl.jobs.plan import OTHER_LANGUAGE, JobPlan
from clusterctl.jobs.preflight import (
    NotReady,
    PreflightFacts,
    crowding_findings,
    errors,
    facts_to_read,
    preflight,
)
from clusterctl.jobs.trainer import IMAGENET_IMAGES, JobRecipe, TrainerRun
from clusterctl.node.facts.training import COMPILED
from clusterctl.node.guard import notices
from clusterctl.node.guard.clock import GuardFiles
from clusterctl.node.guard.notices import InterruptionNotice

GIB = 1 << 30
VERSIONS = {
    "mpirun": "mpirun (Open MPI) 5.0.11",
    "python": "3.11.2",
    "tensorflow": "2.15.1",
    "horovod": "0.28.1",
    "horovod_built_for": "2.15.1",
}
LOG = "/home/ubuntu/examples/imagenet_resnet"


def shards(files, subset="train", size=1000, first=0):
    return {f"{subset}-{n:05d}-of-{files:05d}": size + n for n in range(first, files + first)}


TRAINING = shards(16)
NODE = PreflightFacts(
    host="demo-0",
    training=TRAINING,
    validation=shards(2, "validation"),
    records=dict.fromkeys(list(TRAINING)[:3], 100) | {"train-00015-of-00016": 50},
    free_bytes=100 * GIB,
    versions=VERSIONS,
)
SECOND = replace(NODE, host="demo-1")
NOTICES = (
    InterruptionNotice("demo-1", "rebalance", "2026-11-28T20:00:00Z"),
    InterruptionNotice("demo-1", "terminate", "2026-11-28T20:04:00Z"),
)
# 1550 records x 10 epochs // (8 x 4) = 484 steps.
RUN = TrainerRun(8, "/data", batch_size=4, epochs=10, clears=True)


def plan(run=RUN, evaluation=("mpirun", "--eval"), **changes):
    values = {
        "job_id": "x",
        "ranks": run.ranks if run else 2,
        "preset": "cpu",
        "synthetic": False,
        "workdir": "/home/ubuntu/examples",
        "argv": ("/opt/mpirun",),
        "evaluation": evaluation,
        "python": "/opt/python",
        "run": run,
    }
    return JobPlan(**{**values, **changes})


def found(nodes=(NODE, SECOND), job=None, readers=("demo-0", "demo-1"), force=False):
    return [
        (one.check, one.severity.value, one.host, one.message)
        for one in preflight(job or plan(), nodes, readers, force)
    ]


def checkpoints(node, *steps):
    return replace(node, checkpoints=steps, checkpoint_bytes=len(steps) * 200 << 20)


def asked_of_nodes(job):
    facts = [one for one in facts_to_read(job) if isinstance(one, partial)]
    return {one.func.__name__: one.keywords for one in facts}


def test_nothing_speaks_against_it():
    assert found() == []
    assert asked_of_nodes(plan()) == {
        "versions": {"python": "/opt/python", "mpirun": "/opt/mpirun"},
        "training_files": {"folder": "/data"},
        "training_log": {"folder": LOG},
        "script_error": {"path": ""},
    }


def test_a_node_that_ec2_takes_back_is_named_before_the_start(tmp_path, monkeypatch):
    """Once, by its certain notice, and not for another node's, which the head node has as well."""
    files = GuardFiles(str(tmp_path))
    monkeypatch.setattr(notices, "GuardFiles", lambda: files)
    assert notices.notices() == ()
    files.spot.parent.mkdir(parents=True)
    lines = "".join(
        f'{{"action": "{one.action}", "time": "{one.time}", "node": "{one.host}"}}\n'
        for one in NOTICES
    )
    files.spot.write_text(f"{lines}cut sho")
    assert notices.notices() == NOTICES
    nodes = [replace(one, notices=notices.notices()) for one in (NODE, SECOND)]
    text = "EC2 has given notice: terminate at 2026-11-28T20:04:00Z; a job on it ends then"
    assert found(nodes) == [("node.notice", "warning", "demo-1", text)]
    assert found(nodes, readers=("demo-0",)) == []


@pytest.mark.parametrize(
    ("versions", "check_id", "message"),
    [
        ({"tensorflow": "2.14.1", "horovod_built_for": "2.14.1"}, "env.differs",
         "has TensorFlow 2.14.1, demo-0 has 2.15.1"),
        ({"mpirun": "mpirun (Open MPI) 4.1.4"}, "env.differs",
         "has Open MPI 4.1.4, demo-0 has 5.0.11"),
        ({"horovod": None, "horovod_built_for": None}, "env.differs",
         "has no Horovod, demo-0 has 0.28.1"),
        ({"horovod_built_for": "2.16.2"}, "env.mismatch",
         "Horovod was built for TensorFlow 2.16.2, and 2.15.1 is installed"),
        ({**dict.fromkeys(VERSIONS), "python": "3.11.2"}, "env.missing",
         "/opt/mpirun does not start there"),
        # Different patch versions of Python or TensorFlow are no mismatch.
        ({"python": "3.11.9", "horovod_built_for": "2.15.0"}, "", ""),
    ],
)  # fmt: skip
def test_software_that_is_otherwise(versions, check_id, message):
    there = {name: value for name, value in {**VERSIONS, **versions}.items() if value}
    said = [(check_id, "error", "demo-1", message)] if check_id else []
    assert found([NODE, replace(SECOND, versions=there)]) == said


GPU_2_15 = {**VERSIONS, "cuda": "12.2.140", "cudnn": "8.9.4.25", "nccl": "2.21.5"}
GPU_NEWEST = {**GPU_2_15, "cuda": "12.9.79", "tensorflow": "2.21.0", "horovod_built_for": "2.21.0"}


@pytest.mark.parametrize(
    ("versions", "capabilities", "said"),
    [
        (GPU_2_15, [(80,), (80,)], []),
        (GPU_2_15, [(), ()], []),
        (GPU_NEWEST, [(60,), (90,)], []),
        # It is not known what CUDA an environment of the user's has.
        (VERSIONS, [(80,), (100,)], []),
        (
            GPU_2_15,
            [(80,), (90,)],
            [("env.kernels", "info", "demo-1", "TensorFlow 2.15.1 has no kernels for compute "
              "capability 9.0: the driver compiles them at their first use")],
        ),
        (
            GPU_2_15,
            [(100,), (100,)],
            [("env.gpus", "error", "demo-[0-1]",
              "the environment's CUDA 12.2.140 has no code for compute capability 10.0")],
        ),
    ],
)  # fmt: skip
def test_libraries_that_do_not_know_the_gpus(versions, capabilities, said):
    nodes = [
        replace(node, versions=versions, capabilities=own)
        for node, own in zip((NODE, SECOND), capabilities)
    ]
    assert found(nodes, plan(preset="gpu")) == said
    assert found(nodes, plan(preset="cpu")) == []
    [hint] = {one.hint for one in preflight(plan(preset="efa"), nodes, ["demo-0", "demo-1"])} or [
        ""
    ]
    assert hint == ("clusterctl env install NAME --tensorflow NEWEST" if said else "")


@pytest.mark.parametrize("capability", [50, 52, 60, 70, 80, 89, 90, 100, 120])
@pytest.mark.parametrize(("release", "versions"), [("default", GPU_2_15), ("newest", GPU_NEWEST)])
def test_a_job_is_told_of_gpus_what_env_install_says(release, versions, capability):
    """The second node of a mixed cluster has other GPUs than the head node."""
    first, last = RUNS_ON[release]
    expected = []
    if not first <= capability <= last:
        expected = [("env.gpus", "error", "demo-1")]
    elif capability >= FIRST_WITHOUT_KERNELS[release]:
        expected = [("env.kernels", "info", "demo-1")]
    head = replace(NODE, versions=versions, capabilities=(80,))
    nodes = [head, replace(head, host="demo-1", capabilities=(capability,))]
    assert [one[:3] for one in found(nodes, plan(preset="gpu"))] == expected


def test_the_series_are_those_that_are_installed():
    pins = re.findall(r"TENSORFLOW_PIN=(\d+\.\d+)", (SHELL / "training.sh").read_text())
    assert sorted(pins) == sorted(SERIES.values())


@pytest.mark.parametrize(
    ("there", "go_on"),
    [
        (2048, "-- --batch_size 256"),
        (2047, "a number of GPUs that divides 2,047"),
        (3264, ""),
        (None, ""),
    ],
)
def test_a_recipe_with_another_batch_does_not_resume(there, go_on):
    """On eight GPUs of 80 GB the tutorial's recipe takes 256 images a rank, `fast` takes 408."""
    run = TrainerRun(8, "/data", batch_size=408, batches=100)
    records = dict.fromkeys(NODE.records, 1000)
    nodes = [
        replace(checkpoints(one, 7), images_per_step=there, records=records)
        for one in (NODE, SECOND)
    ]
    [resumed] = preflight(plan(run), nodes, ["demo-0", "demo-1"])
    said = (resumed.check, resumed.severity.value, resumed.hint)
    if not go_on:
        assert said == ("log.resumed", "info", "")
        return
    keep = "to keep it: -- --log_dir NAME; to delete it: --clear"
    assert said == ("log.other_batch", "error", f"to resume it: {go_on}; {keep}")
    assert resumed.message.startswith(
        f"{LOG} holds a training with {there:,} images a step, and this one has 3,264 (8 x 408)"
    )
    cleared = plan(replace(run, clears=True), clears_on_purpose=True)
    assert [one[0] for one in found(nodes, cleared)] == ["log.unfinished"]


def test_libraries_that_differ_between_nodes():
    other = {**GPU_2_15, "nccl": "2.16.5", "cudnn": "9.10.2.21"}
    nodes = [replace(NODE, versions=GPU_2_15), replace(SECOND, versions=other)]
    assert found(nodes) == [
        ("env.differs", "error", "demo-1", f"has {name} {there}, demo-0 has {GPU_2_15[key]}")
        for name, key, there in [("NCCL", "nccl", "2.16.5"), ("cuDNN", "cudnn", "9.10.2.21")]
    ]


@pytest.mark.parametrize(
    ("own", "hint"),
    [(None, "clusterctl env install NAME"), ("~/mine", "~/mine has to be the same on every node")],
)
def test_whose_environment_it_is_decides_what_to_do(own, hint):
    nodes = [NODE, replace(SECOND, versions={})]
    said = preflight(replace(plan(), environment=own), nodes, ("demo-0", "demo-1"), False)
    assert {hint in one.hint for one in said} == {True}


OTHER = "has other training data than demo-0: "


@pytest.mark.parametrize(
    ("second", "check_id", "message"),
    [
        ({"training": {}}, "missing", "there is no training data in /data (no file named train-*)"),
        ({"training": {}, "data_error": "/data: Permission denied"}, "missing",
         "cannot read the training data: /data: Permission denied"),
        ({"training": {**TRAINING, "train-00003-of-00016": 1}}, "differs",
         f"{OTHER}train-00003-of-00016 has 1 byte, on demo-0 1003"),
        ({"training": shards(16, size=5)}, "differs",
         f"{OTHER}train-00000-of-00016 has 5 bytes, on demo-0 1000, and 15 other files"),
        ({"records": {**NODE.records, "train-00001-of-00016": -1}}, "cut_short",
         "train-00001-of-00016 ends within a record"),
    ],
)  # fmt: skip
def test_data_that_is_otherwise(second, check_id, message):
    expected = [(f"data.{check_id}", "error", "demo-1", message)]
    assert found([NODE, replace(SECOND, **second)]) == expected


@pytest.mark.parametrize(
    ("version", "keras", "works"),
    [
        ("2.15.1", "2.15.0", True),
        ("2.5.0", "", True),  # TensorFlow versions in which Keras is no separate package
        ("2.16.2", "3.3.3", False),
        ("2.21.0", "2.21.0", True),  # tf_keras replaces Keras 3
        ("1.15", "", False),
    ],
)
def test_the_trainers_tensorflow(version, keras, works):
    versions = {**VERSIONS, "tensorflow": version, "horovod_built_for": version}
    node = replace(NODE, versions={**versions, **({"keras": keras} if keras else {})})
    assert [one[0] for one in found([node])] == ([] if works else ["env.mismatch"])


def test_an_evaluation_alone_reads_the_validation_files_of_all_its_ranks():
    """Its training files may be missing, truncated or different."""
    job = plan(replace(RUN, evaluates_only=True, clears=False), evaluation=())
    head = replace(checkpoints(NODE, 484), training={}, records={})
    broken = replace(SECOND, training={"train-00003-of-00004": 5}, records={"x": -1})
    assert found([head, broken], job) == []
    said = found([head, replace(broken, validation={})], job)
    assert [one[:3] for one in said] == [("data.validation", "error", "demo-1")]
    said = found([head, replace(broken, records={"validation-00000-of-00002": -1})], job)
    assert [one[:3] for one in said] == [("data.cut_short", "error", "demo-1")]


def test_after_a_training_the_head_nodes_validation_files_are_read():
    cut = {"records": {**NODE.records, "validation-00001-of-00002": -1}}
    nodes = [replace(NODE, **cut), SECOND]
    [one] = preflight(plan(), nodes, ("demo-0", "demo-1"), False, "/root")
    assert (one.check, one.host) == ("data.cut_short", "demo-0")
    assert one.message == "validation-00001-of-00002 ends within a record"
    assert one.hint.startswith("demo-1 has it all: clusterctl copy NAME --from 1 ")
    assert found(nodes, plan(evaluation=())) == found([NODE, replace(SECOND, **cut)]) == []


def test_a_node_without_ranks_needs_no_data_but_the_software():
    bare = replace(SECOND, training={}, validation={}, records={})
    assert found([NODE, bare], readers=["demo-0"]) == []
    assert [one[0] for one in found([NODE, replace(bare, versions={})], readers=["demo-0"])] == [
        "env.missing",
        "env.missing",
    ]


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (shards(16, first=1), []),  # counted from 1, like the tutorial's resizer
        ({name: 1 for name in TRAINING if "00007" not in name},
         ["15 of 16 train files are there: train-00007-of-00016 is missing"]),
        ({name: 1 for name in shards(16, first=1) if "00001-" not in name},
         ["15 of 16 train files are there: train-00001-of-00016 is missing"]),
        (dict.fromkeys(list(TRAINING)[:10], 1),
         ["10 of 16 train files are there: train-00010-of-00016 and others are missing"]),
        ({**TRAINING, "train-00016-of-00016": 1},
         ["17 train files are there, 16 belong to the set"]),
        ({**TRAINING, **shards(8)},
         ["files of several sets are mixed: train-*-of-00008 and train-*-of-00016"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("validation", "of_these"),
    [
        (NODE.validation, []),
        (
            {"validation-00001-of-00002": 1},
            ["1 of 2 validation files is there: validation-00000-of-00002 is missing"],
        ),
        ({}, ["there is nothing to evaluate with in /data (no file named validation-*)"]),
    ],
)
def test_an_incomplete_set(training, said, validation, of_these):
    node = replace(NODE, training=training, validation=validation, records={})

    def messages(job):
        return [one[3] for one in found([node], job, ["demo-0"]) if one[1] == "error"]

    assert messages(plan()) == said + of_these
    assert messages(plan(evaluation=())) == said, "who does not evaluate needs no validation files"


UNEVEN = (
    "16 training files do not divide by 6 ranks: some read 3 and some 2, "
    "and those images count more"
)


@pytest.mark.parametrize(
    ("changes", "check_id", "severity", "text"),
    [
        ({"ranks": 16}, "", "", ""),
        ({"ranks": 17}, "few_shards", "error", "16 training files for 17 ranks: each needs one"),
        ({"ranks": 6}, "uneven_shards", "warning", UNEVEN),
        ({"batch_size": 193}, "", "", ""),
        ({"batch_size": 194}, "few_images", "error",
         "one step takes 194 images for each of 8 ranks, and there are 1550 in all"),
    ],
)  # fmt: skip
def test_files_images_and_ranks(changes, check_id, severity, text):
    said = [(f"data.{check_id}", severity, None, text)] if check_id else []
    assert found(job=plan(replace(RUN, **changes))) == said


def test_data_elsewhere_is_not_looked_at():
    job = plan(replace(RUN, data_dir="s3://bucket/imagenet"))
    nodes = [replace(node, training={}, validation={}, records={}) for node in (NODE, SECOND)]
    assert (found(nodes, job), asked_of_nodes(job)["training_files"]["folder"]) == ([], None)


FINISHED = f"{LOG} holds a finished run: step 484 of 484 (2 checkpoints, 400.0 MiB)"
LONGER = f"{LOG} holds a run of 485 steps, more than the 484 of this one (1 checkpoint, 200.0 MiB)"
NOTHING = "nothing is left to train"
NO_STEP = f"there is no checkpoint in {LOG}"
UNFINISHED = f"{LOG} holds a run that got to step 400 of 484 (1 checkpoint, 200.0 MiB)"


@pytest.mark.parametrize(
    ("steps", "changes", "check_id", "severity", "text"),
    [
        ((200, 484), {}, "finished", "error", FINISHED),
        ((400,), {}, "unfinished", "error", UNFINISHED),
        ((200, 484), {"on_purpose": True}, "finished", "warning", FINISHED),
        # Checkpoints of another run, which had more images or smaller batches.
        ((485,), {}, "finished", "error", LONGER),
        ((485,), {"clears": False}, "nothing_left", "warning",
         f"{LOG} holds a run of 485 steps, more than the 484 of this one: {NOTHING}"),
        ((200, 484), {"clears": False}, "nothing_left", "warning",
         f"{LOG} holds the final step, 484: {NOTHING}"),
        ((400,), {"clears": False}, "resumed", "info",
         f"training resumes from step 400 of 484 in {LOG}, if that can be read"),
        ((), {"clears": False}, "no_checkpoint", "info", f"{NO_STEP}: training begins at step 0"),
        ((), {"evaluates_only": True, "clears": False}, "no_checkpoint", "error", NO_STEP),
        # Synthetic training would delete it as well.
        ((400,), {"data_dir": None}, "unfinished", "error", UNFINISHED.replace(" of 484", "")),
        # The number of steps is unknown for data that is not on the nodes.
        ((400,), {"data_dir": "gs://b"}, "unfinished", "error", UNFINISHED.replace(" of 484", "")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("force", [False, True])
def test_an_earlier_run(steps, changes, check_id, severity, text, force):
    node = checkpoints(NODE, *steps)
    if "data_dir" in changes:
        node = replace(node, training={}, records={})
    on_purpose = changes.get("on_purpose", False)
    run = replace(RUN, **{name: changes[name] for name in changes if name != "on_purpose"})
    [one] = found([node], plan(run, clears_on_purpose=on_purpose), ["demo-0"], force)
    if force and check_id == "no_checkpoint":
        severity = severity.replace("error", "warning")
    expected = (f"log.{check_id}", severity, text)
    assert (one[0], one[1], one[3]) == expected, "--force deletes nothing"


def test_a_run_on_a_worker_counts_too():
    nodes = [NODE, checkpoints(SECOND, 400)]
    [[check_id, _, host, _]] = found(nodes)
    assert (check_id, host) == ("log.unfinished", "demo-1")
    assert found(nodes, readers=["demo-0"]) == [], "without a rank, nothing is deleted there"


def test_training_goes_on_from_what_the_head_node_has():
    """Workers may have other checkpoints, for example after `replace demo 0` with --local_ckpt."""
    job = plan(replace(RUN, clears=False))
    text = f"there is no checkpoint in {LOG}, but on demo-1: a run resumes from rank 0's"
    assert found([NODE, checkpoints(SECOND, 400)], job) == [
        ("log.elsewhere", "error", "demo-0", text)
    ]
    [[_, severity, _, text]] = found([checkpoints(NODE, 300), checkpoints(SECOND, 400)], job)
    says = f"training resumes from step 300 of 484 in {LOG}, if that can be read"
    assert (severity, text) == ("info", says)


def test_synthetic_training_that_clears_nothing_has_no_earlier_run():
    job = plan(replace(RUN, data_dir=None, clears=False), evaluation=())
    assert found([checkpoints(NODE, 400), SECOND], job) == []


@pytest.mark.parametrize(
    ("changes", "free", "said"),
    [
        ({"batches": 3000, "epochs": None, "save_every": 1000}, 3 * 205 << 20, []),
        ({"batches": 3000, "epochs": None, "save_every": 1000}, 500 << 20,
         ["3 checkpoints of resnet50 need 585.0 MiB, 500.0 MiB are free for " + LOG]),
        ({"batches": 3000, "epochs": None, "model": "resnet18"}, 540 << 20, []),
        ({"save_every": 0}, GIB,
         ["11 checkpoints of resnet50 need 2.1 GiB, 1.0 GiB are free for " + LOG]),
        ({"save_every": 1000}, GIB // 8,
         ["1 checkpoint of resnet50 needs 195.0 MiB, 128.0 MiB are free for " + LOG]),
        ({}, GIB, ["6 checkpoints of resnet50 need 1.1 GiB, 1.0 GiB are free for " + LOG]),
        ({"data_dir": None}, 0, []),
    ],
)  # fmt: skip
def test_room_for_checkpoints(changes, free, said):
    nodes = [replace(node, free_bytes=free) for node in (NODE, SECOND)]
    assert found(nodes, plan(replace(RUN, **changes))) == [
        ("disk.checkpoints", "error", "demo-0", text) for text in said
    ]
    # With --local_ckpt, every node has checkpoints.
    job = plan(replace(RUN, local_ckpt=True, **changes))
    hosts = [one[2] for one in found(nodes, job)]
    assert hosts == (["demo-[0-1]"] if said else [])


def test_room_that_is_there_already_or_becomes_free_counts():
    run = replace(RUN, epochs=None, batches=3000, save_every=1000)
    node = replace(checkpoints(NODE, 1000, 2000), free_bytes=210 << 20)
    assert [one[0] for one in found([node], plan(replace(run, clears=False)))] == ["log.resumed"]
    anew = found([node], plan(run, clears_on_purpose=True))
    assert [one[:2] for one in anew] == [("log.unfinished", "warning")]


def test_steps_to_trace_are_looked_for_before_anything_starts():
    run = replace(RUN, data_dir=None, batches=None, epochs=1, batch_size=IMAGENET_IMAGES // 20)
    for first in (9, 10):  # the run has ten steps on two ranks
        said = found([NODE], plan(replace(run, ranks=2, trace_steps=(first, 99))), ["demo-0"])
        late = [("trace.too_late", "error")] if first == 10 else []
        assert [one[:2] for one in said] == late


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("log.few_checkpoints", "warning")]),
        ({"save_every": 0}, []),
        ({"save_every": 500}, []),
        ({"eval_interval": None}, []),
        ({"data_dir": None}, []),
        ({"evaluates_only": True, "clears": False}, []),
    ],
)
def test_few_checkpoints_to_evaluate_are_announced_before_the_training(changes, expected):
    run = replace(replace(RUN, eval_interval=5), **changes)
    node = checkpoints(NODE, 300) if run.evaluates_only else NODE
    assert [one[:2] for one in found([node, SECOND], plan(run))] == expected


WITHOUT_LARC = (
    " without LARC cost accuracy: published top-1 is 76.3 % with 8,192, 75.2 % with 16,384, "
    "72.5 % with 32,768, 66.0 % with 65,536 (arXiv:1706.02677)"
)


@pytest.mark.parametrize(
    ("changes", "severity", "images"),
    [
        ({"ranks": 64}, None, ""),
        ({"ranks": 65}, "warning", "16,640 images a step (65 x 256)"),
        ({"ranks": 128}, "warning", "32,768 images a step (128 x 256)"),
        ({"ranks": 129}, "error", "33,024 images a step (129 x 256)"),
        ({"ranks": 256}, "error", "65,536 images a step (256 x 256)"),
        # It is the images that count: 256 GPUs with small batches train well.
        ({"ranks": 256, "batch_size": 64}, None, ""),
        ({"ranks": 256, "uses_larc": True}, None, ""),
        # A run of some steps measures speed, and noise has no accuracy.
        ({"ranks": 256, "epochs": None, "batches": 100}, "warning", "65,536 images a step"),
        ({"ranks": 256, "data_dir": None}, None, ""),
        ({"ranks": 256, "evaluates_only": True}, None, ""),
    ],
)
def test_a_step_of_too_many_images_is_refused_with_what_it_costs(changes, severity, images):
    run = replace(RUN, **{"batch_size": 256, **changes})
    node = replace(NODE, training=shards(run.ranks), records={}, checkpoints=(9,))
    for force in (False, True):
        said = [one for one in found([node], plan(run), ["demo-0"], force) if "recipe" in one[0]]
        shown = "warning" if force and severity else severity
        assert [one[:2] for one in said] == ([("recipe.larc", shown)] if severity else [])
        for one in said:
            assert one[3].startswith(images)
            assert one[3].endswith(WITHOUT_LARC)


@pytest.mark.parametrize(
    ("ranks", "batch_size", "changes", "said"),
    [
        (80, 408, {}, []),
        (128, 256, {}, []),
        (128, 257, {}, ["32,896 images a step (128 x 257) are more than the 32,768 of the recipe"]),
        (128, 512, {"data_dir": None}, []),
        (128, 512, {"epochs": None, "batches": 100}, []),
    ],
)
def test_the_recipe_fast_keeps_its_limit(ranks, batch_size, changes, said):
    run = replace(RUN, **changes, ranks=ranks, batch_size=batch_size, uses_larc=True)
    node = replace(NODE, training=shards(ranks), records={})
    job = plan(run, recipe=JobRecipe("fast", largest_step=32_768))
    told = [one for one in found([node], job, ["demo-0"]) if one[0] == "recipe.batch"]
    assert [one[1] for one in told] == ["error"] * len(said)
    assert [one[3].removesuffix(" fast") for one in told] == said
    forced = [one[1] for one in found([node], job, ["demo-0"], True) if one[0] == "recipe.batch"]
    assert forced == ["warning"] * len(said)


@pytest.mark.parametrize(
    ("cpus", "in_lab", "slots", "ranks", "said"),
    [
        (8, False, 8, 16, []),
        # p3.2xlarge with the slots of p3.16xlarge, on both nodes and only on the first.
        (8, False, 16, 32, [("demo-[0-1]", "16 ranks share 8 processors")]),
        (8, False, 16, 20, [("demo-0", "16 ranks share 8 processors")]),
        (None, False, 16, 20, []),
        (2, True, 1, 2, []),
        (2, True, 2, 2, []),
        (2, True, 8, 16, [(None, "16 ranks share 2 processors: all hosts of the lab run on this")]),
        (2, True, 2, 3, [(None, "3 ranks share 2 processors: all hosts of the lab run on this")]),
    ],
)
def test_more_ranks_than_processors(cpus, in_lab, slots, ranks, said):
    nodes = [replace(node, cpus=cpus, in_lab=in_lab) for node in (NODE, SECOND)]
    hosts = HostsFile(tuple(HostSlots(node.host, slots) for node in nodes))
    crowded = crowding_findings(nodes, dict(zip(hosts.hosts, hosts.fill(ranks))))
    assert [(one.host, one.message.replace(" machine", "")) for one in crowded] == said
    assert {one.severity for one in crowded} <= {Severity.WARNING}


def test_a_program_of_the_users_own_needs_the_software_alone():
    node = replace(checkpoints(NODE, 400), training={}, versions={**VERSIONS, "tensorflow": "1.15"})
    assert found([node], plan(None, (), script_path="x.py")) == [
        (
            "env.mismatch",
            "error",
            "demo-0",
            "Horovod was built for TensorFlow 2.15.1, and 1.15 is installed",
        )
    ]


OWN = {"run": None, "evaluation": (), "home": "/home/ubuntu"}
NONE = "No such file or directory"


def test_a_program_of_the_users_own_is_on_every_node_with_ranks():
    nodes = [replace(NODE, host=f"demo-{n}", script_error=NONE if n else "") for n in range(4)]
    job = plan(**OWN, script_path="/home/ubuntu/it's mine.py")
    assert asked_of_nodes(job)["script_error"]["path"] == "/home/ubuntu/it's mine.py"
    readers = ["demo-0", "demo-1", "demo-2"]
    text = f"cannot run /home/ubuntu/it's mine.py: {NONE}"
    assert found(nodes, job, readers) == [("script.missing", "error", "demo-[1-2]", text)]
    assert found(nodes, job, readers, force=True)[0][1] == "warning"
    assert found(nodes, job, ["demo-0"]) == []


def test_a_folder_for_results_that_cannot_be_fetched():
    nodes = [replace(NODE, host=f"demo-{n}", output_error="x is no folder") for n in range(2)]
    text = "--output: x is no folder"
    assert asked_of_nodes(plan(output="x"))["output_error"] == {"path": "x", "job": "x"}
    assert found(nodes, plan(output="x")) == [("output.unusable", "error", "demo-[0-1]", text)]


@pytest.mark.parametrize(
    ("path", "callers_home", "hint"),
    [
        ("/data/x.py", "/root", "put it there on every node (clusterctl copy NAME"),
        ("/root/x.py", "/root/", "quote the ~, so that the nodes' is meant: --script '~/x.py'"),
        ("/h/a b/it's.py", "/h/a b", """--script '~/it'"'"'s.py'"""),
        ("/rooted/x.py", "/root", "put it there"),
        ("/root/x.py", "/", "put it there"),
        # The path is the same with quotes and without.
        ("/home/ubuntu/x.py", "/home/ubuntu", "put it there"),
    ],
)
def test_a_missing_program_and_what_was_meant(path, callers_home, hint):
    node = replace(NODE, script_error=NONE)
    [one] = preflight(plan(**OWN, script_path=path), [node], ["demo-0"], False, callers_home)
    assert hint in one.hint


def test_a_compiled_program_is_none_that_is_missing():
    node = replace(NODE, script_error=COMPILED)
    [one] = preflight(plan(**OWN, script_path="/data/x"), [node], ["demo-0"])
    assert (one.message, one.hint) == (f"cannot run /data/x: {COMPILED}", OTHER_LANGUAGE)


@pytest.mark.parametrize(
    ("error", "else_"),
    [("", "ImageNet's"), ("/root/data/small: Permission denied", "make it readable there")],
)
def test_a_data_folder_of_the_callers_home(error, else_):
    node = replace(NODE, training={}, validation={}, records={}, data_error=error)
    job = plan(replace(RUN, data_dir="/root/data/small"), home="/home/ubuntu")
    [one] = preflight(job, [node], ["demo-0"], False, "/root")
    assert one.check == "data.missing"
    assert one.hint.endswith("--data-dir '~/data/small'")
    assert else_ in preflight(job, [node], ["demo-0"])[0].hint


@pytest.mark.parametrize(
    ("check_id", "fields"),
    [
        ("data.missing", {"training": {}}),
        ("data.incomplete", {"training": dict(list(TRAINING.items())[1:])}),
        ("data.cut_short", {"records": {"train-00001-of-00016": -1}}),
    ],
)
@pytest.mark.parametrize(("folder", "quoted"), [("/a b", "'/a b/'"), ("/home/ubuntu/d/", "'~/d/'")])
def test_data_that_a_node_has_is_copied_from_it(check_id, fields, folder, quoted):
    lacking = replace(NODE, host="demo-1", **fields)
    job = plan(replace(RUN, data_dir=folder), home="/home/ubuntu")

    def hint(nodes, home):
        found = preflight(job, nodes, ["demo-0", "demo-1"], False, home)
        return next(one.hint for one in found if one.check == check_id)

    copy = f"demo-0 has it all: clusterctl copy NAME --from 0 {quoted} {quoted}; or"
    assert hint([NODE, lacking], "/root").startswith(copy)
    # No node has the data; and the same on a node, where hosts have no names in the cluster.
    assert "--from" not in hint([lacking], "/root") + hint([NODE, lacking], "")
    # Nodes that all have the same damaged file do not differ.
    assert "data verify" not in hint([replace(lacking, host="demo-0"), lacking], "/root")


@pytest.mark.parametrize(
    ("files", "ranks", "batch", "said"),
    [
        (1, 2, 1, "1 training file for 2 ranks: each needs one train on 1 GPU, or make"),
        (3, 2, 1, "hint 1 rank would read them all"),
        (1, 1, 2, "one step takes 2 images for each of 1 rank, and there is 1 in all"),
    ],
)
def test_messages_use_the_singular_for_one(files, ranks, batch, said):
    training = shards(files)
    node = replace(NODE, training=training, records=dict.fromkeys(training, 1))
    job = plan(replace(RUN, ranks=ranks, batch_size=batch))
    everything = preflight(job, [node], ["demo-0"])
    assert any(said in f"{one.message} {one.hint} hint {one.hint}" for one in everything)


def test_all_at_once_errors_first_each_with_what_to_do():
    head = replace(checkpoints(NODE, 484), free_bytes=0)
    nodes = [head, replace(SECOND, training={}, versions={})]
    job = plan(replace(RUN, ranks=6, epochs=100, save_every=0))
    everything = preflight(job, nodes, ["demo-0", "demo-1"])
    assert [one.check for one in everything] == [
        *("env.missing", "env.missing", "data.missing", "log.unfinished", "disk.checkpoints"),
        "data.uneven_shards",
    ]
    assert all(one.hint for one in everything)
    refused = NotReady(everything)
    assert refused.message == "training was not started: fix 5 errors first"
    # In a program's traceback nothing is printed before it.
    first = f"{everything[0].host}: {everything[0].message}"
    assert str(refused) == f"{refused.message}; {first}"
    forced = preflight(job, nodes, ["demo-0", "demo-1"], force=True)
    assert [one.check for one in errors(forced)] == ["log.unfinished"]
    assert {one.severity for one in forced} == {Severity.ERROR, Severity.WARNING}
