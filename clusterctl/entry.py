"""The entry points of the programs. Ctrl-C ends them without a traceback at any moment: while their
modules are imported, while `run_program` of cli/main.py handles it, and before and after that."""

import sys

INTERRUPTED = 130


def clusterctl() -> None:
    run("clusterctl.cli.main")


def runclust() -> None:
    run("clusterctl.cli.runclust")


def copyclust() -> None:
    run("clusterctl.cli.copyclust")


def run(module: str) -> None:
    """Import a module, and call its `main`."""
    try:
        __import__(module)
        sys.modules[module].main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
