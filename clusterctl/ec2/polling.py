"""How long to wait between two looks."""

from __future__ import annotations

from collections.abc import Iterator


def gaps(first_s: float = 0.2, growth: float = 1.4, limit_s: float = 5.0) -> Iterator[float]:
    """Growing gaps, without end: quick where things are quick, gentle to the API where not."""
    gap_s = first_s
    while True:
        yield gap_s
        gap_s = min(gap_s * growth, limit_s)
