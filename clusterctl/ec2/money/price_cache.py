"""Prices that were asked for a short while ago, in one JSON file. Losing it costs a call."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl.ec2.money.costs import Price

# Nothing is of use for longer: the file stays small.
KEPT_S = 86400.0


class PriceCache:
    """Answers by key, also the answer that there is none. A file nobody can read is empty.

    Without a path, or a folder for it, nothing is kept: to ask makes no folders. Two commands
    that write at once may lose one answer, never the file.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def find(self, key: str, max_age_s: float) -> Price | None:
        """The price, if it was put there at most `max_age_s` ago."""
        entry = self._entries().get(key)
        return _price(entry) if entry and self._age(entry) <= max_age_s else None

    def failed(self, key: str, max_age_s: float) -> bool:
        """Whether it was noted at most `max_age_s` ago that the price cannot be had."""
        entry = self._entries().get(key)
        return bool(entry and "usd" not in entry and self._age(entry) <= max_age_s)

    def put(self, key: str, price: Price | None) -> None:
        """Note the answer. A place that cannot be written is no failure."""
        if self._path is None:
            return
        kept = {k: entry for k, entry in self._entries().items() if self._age(entry) <= KEPT_S}
        kept[key] = {"at": self._clock()}
        if price is not None:
            kept[key].update(usd=price.usd_per_hour, source=price.source, as_of=price.as_of)
        with contextlib.suppress(OSError):
            _write(self._path, json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def _entries(self) -> dict[str, dict[str, Any]]:
        if self._path is None:
            return {}
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {key: entry for key, entry in content.items() if isinstance(entry, dict)}

    def _age(self, entry: dict[str, Any]) -> float:
        at = _number(entry.get("at"))
        # Written in the future: by a clock that was wrong then, or is now.
        return math.inf if at is None or at > self._clock() else self._clock() - at


def _price(entry: dict[str, Any]) -> Price | None:
    usd = _number(entry.get("usd"))
    if not usd or usd < 0:
        return None
    return Price(usd, str(entry.get("source", "")), str(entry.get("as_of", "")))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -1e15 < value < 1e15 else None


def _write(path: Path, text: str) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
