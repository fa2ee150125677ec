"""Rates of network links as people write and read them, in bits a second."""

from __future__ import annotations

import re

from clusterctl.domain.errors import UsageError

SLOWEST_BIT, FASTEST_BIT = 1_000_000, 100_000_000_000

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_rate_bit(text: str) -> int:
    """Bits a second of `160mbit` or `2.5gbit`. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]bit)(?:/s)?\s*", text.lower(), re.ASCII)
    if not match:
        raise UsageError(f"not a rate: {text!r:.80}", "write it as 160mbit or 2.5gbit")
    return round(float(match[1]) * _UNITS[match[2]])


def format_rate(rate_bit: int) -> str:
    """`160 Mbit/s`, `2.5 Gbit/s`."""
    if rate_bit < 10**9:
        return f"{rate_bit / 10**6:g} Mbit/s"
    return f"{rate_bit / 10**9:g} Gbit/s"
