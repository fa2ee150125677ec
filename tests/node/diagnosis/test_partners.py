"""For whom a process waits, and for whom that one waits: found among processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from clusterctl.node.diagnosis import partners, sampler
from tests.lab.running import wait_until

# The child opens the FIFO before it executes a program, and its parent waits in vfork meanwhile.
SPAWN = """
import os, sys
opens = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens])
"""

# Locks a file, or waits for its lock: by flock(2) or, as no process owns it, by an OFD lock.
LOCKS = """
import fcntl, os, struct, sys, time
path, kind, *more = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
if kind == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
else:
    fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLKW
child = os.fork() if more else 0
if child:
    os.close(fd)
if child or not more:
    print(child or os.getpid(), flush=True)
if child and more == ["inherited"]:
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def start():
    """Start programs, and end them after the test with what they have started."""
    with contextlib.ExitStack() as stack:

        def start_one(*argv, **more):
            process = stack.enter_context(subprocess.Popen(argv, start_new_session=True, **more))
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            return process

        yield start_one


def waits(process, call, role="rank"):
    wait_until(lambda: sampler.wait_of(process.pid)[2].startswith(call), f"that it is in {call}")
    state, channel, found = sampler.wait_of(process.pid)
    sample = {"state": state, "wait_channel": channel, "syscall": found}
    entry = {"pid": process.pid, "role": role, "samples": [sample]}
    partners.add([entry], sampler.wait_of)
    return [
        (one["pid"], one["relation"], one["waiter"], one["call"].partition(" ")[0])
        for one in entry["partners"]
    ]


def test_who_reads_the_output_of_who_reads_the_output(start):
    """As of mpirun, whose output goes through a pipe that nothing is read from."""
    first = start("yes", stdout=subprocess.PIPE)
    second = start("cat", stdin=first.stdout, stdout=subprocess.PIPE)
    last = start("sleep", "600", stdin=second.stdout)
    for one in (first, second):
        one.stdout.close()
    wait_until(lambda: sampler.wait_of(second.pid)[2].startswith("write "), "a full pipe")
    wait_until(lambda: "nanosleep" in sampler.wait_of(last.pid)[2], "its sleep")
    found = waits(first, "write ")
    assert found[0] == (second.pid, "reads", first.pid, "write")
    assert [*found[1][:3]] == [last.pid, "reads", second.pid]
    assert "nanosleep" in found[1][3]


def test_a_stopped_reader_of_a_launchers_output_that_does_not_wait_for_it_yet(start):
    """As of `mpirun | tee log`: the pipe is full after minutes."""
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as mpirun:
        tee = start("cat", stdin=mpirun.stdout)
        assert waits(mpirun, "clock_nanosleep", "launcher") == []
        tee.send_signal(signal.SIGSTOP)
        wait_until(lambda: sampler.wait_of(tee.pid)[0] == "T", "the stop")
        found = [one[:3] for one in waits(mpirun, "clock_nanosleep", "launcher")]
        mpirun.kill()
    assert found == [(tee.pid, "reads", mpirun.pid)]


def test_who_has_the_other_end_of_a_socket(start):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first = start("yes", stdout=ours.fileno())
        last = start("sleep", "600", stdin=theirs.fileno())
    wait_until(lambda: "nanosleep" in sampler.wait_of(last.pid)[2], "its sleep")
    assert [one[:3] for one in waits(first, "write ")] == [(last.pid, "reads", first.pid)]


def test_a_child_that_does_not_get_to_its_program(start, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    process = start(sys.executable, "-c", SPAWN, str(tmp_path / "fifo"))
    wait_until(lambda: sampler.state_of(f"/proc/{process.pid}") == "D", "vfork")

    def opens():
        # Its parent waits from its first moment on.
        [child] = waits(process, ("vfork", "clone"))
        assert child[1:3] == ("child", process.pid)
        return child[3] in ("open", "openat")

    wait_until(opens, "open")


def test_a_relative_path_is_told_with_its_folder(start, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    process = start("cat", "fifo", cwd=tmp_path)
    wait_until(lambda: sampler.wait_of(process.pid)[2].endswith(f"{tmp_path}/fifo"), "its open")


def test_a_child_that_is_waited_for(start):
    process = start("sh", "-c", "sleep 600; true")
    [child] = waits(process, "wait")
    assert child[1:3] == ("child", process.pid)


@pytest.mark.parametrize(
    "kind", [("ofd",), ("flock",), ("flock", "inherited"), ("flock", "handed on")]
)
def test_who_holds_a_lock_also_one_of_which_the_kernel_names_no_process(start, tmp_path, kind):
    """Nor has what has locked the file to live on, or to hold it: a child may have it open."""
    path = str(tmp_path / "lock")
    holder = start(sys.executable, "-c", LOCKS, path, *kind, stdout=subprocess.PIPE)
    held_by = int(holder.stdout.readline())
    if kind[1:] == ("inherited",):
        holder.wait()
    waiter = start(sys.executable, "-c", LOCKS, path, kind[0])
    call = "flock" if kind[0] == "flock" else "fcntl"
    assert [one[:3] for one in waits(waiter, call)] == [(held_by, "locks", waiter.pid)]
