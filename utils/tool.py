"""How the programs of this folder end: one line instead of a traceback, and a known status."""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from shards import DataError

INTERRUPTED = 130
GOES_ON = "finished shards stay, the same command goes on"


def run(main: Callable[[], int], when_stopped: str = GOES_ON) -> NoReturn:
    """Exit with main's status; 1 after `error: ...` for bad data or what the system says.

    Ctrl-C ends with 130, SIGTERM and SIGHUP with 128 and their number; all clean up first.
    `when_stopped`: what a user should know then.
    """
    # Into a pipe, too, in the order of what happens: errors are not buffered.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nstopped: {when_stopped}", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        status = 141
    except ModuleNotFoundError as error:
        print(
            f"error: this needs {error.name}: run it with the training environment's Python",
            file=sys.stderr,
        )
        status = 1
    except (DataError, OSError) as error:
        print(f"error: {told(error)}", file=sys.stderr)
        status = 1
    sys.exit(status)


def told(error: Exception) -> str:
    """What happened, and where the system said so; for a full disk also what to do."""
    if not (isinstance(error, OSError) and error.strerror):
        return str(error)
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (
        f"{what}: make room (df -h shows where), then run the same command again" if full else what
    )


def end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
