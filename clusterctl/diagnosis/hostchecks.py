"""Checks of hosts that `diagnose` and `doctor` share: clocks, hostnames, throttled GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def usual_clock(clocks: Sequence[tuple[float, float]], skew_s: float) -> float:
    """Return the clock that most agree with, as its offset to this machine's: 0.0 for that itself.

    `clocks` are the hosts' offsets to this machine's clock and the errors of these, in seconds. Two
    clocks agree if they differ by `skew_s` at most. With equal votes it is this machine's.
    """
    every = [(0.0, 0.0), *clocks]

    def votes(clock: tuple[float, float]) -> int:
        at, error_s = clock
        return sum(abs(at - other) <= skew_s + error_s + its_s for other, its_s in every)

    usual_s, error_s = max(every, key=votes)
    return usual_s if abs(usual_s) > skew_s + error_s else 0.0


def namesakes(hosts: Iterable[T], name: Callable[[T], str]) -> dict[str, list[T]]:
    """Return the hosts that share a hostname, by that name."""
    found: dict[str, list[T]] = {}
    for host in hosts:
        found.setdefault(name(host), []).append(host)
    return {name: sharing for name, sharing in found.items() if name and len(sharing) > 1}


def slowdowns(throttled: Iterable[str]) -> list[str]:
    """Return those of a GPU's throttle reasons that show a fault: heat, power, hardware.

    The others, such as an idle GPU or a clock that was set, are normal.
    """
    return [reason for reason in throttled if reason.startswith(("hw_", "sw_thermal"))]
