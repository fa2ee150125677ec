"""What the head node keeps of a job, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from clusterctl.domain.results import CommandResult
from clusterctl.transport.answers import json_lines


class JobState(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Its process is gone and nobody wrote down how it ended: a reboot, or a kill -9.
    LOST = "lost"


@dataclass(frozen=True)
class JobRecord:
    """One job. `line` is its whole mpirun line; a lost job has no exit status.

    `evaluation` is the line that follows a training, `log_dir` the trainer's log folder on the head
    node; both are empty where there is none. `log_name` is the log's name there. `variables` and
    `mpi_arguments` are the user's own; the value of a private variable is None. `destination` is
    where a copy brings its data; empty for a training.
    """

    job_id: str
    state: JobState
    exit_status: int | None
    started_at: datetime
    duration_s: float
    ranks: int
    preset: str
    line: str
    log_bytes: int
    evaluation: str = ""
    log_dir: str = ""
    log_name: str = "hvd_train.log"
    variables: Mapping[str, str | None] = field(default_factory=dict)
    mpi_arguments: tuple[str, ...] = ()
    destination: str = ""

    @property
    def running(self) -> bool:
        return self.state is JobState.RUNNING

    def as_data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "id": self.job_id,
            "state": self.state.value,
            "exit_status": self.exit_status,
            "started_at": self.started_at.isoformat(),
            "duration_s": round(self.duration_s, 1),
            "gpus": self.ranks,
            "preset": self.preset,
            "line": self.line,
            "evaluation": self.evaluation,
            "variables": dict(self.variables),
            "mpi_arguments": list(self.mpi_arguments),
            "log_dir": self.log_dir,
            "destination": self.destination,
            "log_bytes": self.log_bytes,
        }


def parse_jobs(result: CommandResult) -> list[JobRecord]:
    """The jobs that `node/jobs/jobs.py list` printed, oldest first. Raises CommandFailed."""
    return [_record(described) for described in json_lines(result, "looking at the jobs")]


def _record(described: dict[str, Any]) -> JobRecord:
    plan = described.get("plan") or {}
    state = _state(described)
    started = described["started_at"] or described["now"]
    ended = described["now"] if state is JobState.RUNNING else described["ended_at"] or started
    return JobRecord(
        job_id=described["id"],
        state=state,
        exit_status=described["exit_status"],
        started_at=datetime.fromtimestamp(started, timezone.utc),
        duration_s=max(0.0, ended - started),
        ranks=int(plan.get("ranks", 0)),
        preset=str(plan.get("preset", "")),
        line=str(plan.get("line", "")),
        log_bytes=described["log_bytes"],
        evaluation=str(plan.get("evaluation", "")),
        log_dir=str(plan.get("log_dir", "")),
        log_name=str(plan.get("log_name") or JobRecord.log_name),
        variables=plan.get("variables", {}),
        mpi_arguments=tuple(plan.get("mpi_arguments", ())),
        destination=str(plan.get("destination", "")),
    )


def _state(described: dict[str, Any]) -> JobState:
    if described["exit_status"] is None:
        if described["running"]:
            return JobState.RUNNING
        return JobState.CANCELLED if described["cancelled"] else JobState.LOST
    if described["exit_status"] == 0:
        return JobState.SUCCEEDED
    return JobState.CANCELLED if described["cancelled"] else JobState.FAILED
