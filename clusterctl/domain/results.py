"""What came of running something on hosts, and what programs there have printed.

A non-zero exit is a value; no answer is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clusterctl.domain.errors import ClusterctlError, CommandFailed

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True)
class CommandResult:
    """One command on one host. A death by signal has the shell's exit status, 128 + signal."""

    host: str
    command: str
    exit_status: int
    stdout: str
    stderr: str
    duration_s: float
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_status == 0


@dataclass(frozen=True)
class HostOutcome(Generic[T]):
    """What one host gave: a value, or the error that kept it from giving one."""

    host: str
    value: T | None = None
    error: ClusterctlError | None = None


@dataclass(frozen=True)
class FanoutResult(Generic[T]):
    """One outcome per host, in the order the hosts were given."""

    outcomes: tuple[HostOutcome[T], ...]

    @property
    def values(self) -> list[T]:
        return [outcome.value for outcome in self.outcomes if outcome.value is not None]

    @property
    def failures(self) -> list[HostOutcome[T]]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def grouped(self, key: Callable[[T], K]) -> list[tuple[list[str], K]]:
        """Hosts with the same key together, in the order of each group's first host."""
        groups: dict[K, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.value is not None:
                groups.setdefault(key(outcome.value), []).append(outcome.host)
        return [(hosts, value) for value, hosts in groups.items()]


def exit_status_of(result: FanoutResult[CommandResult]) -> int:
    """The highest of the hosts' exit statuses; 255 if one could not be reached or did not end."""
    if result.failures:
        return 255
    return max((value.exit_status for value in result.values), default=0)


def last_line(text: str) -> str:
    """The last line of what a program wrote on stderr, where most say why they failed."""
    return (text.strip().splitlines() or ["no message"])[-1]


def json_lines(result: CommandResult, doing: str) -> list[dict[str, Any]]:
    """The JSON objects that a node program printed. Raises CommandFailed when it failed."""
    if result.exit_status:
        hint = "the nodes need python3" if result.exit_status == 127 else ""
        raise CommandFailed(result.host, f"{doing} failed: {last_line(result.stderr)}", hint)
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
