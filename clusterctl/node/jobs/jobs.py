"""Runs on the head node: starts and ends jobs. Each job has a folder in ~/.clusterctl/jobs
(folder.py); listing.py lists them.

transport/call.py calls `submit` and `cancel`. As a program of its own:

    pack ID          writes what is kept of the job to stdout, as a tar archive
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from clusterctl.node.jobs import processes, recovery
from clusterctl.node.jobs.folder import (
    EVENTS,
    JOBS,
    MANIFEST,
    METRICS,
    RUNNER_FILE,
    SPEC_FILE,
    JobFolder,
    all_jobs,
    cancel_requested,
)
from clusterctl.node.jobs.output import MOST_TIMES, TIME_BYTES, TIMES
from clusterctl.node.jobs.spec import JobRecord, JobSpec
from clusterctl.node.jobs.supervisor import SIGNALS
from clusterctl.node.procfs import JOB_VARIABLE

# What `pack` takes first, in this order.
KEPT = (SPEC_FILE, EVENTS, "command", "diagnosis.gz")
CANCEL_TIMEOUT_S = 45.0  # for mpirun, supervisors and the clean-up of the other nodes
KILL_TIMEOUT_S = 10.0  # for a runner that the kernel cannot end at once
ROUNDS = 3  # of ending processes and looking again: one may be started meanwhile
SUPERVISOR_S = 3.0  # how long a supervisor without a runner may take, besides its grace


@dataclass(frozen=True)
class Submission:
    """A request to start a job.

    `how` is what to do if jobs with a common claim have not ended: "refuse", "queue" this one
    behind them, or "force" it to start at the same time. `private` are the private variables, which
    are in no file; `files` further files for the job's folder.
    """

    spec: JobSpec
    how: str = "refuse"
    private: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """The record of a job that was accepted. If it was refused, only `busy` is set: the oldest job
    that is in its way."""

    job: Optional[JobRecord] = None
    busy: str = ""

    @property
    def after(self) -> tuple[str, ...]:
        """The jobs that it waits for."""
        return self.job.status.waits_for if self.job else ()


def submit(request: Submission, attachment: bytes) -> Submitted:
    """Accept a job and start its runner, whose program is `attachment`.

    The folder gets its name after the runner has locked it: half a record, or a new job without a
    runner, is never shown. A request that is sent again, after a lost connection, is the same job.
    """
    # A lost connection, or Ctrl-C at the client, must not leave a half-started job.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    spec = request.spec
    JOBS.mkdir(mode=0o700, parents=True, exist_ok=True)
    # clean-logs takes the same lock, so that it removes nothing of a job that is being started.
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = JobFolder(JOBS / spec.job_id)
        if job.path.exists():
            return Submitted(job.record())
        busy = [one.job_id for one in all_jobs() if is_in_the_way(one, spec)]
        if busy and request.how == "refuse":
            return Submitted(busy=busy[0])  # the oldest: the others may be queued behind it
        after = busy if request.how == "queue" else []
        for stale in JOBS.glob(".new-*"):  # of submissions that were killed
            if not JobFolder(stale).is_held():
                remove_draft(stale)
        draft = JobFolder(JOBS / f".new-{spec.job_id}-{os.getpid()}")
        try:
            draft.create(spec, after)
            write_files(draft.path, request, attachment)
            start_runner(draft.path, job.path, request.private)
        except OSError as error:
            remove_draft(draft.path)
            sys.exit(f"{draft.path}: {error.strerror}")
        return Submitted(job.record())


def is_in_the_way(job: JobFolder, spec: JobSpec) -> bool:
    """Return whether a job has not ended and has a common claim with a new one. If its
    specification cannot be read, this is not known: then it is taken to have one. What a job
    without a runner has left is ended first."""
    other, problem = job.known_spec()
    if not (problem or {*other.claims} & {*spec.claims}):
        return False
    end_without_runner(job)
    return job.is_active()


def write_files(draft: Path, request: Submission, program: bytes) -> None:
    """Write the job's other files. The logs are created now, since the disk may be full when a rank
    first writes. Raises OSError."""
    spec = request.spec
    logs = ["log", *(f"log-{rank}" for rank in range(spec.ranks if spec.tag_end else 0))]
    created = {**dict.fromkeys(logs, ""), TIMES: " " * TIME_BYTES * MOST_TIMES}
    for name, text in {**created, **request.files}.items():
        (draft / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    (draft / RUNNER_FILE).write_bytes(program)


def start_runner(draft: Path, path: Path, private: dict[str, str]) -> None:
    """Start the runner in the draft, and give the folder its name. Raises OSError."""
    (ready, ready_end), (go, go_end) = os.pipe(), os.pipe()
    secrets = os.memfd_create("private")
    os.write(secrets, json.dumps(private).encode())
    fds = (ready_end, go, secrets)
    with (draft / "log").open("ab") as log:
        runner = subprocess.Popen(
            [sys.executable, "-ISu", RUNNER_FILE, path.name, *map(str, fds)],
            cwd=draft,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            pass_fds=fds,
            env={**os.environ, JOB_VARIABLE: path.name},
        )
    for fd in fds:
        os.close(fd)
    if not os.read(ready, 1):
        raise OSError(0, f"the job did not start: its runner ended with {runner.wait()}")
    draft.rename(path)
    os.write(go_end, b"g")


def remove_draft(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)


def cancel(request: str) -> bool:
    """Request the end of the job of this ID and wait for it. A runner that does not end in time is
    killed, and its job ended from here. Return whether it has ended."""
    # A lost connection must not end this in the middle of a clean-up.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    job = JobFolder(JOBS / request)
    if job.path.is_dir() and not job.status().has_ended:
        cancel_requested(job)
    until = time.monotonic() + CANCEL_TIMEOUT_S
    while job.is_held() and time.monotonic() < until + KILL_TIMEOUT_S:
        if time.monotonic() > until:
            job.signal_runner(signal.SIGKILL)
        time.sleep(0.05)
    if job.path.is_dir():
        end_without_runner(job)
    return not job.is_held()


def end_without_runner(job: JobFolder) -> None:
    """End what is left of a job whose runner is gone, and record its end."""
    lost = job.status()
    # Of the record only the name may be left. On a read-only disk only the last step fails.
    with contextlib.suppress(OSError):
        if lost.has_ended or not job.take(to_clean=True):
            return
        try:
            status = job.status()
            if status.has_ended:  # by another one, meanwhile
                return
            spec, _ = job.known_spec()
            job.keep_metrics(spec, status)
            cleanup = clean_up(job.job_id, spec.grace_s + SUPERVISOR_S)
            others = recovery.other_nodes(spec, status.hosts)
            if status.started_at and others:
                cleanup["silent"] = recovery.end_elsewhere(spec.job_id, others)
            how = {"state": lost.state.value, "reason": lost.reason, "rebooted": lost.rebooted}
            job.append("ended", **how, heartbeat_at=lost.ended_at, cleanup=cleanup)
        finally:
            job.release()


def clean_up(job_id: str, supervisor_s: float = 0.0) -> dict[str, Any]:
    """End what is left of a job on this node. Return the proof: how many processes were ended, and
    the IDs of those that are left.

    Supervisors without a runner get `supervisor_s` to end before that: they also find processes
    that do not show whose they are.
    """
    query = processes.ProcessQuery(job_id)
    until = time.monotonic() + supervisor_s
    first = {one.identity for one in processes.find(query)}
    while time.monotonic() < until and processes.find(query):
        time.sleep(0.05)
    for _ in range(ROUNDS):
        first.update(one.identity for one in processes.find(query))
        processes.stop_processes(query)
        left = processes.find(query)
        if not left:
            break
    still = {one.identity for one in left}
    return {"ended": len(first - still), "left": [one.pid for one in left]}


def pack(job: JobFolder) -> None:
    """Write the record of a job to stdout; growing files as far as they are. Raises OSError."""
    import tarfile

    folder = job.path
    spec, _ = job.known_spec()
    paths: list[Path | None] = [folder / name for name in KEPT]
    paths += sorted([*folder.glob("trace-steps-*"), *folder.glob("log-*")])
    rows = job.metrics(spec, job.status())
    paths += [folder / "log", rows]
    paths.append(folder / MANIFEST)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in paths:
            if path and path.is_file():
                with path.open("rb") as file:
                    name = METRICS if path == rows else str(path.relative_to(folder))
                    info = archive.gettarinfo(arcname=name, fileobj=file)
                    archive.addfile(info, file)


def main() -> None:
    try:
        pack(JobFolder(JOBS / sys.argv[2]))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
