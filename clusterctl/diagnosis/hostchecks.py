"""Comparisons of hosts that the findings of `diagnose`, `doctor` (in drift) and `disk` share:
clocks, hostnames, throttled GPUs, EFA cards, full disks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from clusterctl.domain.findings import Severity
from clusterctl.domain.units import format_bytes, format_duration
from clusterctl.node.facts.disks import MountedFileSystem
from clusterctl.node.facts.network import (
    DROPS,
    IMPAIRED,
    READ_ERRORS,
    RETRANSMITTED,
    SENT,
    TIMEOUTS,
    UNRESPONSIVE,
    WRITE_ERRORS,
)

T = TypeVar("T")


# From this difference on the logs of two hosts cannot be put in order. (Signatures and certificates
# bear minutes.)
SKEW_S = 1.0


# Shares of a file system: above the first it is crowded, from the second on full.
CROWDED, FULL = 0.90, 0.98
# With less free space than this no file of any size can be written.
NO_ROOM_BYTES = 64 << 10
LEAST_SHM = 64 << 20  # free bytes in /dev/shm
SHM = "/dev/shm"  # noqa: S108


@dataclass(frozen=True)
class Fullness:
    """A shortage of space or inodes. `words` follow the file system's name: `is 99 % full, 1.0 GiB
    free`."""

    check: str
    severity: Severity
    words: str


def fullness(system: MountedFileSystem) -> Iterator[Fullness]:
    """Yield what a file system is short of: space, inodes.

    Where nobody can write, neither counts. For /dev/shm only the free space counts.
    """
    free = format_bytes(system.free_bytes)
    if system.readonly:
        return
    if system.path == SHM:
        if system.free_bytes < min(LEAST_SHM, (system.used_bytes + system.free_bytes) // 2):
            words = f"has {free} left: ranks of one node talk through it"
            yield Fullness("shm.full", Severity.ERROR, words)
        return
    inodes = f"has {system.inodes_percent} % of its inodes used, {system.inodes_free} free"
    for kind, share, words in (
        ("disk.", system.used_share, f"is {system.used_percent} % full, {free} free"),
        ("disk.inodes.", system.inodes_share, inodes),
    ):
        if share >= FULL:
            yield Fullness(f"{kind}full", Severity.ERROR, words)
        elif share > CROWDED:
            yield Fullness(f"{kind}crowded", Severity.WARNING, words)


def has_no_room(system: MountedFileSystem) -> bool:
    """Return whether a file system has no space, or no inode, for another file. One that nobody
    can write to (a mounted image) is not meant."""
    # A pseudo file system has a size of 0, and some file systems make inodes as they need them.
    no_space = system.size_bytes and system.free_bytes < NO_ROOM_BYTES
    no_inode = system.inodes and not system.inodes_free
    return bool((no_space or no_inode) and not system.readonly)


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


# What follows from a hostname that several nodes share.
TAKEN_FOR_ONE = "Horovod and NCCL take their ranks for those of one machine"


def namesakes(hosts: Iterable[T], name: Callable[[T], str]) -> dict[str, list[T]]:
    """Return the hosts that share a hostname, by that name."""
    found: dict[str, list[T]] = {}
    for host in hosts:
        found.setdefault(name(host), []).append(host)
    return {name: sharing for name, sharing in found.items() if name and len(sharing) > 1}


def reboot_hint(index: int) -> str:
    """Return what to do about a GPU that a reset may bring back. The first step loses nothing."""
    return (
        f"clusterctl reboot NAME {index}; if it comes back so: clusterctl quarantine NAME {index}, "
        f"and clusterctl replace NAME {index}"
    )


def slowdown(throttled: Iterable[str]) -> str:
    """Return what a GPU's throttle reasons show to be wrong, heat, power or hardware, as words that
    follow its name: `is slowed down: hw thermal slowdown`; empty for nothing.

    The other reasons, such as an idle GPU or a clock that was set, are normal.
    """
    faults = [reason for reason in throttled if reason.startswith(("hw_", "sw_thermal"))]
    return f"is slowed down: {', '.join(faults).replace('_', ' ')}" if faults else ""


# Counters of EFA cards that only grow where something is wrong, in words.
CARD_TROUBLES = {
    IMPAIRED: "connections impaired",
    UNRESPONSIVE: "remotes without an answer",
    TIMEOUTS: "retransmissions timed out",
    DROPS: "packets dropped on arrival",
    READ_ERRORS: "RDMA reads failed",
    WRITE_ERRORS: "RDMA writes failed",
}
CARD_COUNTERS = {**CARD_TROUBLES, RETRANSMITTED: "packets sent again", SENT: "packets sent"}


def card_errors_in_words(
    counted: Mapping[str, int], words: Mapping[str, str] = CARD_COUNTERS
) -> str:
    """Return counters of EFA cards in words, without those that are 0 or not known."""
    return ", ".join(
        f"{text}: {counted[name]}" for name, text in words.items() if counted.get(name)
    )


def idle_among(moved: Mapping[str, int | None], least_bytes: int) -> tuple[list[str], int]:
    """Return the EFA cards of a host that moved nothing while its cards moved `least_bytes` or more
    each, in the median, and that median. A card whose bytes are not known is left out."""
    known = {name: amount for name, amount in moved.items() if amount is not None}
    usual = int(median(known.values())) if known else 0
    idle = [name for name, amount in known.items() if not amount]
    return (idle if usual >= least_bytes else []), usual
