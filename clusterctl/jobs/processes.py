"""Lists and ends the processes of jobs on the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.results import CommandResult, FanoutResult, json_lines, parse_outputs
from clusterctl.node.packer import program_of
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

PROCESSES = program_of("clusterctl.node.jobs.processes")
TIMEOUT_S = 30.0
# Of one node. A session takes 60 bytes, and a shell's command line may have 128 KiB (execve(2)).
MOST_SESSIONS = 1000
SHORT_COMMAND = 72  # characters of a line on the screen


@dataclass(frozen=True)
class NodeProcess:
    """A process on a node. `role` is rank, launcher, daemon, job, sync, child or python.

    `rank` and `job_id` are None for a process that has none. `ended` is terminated, killed, or
    empty for a process that still runs. `session` identifies its session if that is a job's: what
    is in it belongs to the job, also when nothing else tells that any more.
    """

    host: str
    pid: int
    rank: int | None
    role: str
    job_id: str | None
    age_s: float
    argv: tuple[str, ...]
    ended: str = ""
    session: str = ""

    @property
    def command(self) -> str:
        """The command line as one line: characters that cannot be printed are escaped."""
        return "".join(
            character if character.isprintable() else ascii(character)[1:-1]
            for character in shlex.join(self.argv)
        )

    @property
    def serves(self) -> bool:
        """Whether the process serves a model (operations/serving.py)."""
        return any(word.endswith("/serve.py") and "/jobs/" in word for word in self.argv[:3])

    @property
    def short_command(self) -> str:
        """The command line, cut to SHORT_COMMAND characters."""
        whole = self.command
        return whole if len(whole) <= SHORT_COMMAND else whole[: SHORT_COMMAND - 1] + "…"

    def as_data(self) -> dict[str, Any]:
        """Return the process for `--json`."""
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
    """A selection of processes: those of one job, or of all jobs for None.

    `all_python` adds every Python process of the SSH user, `syncs` the detached downloads; these
    can only be listed. `sessions` are those of processes that were found before, each with its
    host.
    """

    job_id: str | None = None
    all_python: bool = False
    syncs: bool = False
    sessions: frozenset[tuple[str, str]] = frozenset()

    def after(self, found: Iterable[NodeProcess]) -> ProcessQuery:
        """Return the query that also finds what is in the sessions of these processes."""
        seen = {(one.host, one.session) for one in found if one.session}
        return replace(self, sessions=self.sessions | seen)

    def arguments(self, action: str, host: str) -> list[str]:
        """Return the arguments of node/jobs/processes.py for `list` or `end` on a host."""
        job = ["--job", self.job_id] if self.job_id else []
        flags = {"--all-python": self.all_python, "--syncs": self.syncs}
        chosen = [flag for flag, is_set in flags.items() if is_set]
        sessions = sorted(one for there, one in self.sessions if there == host)[:MOST_SESSIONS]
        return [action, *chosen, *job, *(f"--session={one}" for one in sessions)]


def list_processes(
    connections: Connections,
    targets: Sequence[Target],
    query: ProcessQuery,
    timeout_s: float = TIMEOUT_S,
) -> FanoutResult[tuple[NodeProcess, ...]]:
    """List the selected processes on each node."""
    return _ask(connections, targets, query, "list", timeout_s)


def end_processes(
    connections: Connections, targets: Sequence[Target], query: ProcessQuery
) -> FanoutResult[tuple[NodeProcess, ...]]:
    """End the selected processes on each node, with TERM and then KILL; return what was ended."""
    return _ask(connections, targets, query, "end")


def _ask(
    connections: Connections,
    targets: Sequence[Target],
    query: ProcessQuery,
    action: str,
    timeout_s: float = TIMEOUT_S,
) -> FanoutResult[tuple[NodeProcess, ...]]:
    def command(target: Target) -> str:
        return PROCESSES.command(*query.arguments(action, target.host))

    result = connections.run_all(targets, command, stdin=PROCESSES.stdin(), timeout_s=timeout_s)
    return parse_outputs(result, parse_processes)


def all_of(result: FanoutResult[tuple[NodeProcess, ...]]) -> tuple[NodeProcess, ...]:
    """Return the processes of all nodes that answered."""
    return tuple(process for processes in result.values for process in processes)


def parse_processes(result: CommandResult) -> tuple[NodeProcess, ...]:
    """Return the processes that `node/jobs/processes.py` printed. Raises CommandFailed."""
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
            session=answer.get("session", ""),
        )
        for answer in json_lines(result, "looking at the processes")
    )
