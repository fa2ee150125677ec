"""The program behind `train.sh` and its variants on a node: runs what `clusterctl train` would.

Python 3.8 and the standard library only: shipped as ~/.clusterctl/launch.pyz (jobs/deploy).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO, NoReturn

from clusterctl.domain.errors import ClusterctlError, ConnectionLost, MissingTool, UsageError
from clusterctl.domain.findings import Finding, errors
from clusterctl.domain.hostsfile import HostsFile, format_hosts_file, is_plain, parse_hosts_file
from clusterctl.jobs import head_facts
from clusterctl.jobs.head_facts import facts_of_head, head_slots
from clusterctl.jobs.plan import (
    Contradiction,
    JobPlan,
    JobRequest,
    check_request,
    clears_or_resumes,
    new_job_id,
    plan_job,
    with_trainer_run,
)
from clusterctl.jobs.preflight import (
    NotReady,
    crowding_findings,
    facts_of_node,
    facts_to_read,
    preflight,
)
from clusterctl.jobs.trainer import RECIPES
from clusterctl.node.facts.report import Fact, FactReport, collect, function_of, request_of
from clusterctl.node.jobs.lost_daemon import LOST_DAEMON
from clusterctl.node.procfs import JOB_VARIABLE

# The tutorial's scripts exit with 1 on a usage error. Only contradicting options, which those do
# not have, give the 2 of `clusterctl train`.
FAILED = 1
# How long to read mpirun's stderr after its end.
DRAIN_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Options(argparse.ArgumentParser):
    """The options that train.sh shares with `clusterctl train`. The others are the trainer's."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        for name in ("--clear", "--resume", "--no-eval", "--force"):
            self.add_argument(name, action="store_true")
        self.add_argument("--recipe")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"--recipe {' or --recipe '.join(RECIPES)}")


def plan_here(mode: str, gpus: str, arguments: list[str]) -> tuple[JobPlan, tuple[Finding, ...]]:
    """Return the job's plan and the findings of this node's checks.

    `mode` is train, more_aug or synthetic. The `hosts` file is that of the current folder. Raises
    ClusterctlError.
    """
    options, rest = _Options().parse_known_args(arguments)
    clears = clears_or_resumes(options.clear, options.resume)
    if not re.fullmatch(r"-?\d{1,6}", gpus, re.ASCII):
        raise UsageError(f"not a number of GPUs: {gpus!r}")
    hosts_path = Path("hosts")
    if not hosts_path.exists():
        raise MissingTool(
            f"there is no hosts file in {Path.cwd()}",
            "write one line per node into it: ADDRESS slots=GPUS (localhost slots=8 for this one)",
        )
    text = hosts_path.read_bytes().decode()
    hosts = parse_hosts_file(text, str(hosts_path.resolve()))
    if not is_plain(text):
        plain = format_hosts_file(HostsFile(hosts.entries)).replace("\n", "\\n")
        raise UsageError(
            f"{hosts_path.resolve()}: mpirun reads it otherwise, if at all: it wants `slots=N` for "
            "each host, and Unix line ends",
            f"printf '{plain}' > hosts",
        )
    facts = facts_of_head(_report_of(head_facts.facts_to_read()))
    request = JobRequest(
        ranks=int(gpus),
        synthetic=mode == "synthetic",
        arguments=tuple(rest),
        more_augmentation=mode == "more_aug",
        evaluate=not options.no_eval,
        clears=clears,
        recipe=options.recipe,
    )
    more_gpus = f"add nodes (clusterctl up NAME --nodes N), or correct {hosts_path.resolve()}"
    check_request(request, hosts.slots, more_gpus)
    plan = with_trainer_run(plan_job(request, facts, hosts, new_job_id()), Path.cwd())
    here = facts_of_node(facts.hostname or "this node", _report_of(facts_to_read(plan)))
    ranks = {here.host: min(plan.ranks, head_slots(facts, hosts))}
    crowded = crowding_findings([here], ranks)
    return plan, preflight(plan, [here], ranks, options.force, besides=crowded)


def _report_of(facts: tuple[Fact, ...]) -> FactReport:
    return collect(request_of(facts)).converted([function_of(one) for one in facts])


def main() -> None:
    """Check, print and run the lines of `launch.pyz train|more_aug|synthetic GPUS [ARGUMENTS]`."""
    try:
        plan, findings = plan_here(sys.argv[1], sys.argv[2], sys.argv[3:])
        show(findings)
        if errors(findings):
            raise NotReady(findings)
    except ClusterctlError as failure:
        say(f"error: {failure.message}")
        if failure.hint:
            say(f"  hint: {failure.hint}")
        sys.exit(failure.exit_status if isinstance(failure, Contradiction) else FAILED)
    os.environ[JOB_VARIABLE] = plan.job_id
    status = run(plan.argv)
    if not status and plan.evaluation:
        # Not in place of this program: if that leads the session of the user's shell (`exec
        # ./train.sh`), the session would seem to be the job's.
        status = run(plan.evaluation)
    sys.exit(status)


def run(argv: tuple[str, ...]) -> int:
    """Run a line to its end and return its exit status, 128 + N after signal N as in a shell.

    The status is never 0 if this program received a signal to end, or if mpirun lost a node.
    """
    announce(argv)
    lost: list[bool] = []
    early_signals: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        early_signals.append(number)
        # The terminal sends Ctrl-C to mpirun, too; this program only has to survive it.
        if processes and number != signal.SIGINT:
            processes[0].send_signal(number)

    # A signal that is ignored stays ignored: nohup does that for SIGHUP.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    caught = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in caught:
        signal.signal(number, pass_on)
    processes.append(subprocess.Popen(argv, stderr=subprocess.PIPE))
    watch = threading.Thread(target=pass_through, args=(processes[0].stderr, lost), daemon=True)
    watch.start()
    for early in early_signals:  # received before mpirun was started
        processes[0].send_signal(early)
    # With a timeout Python polls. An endless wait would handle a signal that comes just before it
    # only when it is over.
    status = processes[0].wait(timeout=math.inf)
    # A process that mpirun left behind may keep the pipe open for ever.
    watch.join(DRAIN_S)
    for number, handler in caught.items():
        signal.signal(number, handler)
    if early_signals:
        return 128 + early_signals[0]
    if not status and lost:
        return ConnectionLost.exit_status
    return status if status >= 0 else 128 - status


def pass_through(source: BinaryIO, lost: list[bool]) -> None:
    """Copy mpirun's stderr to ours; append to `lost` when it reports that it has lost a node."""
    before = b""
    for chunk in iter(lambda: os.read(source.fileno(), 65536), b""):
        # If our stderr is closed, go on reading: otherwise the pipe fills and mpirun blocks.
        with contextlib.suppress(OSError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()
        if re.search(LOST_DAEMON.encode(), before + chunk):
            lost.append(True)
        before = chunk[-200:]  # the message may be split between two chunks


def announce(argv: tuple[str, ...]) -> None:
    say(f"+ {shlex.join(argv)}")


def show(findings: tuple[Finding, ...]) -> None:
    """Print findings as `clusterctl` does: a line each, with its hint below."""
    for finding in findings:
        say(f"{finding.severity.value}: {finding.message} [{finding.check}]")
        if finding.hint:
            say(f"  hint: {finding.hint}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
