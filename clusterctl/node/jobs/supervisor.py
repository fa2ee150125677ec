"""Runs one command, and ends all that it has started: when it ends, when this process gets TERM,
and when its parent dies.

Orphans become children of this process (PR_SET_CHILD_SUBREAPER of prctl(2)), so all are found, also
those in sessions of their own and with another environment. If this process is killed, they become
the runner's, which does the same; so does what cannot be ended: another user's processes, and those
that the kernel cannot end yet.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from clusterctl.node.death_signal import set_death_signal
from clusterctl.node.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Callable

# Blocked in the runner and in supervisors, and received by sigtimedwait(2): none can come between a
# check and a wait.
SIGNALS = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD}
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
LEFT_GRACE_S = 2.0  # between TERM and KILL, of what a command has left running
POLL_S = 0.1
CANNOT_RUN = 127  # the exit status of a command that could not be started
LIBC = ctypes.CDLL(None)


def adopt_orphans() -> None:
    """Make this process the parent of the orphans among its descendants."""
    LIBC.prctl(SUBREAPER, 1)


def descendants() -> set[int]:
    """Return the process IDs of all processes below this one, without zombies."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = read_stat(path)[1][:2]
        except (OSError, ValueError):
            continue
        # Children of a zombie belong to another process by now.
        parents[int(path.name)] = 0 if state in "ZX" else int(parent)
    found: set[int] = set()
    edge = {os.getpid()}
    while edge:
        edge = {pid for pid, parent in parents.items() if parent in edge} - found
        found |= edge
    return found


def send(pids: Collection[int], number: int) -> None:
    """Send a signal to these processes, if they still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> dict[int, int]:
    """Collect the children of this process that have ended: process ID -> exit status."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if not pid:
            return codes
        killed = os.WIFSIGNALED(status)
        codes[pid] = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)


def end_descendants() -> tuple[int, set[int]]:
    """End all processes below this one: TERM, KILL. Return how many have ended, and those that are
    left: processes that the kernel cannot end yet, or another user's."""
    first = left = descendants()
    send(left, signal.SIGTERM)
    began = time.monotonic()
    while left and time.monotonic() < began + 2 * LEFT_GRACE_S:
        time.sleep(0.02)
        reap()
        left = descendants()
        if time.monotonic() > began + LEFT_GRACE_S:
            send(left, signal.SIGKILL)  # again each time: a shell starts its next command
    return len(first - left), left


def start_supervised(
    act: Callable[[], object], grace_s: float, outputs: tuple[int, int], keeps: Collection[int]
) -> int:
    """Fork a supervisor that runs `act` in a process below it; return the supervisor's process ID.

    `outputs` are the file descriptors of stdout and stderr, `keeps` those that the supervisor must
    not hold open. The caller has blocked SIGNALS. The exit status is that of the command.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = CANNOT_RUN
    try:
        for fd in keeps:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, number in ((null, 0), (outputs[0], 1), (outputs[1], 2)):
            os.dup2(fd, number)
        status = supervise(act, grace_s, parent)
    finally:
        os._exit(status)


def supervise(act: Callable[[], object], grace_s: float, parent: int) -> int:
    """Run `act` in a child to its end, end all below, and return its exit status."""
    adopt_orphans()
    set_death_signal(signal.SIGTERM)
    stop = os.getppid() != parent  # it may have died before the call of prctl
    child = os.fork()
    if not child:
        become(act)
    code: int | None = None
    phase, until = 0, 0.0
    while True:
        if stop or code is not None:
            left, now, step = descendants(), time.monotonic(), 1 if code is None else 2
            if not left:
                break
            if step > phase:  # the command first: mpirun ends the ranks of all nodes
                phase, until = step, now + (grace_s if step == 1 else LEFT_GRACE_S)
                send({child} if step == 1 else left, signal.SIGTERM)
            elif step == 2 and now > until + LEFT_GRACE_S:
                break  # what is left is the runner's, which reports it
            elif now > until:
                send(left, signal.SIGKILL)
        found = signal.sigtimedwait(SIGNALS, POLL_S if phase else 60.0)
        stop = stop or bool(found and found.si_signo != signal.SIGCHLD)
        code = reap().get(child, code)
    # A command that has ended since then is a zombie, and not among the descendants.
    return reap().get(child, code) or 0


def become(act: Callable[[], object]) -> None:
    """Run `act` in a new process, with the signals of a program that a shell starts."""
    status = CANNOT_RUN
    try:
        # Python ignores these two, and a command would inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        act()
        status = 0
    except OSError as error:
        what = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        os.write(2, os.fsencode(f"{what}{error.strerror}\n"))
    except BaseException as error:
        os.write(2, f"clusterctl: {error!r}\n".encode(errors="replace"))
    finally:
        os._exit(status)
