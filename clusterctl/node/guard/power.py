"""The end: say so, and switch the machine off. EC2 then stops it or terminates it, as the
launcher has told both EC2 and the guard (`at_power_off`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import syslog

from clusterctl.node.guard.clock import GuardFiles
from clusterctl.node.guard.commands import run

WALL_TIMEOUT_S = 5.0
AGAIN_S = 60.0
# A shutdown can hang on a file system that does not answer: then without asking anybody.
ATTEMPTS = (
    *(["shutdown", "-P", "now"],) * 5,
    ["poweroff", "-f"],
    ["poweroff", "-f", "-f"],
)


def announce(place: GuardFiles, text: str) -> None:
    """To everybody logged in, the console, the system's log and the guard's own."""
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
    """One attempt a minute, each harder than the one before, for as long as it takes."""

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._count = 0
        self._last = float("-inf")

    def step(self, now_s: float) -> None:
        if now_s - self._last < AGAIN_S:
            return
        argv = ATTEMPTS[min(self._count, len(ATTEMPTS) - 1)]
        self._last, self._count = now_s, self._count + 1
        self._place.log(f"{' '.join(argv)} (attempt {self._count})")
        try:
            status, said = run(argv, AGAIN_S / 2)
        except OSError as failed:
            status, said = 1, str(failed)
        if status:
            self._place.log(f"{argv[0]} failed: {said.strip()[-200:]}")
            self._last = float("-inf") if self._count < len(ATTEMPTS) else now_s


def off_soon() -> None:
    """Switch off once the SSH session that asks for it has had its answer."""
    subprocess.Popen(
        ["sh", "-c", "sleep 1; shutdown -P now || poweroff -f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
