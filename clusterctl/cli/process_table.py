"""Processes of nodes on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clusterctl.cli import output
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.diagnostics.processes import NodeProcess


def show_processes(processes: Sequence[NodeProcess]) -> None:
    output.table(
        ("NODE", "PID", "RANK", "AGE", "WHAT", "COMMAND"),
        [
            (
                process.host,
                process.pid,
                "-" if process.rank is None else process.rank,
                format_duration(process.age_s),
                process.role,
                process.short_command,
            )
            for process in processes
        ],
    )


def show_left(processes: Sequence[NodeProcess]) -> None:
    """One line for each process that would not end."""
    for process in processes:
        output.note(
            f"error: {process.host}: process {process.pid} is still there: {process.short_command}"
        )
    if processes:
        name = processes[0].host.rpartition("-")[0]
        hosts = dict.fromkeys(process.host.rpartition("-")[2] for process in processes)
        # It is a run as long as one of these lives.
        runs = any(process.role in ("job", "launcher") for process in processes)
        output.note(
            "  hint: a process that survives KILL waits for a device or a disk: "
            f"clusterctl reboot {name} {' '.join(hosts)}{' --force' if runs else ''}"
        )


@contextmanager
def saying_what_is_left(name: str) -> Iterator[None]:
    """After Ctrl-C: some have ended, and nobody has looked which."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"see what is left: clusterctl kill {name} --dry-run")
        raise
