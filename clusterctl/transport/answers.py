"""What programs on nodes have printed: JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome

T = TypeVar("T")


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
