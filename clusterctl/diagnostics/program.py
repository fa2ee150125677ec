"""Python programs that run on the nodes: standard library only, sent over SSH, never installed."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome

T = TypeVar("T")


@dataclass(frozen=True)
class NodeProgram:
    """A file of this package that runs on a node; what follows it on stdin is its input."""

    path: Path

    @functools.cached_property
    def source(self) -> bytes:
        return self.path.read_bytes()

    def command(self, *arguments: str) -> str:
        # The program comes in on stdin, so that the command stays short in messages and in `ps`.
        # -IS: it needs nothing installed, and looking for that is half of the interpreter's start.
        name = f"clusterctl:{self.path.stem}"
        read = f"compile(sys.stdin.buffer.read({len(self.source)}), {name!r}, 'exec')"
        return shlex.join(["python3", "-IS", "-c", f"import sys; exec({read})", *arguments])

    def stdin(self, payload: bytes = b"") -> bytes:
        return self.source + payload


def json_lines(result: CommandResult, doing: str) -> list[dict[str, Any]]:
    """The JSON objects that a node program printed. Raises CommandFailed when it failed."""
    if result.exit_status:
        complaint = (result.stderr.strip().splitlines() or ["no message"])[-1]
        hint = "the nodes need python3" if result.exit_status == 127 else ""
        raise CommandFailed(result.host, f"{doing} failed: {complaint}", hint)
    return list(_objects(result.stdout))


def read_each(
    result: FanoutResult[CommandResult], parse: Callable[[CommandResult], T]
) -> FanoutResult[T]:
    """Each host's output parsed; what cannot be read is that host's error."""

    def read(outcome: HostOutcome[CommandResult]) -> HostOutcome[T]:
        try:
            value = None if outcome.value is None else parse(outcome.value)
            return HostOutcome(outcome.host, value, outcome.error)
        except ClusterctlError as error:
            return HostOutcome(outcome.host, error=error)

    return FanoutResult(tuple(map(read, result.outcomes)))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    # A login shell may greet first.
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
