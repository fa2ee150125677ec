"""The README's first command, from beginning to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.pair import eventually

CHECKOUT = Path(__file__).parent.parent


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.timeout(1200)
@pytest.mark.all
def test_the_demo():
    done = subprocess.run(
        ["./scripts/demo"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for words in (
        "$ clusterctl up demo --nodes 2 --instance-type p3.2xlarge",
        "demo-1: GPU 0: Tesla V100-SXM2-16GB (simulated)",
        "rank 1 on demo-1 (",
        " is stopped (state T)",
        "Horovod size: 2",
        "Step Epoch Speed",
        "Finished in",
        "Nothing is left: no process, no network link, no mount.",
    ):
        assert words in done.stdout, done.stdout


# The demo's installation with an `install` that starts processes and does not end by itself.
MEANWHILE = """
set -euo pipefail
. scripts/lib/all.sh
home=$1
training_place() { folder=/nowhere; }
training_is_ready() { false; }
training_env() { sleep 600 | sleep 600 & echo "runs, $TMPDIR"; wait; }
trap 'training_stop; rm -rf "$home"' EXIT
trap 'exit 130' INT
training_meanwhile default "$home"
echo "$INSTALLING"
training_await
"""


def exists(group: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_ctrl_c_ends_the_installation_that_runs_meanwhile(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    demo = subprocess.Popen(
        ["bash", "-c", MEANWHILE, "demo", folder],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout
    assert "meanwhile" in demo.stdout.readline()
    group = int(demo.stdout.readline())
    # It says this when its processes run.
    said = demo.stdout.readline()
    [temporary] = folder.glob("tmp.*")
    assert said == f"runs, {temporary}\n"
    # As a terminal does it: to the group of the command in front.
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait() == 130
    # One that has ended stays in its group until the system collects it.
    eventually(lambda: not exists(group), "the end of the installation's processes")
    assert not folder.exists()


def test_what_follows_the_end_of_the_installation_is_done_after_a_failure():
    script = """
set -euo pipefail
. scripts/lib/all.sh
INSTALLING=
trap 'training_stop; echo the lab is stopped' EXIT
false
"""
    done = subprocess.run(
        ["bash", "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "the lab is stopped\n")
