"""The faults that are set. The API, the rules of launches and the supervisor query `FAULTS`."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from clusterctl.domain.errors import UsageError
from clusterctl.lab.faults import kinds
from clusterctl.lab.faults.fields import Fault
from clusterctl.lab.faults.hosts import ALL, HostFault
from clusterctl.lab.faults.kinds import ApiError, Boot, Lag, LostAnswer
from clusterctl.lab.hosts.daemon.host_faults import NO_FAULTS

# EC2 is eventually consistent, so new instances are hidden for a moment even without any fault.
USUAL_VISIBILITY_S = 0.3

Kind = TypeVar("Kind")
AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(frozen=True)
class ActiveFault:
    """A fault that is set. `id` is its name for `clear`.

    `left` is how many more times it strikes (None: no limit), `skip` how many requests pass before.
    """

    id: str
    fault: Fault
    left: int | None = None
    skip: int = 0
    since: datetime = field(default_factory=lambda: datetime.now(timezone.utc))


class Faults:
    """All faults that are set. Thread-safe.

    A method named `take_...` counts its result as one strike of the fault.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._standing: dict[str, ActiveFault] = {}
        self._made = 0
        # (id of the throttle, action) -> tokens left, and the clock when they were counted.
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, fault: Fault) -> ActiveFault:
        """Set a fault, and return it. It replaces an older one about the same subject.

        Such a subject is, for example, the capacity of one type in one zone.
        """
        with self._lock:
            same = [one for one in self._standing.values() if fault.replaces(one.fault)]
            for old in same:
                self._forget(old.id)
                fault = _merged(old.fault, fault)
            self._made += 1
            times, skip = getattr(fault, "times", 0), getattr(fault, "skip", 0)
            made = ActiveFault(f"f{self._made}", fault, times or None, skip)
            self._standing[made.id] = made
            return made

    def clear(self, id: str | None = None) -> list[ActiveFault]:
        """Clear one fault, or all, and return those cleared. Raise UsageError for an unknown id."""
        with self._lock:
            if id is not None and id not in self._standing:
                raise UsageError(f"no fault {id!r:.80}", "see `clusterctl lab fault list`")
            return [self._forget(one) for one in ([id] if id else list(self._standing))]

    def standing(self) -> list[ActiveFault]:
        """Return the faults that are set, in the order in which they were set."""
        with self._lock:
            return list(self._standing.values())

    def capacity_left(self, instance_type: str, zone: str, used: int) -> int | None:
        """Return how many more machines a zone has if `used` run there; None without a limit."""
        for fault in self._of(kinds.Capacity):
            if (fault.instance_type, fault.zone) == (instance_type, zone):
                return max(0, fault.left + fault.used - used)
        return None

    def quota(self, code: str) -> float | None:
        """Return the value that is set for a service quota, or None."""
        return next((one.value for one in self._of(kinds.QuotaFault) if one.code == code), None)

    @property
    def hides(self) -> bool:
        """Whether a fault hides new instances, which otherwise are hidden for a moment only."""
        return any(one.visible_s for one in self._of(Lag))

    @property
    def visibility_s(self) -> float:
        """How long a new instance is hidden from descriptions."""
        return self._lag().visible_s or 0.0

    @property
    def console_delay_s(self) -> float:
        """How long the console stays empty after a boot has started."""
        return self._lag().console_s or 0.0

    def lag_s(self, what: str) -> float:
        """Return how late changes of tags, states, addresses, groups, volumes or spot are shown."""
        seconds: float | None = getattr(self._lag(), f"{what}_s")
        return seconds or 0.0

    @property
    def reordered(self) -> bool:
        """Whether half of the reads show changes at once."""
        return bool(self._lag().reordered)

    def delay_s(self, action: str) -> float:
        """Return the longest delay that is set for an action; 0 for none."""
        due = [one.seconds for one in self._of(kinds.Delay) if one.is_for(action)]
        return max(due, default=0)

    def take_token(self, action: str) -> bool:
        """Take a token for a request. Return False if a bucket of the action is empty."""
        with self._lock:
            now = self._clock()
            left = {
                (one.id, action): self._tokens(one.id, one.fault, action, now)
                for one in self._standing.values()
                if isinstance(one.fault, kinds.Throttle) and one.fault.is_for(action)
            }
            # A refused request takes no token from any bucket.
            passes = all(tokens >= 1 for tokens in left.values())
            self._buckets.update({key: (tokens - passes, now) for key, tokens in left.items()})
            return passes

    def take_answer(self, action: str) -> ApiError | LostAnswer | None:
        """Return the fault that strikes the answer to a request, or None."""
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                if isinstance(fault, (ApiError, LostAnswer)) and fault.is_for(action):
                    if one.skip:
                        self._standing[one.id] = replace(one, skip=one.skip - 1)
                        continue
                    self._strike(one)
                    return fault
        return None

    def dry_answer(self, action: str) -> ApiError | None:
        """Return the fault that strikes the answer to a dry run: only a want of permission.

        It does not count as a strike.
        """
        of_action = [one for one in self._of(ApiError) if one.is_for(action)]
        return next((one for one in of_action if one.code == "UnauthorizedOperation"), None)

    def take_boot(self, node: int, first: bool = True) -> Boot | None:
        """Return the fault that strikes a boot of this node's host, or None.

        `first` is false when a stopped instance starts again.
        """
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                # A host gets its silent init when it is created, so a later boot cannot become
                # silent.
                if not isinstance(fault, Boot) or (fault.silent and not first):
                    continue
                if not fault.nodes or node in fault.nodes:
                    self._strike(one)
                    return fault
        return None

    def since(self, kind: type[Fault], instance_id: str) -> datetime | None:
        """Return since when an instance has a fault of this kind; None if it has none."""
        of_kind = [one for one in self.standing() if isinstance(one.fault, kind)]
        own = (one.since for one in of_kind if vars(one.fault)["instance_id"] == instance_id)
        return next(own, None)

    @property
    def same_index(self) -> bool:
        return bool(self._of(kinds.SameIndex))

    def events(self, instance_id: str) -> list[tuple[str, datetime]]:
        """Return the code and the begin of each event that is scheduled for an instance."""
        return [
            (one.fault.code, one.since + timedelta(seconds=one.fault.in_s))
            for one in self.standing()
            if isinstance(one.fault, kinds.Event) and one.fault.instance_id == instance_id
        ]

    def host_faults(self, instance_id: str) -> dict[str, Any]:
        """Return a host's faults, with every key of `NO_FAULTS`.

        A fault of the host itself overrides one of all hosts.
        """
        for_it = [one for one in self._of(HostFault) if one.instance_id in (ALL, instance_id)]
        degrees = dict(NO_FAULTS)
        for fault in sorted(for_it, key=lambda one: one.instance_id != ALL):
            degrees[fault.effect] = fault.degree
        return degrees

    def forget_host(self, instance_id: str, *kinds: type[HostFault]) -> None:
        """Clear the faults of an instance, or only those of the given kinds."""
        with self._lock:
            for one in list(self._standing.values()):
                fault = one.fault
                if isinstance(fault, kinds or HostFault) and fault.instance_id == instance_id:
                    self._forget(one.id)

    def _lag(self) -> Lag:
        return functools.reduce(_merged, self._of(Lag), Lag(visible_s=USUAL_VISIBILITY_S))

    def _of(self, kind: type[Kind]) -> list[Kind]:
        return [one.fault for one in self.standing() if isinstance(one.fault, kind)]

    def _forget(self, id: str) -> ActiveFault:
        self._buckets = {key: left for key, left in self._buckets.items() if key[0] != id}
        return self._standing.pop(id)

    def _strike(self, one: ActiveFault) -> None:
        if one.left == 1:
            self._forget(one.id)
        elif one.left:
            self._standing[one.id] = replace(one, left=one.left - 1)

    def _tokens(self, id: str, throttle: kinds.Throttle, action: str, now: float) -> float:
        tokens, then = self._buckets.get((id, action), (float(throttle.burst), now))
        return min(float(throttle.burst), tokens + (now - then) * throttle.rate)


FAULTS = Faults()


def _merged(old: AnyFault, new: AnyFault) -> AnyFault:
    """Return the new fault. A Lag keeps the old one's times where it has none of its own."""
    if not (isinstance(old, Lag) and isinstance(new, Lag)):
        return new
    given = {name: value for name, value in vars(new).items() if value is not None}
    return replace(old, **given)
