"""This machine in the place of a host: what `run` would send over SSH is a child process here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, TypeVar

from clusterctl.domain.errors import CommandTimeout
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.stdin import CHUNK, Stdin

if TYPE_CHECKING:
    from clusterctl.transport.execute import Sink

T = TypeVar("T")
ENDED_WITHIN_S = 2.0


class LocalConnections:
    """This machine as HostConnections, and as the login."""

    round_trip_s: float | None = None

    def session(self, target: Target) -> LocalConnections:
        return self

    def run(
        self,
        target: Target,
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Sink | None = None,
    ) -> CommandResult:
        """Run a command with /bin/sh and wait for its end. Raise CommandTimeout."""
        argv = ["/bin/sh", "-c", command]
        return run_here(target, argv, stdin, timeout_s, sink=sink)

    def each(self, targets: Sequence[Target], work: Callable[[Target], T]) -> FanoutResult[T]:
        return fan_out(work, targets)

    def interrupt(self, for_good: bool = False) -> dict[str, str]:
        """A command ends with its input, or with the thread that waits for it."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


def run_here(
    target: Target,
    argv: Sequence[str],
    stdin: Stdin | bytes,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
    sink: Sink | None = None,
) -> CommandResult:
    """Run a program, and pass its output to `sink`, without which the result has it. Raise
    CommandTimeout, after which the program and its children have ended."""
    pipe, began = subprocess.PIPE, time.monotonic()
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    keep = sink or (lambda stream, chunk: kept[stream].extend(chunk))
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    )
    # For mypy alone: a pipe was asked for.
    assert process.stdin and process.stdout and process.stderr

    def read(stream: str, file: IO[bytes]) -> None:
        with file:
            while chunk := os.read(file.fileno(), CHUNK):
                keep(stream, chunk)

    work = [
        threading.Thread(target=_feed, args=(process, process.stdin, stdin), daemon=True),
        threading.Thread(target=read, args=("stdout", process.stdout), daemon=True),
        threading.Thread(target=read, args=("stderr", process.stderr), daemon=True),
    ]
    for thread in work:
        thread.start()
    until = None if timeout_s is None else began + timeout_s
    try:
        for thread in work[1:]:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in work[1:]):
            raise subprocess.TimeoutExpired(argv, timeout_s or 0.0)
        status = process.wait(None if until is None else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        shown = kept["stdout"].decode(errors="replace")
        raise CommandTimeout(target.host, f"did not end within {timeout_s:g} s", shown) from None
    except BaseException:
        _end(process)
        raise
    out, err = (kept[stream].decode(errors="replace") for stream in ("stdout", "stderr"))
    passed_s = time.monotonic() - began
    status = 128 - status if status < 0 else status
    return CommandResult(target.host, argv[-1], status, out, err, passed_s)


def _feed(process: subprocess.Popen[bytes], pipe: IO[bytes], stdin: Stdin | bytes) -> None:
    """Write the input, in parts if it comes so, and end it."""
    offset = 0
    # The program may end without reading it.
    with contextlib.suppress(OSError, ValueError), pipe as file:
        if isinstance(stdin, bytes):
            file.write(stdin)
            return
        while process.poll() is None and (chunk := stdin.read_at(offset, 0.1)) != b"":
            file.write(chunk or b"")
            file.flush()
            offset += len(chunk or b"")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # sudo runs it
        argv = ["sudo", "-n", "/bin/sh", "-c", f"kill -9 -{process.pid}"]
        subprocess.run(argv, check=False, capture_output=True)
    # One that cannot be ended is not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_WITHIN_S)
