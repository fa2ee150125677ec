"""Checks of hosts that `diagnose` and `doctor` share: clocks, hostnames, throttled GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from clusterctl.domain.units import format_duration

T = TypeVar("T")


# From this difference on the logs of two hosts cannot be put in order. (Signatures and certificates
# bear minutes.)
SKEW_S = 1.0


def usual_clock(clocks: Sequence[tuple[float, float]]) -> float:
    """Return the clock that most agree with, as its offset to this machine's: 0.0 for that itself.

    `clocks` are the hosts' offsets to this machine's clock and the errors of these, in seconds. Two
    clocks agree if they differ by SKEW_S at most. With equal votes it is this machine's.
    """
    every = [(0.0, 0.0), *clocks]

    def votes(clock: tuple[float, float]) -> int:
        at, error_s = clock
        return sum(abs(at - other) <= SKEW_S + error_s + its_s for other, its_s in every)

    usual_s, error_s = max(every, key=votes)
    return usual_s if abs(usual_s) > SKEW_S + error_s else 0.0


def skews(clocks: Sequence[tuple[float, float]]) -> list[str]:
    """Return how far each clock is from the one that most agree with: `1 min 30 s ahead`; empty for
    one that may agree. `clocks` are as for usual_clock."""
    usual_s = usual_clock(clocks)
    found = []
    for offset_s, error_s in clocks:
        off_s = offset_s - usual_s
        text = f"{format_duration(abs(off_s))} {'ahead' if off_s > 0 else 'behind'}"
        found.append(text if abs(off_s) > SKEW_S + error_s else "")
    return found


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
