"""Runs one job on the head node, from its place in the queue to its recorded end.

    JOB_ID READY GO PRIVATE   started by `submit` (jobs.py) in the job's folder. READY and GO are
                              pipes to and from it, PRIVATE a file with the private variables
    end ID                    on the other nodes, over the head node's own SSH (recovery.py)

One thread and one loop: all signals are blocked, and received where the runner waits. So there is
one way to handle a cancellation, whatever the runner does at that moment. Every command runs under
a supervisor (supervisor.py), which ends all that the command has started, also if this process is
killed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Optional

from clusterctl.node.jobs import recovery
from clusterctl.node.jobs.folder import METRICS, START_DAEMON_PATH, JobFolder, log_message
from clusterctl.node.jobs.jobs import clean_up, end_without_runner, remove_draft
from clusterctl.node.jobs.lost_daemon import CANNOT_RUN, LOST_DAEMON, LOST_SSH
from clusterctl.node.jobs.output import CommandOutput, Logs
from clusterctl.node.jobs.spec import JobState, Watchdog, When
from clusterctl.node.jobs.supervisor import (
    SIGNALS,
    adopt_orphans,
    end_descendants,
    reap,
    start_supervised,
)
from clusterctl.node.procfs import JOB_VARIABLE, boot_s
from clusterctl.node.record import from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence


# mpirun reports the end of its daemon on a node. Then the job has lost that node, whatever mpirun
# ends with: Open MPI 5 with 0, Open MPI 4 with 205.
DAEMON_LOST = re.compile(LOST_DAEMON.encode())
SSH_ENDED = re.compile(LOST_SSH.encode())
# So do its ssh processes, if it failed.
SSH_LOST = re.compile(rb"Timeout, server \S+ not responding|client_loop: send disconnect")
NODE_LOST = 255  # the exit status of a job that lost a node
FAILED_RUNNER = 70
NOT_STARTED = 1  # of a queued job whose nodes lack what it needs
KILL_AFTER_S = 5.0  # after the grace: the supervisor has ended all by then
HEARTBEAT_EVERY_S = 1.0
POLL_S = 0.05
CLEANUP_TIMEOUT_S = 60.0
# As head_programs.py has it.
WATCHDOG = "~/.local/share/clusterctl/bin/clusterctl-watchdog"


class RunnerStopped(Exception):
    """A signal has requested the runner's end."""


def name_of_signal(code: int) -> str:
    """Return the signal that an exit status above 128 stands for, SIGKILL; empty for others."""
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return ""


class Runner:
    """The run of one job. `stop` is the number of the signal that has requested its end,
    `last_code` the exit status of the last command. `was_queued`: other jobs ran since the
    submission."""

    def __init__(self, folder: JobFolder, private: dict[str, str]) -> None:
        self.folder, self.spec = folder, folder.spec()
        self.logs = Logs(folder.path)
        self.private = private
        self.codes: dict[int, int] = {}  # of ended children
        self.stop = self.last_code = 0
        self.was_queued = False
        self.reported: set[int] = set()  # processes that cannot be ended, by the log
        self.heartbeat_at = 0.0
        self.forget_clock()
        # What the output of the command that runs has on lost nodes.
        self.daemon_lost = self.ssh_lost = self.ssh_ended = False

    def run(self) -> None:
        """Run the job to its end, and record the end whatever happens."""
        adopt_orphans()  # if a supervisor is killed, what it held becomes this process's
        has_started = False
        code: int | None
        try:
            self.wait_for_turn()
            self.forget_clock()
            self.folder.append("running", before=self.folder.stamps(self.spec))
            has_started = True
            code, reason = self.work()
            state = JobState.FAILED if code else JobState.SUCCEEDED
        except RunnerStopped:
            state, reason = self.folder.status().end_after(self.stop)
            is_cancelled = has_started and state is JobState.CANCELLED
            code = (self.last_code or 128 + self.stop) if is_cancelled else None
        except Exception as error:
            state, code, reason = JobState.FAILED, FAILED_RUNNER, f"the runner failed: {error!r}"
            self.say(f"clusterctl: {reason}")
        try:
            cleanup = self.clean_up(everywhere=has_started and state is not JobState.SUCCEEDED)
        except Exception as error:  # the end is recorded all the same
            cleanup = {"problem": repr(error)}
        if has_started:
            self.folder.keep_metrics(self.spec, self.folder.status())
        self.write_heartbeat()
        how = {"state": state.value, "exit_status": code, "reason": reason, "cleanup": cleanup}
        self.folder.append("ended", **how, lost_bytes=self.logs.lost_bytes)

    def say(self, text: str) -> None:
        """Add a line of clusterctl's own to the log."""
        self.logs.begin_line()
        self.logs.add(iter([(None, text.encode("utf-8", "surrogateescape") + b"\n")]))

    def poll(self, timeout_s: float) -> None:
        """Wait for a signal, collect children that have ended, write the heartbeat."""
        found = signal.sigtimedwait(SIGNALS, timeout_s)
        if found and found.si_signo != signal.SIGCHLD:
            self.stop = self.stop or found.si_signo
        self.codes.update(reap())
        self.read_clock()
        if time.monotonic() - self.heartbeat_at > HEARTBEAT_EVERY_S:
            self.write_heartbeat()

    def forget_clock(self) -> None:
        """Begin again with the times that the clock shows: the job begins."""
        self.clock_low = self.clock_high = time.time()

    def read_clock(self) -> None:
        now = time.time()
        self.clock_low, self.clock_high = min(self.clock_low, now), max(self.clock_high, now)

    def write_heartbeat(self) -> None:
        self.read_clock()
        self.heartbeat_at = time.monotonic()
        self.folder.write_heartbeat(self.clock_low, self.clock_high)

    def check_stop(self) -> None:
        """Raise RunnerStopped if a signal has requested the end."""
        self.poll(0)
        if self.stop:
            raise RunnerStopped

    def wait_for_turn(self) -> None:
        """Wait for the jobs before this one. One without a runner is ended here, with its
        processes."""
        waits_for = self.folder.status().waits_for
        self.was_queued = bool(waits_for)
        for name in waits_for:
            before = JobFolder(self.folder.path.parent / name)
            while before.is_held():
                self.check_stop()
                self.poll(0.2)
            end_without_runner(before)
        self.check_stop()

    def work(self) -> tuple[int, str]:
        """Attempt the work, then run the steps that follow it. Return exit status and reason."""
        code, reason = self.attempts()
        if code is None:
            return NOT_STARTED, reason
        for step in self.spec.steps:
            if step.when is When.WORK or (step.when is When.SUCCESS and code):
                continue
            if step.when is When.SUCCESS:
                self.say(f"+ {shlex.join(step.argv)}")
            failed = self.command(step.argv, is_tagged=step.when is When.SUCCESS)
            self.check_stop()
            if failed and not code:
                code, reason = failed, f"{' '.join(step.argv[:2])}: exit status {failed}"
        return code, reason

    def attempts(self) -> tuple[int | None, str]:
        """Run the work, again after a lost node if the job's specification allows it. Return exit
        status, None if it could not start, and reason."""
        spec = self.spec
        argv, ranks, hosts = [*spec.argv], spec.ranks, [*spec.hosts]
        began_at = boot_s()
        failures, cause = 0, ""
        if self.was_queued and spec.is_training and spec.nodes:
            # Since its submission nodes may have been replaced.
            first = self.aside(lambda: recovery.first_attempt(spec, self.folder.path)) or {}
            self.check_stop()
            argv, hosts = first.get("argv", argv), first.get("hosts", hosts)
            if cause := first.get("cause", ""):
                self.say(f"clusterctl: not started: {cause}")
                return None, f"not started: {cause}"
        while True:
            known = {node.get("name"): node.get("hourly_usd") for node in spec.nodes}
            prices: list[Any] = [known.get(host) for host in hosts]
            price = None if None in prices else sum(prices)
            self.folder.append("attempt", argv=argv, ranks=ranks, hosts=hosts, hourly_usd=price)
            code = self.command(argv, is_tagged=True, is_watched=True)
            if self.daemon_lost or (self.ssh_ended and code not in (0, *CANNOT_RUN)):
                self.daemon_lost, code = True, NODE_LOST
            self.check_stop()
            if not code or not spec.is_training:
                break
            has_lost = self.daemon_lost or self.ssh_lost
            failed = (code, ranks, began_at, has_lost, failures, tuple(hosts))
            again, cause = self.recover(recovery.FailedAttempt(*failed))
            if not again:
                break
            argv, ranks, hosts = (again[name] for name in ("argv", "ranks", "hosts"))
            failures += 1
            began_at = boot_s()
        reason = f"exit status {code}" if code else ""
        if signal_name := name_of_signal(code):
            reason += f" ({signal_name})"
        # A command that is killed cannot say so, nor does mpirun say so once all ranks have ended.
        if signal_name or (code and spec.is_training and not self.daemon_lost):
            self.say(f"clusterctl: the command ended with {reason}")
        return code, reason + (f": {cause}" if code and cause else "")

    def recover(self, failed: recovery.FailedAttempt) -> tuple[dict[str, Any] | None, str]:
        """End what a failed attempt has left, and wait for its nodes if it is made again. Record
        the failure. Return the next attempt, and what is known of why there is none."""
        found = self.aside(lambda: recovery.recover(self.folder.path, self.spec, failed))
        self.check_stop()
        found = found or {"attempt": failed.as_data(), "again": None}
        self.folder.append("failed", **found["attempt"], rates=found.get("rates", ()))
        return found["again"], found.get("cause", "")

    def command(self, argv: Sequence[str], is_tagged: bool, is_watched: bool = False) -> int:
        """Run a command line in the job's folder of work. Return its exit status. mpirun marks its
        output with tags, unless the user has requested other output."""
        tag_end = self.spec.tag_end if is_tagged else ""
        line = [argv[0], "--tag-output", *argv[1:]] if tag_end else [*argv]
        more = {**(daemons_environ() if self.spec.is_training else {}), **self.private}
        environ = {os.fsencode(name): os.fsencode(value) for name, value in more.items()}

        def become_it() -> None:
            os.chdir(os.path.expanduser(self.spec.workdir or "~"))  # noqa: PTH111
            os.execvpe(line[0], line, {**os.environb, **environ})

        output = CommandOutput(self.logs, tag_end, self.spec.torchrun)
        return self.supervised(become_it, output, is_watched)

    def aside(self, function: Callable[[], Any], timeout_s: float = float("inf")) -> Any:
        """Run a function in a process of its own, which a signal ends, and return its result, data
        of JSON; None if there is none. What it prints is logged."""
        result = os.memfd_create("result")

        def act() -> None:
            # The input of an ssh to a lost node is a broken pipe: an error, not this process's end.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.write(result, to_json(function()).encode())

        code = self.supervised(act, CommandOutput(self.logs), timeout_s=timeout_s)
        content = os.pread(result, os.fstat(result).st_size, 0)
        os.close(result)
        return from_json(Any, content) if content and not code else None

    def supervised(
        self,
        act: Callable[[], object],
        output: CommandOutput,
        is_watched: bool = False,
        timeout_s: float = float("inf"),
    ) -> int:
        """Run `act` under a supervisor to its end and log its output. Return its exit status.

        It is ended when a signal has requested the job's end, or after `timeout_s`.
        """
        self.logs.begin_line()
        self.codes.clear()  # of orphans: the new process may get the number of one
        stopped_before = self.stop
        child = start_supervised(act, self.spec.grace_s, output.fds, (self.folder.lock,))
        watchdog = self.spec.watchdog
        watch = StepWatch(self, watchdog) if is_watched and watchdog else None
        until, kill_at = time.monotonic() + timeout_s, 0.0
        rest = b""
        self.daemon_lost = self.ssh_lost = self.ssh_ended = False
        with output:
            while child not in self.codes:
                content = output.poll()
                rest = self.check_for_lost_nodes(rest, content)
                if watch:
                    watch.scan(content)
                now = time.monotonic()
                is_late = self.stop != stopped_before or now > until
                if is_late and now > kill_at:
                    os.kill(child, signal.SIGKILL if kill_at else signal.SIGTERM)
                    kill_at = now + self.spec.grace_s + KILL_AFTER_S
                self.poll(0 if content else POLL_S)
            # If the supervisor was killed, what it held is still there, and may write for ever.
            _, left = end_descendants()
            unread = output.unread()
            while unread > 0 and (content := output.poll()):
                unread -= len(content)
                rest = self.check_for_lost_nodes(rest, content)
        for pid in sorted(left - self.reported):
            self.say(f"clusterctl: process {pid} of the job could not be ended")
        self.reported |= left
        self.last_code = self.codes.pop(child)
        return self.last_code

    def check_for_lost_nodes(self, before: bytes, content: bytes) -> bytes:
        """Read new output, and return its end, for the next call. This is done in the stream: on
        a full disk, the log is incomplete."""
        text = before + content
        self.daemon_lost = self.daemon_lost or bool(DAEMON_LOST.search(text))
        self.ssh_lost = self.ssh_lost or bool(SSH_LOST.search(text))
        self.ssh_ended = self.ssh_ended or bool(SSH_ENDED.search(text))
        return text[-200:]

    def clean_up(self, everywhere: bool) -> dict[str, Any]:
        """End what the job has left on this node and, with `everywhere`, on its other nodes. Return
        the proof: how many processes were ended, and what is left or does not answer."""
        ended, left = end_descendants()
        here = clean_up(self.spec.job_id)
        proof = {"ended": ended + here["ended"], "left": sorted({*left, *here["left"]})}
        others = recovery.other_nodes(self.spec, self.folder.status().hosts) if everywhere else []
        if others:
            job_id, names = self.spec.job_id, [str(one["name"]) for one in others]
            silent = self.aside(lambda: recovery.end_elsewhere(job_id, others), CLEANUP_TIMEOUT_S)
            proof["silent"] = names if silent is None else silent
        return proof


def daemons_environ() -> dict[str, str]:
    """Return the variables with which mpirun of Open MPI 4 and 5 starts its daemons on the other
    nodes under a supervisor (start_daemon.py). In a session of its own a daemon would leave that.
    """
    agent = Path.home() / START_DAEMON_PATH
    if not agent.exists() or len(str(agent).split()) > 1:  # mpirun splits the words
        return {}
    return {
        "OMPI_MCA_orte_launch_agent": f"python3 -IS {agent} orted",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "PRTE_MCA_prte_launch_agent": f"python3 -IS {agent} prted",
    }


class StepWatch:
    """Diagnoses the job when it makes no step for too long (`train --watchdog`), once for each
    stop. The diagnosis is a process next to the job's command, and ends with it at the latest."""

    def __init__(self, runner: Runner, watchdog: Watchdog) -> None:
        self.runner, self.watchdog = runner, watchdog
        log_dir = runner.spec.log_dir
        self.metrics = Path(runner.spec.workdir, log_dir, METRICS) if log_dir else None
        self.progress = TrainingProgress(time.monotonic(), self.size())
        self.acted_on = 0.0
        self.child = 0

    def size(self) -> int:
        try:
            return self.metrics.stat().st_size if self.metrics else 0
        except OSError:
            return 0

    def scan(self, content: bytes) -> None:
        """Add output, start the diagnosis if it is time, and act on one that has ended."""
        now = time.monotonic()
        self.progress.add(content, now)
        self.progress.add_rows(self.size(), now)
        if self.child:
            if self.child in self.runner.codes:
                del self.runner.codes[self.child]
                self.child = 0
                self.act()
            return
        silent_s = self.progress.silent_s(self.watchdog.after_s, now)
        if silent_s is not None and self.acted_on != self.progress.last and not self.runner.stop:
            self.acted_on = self.progress.last
            null = os.open(os.devnull, os.O_WRONLY)
            path = os.path.expanduser(WATCHDOG)  # noqa: PTH111
            words = [path, self.runner.spec.job_id, f"{silent_s:.1f}"]
            # It is none of the job's processes: a clean-up after a lost node must not end it.
            environ = {k: v for k, v in os.environ.items() if k != JOB_VARIABLE}
            self.child = start_supervised(
                lambda: os.execve(words[0], words, environ),
                1.0,
                (null, null),
                (self.runner.folder.lock,),
            )
            os.close(null)

    def act(self) -> None:
        """Cancel the job if the watchdog is to do that and the job still makes no step."""
        if not self.watchdog.cancels:
            return
        if self.progress.last != self.acted_on:
            log_message(self.runner.folder, "the job makes steps again, and is not ended")
            return
        log_message(self.runner.folder, "the job is ended, by --watchdog-cancel")
        self.runner.folder.append("cancel", by="watchdog", why="it made no step")
        self.runner.stop = self.runner.stop or signal.SIGTERM


def main() -> None:
    if sys.argv[1] == "end":
        recovery.end_here(sys.argv[2])
        return
    job_id, (ready, go, private) = sys.argv[1], map(int, sys.argv[2:])
    draft = Path.cwd()
    folder = JobFolder(draft)
    if not folder.take():
        sys.exit(f"{draft}: it is run by another process")
    content = os.pread(private, os.fstat(private).st_size, 0)
    os.close(private)
    os.write(ready, b"r")
    os.close(ready)
    # If the submission was killed: had it named this folder? The name may be that of a repeated
    # request's.
    named = draft.parent / job_id
    lock = f"/proc/self/fd/{folder.lock}"
    is_named = os.read(go, 1) or (
        named.exists() and os.path.samefile(lock, named / "lock")  # noqa: PTH121
    )
    os.close(go)
    if not is_named:
        remove_draft(draft)
        return
    folder.path = named
    Runner(folder, from_json(dict, content)).run()


# A tag of mpirun's before a line: `[1,0]<stderr>:`. Open MPI 5 adds its job's name.
TAG = re.compile(rb"^\[(?:[^\s\[\]]{1,200}@)?\d{1,9},\d{1,6}\]<std\w{3}>: ?")
# Lines that are no sign of progress: clusterctl's own, Horovod's warnings about stalled ranks with
# the lists that follow them, and empty lines.
NO_STEP = re.compile(
    rb"^clusterctl|stall_inspector|tensors were submitted to be reduced|"
    rb"subset of ranks and are waiting|cause deadlock|^(Missing|Stalled) ranks:|^\d+!?: \[|^\s*$"
)
# Before its first step a job may be silent this many times as long as after it: it imports
# libraries, opens data and compiles the first batch.
START_UP = 3


class TrainingProgress:
    """What an attempt of a job has done. Times are seconds of a monotonic clock.

    `last` is the time of the last sign of progress.
    """

    def __init__(self, now: float, rows: int = 0) -> None:
        self.began = self.last = now
        self.has_stepped = False
        self._rows = rows
        self._rest = b""

    def add(self, content: bytes, now: float) -> None:
        """Add output, as it came. An incomplete last line counts when the rest of it comes."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-(1 << 16) :]
        if any(not NO_STEP.search(TAG.sub(b"", line).strip()) for line in lines):
            self.last = now

    def add_rows(self, size: int, now: float) -> None:
        """Add the size of the metrics, in bytes. They shrink when the job clears what an earlier
        job left; that is no step."""
        if size > self._rows:
            self.has_stepped, self.last = True, now
        self._rows = size

    def silent_s(self, after_s: float, now: float) -> Optional[float]:
        """Return the seconds since the last progress if that is too long, else None.

        Too long is more than `after_s`. Before the first step, nothing is too long until START_UP
        times `after_s` after the start.
        """
        if not self.has_stepped and now - self.began < START_UP * after_s:
            return None
        return now - self.last if now - self.last > after_s else None
