"""What came of running something on hosts. A non-zero exit is a value; no answer is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from clusterctl.domain.errors import ClusterctlError

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
