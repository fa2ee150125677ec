"""The entry points of the programs. Ctrl-C ends them without a traceback at any moment: while their
modules are imported, while `run_program` of cli/main.py handles it, and before and after that."""

import locale
import sys
from contextlib import suppress

INTERRUPTED = 130


def clusterctl() -> None:
    run("clusterctl.cli.main")


def runclust() -> None:
    run("clusterctl.cli.runclust")


def copyclust() -> None:
    run("clusterctl.cli.copyclust")


def run(module: str) -> None:
    """Import a module, and call its `main`."""
    # clusterctl's files and those of nodes are UTF-8 whatever the user's locale is. Python has read
    # that by now for the terminal and for the names of files.
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    try:
        __import__(module)
        sys.modules[module].main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
