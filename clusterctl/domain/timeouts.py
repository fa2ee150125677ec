"""How long to wait for what, and the clock to wait by. Both are passed down as values."""

from __future__ import annotations

import threading
import time
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


@dataclass(frozen=True)
class Timeouts:
    """How long clusterctl waits, in seconds, and the clock that measures it.

    The defaults are what users get. A test passes other values to whatever it starts: a command, a
    Launcher, connections.
    """

    clock: Clock = field(default_factory=Clock)

    # Without a sign of life, until a host counts as lost that vanished in the middle of a command.
    silence_s: float = 30.0

    # A launch, until EC2 shows what it has done:
    # until RunInstances knows a resource that was created just before;
    known_s: float = 60.0
    # until a new placement group is `available`;
    placement_group_s: float = 60.0
    # until DescribeInstances shows all instances of a launch;
    visible_s: float = 120.0
    # until none is pending: slower ones are awaited node by node, when they are made ready;
    started_s: float = 300.0
    # until the instances of a failed launch are gone;
    rolled_back_s: float = 600.0
    # until an instance that stops can be started, and one that starts takes an address.
    stopped_s: float = 600.0

    # New nodes, until they are ready:
    # for which only the console is asked for host keys; of a shorter timeout it is a third;
    console_alone_s: float = 60.0
    # for which a refused key is tried again: cloud-init may start sshd before it has written
    # authorized_keys;
    key_refused_s: float = 120.0
    # that are left at least to a cluster whose end has passed: before its nodes switch themselves
    # off, EC2 must have been told whether to stop or to terminate them then.
    least_left_s: float = 120.0

    # A rebooted node, from SSH until its mounts and drivers are back.
    restored_s: float = 60.0

    # After each lost connection in a row, until the log of a job is followed again.
    reconnect_after_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)

    # Until the plan of a copy goes without the links' rates, which EC2 is asked for.
    link_rates_s: float = 3.0

    # Until shell completion proposes nothing: the user waits at each Tab.
    completion_s: float = 3.0

    # Until a file system can use an enlarged volume.
    enlarged_s: float = 900.0
