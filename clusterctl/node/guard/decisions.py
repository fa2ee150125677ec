"""When the machine ends, and whether the cluster idles. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.node.guard.clock import Moment
from clusterctl.node.guard.look import Look
from clusterctl.node.guard.settings import GuardSettings

# A machine that is started after its end gets this long, in which its owner may set a new one.
GRACE_S = 15 * 60.0
WARN_AT_S = (60.0, 5 * 60.0, 10 * 60.0, 30 * 60.0)


def left_s(settings: GuardSettings, now: Moment) -> float | None:
    """Seconds until the end; None where there is none, or none that the clock can be asked for."""
    ends = []
    if settings.lifetime_s is not None:
        ends.append(settings.lifetime_s - now.used_s)
    if settings.ends_at is not None and now.trusted:
        ends.append(settings.ends_at - now.wall)
    if not ends:
        return None
    left = min(ends)
    was_over_at_boot = left + now.boot_s <= 0
    return GRACE_S - now.boot_s if was_over_at_boot else left


def warning(left: float) -> float | None:
    """The warning that is due: the smallest of WARN_AT_S not yet passed."""
    return next((at for at in WARN_AT_S if left <= at), None)


def in_words(seconds: float) -> str:
    """For people: `in 10 minutes`."""
    if seconds <= 0:
        return "now"
    if seconds < 90:
        return f"in {round(seconds)} seconds"
    if seconds < 90 * 60:
        return f"in {round(seconds / 60)} minutes"
    return f"in {seconds / 3600:.1f} hours"


# More than half a core, all processes together, is work: data being prepared, an export. A quiet
# machine uses a few hundredths. The load average would not do: it counts what hangs, too.
BUSY_CORES = 0.5
# A node that `up` never got to judges for itself alone, and not before this.
ALONE_S = 3600.0


@dataclass(frozen=True)
class Idleness:
    """`since` is None while something goes on; seconds of the boot clock."""

    since: float | None
    looked_at: float


def limit_s(settings: GuardSettings) -> float | None:
    """For how long this node has to see nothing going on; None where it does not judge."""
    # Idleness only stops. Where a power-off is an end, no disk is lost for it.
    if settings.idle_s is None or settings.at_power_off == "terminate":
        return None
    if settings.index is None:
        return max(settings.idle_s, ALONE_S)
    return settings.idle_s if settings.index == 0 else None


def interval_s(limit: float) -> float:
    """From look to look."""
    return min(60.0, max(1.0, limit / 10))


def after(before: Idleness | None, now_s: float, is_busy: bool, interval: float) -> Idleness:
    """What a look changes. A machine that slept between two looks has not been seen to idle."""
    if is_busy:
        return Idleness(None, now_s)
    if before is None or before.since is None or now_s - before.looked_at > 3 * interval + 60:
        return Idleness(now_s, now_s)
    return Idleness(before.since, now_s)


def reasons(name: str, before: Look | None, now: Look) -> list[str]:
    """Why a node is busy. Its processor time needs two looks: the first one counts as busy."""
    if now.busy:
        return [f"{name}: {reason}" for reason in now.busy]
    if before is None or now.at_s <= before.at_s or now.cpu_s < before.cpu_s:
        return [f"{name}: looked at for the first time"]
    cores = (now.cpu_s - before.cpu_s) / (now.at_s - before.at_s)
    return [f"{name}: {cores:.1f} cores are used"] if cores > BUSY_CORES else []
