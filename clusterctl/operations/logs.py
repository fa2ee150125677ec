"""The jobs of a cluster: listed, looked at, followed; and what of ours runs where."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionLost,
    HostError,
    HostUnreachable,
    UsageError,
)
from clusterctl.domain.results import HostOutcome, last_line
from clusterctl.jobs.detached import (
    JOBS,
    JobRecord,
    JobRunning,
    JobState,
    find_job,
    follow_job,
    list_jobs,
    tail_command,
)
from clusterctl.jobs.plan import SERVE
from clusterctl.jobs.processes import NodeProcess, ProcessQuery, all_of, list_processes
from clusterctl.operations.access import Access

RECORD = "record.json"


class NoJobs(ClusterctlError):
    """No job has run on the cluster yet."""


def jobs_of(access: Access) -> list[JobRecord]:
    """The jobs of the cluster, oldest first. Raises HostError."""
    return list_jobs(access.connections, access.head)


def running_jobs(access: Access) -> list[JobRecord]:
    """Those that have not ended. Raises HostError."""
    return [job for job in jobs_of(access) if job.running]


@dataclass(frozen=True)
class Running:
    """What of ours runs where: the head node's jobs, and processes by node. `silent` did not say.

    A run is a job, or an mpirun that somebody started by hand. What is there without one is left
    over: ranks whose daemon or mpirun was killed, on a node that was cut off.
    """

    jobs: tuple[JobRecord, ...]
    processes: tuple[NodeProcess, ...]
    silent: tuple[HostOutcome[Any], ...] = ()

    @property
    def launchers(self) -> tuple[NodeProcess, ...]:
        return tuple(process for process in self.processes if process.role == "launcher")

    @property
    def trainings(self) -> Running:
        """The same without the jobs that copy or serve, which no training waits for."""
        others = {job.job_id for job in self.jobs if job.destination}
        # Another node's jobs are not among the head node's.
        others |= {one.job_id for one in self.processes if one.job_id and one.serves}
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.job_id not in others),
            processes=tuple(one for one in self.processes if one.job_id not in others),
        )

    @property
    def leftovers(self) -> tuple[NodeProcess, ...]:
        """Without daemons, which end by themselves a moment after the run."""
        if self.jobs or self.launchers:
            return ()
        return tuple(process for process in self.processes if process.role != "daemon")


def what_runs(access: Access) -> Running:
    """Ask every node. What a node does not say is an outcome in `silent`."""
    silent: dict[str, HostOutcome[Any]] = {}
    jobs: list[JobRecord] = []
    try:
        # This one waits for a job that is being started, and has no process yet.
        jobs = running_jobs(access)
    except HostError as error:
        silent[error.host] = HostOutcome(error.host, error=error)
    found = list_processes(access.connections, access.targets, ProcessQuery())
    silent.update({outcome.host: outcome for outcome in found.failures})
    return Running(tuple(jobs), all_of(found), tuple(silent.values()))


def refuse_while_training(access: Access, because: str) -> None:
    """Raises JobRunning while a run goes on, HostError of a head node that does not say.

    Another node may be silent, and may have leftovers: these verbs are what mends it.
    """
    refuse_beside_a_run(access, what_runs(access), because)


def refuse_beside_a_run(access: Access, running: Running, because: str) -> None:
    """As refuse_while_training, with an answer of what_runs."""
    name = access.cluster.name
    for outcome in running.silent:
        if outcome.host == access.head.host and outcome.error:
            raise HostError(
                outcome.host,
                f"cannot ask whether a job runs: {outcome.error.message}",
                "if you are sure that none does: --force",
            ) from outcome.error
    if running.jobs:
        raise job_running(name, running.jobs[0].job_id, because)  # others may wait for it
    for process in running.launchers:
        raise JobRunning(
            f"{process.short_command} (process {process.pid}) is running on {process.host}, "
            f"and {because}",
            f"end it first (clusterctl cancel {name}), or go on all the same: --force",
        )


def job_running(cluster: str, job_id: str, because: str) -> JobRunning:
    """The refusal of what would disturb that job."""
    return JobRunning(
        f"job {job_id} is running on {cluster}, and {because}",
        f"end it first (clusterctl cancel {cluster}), or go on all the same: --force",
    )


def find(
    access: Access, job_id: str | None, training: bool = False, latest: bool = False
) -> JobRecord:
    """That job, or the latest that has begun and serves no model, or the latest training; `latest`:
    the last of the queue, too. Raises UsageError for an unknown id, NoJobs, HostError."""
    if job_id:
        return find_job(access.connections, access.head, job_id)
    jobs = [job for job in jobs_of(access) if not (training and job.destination)]
    jobs = [job for job in jobs if job.preset != SERVE]
    if not jobs:
        name = access.cluster.name
        raise NoJobs(
            f"no job has run on {name}", f"start one: clusterctl train {name} GPUS --synthetic"
        )
    begun = [job for job in jobs if job.state is not JobState.QUEUED]
    return (jobs if latest or not begun else begun)[-1]


def check_rank(job: JobRecord, rank: int) -> None:
    """Raises UsageError where that rank has no log of its own."""
    if not job.by_rank:
        raise UsageError(
            f"of job {job.job_id} there are no logs by rank",
            "it is a copy, asked mpirun for other output (--mpi-arg), or was started by an older "
            "clusterctl",
        )
    if rank >= job.ranks:
        raise UsageError(f"job {job.job_id} has no rank {rank}", f"--rank 0 to {job.ranks - 1}")


def read_log(
    access: Access, job_id: str, sink: Callable[[bytes], None], rank: int | None = None
) -> None:
    """The log as it is now, or that of one rank. Raises HostError."""

    def take(stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            sink(chunk)

    command = tail_command(job_id, 0, until_end=False, rank=rank)
    access.connections.run(access.head, command, sink=take)


def follow(
    access: Access,
    job_id: str,
    sink: Callable[[bytes], None],
    on_lost: Callable[[HostError, float], None],
    rank: int | None = None,
    seen: JobRecord | None = None,
) -> JobRecord:
    """The log until the job has ended, or that of one rank, and what it came to. `seen`: see
    follow_job.

    Raises ConnectionLost or HostUnreachable, with what was last known of it.
    """
    try:
        return follow_job(access.connections, access.head, job_id, sink, on_lost, rank, seen)
    except (ConnectionLost, HostUnreachable) as lost:
        again = f"then: clusterctl logs {access.cluster.name} -f --job {job_id}"
        hint = f"{lost.hint}; {again}" if lost.hint else again
        raise type(lost)(lost.host, lost.message, hint) from lost


def wait_for(access: Access, seen: JobRecord) -> JobRecord:
    """The job when it has ended. Raises as `follow`."""
    return follow_job(access.connections, access.head, seen.job_id, None, seen=seen)


def fetch(access: Access, job_id: str, place: Path) -> None:
    """Bring what is kept of a job into a folder here: whole files only, record.json last.

    Raises UsageError for a folder that holds another job's, and where it cannot be written;
    HostError.
    """
    job = find_job(access.connections, access.head, job_id)
    record = place / RECORD
    try:
        other = (_object_in(record) or {}).get("id") if record.exists() else job_id
        if other != job_id:
            holds = f"job {other}" if other else f"a {RECORD} that is no job's"
            raise UsageError(f"{place} holds {holds}", "name another folder")
        place.mkdir(parents=True, exist_ok=True)
        with draft_folder(place, job_id) as (draft, is_ours):
            if job.model_dir is not None and not job.running:
                _collect(access, job_id)
            _unpack(access, job_id, draft)
            theirs = [path.name for path in draft.iterdir() if (place / path.name).exists()]
            if theirs and not (is_ours or record.exists()):
                raise UsageError(f"{place} has its own file {theirs[0]}", "name another folder")
            data = {"cluster": access.cluster.name, **job.as_data()}
            if (draft / "code.json").exists():
                data["code"] = _object_in(draft / "code.json")
            (draft / RECORD).write_text(json.dumps(data, indent=1) + "\n")
            try:
                _publish(draft, place)
            except KeyboardInterrupt:
                _publish(draft, place)  # without record.json they would pass for the user's own
                raise
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or place}: {error.strerror}") from None


def _publish(draft: Path, place: Path) -> None:
    """Move what was brought to its place, record.json last. Raises UsageError, OSError."""
    brought = [path for path in draft.iterdir() if path.name != RECORD]
    for path in (*brought, *draft.glob(RECORD)):
        there = place / path.name
        if there.is_dir():
            # Without the manifest of an earlier fetch it is a folder of the user's.
            if not (place / "manifest.json").exists():
                raise UsageError(f"{there} is a folder of yours", "name another folder")
            shutil.rmtree(there)
        path.replace(there)


@contextmanager
def draft_folder(place: Path, job_id: str) -> Iterator[tuple[Path, bool]]:
    """A folder in `place` for what is brought, one fetch at a time; and whether a fetch of the job
    that was killed had left one: what lies there may be its. Raises OSError."""
    opened, is_alone = os.open(place, os.O_RDONLY), False
    try:
        with suppress(OSError):  # NFS locks no folder
            # `train` and `logs -f` beside it fetch a job that fails at the same moment.
            fcntl.flock(opened, fcntl.LOCK_EX)
            is_alone = True
        left = [*place.glob(f".fetch-{job_id}-*")]
        with tempfile.TemporaryDirectory(prefix=f".fetch-{job_id}-", dir=place) as draft:
            yield Path(draft), bool(left)
            for folder in left if is_alone else ():
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(opened)


def _object_in(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where it was cut short, or is another program's. Raises OSError."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _unpack(access: Access, job_id: str, folder: Path) -> None:
    """The files of `pack` (node/jobs/jobs.py). Raises CommandFailed when they are not whole."""
    with tempfile.TemporaryFile(dir=folder) as archive:
        errors = bytearray()

        def take(stream: str, chunk: bytes) -> None:
            if stream == "stdout":
                archive.write(chunk)
            else:
                errors.extend(chunk)

        command = JOBS.command("pack", job_id)
        result = access.connections.run(access.head, command, stdin=JOBS.stdin(), sink=take)
        if not result.ok:
            why = errors.decode(errors="replace").strip()
            raise CommandFailed(result.host, f"job {job_id} could not be packed: {why}")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:") as files:
            for entry in files:
                content = files.extractfile(entry)
                path = Path(entry.name)
                # Nothing lands outside.
                if content and not path.is_absolute() and ".." not in path.parts:
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    with (folder / path).open("wb") as file:
                        shutil.copyfileobj(content, file)


def _collect(access: Access, job_id: str) -> None:
    """Have the model collected that the job's end did not collect (it was cancelled, the disk was
    full). Raises CommandFailed."""
    folder = f'"$HOME"/.clusterctl/jobs/{job_id}'
    command = f"[ -e {folder}/manifest.json ] || exec python3 -ISu {folder}/collect.py {folder}"
    result = access.connections.run(access.head, command)
    if not result.ok:
        raise CommandFailed(result.host, last_line(result.stderr))


def first_error(log: Path) -> list[str]:
    """What `explain` holds for the first error of a log, in lines; none where it knows none."""
    from clusterctl.explain.engine import explain

    with log.open("rb") as file:
        found = explain(iter(lambda: file.read(1 << 20), b""))
    lead = found.lead
    if lead:
        where = f", rank {min(lead.ranks)}" if lead.ranks else ""
        where += f", {min(lead.hosts)}" if lead.hosts else ""
        texts = [f"first error, line {lead.line}{where}: {lead.text[:200]}", f"  {lead.cause}"]
        return [*texts, f"  hint: {lead.remedy.splitlines()[0]}"] if lead.remedy else texts
    return [f"first error, line {one.line}: {one.text[:200]}" for one in found.unknown[:1]]
