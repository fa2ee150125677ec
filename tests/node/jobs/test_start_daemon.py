"""mpirun's launch agent: whatever is killed, nothing that its daemon has started stays."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from clusterctl.node.packer import program_of
from clusterctl.node.procfs import read_stat
from tests.lab.running import wait_until
from tests.pythons import python_or_skip

# A daemon whose rank has a process in a session of its own, with another environment.
DAEMON = "env -i /usr/bin/setsid /usr/bin/sleep 600 & echo $! >stray; sleep 600 & wait"


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def lives(pid: int) -> bool:
    try:
        return read_stat(f"/proc/{pid}")[1][0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("victim", "number", "status"),
    [
        ("daemon", signal.SIGKILL, 137),
        ("inner", signal.SIGKILL, 137),
        ("outer", signal.SIGKILL, -9),
        ("outer", signal.SIGTERM, 143),
    ],
)
def test_nothing_stays_whatever_is_killed(tmp_path, victim, number, status):
    program = tmp_path / "start_daemon.py"
    program.write_text(program_of("clusterctl.node.jobs.start_daemon").text)
    argv = [python_or_skip("3.8"), "-IS", program, "/bin/sh", "-c", DAEMON]
    outer = subprocess.Popen(argv, cwd=tmp_path)
    [inner] = wait_until(lambda: children(outer.pid), "the inner supervisor")
    [daemon] = wait_until(lambda: children(inner), "the daemon")
    stray = tmp_path / "stray"
    wait_until(lambda: stray.exists() and stray.read_text().strip(), "its rank")
    wait_until(lambda: len(children(daemon)) == 2, "both processes")
    held = [inner, daemon, *children(daemon)]
    assert int(stray.read_text()) in held
    os.kill({"daemon": daemon, "inner": inner, "outer": outer.pid}[victim], number)
    assert outer.wait(timeout=60) == status
    wait_until(lambda: not any(map(lives, held)), "all to end")


def test_a_daemon_that_is_not_there_is_named(tmp_path):
    text = program_of("clusterctl.node.jobs.start_daemon").text
    argv = [python_or_skip("3.8"), "-ISc", text, "/no/prted"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "No such file or directory\n")
