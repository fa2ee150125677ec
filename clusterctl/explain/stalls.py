"""Horovod's reports of tensors that not all ranks have submitted, in all formats since 2017.

Up to 0.13.5 they name the ranks that are ready, later those that are missing. Only rank 0 prints
them, one or two check times (60 s) after the first rank has come, two to four for a tensor that was
reduced before; and none at all while a rank is stopped, since negotiation itself waits for it.
Source: horovod/common/stall_inspector.cc and its history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

_BEGINS = re.compile(r"One or more tensors were submitted to be reduced, gathered or broadcasted")
_RANKS = re.compile(r"(?:^|>: ?|\s)(\d+)(!?): \[(.*)$")
_OLD = re.compile(r"(\S+) \[(ready|missing) ranks: ([\d, ]+)(\]?)")
_HEADS = re.compile(r"(Missing ranks|Stalled ranks|Stalled ops):")
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.[ \d]{6}: ")
_MORE_THAN = re.compile(r"for more than (\d+) seconds")
_STEP = re.compile(r"HorovodAllreduce_(?:[A-Za-z]*grads?(?:_and_vars)?)_(\d+)(?:_\d+)?$")
# A report's own lines, and what follows it before the program says anything else.
_SPAN = 4200


@dataclass(frozen=True)
class Stall:
    """A report: which tensors wait for which ranks. `at` is the log's line, from 0.

    `after_s` is how long Horovod waits before it reports. `ready` has the ranks that have arrived,
    in the oldest format; who is missing then takes the job's size. `ends`: Horovod shuts the job
    down for it. `is_cut`: there are more tensors.
    """

    at: int
    last: int
    time: str = ""
    after_s: float = 0.0
    missing: tuple[tuple[int, tuple[str, ...]], ...] = ()
    ready: tuple[tuple[str, tuple[int, ...]], ...] = ()
    ends: bool = False
    is_cut: bool = False

    def seconds_since(self, earlier: Stall) -> float:
        """By the clock of rank 0's host; 0 where a report has no time."""
        if not self.time or not earlier.time:
            return 0.0
        apart = datetime.fromisoformat(self.time) - datetime.fromisoformat(earlier.time)
        return max(0.0, apart.total_seconds())

    def absent(self, size: int) -> dict[int, tuple[str, ...]]:
        """By rank, the tensors that it has not submitted."""
        found: dict[int, list[str]] = {rank: list(tensors) for rank, tensors in self.missing}
        for tensor, ranks in self.ready:
            for rank in set(range(size)) - set(ranks):
                found.setdefault(rank, []).append(tensor)
        return {rank: tuple(dict.fromkeys(found[rank])) for rank in sorted(found)}


def stalls(lines: Sequence[str]) -> tuple[Stall, ...]:
    """All reports of a log, in order."""
    starts = [number for number, line in enumerate(lines) if _BEGINS.search(line)]
    ends = [*starts[1:], len(lines)]
    return tuple(read_stall(lines, start, end) for start, end in zip(starts, ends))


def read_stall(lines: Sequence[str], start: int, end: int) -> Stall:
    """The report that these lines have."""
    missing: dict[int, list[str]] = {}
    ready: dict[str, tuple[int, ...]] = {}
    shuts = is_cut = False
    last = start
    for number in range(start, min(end, start + _SPAN)):
        # Lines of a report may be written as one.
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
            is_cut = is_cut or " ..." in found[3]
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
        is_cut,
    )


def place_in_model(tensor: str) -> str:
    """`the gradient of trainable_variables[2]`, where the name tells."""
    found = _STEP.search(tensor)
    return f"the gradient of trainable_variables[{found[1]}]" if found else ""
