"""Horovod's stall reports: tensors that not all ranks have submitted. All formats since 2017.

Up to 0.13.5 a report names the ranks that are ready, later versions those that are missing. Only
rank 0 prints reports. A report comes one or two check intervals (60 s) after the first rank has
submitted a tensor, two to four if the tensor was reduced before. While the process of a rank is
stopped there is no report, since the negotiation itself waits for it. Source:
horovod/common/stall_inspector.cc and its history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_BEGINS = re.compile(r"One or more tensors were submitted to be reduced, gathered or broadcasted")
# `3: [tensor, tensor ...]` of newer formats; `3!:` if Horovod shuts the job down for it.
_RANKS = re.compile(r"(?:^|>: ?|\s)(\d+)(!?): \[(.*)$")
# `tensor [missing ranks: 1, 2]` or `tensor [ready ranks: 0]` of older formats.
_OLD = re.compile(r"(\S+) \[(ready|missing) ranks: ([\d, ]+)(\]?)")
_HEADS = re.compile(r"(Missing ranks|Stalled ranks|Stalled ops):")
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.[ \d]{6}: ")
_MORE_THAN = re.compile(r"for more than (\d+) seconds")
# The name of a gradient in TensorFlow; the number is its place in the model's variables.
_STEP = re.compile(r"HorovodAllreduce_(?:[A-Za-z]*grads?(?:_and_vars)?)_(\d+)(?:_\d+)?$")
# Lines that are searched for the rest of a report.
_SPAN = 4200


@dataclass(frozen=True)
class Stall:
    """A stall report: which tensors wait for which ranks.

    `at` and `last` are the indices of its first and last line in the log, from 0. `time` is rank
    0's local time without a zone, or empty. `after_s` is the time after which Horovod reports, or 0
    if it is not given. `missing` has each missing rank with its tensors. In the oldest format
    `ready` has each tensor with the ranks that have submitted it instead. `ends` is set if Horovod
    shuts the job down because of the stall.
    """

    at: int
    last: int
    time: str = ""
    after_s: float = 0.0
    missing: tuple[tuple[int, tuple[str, ...]], ...] = ()
    ready: tuple[tuple[str, tuple[int, ...]], ...] = ()
    ends: bool = False

    def seconds_since(self, earlier: Stall) -> float:
        """Return the seconds since an earlier report, by rank 0's clock; 0 if a time is missing."""
        if not self.time or not earlier.time:
            return 0.0
        apart = datetime.fromisoformat(self.time) - datetime.fromisoformat(earlier.time)
        return max(0.0, apart.total_seconds())

    def absent(self, size: int) -> dict[int, tuple[str, ...]]:
        """Return the tensors that each rank has not submitted, in a job of `size` ranks."""
        found: dict[int, list[str]] = {rank: list(tensors) for rank, tensors in self.missing}
        for tensor, ranks in self.ready:
            for rank in set(range(size)) - set(ranks):
                found.setdefault(rank, []).append(tensor)
        return {rank: tuple(dict.fromkeys(found[rank])) for rank in sorted(found)}


def stalls(lines: Sequence[str]) -> tuple[Stall, ...]:
    """Return all stall reports of a log, in order."""
    starts = [number for number, line in enumerate(lines) if _BEGINS.search(line)]
    ends = [*starts[1:], len(lines)]
    return tuple(read_stall(lines, start, end) for start, end in zip(starts, ends))


def read_stall(lines: Sequence[str], start: int, end: int) -> Stall:
    """Return the stall report that begins at index `start` and ends before `end`."""
    missing: dict[int, list[str]] = {}
    ready: dict[str, tuple[int, ...]] = {}
    shuts = False
    last = start
    for number in range(start, min(end, start + _SPAN)):
        # A report that was written as one line has the heading and the first rank in one line.
        line = lines[number]
        text = _HEADS.split(line)[-1] if _HEADS.search(line) else line
        told = False
        for tensor, kind, ranks, _ in _OLD.findall(text):
            told = True
            listed = tuple(int(rank) for rank in re.findall(r"\d+", ranks))
            if kind == "ready":
                ready[tensor] = listed
            for rank in listed if kind == "missing" else ():
                missing.setdefault(rank, []).append(tensor)
        found = None if told else _RANKS.search(text)
        if found:
            told = True
            shuts = shuts or bool(found[2])
            inside = found[3].partition("]")[0].replace(" ...", "")
            names = [name.strip() for name in inside.split(",") if name.strip()]
            missing.setdefault(int(found[1]), []).extend(names)
        if told or _HEADS.search(line) or number == start:
            last = number
        elif number > start + 3 and number > last + 1:
            break
    time = _TIME.search(lines[start])
    after = _MORE_THAN.search(" ".join(lines[start : last + 1]))
    shuts = shuts or any("Will shutdown" in line for line in lines[start : last + 2])
    return Stall(
        start,
        last,
        time[1] if time else "",
        float(after[1]) if after else 0.0,
        tuple((rank, tuple(names)) for rank, names in sorted(missing.items())),
        tuple(ready.items()),
        shuts,
    )


def place_in_model(tensor: str) -> str:
    """Return `the gradient of trainable_variables[2]`, or "" for a name that has no number."""
    found = _STEP.search(tensor)
    return f"the gradient of trainable_variables[{found[1]}]" if found else ""
