"""Compares the collectives of ranks, as PyTorch's Flight Recorder or its watchdog tells them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.node.facts.flight import Collective, FlightDump, FlightGroup


@dataclass(frozen=True)
class Missing:
    """Ranks that have not called a collective in which others wait.

    `waiting` are those that wait, one of which says what `collective` is. `before` is the last that
    each of `ranks` has called, if that is known. `unknown` are ranks of the group of which nothing
    is known.
    """

    group: str
    collective: Collective
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    before: Mapping[int, Collective]
    unknown: tuple[int, ...] = ()


@dataclass(frozen=True)
class Differing:
    """Ranks that have called another collective than most, or with other tensors, under the same
    number. `calls` are the different ones with their ranks, the most frequent first."""

    group: str
    sequence: int
    calls: tuple[tuple[Collective, tuple[int, ...]], ...]
    unknown: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that differ from most; none if no call has more ranks than each other."""
        first, second = self.calls[0][1], self.calls[1][1]
        if len(first) == len(second):
            return ()
        return tuple(sorted(rank for _, ranks in self.calls[1:] for rank in ranks))


def compare(dumps: Iterable[FlightDump]) -> list[Missing | Differing]:
    """Return where ranks differ, in each group at most once: the earliest difference.

    A rank of which there is no dump is not said to be missing.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, FlightGroup]] = {}
    whole: set[int] = set()
    for dump in dumps:
        if dump.is_whole:
            whole.add(dump.rank)
        for group in dump.groups:
            groups.setdefault((group.name, group.ranks), {})[dump.rank] = group
    found = (_in_group(ranks, whole, by_rank) for (_, ranks), by_rank in groups.items())
    return [one for one in found if one is not None]


def _in_group(
    members: tuple[int, ...], whole: set[int], by_rank: dict[int, FlightGroup]
) -> Missing | Differing | None:
    first = next(iter(by_rank.values()))
    name = first.description if first.description not in ("", "undefined") else first.name
    unknown = tuple(sorted(set(members) - whole - set(by_rank)))
    calls = {
        rank: {one.sequence: one for one in group.collectives} for rank, group in by_rank.items()
    }
    # A member whose dump has all its calls, and none of the group, has called nothing in it.
    last = dict.fromkeys(set(members) & whole, 0)
    last.update({rank: group.last for rank, group in by_rank.items()})
    open_ones = {
        one.sequence
        for known in calls.values()
        for one in known.values()
        if one.state != "completed"
    }
    for sequence in sorted({number for known in calls.values() for number in known}):
        here = {rank: known[sequence] for rank, known in calls.items() if sequence in known}
        different = _different(here)
        if len(different) > 1:
            return Differing(name, sequence, different, unknown)
        late = tuple(sorted(rank for rank, number in last.items() if number < sequence))
        if late and here and sequence in open_ones:
            waiting = tuple(sorted(rank for rank, one in here.items() if one.state != "completed"))
            known = {rank: calls.get(rank, {}).get(last[rank]) for rank in late}
            before = {rank: one for rank, one in known.items() if one is not None}
            return Missing(name, here[waiting[0]], late, waiting, before, unknown)
    return None


# The tensors of these collectives are the same on all ranks, by the names of dumps and of the
# watchdog. Those of others may differ: all_gather, too, permits it.
_SAME_SIZES = re.compile(
    r"all_?reduce(?:_barrier)?|broadcast|_all_?gather_base|_reduce_scatter_base", re.I
)


def _different(here: Mapping[int, Collective]) -> tuple[tuple[Collective, tuple[int, ...]], ...]:
    """Return the different calls with their ranks, the most frequent first."""
    by_kind: dict[tuple[object, ...], list[int]] = {}
    for rank, one in sorted(here.items()):
        has_same = _SAME_SIZES.fullmatch(one.operation)
        sizes = (one.inputs, one.outputs) if has_same else ()
        by_kind.setdefault((one.operation, *sizes), []).append(rank)
    ordered = sorted(by_kind.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((here[ranks[0]], tuple(ranks)) for ranks in ordered)


def in_words(one: Collective) -> str:
    """Return `all_reduce of Float[8, 1024], called at train.py:40 in step`."""
    shown = f" of {', '.join(one.inputs)}" if one.inputs else ""
    return f"{one.operation or 'a collective'}{shown}" + (f" ({one.where})" if one.where else "")


# The parts of the watchdog's messages: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of PyTorch
# 2. One expression for a message would take time that grows with a power of the line's length.
_RANK = re.compile(r"\[[Rr]ank ?(\d+)\]")
_TIMED_OUT = re.compile(
    r"collective operation timeout: Work\w+\(SeqNum=(\d+), OpType=(\w+)"
    r"(?:, NumelIn=(\d+), NumelOut=(\d+))?"
)
_GROUP = re.compile(r"\[PG ID \d+ PG GUID (\w+)\(default_pg\) Rank (\d+)\]")
_AT = re.compile(r"work sequence id: (\d+)")
_LAST = re.compile(r"last enqueued work: (-?\d+)")
# Of a rank that another one has told to dump.
_SIGNALLED = re.compile(r"dump signal")
_LAST_THEN = re.compile(r"Last enqueued NCCL work: (-?\d+)")


def _in_turn(line: str, at: int, *parts: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the first match of each part after that of the one before it; empty if one lacks."""
    found = []
    for part in parts:
        match = part.search(line, at)
        if match is None:
            return []
        found.append(match)
        at = match.end()
    return found


def of_log(lines: Sequence[str], size: int) -> tuple[FlightDump, ...]:
    """Return what the watchdog's messages say, in the form of dumps.

    Only of the default group: of others its messages do not tell the ranks. A message about a
    sequence comes before the one with the group, from the same rank.
    """
    calls: dict[tuple[int, int], Collective] = {}
    groups: dict[int, FlightGroup] = {}
    for line in lines:
        tag, group = _RANK.search(line), _GROUP.search(line)
        timed_out = tag and _TIMED_OUT.search(line, tag.end())
        if tag and timed_out:
            rank, sequence = int(tag[1]), int(timed_out[1])
            inputs = (f"{timed_out[3]} elements",) if timed_out[3] else ()
            outputs = (f"{timed_out[4]} elements",) if timed_out[4] else ()
            calls[rank, sequence] = Collective(sequence, timed_out[2], "started", inputs, outputs)
            continue
        if not group:
            continue
        # The number in the group is the rank's own, too, of the group of all ranks.
        rank = int(tag[1] if tag and tag.end() <= group.start() else group[2])
        if rank >= size:
            continue
        signal = _in_turn(line, group.end(), _SIGNALLED, _LAST_THEN)
        if signal:
            last = max(0, int(signal[1][1]))
            groups.setdefault(rank, FlightGroup(group[1], "default_pg", tuple(range(size)), last))
        status = _in_turn(line, group.end(), _AT, _LAST)
        if status:
            sequence, last = (int(one[1]) for one in status)
            one = calls.get((rank, sequence))
            if one is not None:
                groups[rank] = FlightGroup(
                    group[1], "default_pg", tuple(range(size)), max(last, sequence), (one,)
                )
    return tuple(FlightDump(rank, groups=(group,)) for rank, group in sorted(groups.items()))
