"""Nodes that are folders of this machine: each one's commands run here, in a home of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.domain.errors import CommandTimeout
from clusterctl.domain.results import CommandResult
from clusterctl.transport.target import Target


@dataclass
class HomeNodes:
    """`run` of Connections. `trouble` is raised for its host in place of anything."""

    folder: Path
    count: int = 3
    trouble: dict[str, Exception] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def targets(self) -> list[Target]:
        for number in range(self.count):
            self.home(number).mkdir(parents=True, exist_ok=True)
        return [Target(f"demo-{number}", "10.0.0.1", "ubuntu") for number in range(self.count)]

    def home(self, number: int) -> Path:
        return self.folder / f"demo-{number}"

    def run(self, target, command, *, timeout_s=None, stdin=b"", sink=None):
        if target.host in self.trouble:
            raise self.trouble[target.host]
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder / target.host,
            env={**os.environ, "HOME": str(self.folder / target.host), **self.environ},
        )
        self.processes.append(process)
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
        killer = threading.Timer(timeout_s or 3600, process.kill)
        killer.start()
        try:
            while chunk := process.stdout.read1(1 << 16):
                sink("stdout", chunk)
            sink("stderr", process.stderr.read())
            status = process.wait()
        finally:
            killer.cancel()
        if status < 0:
            raise CommandTimeout(target.host, "did not end")
        return CommandResult(target.host, command, status, "", "", 0.0)

    def interrupt(self) -> None:
        for process in self.processes:
            process.kill()


def _feed(process, stdin) -> None:
    offset = 0
    with contextlib.suppress(OSError, ValueError):
        while process.poll() is None and (chunk := stdin.read_at(offset, 0.5)) != b"":
            process.stdin.write(chunk or b"")
            process.stdin.flush()
            offset += len(chunk or b"")
        process.stdin.close()
