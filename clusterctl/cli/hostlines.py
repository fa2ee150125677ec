"""The output of many hosts: each line with its host's name as it arrives, or grouped at the end."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from clusterctl.cli import output
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.units import format_bytes

# Bytes. A longer line is printed in pieces, after a warning.
LONGEST_LINE = 16 << 20


class HostLines:
    """Prints whole lines of each host as they arrive, after `HOST: `. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest: defaultdict[tuple[str, str], bytearray] = defaultdict(bytearray)

    def take(self, host: str, stream: str, chunk: bytes) -> None:
        """Print the whole lines of what `host` wrote to `stream`, stdout or stderr."""
        with self._lock:
            *lines, last = chunk.split(b"\n")
            rest = self._rest[(host, stream)]
            if lines:
                _write(host, stream, [rest + lines[0], *lines[1:]])
                rest.clear()
            rest += last
            if len(rest) > LONGEST_LINE:
                output.note(f"{host}: a line of more than {format_bytes(LONGEST_LINE)} is cut here")
                _write(host, stream, [rest])
                rest.clear()

    def finish(self, host: str) -> None:
        """Print the last line of a host that lacks a newline."""
        with self._lock:
            for stream in ("stdout", "stderr"):
                if rest := self._rest.pop((host, stream), None):
                    _write(host, stream, [rest])


def _write(host: str, stream: str, lines: Iterable[bytes | bytearray]) -> None:
    prefix = f"{host}: ".encode()
    output.raw(b"".join(prefix + line + b"\n" for line in lines), stream)


def show_grouped(result: FanoutResult[CommandResult]) -> None:
    """Print hosts with identical output together, their names folded into ranges."""
    for hosts, (stdout, stderr) in result.grouped(lambda value: value.as_bytes):
        if not stdout and not stderr:
            continue
        rule = "-" * 15
        count = f" ({len(hosts)})" if len(hosts) > 1 else ""
        output.line(f"{rule}\n{fold_hosts(hosts)}{count}\n{rule}")
        output.raw(_with_newline(stdout), "stdout")
        output.raw(_with_newline(stderr), "stderr")


def _with_newline(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + b"\n"


def show_verbose(outcome: HostOutcome[CommandResult]) -> None:
    """Print the line of the tutorial's `verbose`: the host, with exit status and time."""
    if outcome.value is None:
        return
    ended = f"exit status {outcome.value.exit_status}, {outcome.value.duration_s:.1f} s"
    output.note(f"On {outcome.host}: {ended}")


def show_trouble(result: FanoutResult[CommandResult]) -> None:
    """Print a line for each exit status but 0, for output that was cut, and for each failure."""
    failed = [value for value in result.values if value.exit_status != 0]
    statuses = sorted({value.exit_status for value in failed})
    for status in statuses:
        hosts = [value.host for value in failed if value.exit_status == status]
        output.note(f"{fold_hosts(hosts)}: exit status {status}")
    cut = [value.host for value in result.values if value.truncated]
    if cut:
        # Imported here: it takes paramiko, which commands over kept connections do without.
        from clusterctl.transport.execute import KEPT_BYTES

        output.note(f"{fold_hosts(cut)}: output cut after {format_bytes(KEPT_BYTES)}")
    show_failures(result.failures)


def data_of(result: FanoutResult[Any]) -> dict[str, Any]:
    """Return the values of the hosts for `--json`, and apart from them the hosts without one."""
    return {"nodes": result.values, "failures": result.failures}


def show_failures(failures: Iterable[HostOutcome[Any]]) -> None:
    """Print one line per reason: its hosts, the message, the hint."""
    show_reasons((one.host, (one.error.message, one.error.hint)) for one in failures if one.error)


def show_reasons(reasons: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Print the same of pairs of a host and its reason, a message and a hint."""
    for (message, hint), hosts in grouped((reason, host) for host, reason in reasons).items():
        output.note(f"{fold_hosts(hosts)}: {message}" + (f" (hint: {hint})" if hint else ""))
