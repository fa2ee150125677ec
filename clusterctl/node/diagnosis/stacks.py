"""The Python stacks of ranks: by py-spy, else by the trainer's own faulthandler.

py-spy runs with --nonblocking: it reads the memory of a process and neither attaches nor stops it.
So it reads a stopped process, too, which without that option it cannot. Measured: 10 ms of a
processor, where native frames as well cost 1.4 s and stop the process meanwhile. A Python that runs
may change what is being read; only where that fails again and again is it stopped for it (15 ms).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from clusterctl.node.jobs import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDER = Path.home() / ".local" / "share" / "clusterctl"
SUDO = ("sudo", "-n")
TRIES = 5
# A script's, and that of `python -m`.
OUTERMOST = ("<module>", "_run_module_as_main")
AT_ONCE = 4
WITHIN_S = 2.0
MOST_THREADS = 64
MOST_FRAMES = 200
# As the shipped trainers name the memory that faulthandler writes to (examples/horovod). Who has it
# open takes the signal: nobody else is sent one.
DUMP = "/memfd:clusterctl-stacks (deleted)"
DUMP_WITHIN_S = 0.5


class PySpy:
    """The program on this node, named by its digest; `why` there is none."""

    def __init__(self, name: str, why: str = "") -> None:
        self.path = str(FOLDER / name) if name else ""
        self.why = why
        self.sudo: tuple[str, ...] = ()
        self._no_sudo = ""
        self._memory = -1

    @property
    def is_here(self) -> bool:
        return bool(self.path) and os.access(self.path, os.X_OK)

    def put(self, content: bytes) -> None:
        """Keep it, whole or not at all. On a full disk it stays in memory, for this time only."""
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
            self._memory = os.memfd_create("py-spy")
            with os.fdopen(os.dup(self._memory), "wb") as file:
                file.write(content)
            self.path = f"/proc/{os.getpid()}/fd/{self._memory}"

    def dump(self, pid: int, blocking: bool = False) -> list[dict[str, Any]]:
        """The stacks of a process. Raises OSError with the reason."""
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


def fill(taken: list[tuple[processes.Process, dict[str, Any]]], spy: PySpy) -> None:
    """Add the stacks to the samples of these processes, or why there are none."""
    todo = list(taken)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                one, sample = todo.pop()
            _fill_one(one.pid, sample, spy)

    workers = [threading.Thread(target=work) for _ in range(min(AT_ONCE, len(todo)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _fill_one(pid: int, sample: dict[str, Any], spy: PySpy) -> None:
    if sample["state"] == "D":
        # To read its memory may wait for the same lock, and could not be ended.
        sample["stack_error"] = "it waits in the kernel (state D): not looked into"
        return
    refused: list[str] = []

    def tried(source: str, way: Callable[[], list[dict[str, Any]]]) -> bool:
        try:
            sample["stacks"] = way()
        except OSError as error:
            refused.append(str(error))
            return isinstance(error, (PermissionError, FileNotFoundError))
        sample["stack_source"] = source if sample["stacks"] else ""
        return is_whole(sample["stacks"])

    # It changes while it is read: another time it may not. A busy node makes that likely.
    any(tried("py-spy", lambda: spy.dump(pid)) for _ in range(TRIES))
    if not sample["stacks"] and sample["state"] not in ("T", "t"):
        tried("faulthandler", lambda: by_faulthandler(pid)) or tried(
            "py-spy", lambda: by_stopping(pid, spy)
        )
    if not sample["stacks"]:
        sample["stack_error"] = refused[0] if refused else "no thread of it runs Python"


def is_whole(stacks: list[dict[str, Any]]) -> bool:
    """Whether the main thread, where it is there, was read from its outermost call on: one that
    returned meanwhile ends the chain early."""
    mains = [one["frames"] for one in stacks if one["thread"] == "MainThread"]
    return bool(stacks) and all(
        frames and (frames[0]["function"] in OUTERMOST or len(frames) == MOST_FRAMES)
        for frames in mains
    )


def _output(argv: list[str]) -> str:
    """What it printed. Raises OSError with its last line; PermissionError where that is why."""
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
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        whole = " ".join(line.strip() for line in said)[:500]
        refused = re.search(r"[Pp]ermission|EPERM|not permitted", whole)
        raise (PermissionError if refused else OSError)(whole)
    return done.stdout.decode(errors="replace")


def _read_py_spy(text: str) -> list[dict[str, Any]]:
    try:
        threads = json.loads(text)
        return [
            {
                "thread": thread.get("thread_name") or "",
                "os_thread_id": thread.get("os_thread_id") or 0,
                "active": bool(thread.get("active")),
                "owns_gil": bool(thread.get("owns_gil")),
                "frames": [
                    {
                        "function": frame.get("name") or "",
                        "file": frame.get("filename") or "",
                        "line": frame.get("line") or 0,
                        "native": False,
                    }
                    for frame in reversed(thread.get("frames") or [])
                ][-MOST_FRAMES:],
            }
            for thread in threads[:MOST_THREADS]
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise OSError(f"py-spy printed what cannot be read: {error}") from None


def by_stopping(pid: int, spy: PySpy) -> list[dict[str, Any]]:
    """With ptrace, of a process that nobody else has stopped. Raises OSError."""
    if processes.read_process(pid).state not in "RS":
        raise OSError("it is stopped by now")
    return spy.dump(pid, blocking=True)


def by_faulthandler(pid: int) -> list[dict[str, Any]]:
    """What a process that shares its memory for it writes on the signal. Raises OSError."""
    for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(OSError):
            if os.readlink(path) == DUMP:  # noqa: PTH115
                return _signalled(pid, path)
    return []


def _signalled(pid: int, path: str) -> list[dict[str, Any]]:
    number = signal.SIGRTMIN + 7
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    if not caught or not int(caught[1], 16) >> (number - 1) & 1:
        return []
    with open(path, "r+b") as dump:  # noqa: PTH123
        dump.truncate(0)
        os.kill(pid, number)
        deadline = time.monotonic() + DUMP_WITHIN_S
        said, before = b"", b"-"
        while time.monotonic() < deadline and (not said or said != before):
            time.sleep(0.02)
            before = said
            dump.seek(0)
            said = dump.read(1 << 20)
    return read_faulthandler(said.decode(errors="replace"))


def read_faulthandler(text: str) -> list[dict[str, Any]]:
    """Thread 0x00007f… (most recent call first):, then `  File "x.py", line 3 in f` each."""
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
                    "active": current,
                    "owns_gil": False,
                    "frames": [],
                }
            )
        elif call and threads:
            number = int(call[2]) if call[2].isdigit() else 0
            frame = {"function": call[3], "file": call[1], "line": number, "native": False}
            threads[-1]["frames"].insert(0, frame)
    return threads
