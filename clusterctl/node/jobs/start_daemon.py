"""Runs on each of a job's nodes but the head, as mpirun's launch agent: mpirun's daemon there.

    PROGRAM ARGUMENTS...    runs the daemon

If the daemon ends, is killed, or loses mpirun, all that it has started ends, also processes in
sessions of their own and with another environment. Two supervisors do that: if the inner one is
killed, what it held becomes the outer one's; if the outer one is killed, the inner one gets TERM.
"""

from __future__ import annotations

import os
import signal
import sys

from clusterctl.node.jobs.supervisor import SIGNALS, supervise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

GRACE_S = 5.0  # of the daemon, which ends its ranks
INNER_S = 15.0  # of the inner supervisor


def main() -> None:
    def run() -> None:
        os._exit(supervised(lambda: os.execvp(sys.argv[1], sys.argv[1:]), GRACE_S))

    sys.exit(supervised(run, INNER_S))


def supervised(act: Callable[[], object], grace_s: float) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return supervise(act, grace_s, os.getppid())
