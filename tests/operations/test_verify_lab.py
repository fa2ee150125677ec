"""`clusterctl data verify` and `copyclust verify` on hosts of the lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pair import eventually

pytestmark = [pytest.mark.lab]

DATA = b"x" * 3170


@pytest.fixture
def data(pair):
    """Make the same ~/set on both nodes."""
    for node in (0, 1):
        pair.on(node, "rm -rf set && mkdir -p set/sub && echo note > set/sub/note")
        pair.on(node, "cat > set/train-00000-of-00001", DATA)
    yield pair
    for node in (0, 1):
        pair.on(node, "chmod -R u+rwx set; rm -rf set")


def verify(pair, *arguments):
    """Run `clusterctl data verify pair ...`. Return (exit status, stdout, stderr)."""
    return pair.ctl("data verify", *arguments)


def test_all_have_the_same(data):
    status, out, err = verify(data, "--content", "~/set")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()[:2]] == [
        ["NODES", "FILES", "FOLDERS", "BYTES"],
        ["pair-[0-1]", "(2)", "2", "2", "3.1", "KiB"],
    ]
    assert out.splitlines()[2].startswith("the same on all: names, sizes, modes, links")


@pytest.mark.all
def test_unreadable(data):
    data.on(1, "mkdir set/closed && touch set/closed/x && chmod 0 set/closed set/sub/note")
    data.on(0, "mkdir set/closed && touch set/closed/x && chmod 0 set/closed set/sub/note")
    data.on(0, "chmod 700 set/closed")
    status, out, _ = verify(data, "set")
    assert status == 1
    assert out.splitlines()[-4:] == [
        "compared with pair-0:",
        "differs on pair-1: closed: has mode 0000 instead of 0700",
        "unreadable on pair-1: closed: Permission denied",
        "unreadable on pair-[0-1]: sub/note: Permission denied",
    ]


def test_ctrl_c_leaves_nothing_on_the_nodes(data):
    data.on(0, "truncate -s 200G set/huge")
    argv = [sys.executable, "-m", "clusterctl", "data", "verify", "pair", "set", "--content"]
    running = subprocess.Popen(
        argv, env=data.environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    count = "pgrep -fc '[c]lusterctl:relay' || true"
    eventually(lambda: data.on(0, count) != "0\n", "the program to run")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=240)
    assert (running.returncode, err.strip().splitlines()[0]) == (130, "interrupted")
    eventually(lambda: data.on(0, count) == data.on(1, count) == "0\n", "the program to end")


def test_copyclust_verify(data, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("pair-0 slots=1\npair-1 slots=1\n")
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "config").write_text(f'Include "{data.lab.home}/pair/ssh_config"\n')
    data.on(1, "rm set/sub/note")
    argv = [Path(sys.executable).parent / "copyclust", "verify", hosts, "set"]
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "missing on pair-1: sub/note: a file"
