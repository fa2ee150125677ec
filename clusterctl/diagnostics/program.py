"""Python programs that run on the nodes: standard library only, sent over SSH, never installed."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.results import CommandResult


@dataclass(frozen=True)
class NodeProgram:
    """A file of this package that runs on a node; what follows it on stdin is its input."""

    path: Path

    @functools.cached_property
    def source(self) -> bytes:
        return self.path.read_bytes()

    def command(self, *arguments: str) -> str:
        # The program comes in on stdin, so that the command stays short in messages and in `ps`.
        name = f"clusterctl:{self.path.stem}"
        read = f"compile(sys.stdin.buffer.read({len(self.source)}), {name!r}, 'exec')"
        return shlex.join(["python3", "-c", f"import sys; exec({read})", *arguments])

    def stdin(self, payload: bytes = b"") -> bytes:
        return self.source + payload


def json_lines(result: CommandResult, doing: str) -> list[dict[str, Any]]:
    """The JSON objects that a node program printed. Raises CommandFailed when it failed."""
    if result.exit_status:
        complaint = (result.stderr.strip().splitlines() or ["no message"])[-1]
        hint = "the nodes need python3" if result.exit_status == 127 else ""
        raise CommandFailed(result.host, f"{doing} failed: {complaint}", hint)
    return list(_objects(result.stdout))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    # A login shell may greet first.
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
