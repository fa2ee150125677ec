"""How long to wait for what, and the clock to wait by. Both are passed down as values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


class Clock:
    """The machine's clock. Tests use one on which waiting takes no time."""

    def monotonic(self) -> float:
        """Return seconds since an unspecified moment; they never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Return the Unix time in seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that many seconds."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, for at most so many seconds. Return whether it is set."""
        return event.wait(seconds)


class Age:
    """How long ago this was made, also if the process or the machine stood still since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic(), clock.time()

    @property
    def seconds(self) -> float:
        """By the clock that says more: monotonic clocks leave out a suspended machine's sleep."""
        monotonic, time = self._since
        return max(self._clock.monotonic() - monotonic, self._clock.time() - time)


def backoff_delays(
    first_s: float = 0.2, growth: float = 1.4, limit_s: float = 5.0
) -> Iterator[float]:
    """Yield delays in seconds without end, each `growth` times the one before, at most `limit_s`.

    Used by every poll and retry: short at first for what is quick, longer to spare the API.
    """
    gap_s = first_s
    while True:
        yield gap_s
        gap_s = min(gap_s * growth, limit_s)


class Polling:
    """The waits between polls or retries, for `within_s` in all. `delays`: see backoff_delays."""

    def __init__(self, clock: Clock, within_s: float, *delays: float) -> None:
        self._clock = clock
        self._until = clock.monotonic() + within_s
        self._delays = backoff_delays(*delays)

    @property
    def left_s(self) -> float:
        """The seconds that are left; negative once the time is up."""
        return self._until - self._clock.monotonic()

    def wait(self) -> None:
        """Wait until the next poll."""
        self._clock.sleep(next(self._delays))


@dataclass(frozen=True)
class Timeouts:
    """How long clusterctl waits, in seconds, and the clock that measures it.

    The defaults are what users get. A test passes other values to whatever it starts: a command, a
    Launcher, connections.
    """

    clock: Clock = field(default_factory=Clock)

    # Hosts over SSH
    silence_s: float = 30.0  # until a host counts as lost that vanished while a command ran
    restored_s: float = 60.0  # after a reboot, from SSH until mounts and drivers are back
    second_reading_s: float = 2.0  # until processes without a job are read again
    # Before each further attempt to follow a job, after lost connections in a row.
    reconnect_after_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)

    # EC2, after a request
    known_s: float = 60.0  # until RunInstances knows a resource that was created just before
    placement_group_s: float = 60.0  # until a new placement group is available
    visible_s: float = 120.0  # until all instances of a launch are shown
    # Until descriptions show what an earlier command may have made, if it has made it.
    shown_s: float = 20.0
    # For which a command may go by what it has read and written of the cluster: later, another one
    # may have changed it.
    holds_s: float = 20.0
    # Until none of them is pending. Slower ones are awaited when the nodes are made ready.
    started_s: float = 300.0
    rolled_back_s: float = 600.0  # until the instances of a failed launch are gone
    # Until an instance that stops can be started, and one that starts takes an address.
    state_change_s: float = 600.0
    stopped_s: float = 900.0  # until all instances that `stop` stops are stopped
    terminated_s: float = 900.0  # until all instances that `down` terminates are gone
    removed_s: float = 600.0  # until nodes are gone that were replaced or removed
    # Until a group can be deleted, which counts as in use for a while after its instances are gone.
    group_free_s: float = 300.0
    enlarged_s: float = 900.0  # until a file system can use an enlarged volume
    link_rates_s: float = 3.0  # until a copy is planned without the links' rates

    # New nodes
    # For which only the console is read for host keys; a third of the timeout if that is less.
    console_only_s: float = 60.0
    # For which a refused key is tried again: cloud-init may start sshd before it has written
    # authorized_keys.
    key_refused_s: float = 120.0

    # The user
    at_risk_s: float = 10.0  # until `down` knows, or cannot say, what would be lost
    completion_s: float = 3.0  # until shell completion proposes nothing: the user waits at each Tab
