"""Parser of NCCL's RAS: which ranks lag behind in which communicator.

RAS answers as JSON (NCCL 2.28.7 and later) or as text; the formats are in NCCL's
src/ras/client_support.cc. In a job that makes steps a difference of one collective is normal, since
RAS queries ranks one after another. In a job that is stuck it names the ranks that others wait for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Optional

from clusterctl.node.record import RecordError, from_json
from clusterctl.node.untrusted import whole

OTHERS = -1  # in `counts`, stands for all ranks that are not listed


@dataclass(frozen=True)
class Communicator:
    """A communicator of NCCL. `counts` is the number of collectives that each rank has launched.

    `silent` ranks did not answer RAS, `dead` ones are considered dead by NCCL. In the text format
    `counts` has only the ranks that RAS lists, and OTHERS.
    """

    name: str
    size: int
    counts: Mapping[int, int]
    silent: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[int, ...]:
        """The listed ranks that have launched fewer collectives than others."""
        most = max(self.counts.values(), default=0)
        late = (rank for rank, done in self.counts.items() if done < most and rank != OTHERS)
        return tuple(sorted(late))


def read_ras(text: str) -> tuple[Communicator, ...]:
    """Return the communicators in an answer of RAS; none if it is empty or cannot be read."""
    begin = text.find("{")
    if begin >= 0:
        with suppress(RecordError):
            found = from_json(_Ras, text[begin : text.rfind("}") + 1])
            return tuple(map(_of_json, found.communicators))
    return _of_text(text)


# What is read of the answer as JSON. The names are NCCL's, and differ between its versions.


@dataclass(frozen=True)
class _Status:
    considered_dead: bool = False


@dataclass(frozen=True)
class _Rank:
    rank: int
    collective_counts: Optional[Mapping[str, int]] = None
    status: Optional[_Status] = None


@dataclass(frozen=True)
class _Communicator:
    hash: Any = ""
    comm_hash: Any = ""
    size: Any = 0
    ranks_count: Any = 0
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()


@dataclass(frozen=True)
class _Ras:
    communicators: tuple[_Communicator, ...] = ()


def _of_json(one: _Communicator) -> Communicator:
    counts = {
        rank.rank: sum(rank.collective_counts.values())
        for rank in one.ranks
        if rank.collective_counts is not None
    }
    dead = {rank.rank for rank in one.missing_ranks if rank.status and rank.status.considered_dead}
    silent = {rank.rank for rank in one.missing_ranks} - dead
    sizes = (one.size, one.ranks_count, len(counts) + len(one.missing_ranks))
    size = next((value for value in sizes if isinstance(value, int) and value > 0), 0)
    name = next((str(x) for x in (one.hash, one.comm_hash) if x and isinstance(x, (str, int))), "")
    return Communicator(name, size, counts, tuple(sorted(silent)), tuple(sorted(dead)))


_PART = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) (\w+).*$", re.M)
_RANK = re.compile(r"\s*Rank (\d{1,9}) ")
_LAUNCHED = re.compile(
    r"\s*(?:(\d{1,9}) ranks have|Rank \d+ has) "
    r"(?:launched up to operation (\d{1,18})\b|not launched any)"
)


def _of_text(text: str) -> tuple[Communicator, ...]:
    """Parse the text. It has up to three parts on a communicator, and none on a healthy one."""
    found: dict[str, Communicator] = {}
    parts = _PART.split(text)
    for name, kind, report in zip(parts[1::3], parts[2::3], parts[3::3]):
        one = found.setdefault(name, Communicator(name, 0, {}))
        if kind == "INCOMPLETE":
            # Older versions list the ranks in one line.
            line = re.search(r"The missing ranks?: ([\d,]+)", report)
            numbers = map(whole, line[1].split(",") if line else _RANK.findall(report))
            silent = sorted(number for number in numbers if number is not None)
            found[name] = replace(one, silent=tuple(silent))
        elif kind == "MISMATCH":
            size, counts = _counts(report)
            found[name] = replace(one, size=size, counts=counts)
    return tuple(replace(one, size=one.size + len(one.silent)) for one in found.values())


def _counts(report: str) -> tuple[int, dict[int, int]]:
    """Return the number of ranks, and `counts` of Communicator, from a part of the text.

    Newer versions have a list of counts for each kind of collective in which ranks differ. The
    numbers of a rank are added up.
    """
    size = 0
    lists: list[tuple[int, dict[int, int]]] = []
    for listed in report.split("operation counts\n")[1:]:
        done, usual, number = 0, -1, 0
        ranks: dict[int, int] = {}
        for line in listed.splitlines():
            launched, rank = _LAUNCHED.match(line), _RANK.match(line)
            if launched:
                done = int(launched[2] or 0)
                number += int(launched[1] or 1)
                # The largest group comes first. Its ranks are listed only if it is a minority.
                usual = done if usual < 0 else usual
            if rank:
                ranks[int(rank[1])] = done
        size = max(size, number)
        lists.append((usual, ranks))
    named = {rank for _, ranks in lists for rank in ranks}
    counts = {rank: sum(ranks.get(rank, usual) for usual, ranks in lists) for rank in named}
    if len(counts) < size:
        counts[OTHERS] = sum(usual for usual, _ in lists)
    return size, counts
