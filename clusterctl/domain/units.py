"""Sizes and durations as people write and read them."""

from __future__ import annotations

import re

from clusterctl.domain.errors import UsageError

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """Seconds of `90`, `1.5m`, `2h`, `1d`. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text, re.ASCII)
    if not match:
        raise UsageError(f"not a duration: {text!r}", "write it as 90, 30s, 5m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """`0.3 s`, `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `3 processes`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def format_bytes(size: float) -> str:
    """`512 B`, `1.5 KiB`, `23.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
