"""Decides when the machine ends, and whether the cluster is idle. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.node.guard.activity import NodeActivity
from clusterctl.node.guard.clock import Moment
from clusterctl.node.guard.settings import GRACE_S, GuardSettings

# Users are warned this long before the end.
WARN_AT_S = (60.0, 5 * 60.0, 10 * 60.0, 30 * 60.0)


def left_s(settings: GuardSettings, now: Moment) -> float | None:
    """Return the seconds until the machine ends; None without a limit."""
    if settings.lifetime_s is None:
        return None
    left = settings.lifetime_s - now.used_s
    was_over_at_boot = left + now.boot_s <= 0
    return GRACE_S - now.boot_s if was_over_at_boot else left


def end(used_s: float, left_s: float, lifetime_s: float | None) -> float:
    """Return the lifetime of a machine that ends in `left_s`, and has run for `used_s`. With
    `lifetime_s`, it ends earlier if it has run for so long.

    It is running time, so it stays true while the machine is stopped, whatever its clock does.
    """
    return used_s + left_s if lifetime_s is None else min(used_s + left_s, lifetime_s)


def warning(left: float) -> float | None:
    """Return the warning that is due: the smallest of WARN_AT_S that is at least `left`; None if
    more time is left."""
    return next((at for at in WARN_AT_S if left <= at), None)


# The same for the end of a Capacity Block. Before it EC2 gives no other notice on the machine; the
# last of these informs the rank that saves, too.
BLOCK_WARN_AT_S = (10 * 60.0, 15 * 60.0, 40 * 60.0)


def block_warning(settings: GuardSettings, now: Moment) -> float | None:
    """Return the warning of a Capacity Block's end that is due: the smallest of BLOCK_WARN_AT_S
    that is at least the time left; None if more is left, or if the wall clock is not trusted."""
    if settings.block_ends_at is None or not now.trusted:
        return None
    left = settings.block_ends_at - now.wall
    return next((at for at in BLOCK_WARN_AT_S if left <= at), None)


def in_words(seconds: float) -> str:
    """Return a time in words: `in 10 minutes`."""
    if seconds <= 0:
        return "now"
    if seconds < 90:
        return f"in {round(seconds)} seconds"
    if seconds < 90 * 60:
        return f"in {round(seconds / 60)} minutes"
    return f"in {seconds / 3600:.1f} hours"


# A node that uses more than this many cores is busy: it prepares data or exports a model, say. An
# idle machine uses a few hundredths. The load average is of no use: it also counts processes that
# hang in the kernel.
BUSY_CORES = 0.5
# A node that never became part of its cluster decides for itself, and waits at least this long. A
# worker decides for itself, and the head node gives up a worker that does not answer, if for the
# idle time and this long without contact.
HEAD_SILENT_S = 3600.0
# The head node polls the workers at least this often, so that they know that it is there.
ASK_AT_LEAST_S = 900.0


@dataclass(frozen=True)
class Idleness:
    """Since when the cluster is idle, by the boot clock; `since` is None while it is busy."""

    since: float | None
    checked_at: float


def is_cut_off(settings: GuardSettings, silent_s: float) -> bool:
    """Return whether head node and worker, which have had no contact for `silent_s`, each
    decide without the other. A worker may compute and not answer: it is never switched off for its
    silence, but it does not keep the others running for ever."""
    return silent_s >= (settings.idle_s or 0.0) + HEAD_SILENT_S


def limit_s(settings: GuardSettings, unasked_s: float) -> float | None:
    """Return how long the cluster, or a node that decides by itself, has to be idle before this
    node ends it; None if this node does not decide. `unasked_s` is for how long the head node has
    not polled it."""
    # Idleness must never cost a volume: if EC2 terminates at a power-off, the limit does not apply.
    if settings.idle_s is None or settings.at_power_off == "terminate":
        return None
    if settings.index is None:
        return max(settings.idle_s, HEAD_SILENT_S)
    decides = settings.index == 0 or is_cut_off(settings, unasked_s)
    return settings.idle_s if decides else None


def interval_s(limit: float) -> float:
    """Return the seconds between two checks."""
    return min(60.0, max(1.0, limit / 10))


def next_idleness(
    before: Idleness | None, began_s: float, now_s: float, is_busy: bool, interval: float
) -> Idleness:
    """Return the idleness after a check, which took from `began_s` to `now_s`. If the machine was
    suspended between two checks, the time of the suspension does not count as idle: the count
    starts again."""
    if is_busy:
        return Idleness(None, now_s)
    if before is None or before.since is None or began_s - before.checked_at > 3 * interval + 60:
        return Idleness(now_s, now_s)
    return Idleness(before.since, now_s)


def reasons(name: str, before: NodeActivity | None, now: NodeActivity) -> list[str]:
    """Return why a node is busy; empty if it is idle. Its processor use needs two readings, so the
    first one counts as busy."""
    if now.busy:
        return [f"{name}: {reason}" for reason in now.busy]
    if before is None or now.at_s <= before.at_s or now.cpu_s < before.cpu_s:
        return [f"{name}: processor use not known yet"]
    cores = (now.cpu_s - before.cpu_s) / (now.at_s - before.at_s)
    return [f"{name}: {cores:.1f} cores are used"] if cores > BUSY_CORES else []
