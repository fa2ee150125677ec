"""The commands of the program.

run [ROOT]       guard this node; ends at once where another one does
look             what goes on here, as JSON
off WHY          switch off
check FILE       whether the program runs here and the file holds settings
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

from clusterctl.node.guard.files import GuardFiles, read_text
from clusterctl.node.guard.guard import Guard
from clusterctl.node.guard.look import look
from clusterctl.node.guard.power import announce, off_soon
from clusterctl.node.guard.settings import parse_settings


def main() -> None:
    command, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if command == "run":
        guard(GuardFiles(*arguments), sys.argv[0])
    elif command == "look":
        print(json.dumps(look().as_data()))
    elif command == "off":
        print("off", flush=True)
        announce(GuardFiles(), f"this machine is switched off now: {' '.join(arguments)}")
        off_soon()
    elif command == "check":
        try:
            parse_settings(read_text(Path(arguments[0])))
        except (OSError, ValueError) as broken:
            sys.exit(f"{arguments[0]}: {broken}")
    else:
        sys.exit("usage: guard run [ROOT] | look | off WHY | check FILE")


def guard(place: GuardFiles, program: str) -> None:
    """The lock is the folder's own: it needs no space on the disk, and an end releases it."""
    place.kept.mkdir(parents=True, exist_ok=True)
    lock = os.open(place.kept, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with contextlib.suppress(OSError):
        # What runs out of memory is a job, and this may have to end it.
        Path("/proc/self/oom_score_adj").write_text("-1000")
    Guard(place, program).run()
