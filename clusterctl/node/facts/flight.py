"""Dumps of PyTorch's Flight Recorder, which holds the last collectives of a rank.

A rank writes its dump when a collective has timed out: a pickle of lists, dictionaries, numbers and
texts, in newer versions of PyTorch also JSON. The fields are those of PyTorch's
torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 1 and 2. A pickle can call any function: so
one that names any is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs.folder import DUMP, dumps_by_job

WITHIN_S = 6.0
MOST_BYTES = 32 << 20  # of a dump: 2,000 collectives with their stacks are some 3 MB
MOST_DUMPS = 16  # of a node
MOST_GROUPS = 32  # of a dump
BEFORE, AFTER = 6, 4  # collectives kept around the first unfinished one
MOST_TEXT = 200
MOST_TENSORS = 4


class DumpError(Exception):
    """A dump that cannot be read; the text is the reason."""


@dataclass(frozen=True)
class Collective:
    """A collective of a rank: number `sequence` of its group. `state` is scheduled, started or
    completed. `inputs` and `outputs` are the tensors, such as `Float[8, 1024]`. `where` is the line
    of the program that called it, `train.py:40 in step`; empty if the dump has no stacks."""

    sequence: int = 0
    operation: str = ""
    state: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class FlightGroup:
    """A process group. `ranks` are its members, empty if the dump lacks them. `last` is the
    sequence of the last collective that the rank has called; `collectives` are some of these, of
    which the first unfinished one is one, if any."""

    name: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    last: int = 0
    collectives: tuple[Collective, ...] = ()


@dataclass(frozen=True)
class FlightDump:
    """A rank's dump, written `age_s` ago. `is_whole`: it has all collectives that the
    rank has called; else older ones were overwritten. `job_id` is empty if the path does not have
    it. If it cannot be read, `error` is why."""

    rank: int = 0
    path: str = ""
    age_s: float = 0.0
    job_id: str = ""
    version: str = ""
    groups: tuple[FlightGroup, ...] = ()
    is_whole: bool = False
    error: str = ""


class _Plain(pickle.Unpickler):
    """Reads pickles that have no class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        raise DumpError(f"it names {module}.{name}"[:MOST_TEXT] + ", which a dump does not")


def load(data: bytes) -> dict[Any, Any]:
    """Return the content of a dump. Raises DumpError."""
    try:
        if data.lstrip()[:1] == b"{":
            found = json.loads(data)
        else:
            found = _Plain(io.BytesIO(data)).load()
    except DumpError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly any
        raise DumpError(f"it is damaged ({type(error).__name__})") from error
    if not isinstance(found, dict) or not isinstance(found.get("entries", []), (list, tuple)):
        raise DumpError("it is not one of the Flight Recorder")
    return found


def summarize(data: bytes) -> FlightDump:
    """Parse a dump. Entries of another form, and those of sends and receives, which have
    a sequence of their own, are left out. Raises DumpError."""
    found = load(data)
    members = _members(found.get("pg_config"))
    groups: dict[tuple[str, str], dict[int, list[dict[Any, Any]]]] = {}
    entries = [one for one in found.get("entries", ()) if isinstance(one, dict)]
    for entry in entries:
        sequence: Any = entry.get("collective_seq_id", entry.get("seq_id"))
        if _is_number(sequence) and entry.get("is_p2p") is not True:
            groups.setdefault(_group_of(entry), {}).setdefault(sequence, []).append(entry)
    decoded = []
    for (name, description), by_sequence in list(groups.items())[:MOST_GROUPS]:
        ordered = [_collective(number, by_sequence[number]) for number in sorted(by_sequence)]
        known, ranks = members.get(name, ("", ()))
        kept, last = _telling(ordered), ordered[-1].sequence
        decoded.append(FlightGroup(name, description or known, ranks, last, kept))
    is_whole = len(groups) <= MOST_GROUPS and all(one.get("record_id") == 0 for one in entries[:1])
    return FlightDump(version=_text(found.get("version")), groups=tuple(decoded), is_whole=is_whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _text(value: Any) -> str:
    # Only of a text: what a text of nested lists would cost is not bounded.
    return value[:MOST_TEXT] if isinstance(value, str) else ""


def _members(config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the description and the ranks of each group, by its name."""
    found = {}
    for name, one in config.items() if isinstance(config, dict) else ():
        if isinstance(name, str) and isinstance(one, dict):
            ranks = one.get("ranks")
            if isinstance(ranks, str):  # "[0, 1, 2]"
                numbers = tuple(map(int, re.findall(r"\d{1,9}", ranks)))
            else:
                listed = ranks if isinstance(ranks, (list, tuple)) else ()
                numbers = tuple(rank for rank in listed if _is_number(rank))
            found[_text(name)] = (_text(one.get("desc")), numbers)
    return found


def _group_of(entry: dict[Any, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and len(group) == 2:
        return _text(group[0]), _text(group[1])
    number = entry.get("pg_id")
    return (_text(group) or (str(number) if _is_number(number) else ""), "")


def _collective(sequence: int, entries: list[dict[Any, Any]]) -> Collective:
    """Return the collective of these entries: several, if they were coalesced. Of those the last
    stands for the whole: the others have no state of their own."""
    last = entries[-1]
    names = [_text(one.get("profiling_name")).partition(":")[2] for one in entries]
    states = {_text(one.get("state")) for one in entries}
    state = next((one for one in ("completed", "started") if one in states), "scheduled")
    return Collective(
        sequence,
        "+".join(dict.fromkeys(filter(None, names)))[:MOST_TEXT]
        or _text(last.get("profiling_name")),
        state,
        _tensors(last.get("input_sizes"), last.get("input_dtypes")),
        _tensors(last.get("output_sizes"), last.get("output_dtypes")),
        _place(last.get("frames")),
    )


def _tensors(sizes: Any, types: Any) -> tuple[str, ...]:
    found = []
    types = types if isinstance(types, (list, tuple)) else ()
    for at, size in enumerate(sizes if isinstance(sizes, (list, tuple)) else ()):
        if at == MOST_TENSORS:
            found.append(f"and {len(sizes) - at} more")
            break
        numbers = [str(one) for one in size if _is_number(one)] if isinstance(size, list) else []
        found.append(f"{_text(types[at]) if at < len(types) else ''}[{', '.join(numbers[:8])}]")
    return tuple(found)


def _place(frames: Any) -> str:
    """Return the innermost line that is not of a library, from frames of which the first is the
    innermost."""
    frames = [one for one in frames if isinstance(one, dict)] if isinstance(frames, list) else []
    own = [one for one in frames if _is_own(_text(one.get("filename")))]
    if not own:
        return ""
    name = _text(own[0].get("filename")).rpartition("/")[2]
    line = own[0].get("line")
    return f"{name}:{line if _is_number(line) else 0} in {_text(own[0].get('name'))}"


def _is_own(path: str) -> bool:
    library = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python3")
    return path.endswith(".py") and not any(one in path for one in library)


def _telling(ordered: list[Collective]) -> tuple[Collective, ...]:
    """Return the collectives around the first unfinished one, and the last."""
    unfinished = (at for at, one in enumerate(ordered) if one.state != "completed")
    at = next(unfinished, len(ordered))
    kept = ordered[max(0, at - BEFORE) : at + AFTER]
    return (*kept, *(one for one in ordered[-1:] if one not in kept))


@deadline(WITHIN_S + 2.0)
def flight_dumps(job_id: str = "") -> tuple[FlightDump, ...]:
    """Return the dumps of the job's ranks on this node, or of the latest job that has any."""
    return read_dumps(found_dumps(Path("/tmp"), job_id), time.monotonic() + WITHIN_S)


def found_dumps(folder: Path, job_id: str = "") -> list[Path]:
    """Return the paths of dumps of the job, or of the latest: identifiers sort by time."""
    by_job = dumps_by_job(folder)
    return by_job.get(job_id or max(by_job, default=""), [])


def read_dumps(paths: list[Path], until: float) -> tuple[FlightDump, ...]:
    """Parse these dumps. One that cannot be read, or not in time, is reported as such."""
    found = []
    for path in paths[:MOST_DUMPS]:
        match = DUMP.fullmatch(path.name)
        job_id, rank = (match[1], int(match[2])) if match else ("", 0)
        try:
            if time.monotonic() > until:
                raise DumpError("there was no time left to read it")
            data, age_s = _content(path)
            one = replace(summarize(data), age_s=age_s)
        except (DumpError, OSError) as problem:
            one = FlightDump(error=str(problem)[:MOST_TEXT])
        found.append(replace(one, rank=rank, path=str(path), job_id=job_id))
    return tuple(found)


def _content(path: Path) -> tuple[bytes, float]:
    """Return a file's content and its age. Anyone may put files into /tmp: only a regular one of
    this user is read. Raises OSError, DumpError."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.closing(os.fdopen(number, "rb")) as file:
        known = os.fstat(number)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid():
            raise DumpError("it is not a file of this user")
        if known.st_size > MOST_BYTES:
            raise DumpError(f"it has more than {MOST_BYTES >> 20} MiB")
        return file.read(MOST_BYTES), round(max(0.0, time.time() - known.st_mtime), 1)
