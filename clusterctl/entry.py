"""The entry points of the programs. Ctrl-C while their modules are imported ends them without a
traceback; after that, `run_program` of cli/main.py handles it."""

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
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.modules[module].main()
