"""Parser of NCCL's RAS: which ranks lag behind in which communicator.

RAS answers as JSON (NCCL 2.28.7 and later) or as text; the formats are in NCCL's
src/ras/client_support.cc. In a job that makes steps a difference of one collective is normal, since
RAS queries ranks one after another. In a job that is stuck it names the ranks that others wait for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
        try:
            answer = json.loads(text[begin : text.rfind("}") + 1])
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            listed = answer.get("communicators")
            items = listed if isinstance(listed, list) else []
            return tuple(_of_json(one) for one in items if isinstance(one, dict))
    return _of_text(text)


def _of_json(one: Mapping[str, Any]) -> Communicator:
    counts: dict[int, int] = {}
    for rank in _objects(one.get("ranks")):
        number, done = rank.get("rank"), rank.get("collective_counts")
        if isinstance(number, int) and isinstance(done, dict):
            counts[number] = sum(value for value in done.values() if isinstance(value, int))
    silent: list[int] = []
    dead: list[int] = []
    for rank in _objects(one.get("missing_ranks")):
        status = rank.get("status") or {}
        if isinstance(rank.get("rank"), int) and isinstance(status, dict):
            (dead if status.get("considered_dead") else silent).append(rank["rank"])
    sizes = (one.get("size"), one.get("ranks_count"), len(counts) + len(silent) + len(dead))
    size = next((value for value in sizes if isinstance(value, int) and value > 0), 0)
    name = str(one.get("hash") or one.get("comm_hash") or "")
    return Communicator(name, size, counts, tuple(sorted(silent)), tuple(sorted(dead)))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


_PART = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) (\w+).*$", re.M)
_RANK = re.compile(r"\s*Rank (\d+) ")
_LAUNCHED = re.compile(
    r"\s*(?:(\d+) ranks have|Rank \d+ has) (?:launched up to operation (\d+)|not launched any)"
)


def _of_text(text: str) -> tuple[Communicator, ...]:
    """Parse the text. It has up to three parts on a communicator, and none on a healthy one."""
    found: dict[str, Communicator] = {}
    parts = _PART.split(text)
    for name, kind, said in zip(parts[1::3], parts[2::3], parts[3::3]):
        one = found.setdefault(name, Communicator(name, 0, {}))
        if kind == "INCOMPLETE":
            # Older versions list the ranks in one line.
            line = re.search(r"The missing ranks?: ([\d,]+)", said)
            silent = line[1].split(",") if line else _RANK.findall(said)
            found[name] = replace(one, silent=tuple(sorted(map(int, silent))))
        elif kind == "MISMATCH":
            size, counts = _counts(said)
            found[name] = replace(one, size=size, counts=counts)
    return tuple(replace(one, size=one.size + len(one.silent)) for one in found.values())


def _counts(said: str) -> tuple[int, dict[int, int]]:
    """Return the number of ranks, and `counts` of Communicator, from a part of the text.

    Newer versions have a list of counts for each kind of collective in which ranks differ. The
    numbers of a rank are added up.
    """
    size = 0
    lists: list[tuple[int, dict[int, int]]] = []
    for listed in said.split("operation counts\n")[1:]:
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
