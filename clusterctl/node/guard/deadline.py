"""When the machine ends. Pure."""

from __future__ import annotations

from clusterctl.node.guard.clock import Moment
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
