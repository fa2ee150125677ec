"""The Python stacks of ranks, read by py-spy or else written by the trainer's own faulthandler.

py-spy runs with --nonblocking: it reads the memory of a process and neither attaches to it nor
stops it. Only so can it read a stopped process. Measured: 10 ms of processor time; with native
frames it takes 1.4 s and stops the process meanwhile. A running Python may change what is being
read. Only if that fails again and again is the process stopped for it (15 ms).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Tuple

from clusterctl.node.jobs import processes
from clusterctl.node.record import RecordError, from_json
from clusterctl.node.untrusted import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Not Path.home(): clusterctl imports this module, too, and its user may have no home folder.
FOLDER = Path(os.path.expanduser("~"), ".local/share/clusterctl")  # noqa: PTH111
SUDO = ("sudo", "-n")
TRIES = 5
# The outermost function of a script's stack, and of that of `python -m`.
OUTERMOST = ("<module>", "_run_module_as_main")
AT_ONCE = 4
WITHIN_S = 2.0  # timeout of one py-spy
MOST_THREADS = 64
MOST_FRAMES = 200
# The memory file that the shipped trainers have faulthandler write to (examples/horovod). Only a
# process that has it open gets the signal: others might die of it.
DUMP = "/memfd:clusterctl-stacks (deleted)"
DUMP_WITHIN_S = 0.5


class PySpy:
    """py-spy on this node. Its file name has its digest. `why` is the reason if there is none."""

    def __init__(self, name: str, why: str = "") -> None:
        self.path = str(FOLDER / name) if name else ""
        self.why = why
        self.sudo: tuple[str, ...] = ()
        self._no_sudo = ""
        self._memory = -1
        self.read: dict[tuple[int, int], tuple[dict[str, Any], dict[int, str]]] = {}

    @property
    def is_here(self) -> bool:
        return bool(self.path) and os.access(self.path, os.X_OK)

    def put(self, content: bytes, keeps: bool = True) -> None:
        """Store the program in one step. If the disk is full, or the node does not keep it, it is
        in memory for this run."""
        if not keeps:
            self._put_in_memory(content)
            return
        new = f"{self.path}.new-{os.getpid()}"
        try:
            FOLDER.mkdir(parents=True, exist_ok=True)
            for older in FOLDER.glob("py-spy-*"):
                older.unlink()
            try:
                Path(new).write_bytes(content)
                os.chmod(new, 0o755)  # noqa: PTH101
                os.replace(new, self.path)  # noqa: PTH105
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(new)  # noqa: PTH108
                raise
        except OSError:
            self._put_in_memory(content)

    def _put_in_memory(self, content: bytes) -> None:
        self._memory = os.memfd_create("py-spy")
        with os.fdopen(os.dup(self._memory), "wb") as file:
            file.write(content)
        self.path = f"/proc/{os.getpid()}/fd/{self._memory}"

    def dump(self, pid: int, blocking: bool = False) -> list[dict[str, Any]]:
        """Return the stacks of a process. Raises OSError with the reason."""
        if not self.is_here:
            raise FileNotFoundError(self.why or "py-spy is not here")
        how = [] if blocking else ["--nonblocking"]
        argv = [self.path, "dump", *how, "--json", "--pid", str(pid)]
        try:
            return _read_py_spy(_output([*self.sudo, *argv]))
        except PermissionError as refused:
            if self.sudo:
                raise
            if not self._no_sudo:
                try:
                    _output([*SUDO, "true"])
                    self.sudo = SUDO
                    return _read_py_spy(_output([*SUDO, *argv]))
                except OSError as error:
                    self._no_sudo = str(error)
            raise PermissionError(
                f"{refused}; nor by sudo: {self._no_sudo}; to permit it on that node: "
                "sudo sysctl kernel.yama.ptrace_scope=0"
            ) from None


def add_stacks(taken: list[tuple[processes.Process, dict[str, Any]]], spy: PySpy) -> None:
    """Add the stacks of these processes to their samples, or the reason why there are none."""
    todo = list(taken)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                one, sample = todo.pop()
            _fill(one, sample, spy)

    workers = [threading.Thread(target=work) for _ in range(min(AT_ONCE, len(todo)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _fill(one: processes.Process, sample: dict[str, Any], spy: PySpy) -> None:
    """Add the stacks of a process to its sample. Those of threads that have not run since the last
    sample are as they were then."""
    before, ran = spy.read.get(one.identity), _ran(one.pid)
    if before and all(ran.get(thread, "") == last for thread, last in before[1].items()):
        sample.update(before[0])
        return
    _fill_one(one.pid, sample, spy)
    threads = {stack["os_thread_id"]: ran.get(stack["os_thread_id"]) for stack in sample["stacks"]}
    if is_whole(sample["stacks"]) and all(threads.values()):
        found = {name: sample[name] for name in ("stacks", "stack_source", "stack_error")}
        spy.read[one.identity] = found, {thread: ran[thread] for thread in threads}


def _ran(pid: int) -> dict[int, str]:
    """Return for how long each thread of a process has run and been ready to, by its ID. Threads
    of which the kernel does not count it are left out."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            path = f"/proc/{pid}/task/{name}/schedstat"
            with contextlib.suppress(OSError), open(path, "rb", 0) as file:  # noqa: PTH123
                found[int(name)] = file.read().decode()
    return {thread: times for thread, times in found.items() if not times.startswith("0 ")}


def _fill_one(pid: int, sample: dict[str, Any], spy: PySpy) -> None:
    if sample["state"] == "D":
        # Reading its memory may wait for the lock that it waits for, and such a wait cannot be
        # interrupted.
        sample["stack_error"] = "it waits in the kernel (state D): its stack was not read"
        return
    refused: list[str] = []

    def tried(source: str, way: Callable[[], list[dict[str, Any]]]) -> bool:
        """Return whether there is no use in trying again: it worked, or is not permitted."""
        try:
            sample["stacks"] = way()
        except OSError as error:
            refused.append(str(error))
            return isinstance(error, (PermissionError, FileNotFoundError))
        sample["stack_source"] = source if sample["stacks"] else ""
        return is_whole(sample["stacks"])

    # The process changes while it is read; another attempt may succeed.
    any(tried("py-spy", lambda: spy.dump(pid)) for _ in range(TRIES))
    if not sample["stacks"] and sample["state"] not in ("T", "t", "F"):
        tried("faulthandler", lambda: by_faulthandler(pid)) or tried(
            "py-spy", lambda: by_stopping(pid, spy)
        )
    if not sample["stacks"]:
        sample["stack_error"] = refused[0] if refused else "no thread of it runs Python"


def is_whole(stacks: list[dict[str, Any]]) -> bool:
    """Return whether the main thread's stack, if any, begins with its outermost call. If a function
    returns while it is read, the stack is cut short there. A thread that could not be started
    counts as another main thread, without calls."""
    mains = [one["frames"] for one in stacks if one["thread"] == "MainThread"]
    return (
        bool(stacks)
        and (not mains or any(mains))
        and all(
            frames[0]["function"] in OUTERMOST or len(frames) == MOST_FRAMES
            for frames in mains
            if frames
        )
    )


def _output(argv: list[str]) -> str:
    """Return what a program prints. Raises OSError, or PermissionError, with its message."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {WITHIN_S:g} s") from None
    if done.returncode:
        messages = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        whole = " ".join(line.strip() for line in messages)[:500]
        refused = re.search(r"[Pp]ermission|EPERM|not permitted", whole)
        raise (PermissionError if refused else OSError)(whole)
    return done.stdout.decode(errors="replace")


# What is read of py-spy's output. The names are its own.


@dataclass(frozen=True)
class _Frame:
    name: Optional[str] = None
    filename: Optional[str] = None
    line: Optional[int] = None


@dataclass(frozen=True)
class _Thread:
    thread_name: Optional[str] = None
    os_thread_id: Optional[int] = None
    frames: Optional[tuple[_Frame, ...]] = None


_THREADS: Any = Tuple[_Thread, ...]  # at run time Python 3.8 has no tuple[...]


def _read_py_spy(text: str) -> list[dict[str, Any]]:
    try:
        threads: tuple[_Thread, ...] = from_json(_THREADS, text)
    except RecordError as error:
        raise OSError(f"py-spy printed what cannot be read: {error}") from None
    return [
        {
            "thread": thread.thread_name or "",
            "os_thread_id": thread.os_thread_id or 0,
            "frames": [
                {
                    "function": frame.name or "",
                    "file": frame.filename or "",
                    "line": frame.line or 0,
                    "native": False,
                }
                for frame in reversed(thread.frames or ())
            ][-MOST_FRAMES:],
        }
        # Threads that could not be started are listed first, without calls, and there may be many.
        for thread in sorted(threads, key=lambda one: not one.frames)[:MOST_THREADS]
    ]


def by_stopping(pid: int, spy: PySpy) -> list[dict[str, Any]]:
    """Let py-spy stop the process with ptrace, unless it is stopped already. Raises OSError."""
    if processes.read_process(pid).state not in "RS":
        raise OSError("it is stopped by now")
    return spy.dump(pid, blocking=True)


def by_faulthandler(pid: int) -> list[dict[str, Any]]:
    """Return the stacks that the process writes when it gets the signal; empty if it does not have
    the memory file for them open. Raises OSError."""
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(OSError):
            if os.readlink(path) == DUMP:  # noqa: PTH115
                return _signalled(pid, path)
    return []


def _signalled(pid: int, path: str) -> list[dict[str, Any]]:
    number = signal.SIGRTMIN + 7  # the trainers' choice
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    if not caught or not int(caught[1], 16) >> (number - 1) & 1:
        return []
    with open(path, "r+b") as dump:  # noqa: PTH123
        dump.truncate(0)
        os.kill(pid, number)
        deadline = time.monotonic() + DUMP_WITHIN_S
        # The dump is complete when it has stopped growing.
        dumped, before = b"", b"-"
        while time.monotonic() < deadline and (not dumped or dumped != before):
            time.sleep(0.02)
            before = dumped
            dump.seek(0)
            dumped = dump.read(1 << 20)
    return read_faulthandler(dumped.decode(errors="replace"))


def read_faulthandler(text: str) -> list[dict[str, Any]]:
    """Parse faulthandler's text: `Thread 0x00007f... (most recent call first):`, then a line for
    each call: `  File "x.py", line 3 in f`."""
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        head = re.match(r"(?:(Current thread)|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most", line)
        call = re.match(r'  File "(.*)", line (\d+|\?+) in (.*)', line)
        if head:
            current = bool(head[1])
            threads.append(
                {
                    "thread": head[2] or ("MainThread" if current else ""),
                    "os_thread_id": 0,
                    "frames": [],
                }
            )
        elif call and threads:
            number = whole(call[2]) or 0
            frame = {"function": call[3], "file": call[1], "line": number, "native": False}
            threads[-1]["frames"].insert(0, frame)
    return threads
