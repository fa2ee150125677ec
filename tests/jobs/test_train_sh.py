"""`train_synthetic.sh` and `train.sh` as typed on a node, until mpirun starts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

import pytest

from clusterctl.jobs.deploy import HOSTS_PATH, LAUNCHER_PATH, example_files
from tests.pair import eventually
from tests.pythons import python_or_skip


@pytest.fixture
def node(weird_home):
    """Return a home with the files of `deploy_files`."""
    for name, content in {**example_files(), HOSTS_PATH: b"localhost slots=2\n"}.items():
        path = weird_home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    return weird_home


def start(node, *argv, python=sys.executable, **environ):
    tools = node / "tools"
    tools.mkdir(exist_ok=True)
    link = tools / "python3"
    link.unlink(missing_ok=True)
    link.symlink_to(python)
    home = {"HOME": str(node), "PATH": f"{tools}:/usr/bin:/bin", "VIRTUAL_ENV": str(node / "env")}
    return subprocess.Popen(
        argv,
        cwd=node / "examples/horovod/tensorflow",
        env={**os.environ, **home, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def typed(node, *argv, **options):
    with start(node, *argv, **options) as process:
        out, err = process.communicate(timeout=240)
    assert "Traceback" not in err, err
    return process.returncode, out, err


FAKE_MPIRUN = """\
#!/bin/sh
case "$1" in --version) echo "mpirun (Open MPI) 4.1.4"; exit;; esac
echo "mpirun $*" >>"$HOME/ran"
tr '\\0' ' ' <"/proc/$PPID/cmdline" >>"$HOME/parents"
case "$*" in
    *--eval*) exit "${EVAL_STATUS:-0}" ;;
    *) [ -z "$WAIT" ] || { trap 'echo ended >>"$HOME/ran"; exit 0' TERM; touch "$HOME/ready"
           while :; do sleep 0.05; done; }
       exit "${TRAIN_STATUS:-0}" ;;
esac
"""
# A fake python with Horovod: the probe looks for it, and for versions.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
    *find_spec*metadata*) echo '{"python": "3.11.2", "tensorflow": "2.15.1"}' ;;
esac
"""


@pytest.fixture
def trainable(node):
    """Return a node with an mpirun, and with 32 images in two files."""
    bin_folder = node / "env/bin"  # an activated virtual environment
    bin_folder.mkdir(parents=True)
    for name, text in (("mpirun", FAKE_MPIRUN), ("python", FAKE_PYTHON)):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    data = node / "data/tf-imagenet"
    data.mkdir(parents=True)
    record = (1).to_bytes(8, "little") + b"crc.x" + b"crc."
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        (data / name).write_bytes(record * 16)
    return node


def ran(node):
    path = node / "ran"
    return path.read_text().splitlines() if path.exists() else []


def test_training_and_then_evaluation(trainable):
    status, _, err = typed(trainable, "./train.sh", "2", "--model", "resnet18")
    assert (status, err.count("\n+ ") + err.startswith("+ ")) == (0, 2), err
    train, evaluate = ran(trainable)
    assert train.startswith("mpirun -np 2 --hostfile hosts")
    assert train.endswith("--clear_log --model resnet18")
    assert evaluate.startswith("mpirun -np 2 --host localhost:2")
    assert evaluate.endswith("--eval --num_gpus 2 --model resnet18")
    # With mpirun in the place of train.sh, `exec ./train.sh` would make the session of the user's
    # shell one that a job's process leads.
    parents = (trainable / "parents").read_text()
    assert parents.count(f"{LAUNCHER_PATH} train 2 ") == 2
    shown = [shlex.split(line) for line in err.splitlines() if line.startswith("+ ")]
    assert [" ".join(words[2:]) for words in shown] == [line[7:] for line in (train, evaluate)]


def test_synthetic_training_is_one_line_with_the_jobs_mark(trainable):
    status, _, err = typed(trainable, "./train_synthetic.sh", "2", "--num_batches", "3")
    assert status == 0, err
    [line] = ran(trainable)
    assert line.endswith(
        "--synthetic --log_dir imagenet_resnet_synthetic -b 8 --image_size 64 --nofp16"
        " --display_every 10 --clear_log --num_batches 3"
    )
    assert "-x CLUSTERCTL_JOB=" in line


@pytest.mark.parametrize("words", [["--recipe", "fast"], ["--recipe=tutorial", "--recipe=fast"]])
def test_the_recipe_is_an_option_of_train_sh(trainable, words):
    status, _, err = typed(trainable, "./train.sh", "2", "--no-eval", *words)
    assert status == 0, err
    assert ran(trainable)[0].endswith("--lr_decay_mode poly --all_cpus --clear_log")


@pytest.mark.parametrize(
    ("environ", "status", "lines"), [({"TRAIN_STATUS": "3"}, 3, 1), ({"EVAL_STATUS": "4"}, 4, 2)]
)
def test_the_exit_status_is_that_of_what_failed(trainable, environ, status, lines):
    assert typed(trainable, "./train_more_aug.sh", "2", **environ)[0] == status
    assert len(ran(trainable)) == lines
    assert "--increased_aug" in ran(trainable)[0]


def test_an_mpirun_that_lost_a_node_has_failed_whatever_it_says(trainable):
    mpirun = trainable / "env/bin/mpirun"
    said = "PRTE has lost communication with a remote daemon."
    told = mpirun.read_text().replace('exit "${TRAIN_STATUS:-0}"', f"echo '{said}' >&2; exit 0")
    mpirun.write_text(told)
    for script in ("./train.sh", "./train_synthetic.sh"):
        status, _, err = typed(trainable, script, "2")
        assert (status, said in err) == (255, True), err
    assert len(ran(trainable)) == 2, "nothing is evaluated"


def test_told_to_end_it_does_not_evaluate(trainable):
    process = start(trainable, "./train.sh", "2", WAIT="yes")
    eventually((trainable / "ready").exists, "the training")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == 128 + signal.SIGTERM
    train, ended = ran(trainable)
    assert (train.startswith("mpirun"), ended) == (True, "ended")


def test_a_finished_run_is_not_deleted_unasked(trainable):
    log = trainable / "examples/horovod/tensorflow/imagenet_resnet"
    log.mkdir()
    (log / "model.ckpt-40.index").touch()
    (log / "model.ckpt-40.data-00000-of-00001").write_bytes(b"x" * 2048)
    (trainable / "data/tf-imagenet/train-00000-of-00002").unlink()
    status, _, err = typed(trainable, "./train.sh", "2")
    assert (status, ran(trainable)) == (1, [])
    assert "imagenet_resnet holds a finished run: step 40 of 40 (1 checkpoint, 2.0 KiB)" in err
    assert "--resume only evaluates it" in err
    assert "1 of 2 train files is there: train-00000-of-00002 is missing" in err
    assert "error: training was not started: fix 3 errors first" in err, "all at once"
    status, _, err = typed(trainable, "./train.sh", "1", "--resume", "--no-eval", "--force")
    assert status == 0, err
    [train] = ran(trainable)
    assert "clear_log" not in train
    assert "--resume" not in train
    assert "warning: " in err


def test_on_the_oldest_python(trainable):
    status, _, err = typed(trainable, "./train.sh", "2", python=python_or_skip("3.8"))
    assert (status, len(ran(trainable))) == (0, 2), err


@pytest.mark.parametrize("arguments", [[], ["1", "2"], ["1", "2", "--x"]])
@pytest.mark.parametrize("script", ["./train.sh", "./train_synthetic.sh", "./train_more_aug.sh"])
def test_usage(node, script, arguments):
    assert typed(node, script, *arguments) == (1, f"Usage: {script} <num_gpus>\n", "")


@pytest.mark.parametrize(
    ("words", "hosts", "status", "says"),
    [
        (["train.sh", "2", "--batchsize", "64"], "", 1, "Unknown command line arg: --batchsize"),
        (["train.sh", "2", "--resume", "--clear"], "", 2, "--clear and --resume contradict"),
        (["train.sh", "2", "--clear", "--noclear_log"], "", 2, "--noclear_log does the opposite"),
        (["train.sh", "2", "--recipe"], "", 1, "argument --recipe: expected one argument"),
        (["train.sh", "2", "--recipe="], "", 1, "there is no recipe ''"),
        (["train.sh", "2", "--recipe", "slow"], "", 1, "there is no recipe 'slow'"),
        (["train_synthetic.sh", "3"], "", 1, "there are 2\n  hint: take 2, or add nodes"),
        (["train_synthetic.sh", "all"], "", 1, "not a number of GPUs: 'all'"),
        (["train_synthetic.sh", "2"], None, 1, "there is no hosts file"),
        (["train_synthetic.sh", "2"], "localhost slots=eight", 1, "hosts, line 1: slots must be a"),
        # mpirun refuses the first; of the second it counts the cores.
        (["train_synthetic.sh", "2"], "a slots=1\r\nb slots=1\n", 1, "'a slots=1\\nb slots=1\\n'"),
        (["train_synthetic.sh", "2"], "a slots=1\nb\n", 1, "`slots=N` for each host"),
    ],
)
def test_what_is_refused_deletes_and_starts_nothing(trainable, words, hosts, status, says):
    checkpoint = trainable / "examples/horovod/tensorflow/imagenet_resnet/model.ckpt-40.index"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    if hosts != "":
        (trainable / HOSTS_PATH).unlink()
    if hosts:
        (trainable / HOSTS_PATH).write_text(hosts)
    script, gpus, *arguments = words
    said = typed(trainable, f"./{script}", gpus, "--force", *arguments)
    assert (said[0], ran(trainable), checkpoint.exists()) == (status, [], True)
    assert says in said[2]


def test_without_its_launcher(node):
    (node / ".clusterctl/launch.pyz").unlink()
    status, _, err = typed(node, "./train.sh", "2")
    assert status == 1
    assert err.endswith("launch.pyz is missing; `clusterctl up NAME` puts it on every node\n")
