"""`train_synthetic.sh` and `train.sh` as typed on a node, up to where mpirun takes over."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from clusterctl.jobs import launcher
from clusterctl.jobs.shipping import HOSTS_PATH, example_files


@pytest.fixture
def node(weird_home):
    """A home as `ship_examples` leaves it."""
    for name, content in {**example_files(), HOSTS_PATH: b"localhost slots=2\n"}.items():
        path = weird_home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    return weird_home


def typed(node, *argv, python=sys.executable):
    tools = node / "tools"
    tools.mkdir(exist_ok=True)
    link = tools / "python3"
    link.unlink(missing_ok=True)
    link.symlink_to(python)
    environ = {**os.environ, "HOME": str(node), "PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run(
        argv,
        cwd=node / "examples/horovod/tensorflow",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_line_is_printed_and_becomes_this_process(node, monkeypatch, capfd):
    bin_folder = node / "anaconda3/envs/tensorflow_p36/bin"
    answer = (
        "echo home=/h; echo mpirun=$HOME/anaconda3/envs/tensorflow_p36/bin/mpirun;"
        f"echo 'version=mpirun (Open MPI) 4.1.4'; echo python={sys.executable}; echo horovod=yes"
    )
    monkeypatch.setattr(launcher, "PROBE", answer)
    monkeypatch.setenv("HOME", str(node))
    monkeypatch.setenv("CLUSTERCTL_JOB", "restored at the end of the test")
    monkeypatch.chdir(node / "examples/horovod/tensorflow")
    monkeypatch.setattr(sys, "argv", ["launch.pyz", "synthetic", "2", "--num_batches", "3"])
    became = []
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append((path, list(argv))))
    launcher.main()
    [(path, argv)] = became
    assert path == argv[0] == str(bin_folder / "mpirun")
    assert argv[-2:] == ["--num_batches", "3"]
    assert f"CLUSTERCTL_JOB={os.environ['CLUSTERCTL_JOB']}" in argv
    assert capfd.readouterr().err == f"+ {shlex.join(argv)}\n"


@pytest.mark.parametrize("arguments", [[], ["1", "2"], ["1", "2", "--x"]])
@pytest.mark.parametrize("script", ["./train.sh", "./train_synthetic.sh"])
def test_usage(node, script, arguments):
    assert typed(node, script, *arguments) == (1, f"Usage: {script} <num_gpus>\n", "")


@pytest.mark.parametrize(
    ("script", "gpus", "says"),
    [
        ("./train_synthetic.sh", "3", "error: wanted 3 GPUs, there are 2\n  hint: add nodes"),
        ("./train_synthetic.sh", "0", "error: 0 GPUs make no sense"),
        ("./train_synthetic.sh", "-1", "error: -1 GPUs make no sense"),
        ("./train_synthetic.sh", "all", "error: not a number of GPUs: 'all'"),
        ("./train_synthetic.sh", "", "error: not a number of GPUs: ''"),
        ("./train.sh", "2", "error: there is no training data in ~/data/tf-imagenet"),
    ],
)
def test_refused(node, script, gpus, says):
    status, _, err = typed(node, script, gpus)
    assert status == 1
    assert says in err
    assert "Traceback" not in err


def test_without_a_hosts_file(node):
    (node / HOSTS_PATH).unlink()
    status, _, err = typed(node, "./train_synthetic.sh", "2")
    assert (status, "there is no hosts file" in err) == (1, True)


def test_a_hosts_file_with_a_mistake_names_the_line(node):
    (node / HOSTS_PATH).write_text("localhost slots=eight\n")
    status, _, err = typed(node, "./train_synthetic.sh", "2")
    assert status == 1
    assert "hosts, line 1: slots must be a number from 1, not 'eight'" in err


def test_without_its_launcher(node):
    (node / ".clusterctl/launch.pyz").unlink()
    status, _, err = typed(node, "./train.sh", "2")
    assert status == 1
    assert err.endswith("launch.pyz is missing; `clusterctl up NAME` puts it on every node\n")
