"""The processes of jobs on the nodes: who they are, and how they were ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.domain.results import CommandResult, FanoutResult, json_lines, read_each
from clusterctl.node.packer import program_of
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

PROCESSES = program_of("clusterctl.node.jobs.processes")
TIMEOUT_S = 30.0
SHORT_COMMAND = 72  # characters of a line on the screen


@dataclass(frozen=True)
class NodeProcess:
    """One process. `role`: rank, launcher, daemon, job, child or python.

    `ended`: terminated, killed, or empty for one that is still there.
    """

    host: str
    pid: int
    rank: int | None
    role: str
    job_id: str | None
    age_s: float
    argv: tuple[str, ...]
    ended: str = ""

    @property
    def command(self) -> str:
        """Its command line on one line, whatever is in it."""
        return "".join(
            character if character.isprintable() else ascii(character)[1:-1]
            for character in shlex.join(self.argv)
        )

    @property
    def serves(self) -> bool:
        """Whether it serves a model (operations/serving.py)."""
        return any(word.endswith("/serve.py") and "/jobs/" in word for word in self.argv[:3])

    @property
    def short_command(self) -> str:
        """The beginning of its command line."""
        whole = self.command
        return whole if len(whole) <= SHORT_COMMAND else whole[: SHORT_COMMAND - 1] + "…"

    def as_data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "host": self.host,
            "pid": self.pid,
            "rank": self.rank,
            "role": self.role,
            "job": self.job_id,
            "age_s": self.age_s,
            "argv": list(self.argv),
            "ended": self.ended or None,
        }


@dataclass(frozen=True)
class ProcessQuery:
    """Which processes: of one job or of all, and every Python process of the SSH user too."""

    job_id: str | None = None
    all_python: bool = False

    def arguments(self, action: str) -> list[str]:
        job = ["--job", self.job_id] if self.job_id else []
        return [action, *(["--all-python"] if self.all_python else []), *job]


def list_processes(
    connections: Connections, targets: Sequence[Target], query: ProcessQuery
) -> FanoutResult[tuple[NodeProcess, ...]]:
    """The processes on each node."""
    return _ask(connections, targets, query.arguments("list"))


def end_processes(
    connections: Connections, targets: Sequence[Target], query: ProcessQuery
) -> FanoutResult[tuple[NodeProcess, ...]]:
    """End them on each node: TERM, then KILL."""
    return _ask(connections, targets, query.arguments("end"))


def _ask(
    connections: Connections, targets: Sequence[Target], arguments: list[str]
) -> FanoutResult[tuple[NodeProcess, ...]]:
    result = connections.run_all(
        targets, PROCESSES.command(*arguments), stdin=PROCESSES.stdin(), timeout_s=TIMEOUT_S
    )
    return read_each(result, parse_processes)


def all_of(result: FanoutResult[tuple[NodeProcess, ...]]) -> tuple[NodeProcess, ...]:
    """Those of all nodes that answered."""
    return tuple(process for processes in result.values for process in processes)


def parse_processes(result: CommandResult) -> tuple[NodeProcess, ...]:
    """The processes that `node/jobs/processes.py` printed. Raises CommandFailed."""
    return tuple(
        NodeProcess(
            host=result.host,
            pid=answer["pid"],
            rank=answer["rank"],
            role=answer["role"],
            job_id=answer["job"],
            age_s=answer["age_s"],
            argv=tuple(answer["argv"]),
            ended=answer["ended"],
        )
        for answer in json_lines(result, "looking at the processes")
    )
