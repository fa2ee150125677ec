"""Parser of NCCL's RAS: which ranks lag behind in which communicator.

RAS answers as JSON (NCCL 2.28.7 and later) or as text; the formats are in NCCL's
src/ras/client_support.cc. A difference of one collective is normal, since RAS queries ranks one
after another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Communicator:
    """A communicator of NCCL. `counts` is the number of collectives that each rank has launched.

    `silent` ranks did not answer RAS, `dead` ones are considered dead by NCCL. In the text format
    `counts` has only the ranks that RAS lists; the key -1 stands for all others.
    """

    name: str
    size: int
    counts: Mapping[int, int]
    silent: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that have launched fewer collectives than others."""
        most = max(self.counts.values(), default=0)
        return tuple(sorted(rank for rank, done in self.counts.items() if done < most))


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
    size = one.get("size") or one.get("ranks_count") or len(counts) + len(silent) + len(dead)
    name = str(one.get("hash") or one.get("comm_hash") or "")
    return Communicator(name, int(size), counts, tuple(sorted(silent)), tuple(sorted(dead)))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


_GROUP = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) ?(.*)$", re.M)


def _of_text(text: str) -> tuple[Communicator, ...]:
    found = []
    parts = _GROUP.split(text)
    for name, _status, said in zip(parts[1::3], parts[2::3], parts[3::3]):
        counts: dict[int, int] = {}
        missing: list[int] = []
        done: int | None = None
        for line in said.splitlines():
            launched = re.search(r"launched up to operation (\d+)", line)
            rank = re.match(r"\s*Rank (\d+) -- ", line)
            if launched:
                done = int(launched[1])
            elif re.search(r"(?i)missing|unresponsive|did not respond", line) and not rank:
                done = None
            elif rank and done is not None:
                counts[int(rank[1])] = done
            elif rank:
                missing.append(int(rank[1]))
        largest = [int(one) for one in re.findall(r"launched up to operation (\d+)", said)]
        # RAS lists only the ranks that differ from most; of the others it gives the number.
        if largest and counts and max(largest) > max(counts.values()):
            counts[-1] = max(largest)
        found.append(Communicator(name, len(counts) + len(missing), counts, tuple(missing)))
    return tuple(found)
