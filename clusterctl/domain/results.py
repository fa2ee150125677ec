"""Results of commands on hosts, and functions that parse what the commands printed.

A command that exits with a non-zero status is a value. A host that gives no result is an error.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Optional, TypeVar

from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.ranges import grouped

T = TypeVar("T")
K = TypeVar("K")
# Hosts that are worked on at the same time.
DEFAULT_FANOUT = 256


@dataclass(frozen=True)
class CommandResult:
    """The result of one command on one host.

    A command that a signal killed has the exit status that a shell gives it, 128 + signal.
    `truncated` is set if only the first part of the output was kept. `raw` has stdout and stderr if
    they are not UTF-8: then the texts have U+FFFD in place of some bytes.
    """

    host: str
    command: str
    exit_status: int
    stdout: str
    stderr: str
    duration_s: float
    truncated: bool = False
    raw: Optional[tuple[bytes, bytes]] = field(default=None, repr=False)
    json_names = ("host", "exit_status", "stdout", "stderr", "duration_s", "truncated")

    @property
    def ok(self) -> bool:
        return self.exit_status == 0

    @property
    def as_bytes(self) -> tuple[bytes, bytes]:
        """stdout and stderr as the command wrote them."""
        return self.raw or (self.stdout.encode(), self.stderr.encode())


@dataclass(frozen=True)
class WithError:
    """Something without a result, because of an error."""

    error: ClusterctlError

    @property
    def message(self) -> str:
        return self.error.message

    @property
    def hint(self) -> str:
        return self.error.hint


@dataclass(frozen=True)
class HostFailure:
    """A host without a result, for `--json`. After a timeout it has the output so far."""

    host: str
    error: str
    message: str
    hint: str
    stdout: Optional[str] = None
    stderr: Optional[str] = None


@dataclass(frozen=True)
class HostOutcome(Generic[T]):
    """The outcome on one host: a value, or the error because of which there is none."""

    host: str
    value: T | None = None
    error: ClusterctlError | None = None

    def result(self) -> T:
        """Return the value. Raises the error."""
        if self.value is None:
            raise self.error or ClusterctlError(f"{self.host} gave no result")
        return self.value

    def as_record(self) -> HostFailure:
        """Return the failure, for `--json`."""
        error = self.error or ClusterctlError("")
        so_far = (getattr(error, name, None) for name in ("stdout", "stderr"))
        return HostFailure(self.host, type(error).__name__, error.message, error.hint, *so_far)


@dataclass(frozen=True)
class FanoutResult(Generic[T]):
    """One outcome per host, in the order in which the hosts were given."""

    outcomes: tuple[HostOutcome[T], ...]

    @property
    def values(self) -> list[T]:
        return [outcome.value for outcome in self.outcomes if outcome.value is not None]

    @property
    def by_host(self) -> dict[str, T]:
        """The values, by host."""
        return {one.host: one.value for one in self.outcomes if one.value is not None}

    @property
    def failures(self) -> list[HostOutcome[T]]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def grouped(self, key: Callable[[T], K]) -> list[tuple[list[str], K]]:
        """Return groups of hosts whose values have the same key, each with that key.

        Hosts without a value are left out. The groups are in the order of their first hosts.
        """
        groups = grouped(
            (key(one.value), one.host) for one in self.outcomes if one.value is not None
        )
        return [(hosts, value) for value, hosts in groups.items()]


def status_of(failures: Iterable[HostOutcome[Any]], is_failed: bool = False) -> int:
    """Return the exit status of an operation on several hosts, some of which gave no result."""
    return worst((one.error.exit_status for one in failures if one.error), is_failed)


def worst(statuses: Iterable[int | None], is_failed: bool = False) -> int:
    """Return the exit status for what several hosts ended with (None: not known): 255 if one gave
    no answer, 1 if one failed or if `is_failed`, else 0."""
    ended = {*statuses}
    return 255 if 255 in ended else int(is_failed or bool(ended - {0}))


def exit_status_of(result: FanoutResult[CommandResult]) -> int:
    """Return the highest exit status of all hosts, or 255 if a host gave no result."""
    if result.failures:
        return 255
    return max((value.exit_status for value in result.values), default=0)


# What tar, gzip and pip write below the reason of a failure.
_CLOSING = re.compile(
    r"\S*tar: (Exiting with failure|Error is not recoverable|Error exit delayed|Child )"
    r"|tar: .*: Wrote only \d+ of \d+ bytes|gzip: stdin: unexpected end of file|\[notice\]"
)


def last_line(text: str) -> str:
    """Return the last line of a program's stderr that gives a reason, as the last line of most
    programs does.

    Lines with which tar, gzip and pip end are left out, unless there is no other. For an empty text
    it is "no message".
    """
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in reversed(lines) if not _CLOSING.match(line)), lines[-1])


def make_room(message: str, cluster: str) -> str:
    """Return what to do about the reason of a failure if a node's disk is full, else nothing."""
    if not any(os.strerror(one) in message for one in (errno.ENOSPC, errno.EDQUOT)):
        return ""
    return f"make room: clusterctl disk {cluster}, clusterctl clean-logs {cluster} --jobs"


# What programs write that a limit of the login keeps from working.
_LIMITED = re.compile(
    "MemoryError|[Cc]annot allocate memory|failed to map|Too many open files|File too large|"
    "File size limit|can't start new thread|Cannot fork|Resource temporarily unavailable"
)


_BROKEN_PYTHON = (
    "the first python3 on the PATH of a login may be broken, as by conda or pyenv in ~/.bashrc: "
    "see `command -v python3` and `python3 --version` there"
)


def program_failure(result: CommandResult, doing: str) -> CommandFailed:
    """Return the error for a program that exited with an error on its node. `doing` names the
    operation in the message: "reading the disks"."""
    lacking = python_lacking(result.exit_status, result.stderr)
    output, how = result.stderr.strip() or result.stdout.strip(), f"exit {result.exit_status}"
    # A program of ours ends with 1 and a message, or by a signal.
    is_ours = result.exit_status > 128 or (result.exit_status == 1 and result.stderr.strip())
    if lacking:
        reason, hint = lacking
    elif is_ours:
        reason, hint = last_line(output) if output else how, ""
    else:
        more = f": {last_line(output)}" if output else ""
        reason, hint = f"python3 there ended with {how}{more}", _BROKEN_PYTHON
    if _LIMITED.search(result.stderr):
        hint = "a limit of the login there may be too low: see `ulimit -a`, and its ~/.bashrc"
    return CommandFailed(result.host, f"{doing} failed: {reason}", hint)


def python_lacking(exit_status: int, stderr: str) -> tuple[str, str] | None:
    """Return why a host has no python3 for a program of ours, and what to do, by how the program
    ended before it wrote anything. None if that was not the reason."""
    # dash ends with 127, too, where it may not execute a file.
    other = "ermission denied", "pyenv: "  # pyenv's own command for a version that lacks it
    if exit_status == 127 and "python3" in stderr and not any(one in stderr for one in other):
        return "python3 is not installed there", "install it: apt-get install python3"
    complaint = last_line(stderr)
    # The message of the version check in node/packer.py.
    if re.fullmatch(r"python3 is \S+, \S+ is needed", complaint):
        return f"too old: {complaint}", "install Python 3.8 or newer as python3"
    return None


def parse_outputs(result: FanoutResult[K], parse: Callable[[K], T]) -> FanoutResult[T]:
    """Return the result with each host's value parsed.

    A ClusterctlError that `parse` raises becomes the outcome of that host.
    """

    def read(outcome: HostOutcome[K]) -> HostOutcome[T]:
        try:
            value = None if outcome.value is None else parse(outcome.value)
            return HostOutcome(outcome.host, value, outcome.error)
        except ClusterctlError as error:
            return HostOutcome(outcome.host, error=error)

    return FanoutResult(tuple(map(read, result.outcomes)))
