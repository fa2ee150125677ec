"""This machine in the place of a host: what `run` would send over SSH is a child process here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from clusterctl.domain.errors import CommandTimeout
from clusterctl.domain.results import CommandResult
from clusterctl.transport.target import Target

ENDED_WITHIN_S = 2.0


class LocalConnections:
    """This machine as KeepsLogins, and as the login."""

    round_trip_s: float | None = None

    def session(self, target: Target) -> LocalConnections:
        return self

    def run(
        self, target: Target, command: str, *, timeout_s: float | None = None, stdin: bytes = b""
    ) -> CommandResult:
        """Run a command with /bin/sh and wait for its end. Raise CommandTimeout."""
        began = time.monotonic()
        status, out, err = run_here(target, ["/bin/sh", "-c", command], stdin, timeout_s)
        return CommandResult(
            target.host,
            command,
            status,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
            time.monotonic() - began,
        )

    def close(self) -> None:
        """Nothing is open."""


def run_here(
    target: Target,
    argv: Sequence[str],
    stdin: bytes,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a program and return its exit status, output and errors. Raise CommandTimeout, after
    which it and its children have ended."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
    )
    try:
        out, err = process.communicate(stdin, timeout_s)
    except subprocess.TimeoutExpired as late:
        _end(process)
        shown = (late.stdout or b"").decode(errors="replace")
        raise CommandTimeout(target.host, f"no end within {timeout_s:g} s", shown) from None
    except BaseException:
        _end(process)
        raise
    return process.returncode, out, err


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # sudo runs it
        argv = ["sudo", "-n", "/bin/sh", "-c", f"kill -9 -{process.pid}"]
        subprocess.run(argv, check=False, capture_output=True)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            if pipe:
                pipe.close()
    # One that cannot be ended is not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDED_WITHIN_S)
