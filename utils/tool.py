"""The command line of the programs in this folder: its values, messages and exit statuses."""

from __future__ import annotations

import argparse
import errno
import io
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shards import DataError

LEFT_OUT = 3  # done, but more images than allowed are left out
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
        # Like stderr, stdout takes file names that are not UTF-8.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
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


def folder(text: str) -> Path:
    """Return the path, for argparse. A URL is refused, of which Path would make a folder."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no path of this machine: copy from or to it with aws s3 sync"
        )
    return Path(text).expanduser()


def number(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a parser of integers from `least` to `most` for argparse."""
    wanted = f"between {least} and {most}" if most < math.inf else f"{least} or more"

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return int(text)

    return parse


def are(count: int, noun: str) -> str:
    return f"{count:,} {noun} is" if count == 1 else f"{count:,} {noun}s are"


def status_of(left_out: int, allowed: int) -> int:
    """Return the exit status of a run that left out images. Print an error for too many."""
    if left_out <= allowed:
        return 0
    hint = f"if that is all right, --allow_corrupt {left_out} makes it so"
    print(f"error: {are(left_out, 'image')} left out; {hint}", file=sys.stderr)
    return LEFT_OUT


def end(number: int, frame: FrameType | None) -> None:
    """Handle a signal by SystemExit, so that clean-up code runs."""
    sys.exit(128 + number)
