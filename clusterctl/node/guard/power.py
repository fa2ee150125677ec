"""Announces the end and switches the machine off. EC2 then stops or terminates it, as the launcher
has set it in EC2 and in the guard's settings (`at_power_off`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import syslog

from clusterctl.node.guard.clock import GuardFiles
from clusterctl.node.guard.commands import run

WALL_TIMEOUT_S = 5.0
# The wait before the next attempt. It begins at once if a command fails.
AGAIN_S = 60.0
# A shutdown can hang on a file system that does not answer. `-f` has the system manager switch off
# at once, `-f -f` does so without it (poweroff(8)).
ATTEMPTS = (*(["shutdown", "-P", "now"],) * 5, ["poweroff", "-f"], ["poweroff", "-f", "-f"])


def announce(place: GuardFiles, text: str) -> None:
    """Inform all logged-in users, the console, the system's log and the guard's own log."""
    place.log(text)
    line = f"clusterctl: {text}"
    with contextlib.suppress(OSError):
        syslog.openlog("clusterctl-guard")
        syslog.syslog(syslog.LOG_WARNING, text)
    with contextlib.suppress(OSError):
        console = os.open(place.console, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            os.write(console, f"{line}\r\n".encode())
        finally:
            os.close(console)
    with contextlib.suppress(OSError):
        run(["wall", line], WALL_TIMEOUT_S)


class PowerOff:
    """Switches the machine off, with harder commands if the first ones do not work."""

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._count = 0
        self._last = float("-inf")

    def step(self, now_s: float) -> None:
        """Make the next attempt if it is due. `now_s` is the boot clock."""
        if now_s - self._last < AGAIN_S:
            return
        argv = ATTEMPTS[min(self._count, len(ATTEMPTS) - 1)]
        self._last, self._count = now_s, self._count + 1
        self._place.log(f"{' '.join(argv)} (attempt {self._count})")
        try:
            status, output = run(argv, AGAIN_S / 2)
        except OSError as failed:
            status, output = 1, str(failed)
        if status:
            self._place.log(f"{argv[0]} failed: {output.strip()[-200:]}")
            self._last = float("-inf") if self._count < len(ATTEMPTS) else now_s


def off_soon() -> None:
    """Switch off in a second, so that the SSH session that requests it gets its answer."""
    subprocess.Popen(
        ["sh", "-c", "sleep 1; shutdown -P now || poweroff -f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
