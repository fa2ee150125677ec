"""This machine in the place of a host: what `run` would send over SSH is a child process here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from clusterctl.domain.errors import CommandTimeout
from clusterctl.domain.results import CommandResult
from clusterctl.transport.target import Target


class LocalConnections:
    """The methods of Connections that `call` and `diagnose` use, without a connection."""

    round_trip_s: float | None = None

    def session(self, target: Target) -> LocalConnections:
        return self

    def run(
        self, target: Target, command: str, *, timeout_s: float | None = None, stdin: bytes = b""
    ) -> CommandResult:
        """Run a command with /bin/sh and wait for its end. Raise CommandTimeout, after which it and
        its children have ended."""
        began = time.monotonic()
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        with process:
            try:
                out, err = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired as late:
                _end(process)
                shown = (late.stdout or b"").decode(errors="replace")
                raise CommandTimeout(target.host, f"no end within {timeout_s:g} s", shown) from None
            except BaseException:
                _end(process)
                raise
        return CommandResult(
            target.host,
            command,
            process.returncode,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
            time.monotonic() - began,
        )

    def close(self) -> None:
        """Nothing is open."""


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
