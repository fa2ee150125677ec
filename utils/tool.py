"""How the programs of this folder end: one line instead of a traceback, and a known status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from shards import DataError

INTERRUPTED = 130


def run(main: Callable[[], int]) -> NoReturn:
    """Exit with main's status; 1 after `error: ...` for bad data or what the system says.

    Ctrl-C ends with 130, SIGTERM and SIGHUP with 128 and their number; all clean up first.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\nstopped: finished shards stay, the same command goes on", file=sys.stderr)
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
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)


def end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
