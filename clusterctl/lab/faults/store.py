"""The faults that are set now. `FAULTS` is asked by the API, the supervisor and the catalogue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from clusterctl.domain.errors import UsageError
from clusterctl.lab.faults.hosts import ALL, Cut, HostFault
from clusterctl.lab.faults.kinds import (
    ANY,
    ApiError,
    Boot,
    Capacity,
    Delay,
    Fault,
    Lag,
    LostAnswer,
    QuotaFault,
    Throttle,
)
from clusterctl.lab.hosts.daemon.host_faults import UNHARMED

# EC2 is eventually consistent, always: a little of it without any fault.
USUAL_VISIBILITY_S = 0.3
USUAL_CONSOLE_S = 0.0


@dataclass(frozen=True)
class Standing:
    """A fault that is set: its name for `clear`, and how often it strikes yet (None: no limit)."""

    id: str
    fault: Fault
    left: int | None = None
    skip: int = 0
    since: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


class Faults:
    """Thread-safe. A query named `take_...` counts: the fault has struck once more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._standing: dict[str, Standing] = {}
        self._made = 0
        # (id of the throttle, action) -> tokens left, when that was.
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, fault: Fault) -> Standing:
        """Set it. One that there can only be one of (a type's capacity in a zone) is replaced."""
        with self._lock:
            same = [
                old for old in self._standing.values() if _subject(old.fault) == _subject(fault)
            ]
            if _subject(fault) and same:
                self._forget(same[0].id)
                fault = _merged(same[0].fault, fault)
            self._made += 1
            times, skip = getattr(fault, "times", 0), getattr(fault, "skip", 0)
            made = Standing(f"f{self._made}", fault, times or None, skip)
            self._standing[made.id] = made
            return made

    def clear(self, id: str | None = None) -> list[Standing]:
        """Forget one fault, or all; what was forgotten. Raises UsageError if there is no such."""
        with self._lock:
            if id is not None and id not in self._standing:
                raise UsageError(f"no fault {id!r:.80}", "see `clusterctl lab fault list`")
            return [self._forget(one) for one in ([id] if id else list(self._standing))]

    def standing(self) -> list[Standing]:
        with self._lock:
            return list(self._standing.values())

    def capacity_left(self, instance_type: str, zone: str, used: int) -> int | None:
        """Machines that can still be had, when `used` of them run now; None: no limit is set."""
        for one in self.standing():
            fault = one.fault
            if isinstance(fault, Capacity) and (fault.instance_type, fault.zone) == (
                instance_type,
                zone,
            ):
                return max(0, fault.left + fault.used - used)
        return None

    def quota(self, code: str) -> float | None:
        found = [one.fault for one in self.standing() if isinstance(one.fault, QuotaFault)]
        return next((fault.value for fault in found if fault.code == code), None)

    @property
    def visibility_s(self) -> float:
        """How long a new instance stays out of sight."""
        shown = self._lag().visible_s
        return USUAL_VISIBILITY_S if shown is None else shown

    @property
    def console_delay_s(self) -> float:
        """How much later than the host prints it the console shows it."""
        shown = self._lag().console_s
        return USUAL_CONSOLE_S if shown is None else shown

    def delay_s(self, action: str) -> float:
        found = [one.fault for one in self.standing() if isinstance(one.fault, Delay)]
        return max((fault.seconds for fault in found if fault.action in (ANY, action)), default=0)

    def take_token(self, action: str) -> bool:
        """Whether a request may pass; False where a bucket of the action is empty."""
        with self._lock:
            return all(
                self._take_from(one.id, one.fault, action)
                for one in self._standing.values()
                if isinstance(one.fault, Throttle) and one.fault.action in (ANY, action)
            )

    def take_answer(self, action: str) -> ApiError | LostAnswer | None:
        """What becomes of the answer to a request, if it does not simply get one."""
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                if isinstance(fault, (ApiError, LostAnswer)) and fault.action in (ANY, action):
                    if one.skip:
                        self._standing[one.id] = replace(one, skip=one.skip - 1)
                        continue
                    self._strike(one)
                    return fault
        return None

    def take_boot(self, node: int, first: bool = True) -> Boot | None:
        """How the host of this node boots, if not as usual; `first`: it is new."""
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                if not isinstance(fault, Boot) or (fault.silent and not first):
                    continue
                if not fault.nodes or node in fault.nodes:
                    self._strike(one)
                    return fault
        return None

    def cut_since(self, instance_id: str) -> datetime | None:
        """Since when a host's link is down; None if it is not."""
        for one in self.standing():
            if isinstance(one.fault, Cut) and one.fault.instance_id == instance_id:
                return one.since
        return None

    def host_faults(self, instance_id: str) -> dict[str, Any]:
        """The faults of a host: every key of `UNHARMED`. What is set for it alone comes first."""
        found = [one.fault for one in self.standing() if isinstance(one.fault, HostFault)]
        for_it = [one for one in found if one.instance_id in (ALL, instance_id)]
        degrees = dict(UNHARMED)
        for fault in sorted(for_it, key=lambda one: one.instance_id != ALL):
            degrees[fault.effect] = fault.degree
        return degrees

    def forget_host(self, instance_id: str, *kinds: type[HostFault]) -> None:
        """The faults of the instance are gone, or those of these kinds."""
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                if isinstance(fault, kinds or HostFault) and fault.instance_id == instance_id:
                    self._forget(one.id)

    def _lag(self) -> Lag:
        found = [one.fault for one in self.standing() if isinstance(one.fault, Lag)]
        return found[0] if found else Lag(USUAL_VISIBILITY_S, USUAL_CONSOLE_S)

    def _forget(self, id: str) -> Standing:
        self._buckets = {key: left for key, left in self._buckets.items() if key[0] != id}
        return self._standing.pop(id)

    def _strike(self, one: Standing) -> None:
        if one.left == 1:
            self._forget(one.id)
        elif one.left:
            self._standing[one.id] = replace(one, left=one.left - 1)

    def _take_from(self, id: str, throttle: Throttle, action: str) -> bool:
        now = self._clock()
        tokens, then = self._buckets.get((id, action), (float(throttle.burst), now))
        tokens = min(float(throttle.burst), tokens + (now - then) * throttle.rate)
        passes = tokens >= 1
        self._buckets[id, action] = (tokens - passes, now)
        return passes


FAULTS = Faults()


def _subject(fault: Fault) -> tuple[str, ...] | None:
    """What there can be only one fault about; None for those that stand beside each other."""
    if isinstance(fault, Capacity):
        return ("capacity", fault.instance_type, fault.zone)
    if isinstance(fault, (Throttle, Delay)):
        return (type(fault).__name__, fault.action)
    if isinstance(fault, QuotaFault):
        return ("quota", fault.code)
    if isinstance(fault, HostFault):
        return (fault.effect, fault.instance_id)
    return ("lag",) if isinstance(fault, Lag) else None


def _merged(old: Fault, new: Fault) -> Fault:
    """A lag that leaves one of its times as it was."""
    if not (isinstance(old, Lag) and isinstance(new, Lag)):
        return new
    visible = old.visible_s if new.visible_s is None else new.visible_s
    return Lag(visible, old.console_s if new.console_s is None else new.console_s)
