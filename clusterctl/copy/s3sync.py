"""Syncs that run detached on nodes: what they are told, and how they are doing."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from clusterctl.copy.failures import with_unquoted_home
from clusterctl.domain.results import CommandResult, json_lines
from clusterctl.node.packer import Program, program_of
from clusterctl.node.relay.messages import Done, Gap, Listed, of_fields

TIMEOUT_S = 60.0


class SyncState(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    # All is there but what cannot be: a key that is no file's name, an archived object.
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Its process is gone and nobody wrote down how it ended: a reboot, or a kill -9.
    LOST = "lost"


@dataclass(frozen=True)
class SyncRecord:
    """One sync on one node. Counts are None until it knows what there is to get.

    `files` of `total_files` have come, `present` were there. `was_running`: until it was cancelled.
    `listed`, `gap`, `done` and the rest are as relays tell them (node/relay/s3files.py, Progress).
    """

    host: str
    sync_id: str
    state: SyncState
    sources: tuple[str, ...]
    destination: str
    duration_s: float
    how: str = ""
    exit_status: int | None = None
    why: str = ""
    hint: str = ""
    files: int | None = None
    bytes: int | None = None
    listed: Listed | None = None
    gap: Gap | None = None
    done: Done | None = None
    path: str = ""
    remarks: tuple[str, ...] = ()
    left_out: int = 0
    was_running: bool = False

    @property
    def running(self) -> bool:
        return self.state is SyncState.RUNNING

    @property
    def total_files(self) -> int | None:
        return self.gap.files if self.gap else None

    @property
    def total_bytes(self) -> int | None:
        return self.gap.bytes if self.gap else None

    @property
    def present(self) -> int | None:
        return self.listed.files - self.gap.files if self.listed and self.gap else None

    @property
    def shown_state(self) -> str:
        """For people."""
        incomplete = self.state is SyncState.INCOMPLETE
        return f"done, {self.left_out} left out" if incomplete else self.state.value

    @property
    def rate(self) -> float | None:
        return None if self.bytes is None else self.bytes / max(self.duration_s, 0.001)

    def as_data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "host": self.host,
            "id": self.sync_id,
            "state": self.state.value,
            "sources": list(self.sources),
            "destination": self.destination,
            "how": self.how,
            "duration_s": round(self.duration_s, 1),
            "exit_status": self.exit_status,
            "files": self.files,
            "total_files": self.total_files,
            "bytes": self.bytes,
            "total_bytes": self.total_bytes,
            "present_files": self.present,
            "left_out": self.left_out,
            "message": self.why,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class LogPart:
    """What came to a log. `more`: there is more of it already."""

    record: SyncRecord
    text: bytes
    at: int
    more: bool


# Actions of node/relay/syncjobs.py that need the modules that do the work.
AT_WORK = ("probe", "look", "start")


def program(action: str) -> Program:
    """What runs on the node for this action."""
    work = ["clusterctl.node.relay.webfile"] if action in AT_WORK else []
    return program_of(*work, "clusterctl.node.relay.syncjobs")


def parse_records(result: CommandResult) -> list[SyncRecord]:
    """What `list` and `cancel` printed. Raises CommandFailed."""
    return [_record(result.host, told) for told in json_lines(result, "looking at the syncs")]


def parse_log(result: CommandResult) -> LogPart | None:
    """What `log` printed; None where there is no such sync. Raises CommandFailed."""
    answers = json_lines(result, "reading the log")
    if not answers:
        return None
    [told] = answers
    text = base64.b64decode(told["text_b64"])
    return LogPart(_record(result.host, told), text, int(told["at"]), told["more"] is True)


def _record(host: str, told: Mapping[str, Any]) -> SyncRecord:
    ended, progress = told.get("ended") or {}, told.get("progress") or {}
    now = float(told["now"])
    began = float(told.get("started_at") or now)
    until = float(ended.get("ended_at") or now)
    return SyncRecord(
        host=host,
        sync_id=str(told["id"]),
        state=_state(told["running"] is True, ended),
        sources=tuple(map(str, told.get("sources", ()))),
        destination=str(told.get("destination", "")),
        duration_s=max(0.0, until - began),
        exit_status=ended.get("exit_status"),
        why=str(ended.get("why", "")),
        hint=with_unquoted_home(
            str(ended.get("hint", "")),
            str(ended.get("why", "")),
            [str(told.get("destination", ""))],
        ),
        left_out=int(ended.get("left_out") or 0),
        was_running=told.get("was_running") is True,
        **progress_of(progress),
    )


def progress_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a SyncRecord, of what the node tells of its progress (Progress.as_data)."""
    known: dict[str, Any] = {}
    for name, kind in (("listed", Listed), ("gap", Gap), ("done", Done)):
        if told.get(name):
            known[name] = of_fields(kind, told[name])
    if known:
        known.update(files=int(told["files"]), bytes=int(told["bytes"]))
    return {
        **known,
        "how": str(told.get("how", "")),
        "path": str(told.get("path", "")),
        "remarks": tuple(map(str, told.get("remarks", ()))),
    }


def _state(running: bool, ended: Mapping[str, Any]) -> SyncState:
    if running:
        return SyncState.RUNNING
    status = ended.get("exit_status")
    if ended.get("left_out"):
        return SyncState.INCOMPLETE
    by_status = {None: SyncState.LOST, 0: SyncState.SUCCEEDED, 130: SyncState.CANCELLED}
    return by_status.get(status, SyncState.FAILED)
