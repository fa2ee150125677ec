"""Syncs that run detached on nodes: the program that starts them, and what it reports."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from clusterctl.copy.failures import with_unquoted_home
from clusterctl.domain.errors import CommandNotRun
from clusterctl.domain.results import CommandResult, json_lines
from clusterctl.node.packer import Program, program_of
from clusterctl.node.record import RecordError, from_data
from clusterctl.node.relay.messages import Done, Gap, Listed

# For an action on a node that neither lists nor fetches.
TIMEOUT_S = 60.0


class SyncState(Enum):
    """The state of a sync on one node."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    # It left something out: a key that cannot be a file's name, an archived object.
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Its process is gone and has recorded no result: after a reboot or `kill -9`.
    LOST = "lost"


@dataclass(frozen=True)
class SyncRecord:
    """One sync on one node. Counts are None until the source is listed and compared.

    `files` of `total_files` missing files have come; `present` files were there before.
    `was_running`: it ran until it was cancelled. `how`, `listed`, `gap`, `done`, `path` and
    `remarks` are those of ObjectProgress (node/relay/s3files.py).
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
        """How many of the source's files were there before."""
        return self.listed.files - self.gap.files if self.listed and self.gap else None

    @property
    def shown_state(self) -> str:
        """The state in words for the user."""
        incomplete = self.state is SyncState.INCOMPLETE
        return f"done, {self.left_out} left out" if incomplete else self.state.value

    @property
    def rate(self) -> float | None:
        """Bytes a second over the whole sync; None until it is known what is missing."""
        return None if self.bytes is None else self.bytes / max(self.duration_s, 0.001)

    def as_data(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
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
    """A part of a sync's log, up to byte `at`. `more`: the log is probably longer."""

    record: SyncRecord
    text: bytes
    at: int
    more: bool


# Actions of node/relay/syncjobs.py that need the modules that list and fetch. The others are
# called once a second, and get a smaller program.
FULL_PROGRAM_ACTIONS = ("probe", "look", "start")


def program(action: str) -> Program:
    """Return the program that carries out this action on a node."""
    work = ["clusterctl.node.relay.webfile"] if action in FULL_PROGRAM_ACTIONS else []
    return program_of(*work, "clusterctl.node.relay.syncjobs")


def parse_records(result: CommandResult) -> list[SyncRecord]:
    """Parse the output of `list` or `cancel`. Raises CommandFailed, CommandNotRun."""
    doing = "looking at the syncs"
    try:
        return [_record(result.host, told) for told in json_lines(result, doing)]
    except RecordError as problem:
        what = f"{doing} failed: unexpected response: {problem}"
        raise CommandNotRun(result.host, what) from None


def parse_log(result: CommandResult) -> LogPart | None:
    """Parse the output of `log`; None if the node has no such sync. Raises CommandFailed."""
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
    """Return fields of a SyncRecord from a node's progress (ObjectProgress.as_data)."""
    known: dict[str, Any] = {}
    for name, kind in (("listed", Listed), ("gap", Gap), ("done", Done)):
        if told.get(name):
            known[name] = from_data(kind, told[name])
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
