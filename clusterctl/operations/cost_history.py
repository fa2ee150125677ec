"""What ended nodes have cost: one JSON line for each removal, in CLUSTERCTL_HOME/costs.jsonl.

EC2 forgets a terminated machine within the hour. The file is this machine's memory: what others
removed is not in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = "costs.jsonl"


@dataclass(frozen=True)
class PastCost:
    """Nodes of one cluster that were removed together. `usd` has what each instance cost.

    Not `complete`: they cost more than is known. `account` is the site (see local_state.Site): the
    local EC2's clusters cost nothing that anybody pays.
    """

    account: str
    name: str
    region: str
    instance_type: str
    market: str
    since: datetime
    ended_at: datetime
    usd: Mapping[str, float]
    complete: bool = True

    @property
    def spent_usd(self) -> float:
        return sum(self.usd.values())


def append_ended(home: Path, ended: PastCost) -> None:
    """One more line. Raises OSError."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(
        {
            "account": ended.account,
            "name": ended.name,
            "region": ended.region,
            "type": ended.instance_type,
            "market": ended.market,
            "since": ended.since.isoformat(),
            "ended_at": ended.ended_at.isoformat(),
            "usd": {key: round(usd, 4) for key, usd in ended.usd.items()},
            "complete": ended.complete,
        }
    )
    # One write of one line: two commands at once do not mix theirs.
    file = os.open(home / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode() + b"\n")
    finally:
        os.close(file)


def read_ended(home: Path, there: Collection[str] = ()) -> tuple[PastCost, ...]:
    """All that was noted, in that order; lines that make no sense are passed over.

    An instance that was noted twice, as when `down` was run again, counts as it was noted last;
    one that is `there` still has not ended.
    """
    try:
        lines = (home / FILE).read_bytes().splitlines()
    except OSError:
        return ()
    entries = [entry for line in lines if (entry := _read(line))]
    last = {key: position for position, entry in enumerate(entries) for key in entry.usd}
    kept = []
    for position, entry in enumerate(entries):
        usd = {
            key: value
            for key, value in entry.usd.items()
            if last[key] == position and key not in there
        }
        if usd:
            kept.append(PastCost(**{**vars(entry), "usd": usd}))
    return tuple(kept)


def _read(line: bytes) -> PastCost | None:
    try:
        found: Any = json.loads(line)
        return PastCost(
            account=_word(found["account"]),
            name=_word(found["name"]),
            region=_word(found["region"]),
            instance_type=_word(found["type"]),
            market=_word(found["market"]),
            since=_time(found["since"]),
            ended_at=_time(found["ended_at"]),
            usd={str(key): _usd(value) for key, value in found["usd"].items()},
            complete=found.get("complete") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _word(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.,:/ -]*", value, re.ASCII):
        raise ValueError(f"not a word: {value!r}")
    return value


def _time(value: Any) -> datetime:
    read = datetime.fromisoformat(value)
    if read.tzinfo is None:
        raise ValueError("no time zone")
    return read


def _usd(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < 1e9:
        raise ValueError(f"not dollars: {value!r}")
    return float(value)
