"""The end of the programs in this folder: a one-line message, and a documented exit status."""

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
    """Call `main` and exit with its status.

    For a DataError, an OSError or a missing module it prints `error: ...` and exits with 1. The
    status is 130 after Ctrl-C, 141 if the reader of the output is gone, and 128 + the signal's
    number after SIGTERM and SIGHUP. Clean-up code runs first in all cases. `when_stopped` is
    printed after Ctrl-C.
    """
    # Also into a pipe, stdout and stderr keep their order: stderr is not buffered.
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
    """Return the message for an error, with its file, and for a full disk with a hint."""
    if not (isinstance(error, OSError) and error.strerror):
        return str(error)
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (
        f"{what}: make room (df -h shows where), then run the same command again" if full else what
    )


def end(number: int, frame: FrameType | None) -> None:
    """Handle a signal by SystemExit, so that clean-up code runs."""
    sys.exit(128 + number)
