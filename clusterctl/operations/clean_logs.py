"""Remove the files that training runs wrote: the trainer's log folders and the folders of ended
jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.domain.errors import HostError
from clusterctl.domain.results import CommandResult, FanoutResult, json_line, parse_outputs
from clusterctl.jobs.detached import JobRecord
from clusterctl.jobs.plan import EXAMPLES_FOLDER
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access
from clusterctl.operations.logs import job_running, jobs_of, refuse_while_running, running_work
from clusterctl.operations.results import LOG_FOLDER, LOG_NAME
from clusterctl.transport.target import Target

CLEAN = program_of("clusterctl.node.jobs.clean")
TIMEOUT_S = 600.0
BECAUSE = "their logs are being written"
# The log folders of runs that were started by hand: in the home folder, as in the tutorial, and
# next to the shipped scripts, for real and for synthetic data.
USUAL = (
    f"~/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{SYNTHETIC_LOG_FOLDER}",
)


@dataclass(frozen=True)
class Cleaning:
    """A request to remove files, as node/jobs/clean.py reads it.

    `folders` are pairs of a log folder and the name of the log in it; the trainer's files are
    removed there, except in the folders of `keep`. With `jobs`, the folders of ended jobs are
    removed too, except those of the jobs in `running`. With `keep_last` above 0, only checkpoints
    older than the last `keep_last` are removed from a log folder, and the last `keep_last` jobs
    stay.
    `dry_run` removes nothing. `force` removes files even while a job runs.
    """

    folders: tuple[tuple[str, str], ...] = ()
    keep: tuple[str, ...] = ()
    jobs: bool = False
    keep_last: int = 0
    dry_run: bool = False
    force: bool = False
    running: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogFolder:
    """A log folder, or the folder of an ended job.

    `size_bytes` and `checkpoints` count what is removed. `others` is the number of files that no
    training wrote, which stay.
    """

    path: str
    size_bytes: int
    checkpoints: int = 0
    others: int = 0


@dataclass(frozen=True)
class NodeLogs:
    """What was removed on a node, or would be removed.

    `failed` has a message for each path that could not be removed, `links` one for each symbolic
    link, which is left alone. `busy` is the id of a running job, because of which nothing was
    removed.
    """

    host: str
    folders: tuple[LogFolder, ...] = ()
    failed: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    busy: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(folder.size_bytes for folder in self.folders)

    @property
    def checkpoints(self) -> int:
        return sum(folder.checkpoints for folder in self.folders)


def find_logs(
    access: Access,
    jobs: bool = False,
    force: bool = False,
    dry_run: bool = False,
    keep_last: int = 0,
) -> tuple[Cleaning, FanoutResult[NodeLogs]]:
    """Find what can be removed on each node, without removing it.

    Return the request for `clean_logs` and what each node would remove. Raise JobRunning while a
    job runs, unless `force` or `dry_run`, and HostError of the head node.
    """
    # Several fan-outs follow: do not wait for an unreachable node in each of them.
    access.connections.ask_again = False
    running = running_work(access)
    if not (force or dry_run):
        refuse_while_running(access, running, BECAUSE)
    records: list[JobRecord] = []
    # If the head node does not answer, it is among the failures of the fan-out below.
    with contextlib.suppress(HostError):
        records = jobs_of(access)
    keep = [job.log_dir for job in running.jobs if job.log_dir]
    by_hand = any(process.job_id is None for process in running.launchers)
    if by_hand or any(not job.log_dir for job in running.jobs):
        # The log folder of a user's own program or of train.sh is not known. It is likely to be
        # one of the usual ones, so none of these is touched.
        keep += USUAL
    cleaning = Cleaning(
        log_folders_of(records),
        tuple(keep),
        jobs,
        keep_last,
        force=force,
        running=tuple(job.job_id for job in running.jobs),
    )
    return cleaning, _on(access, access.targets, replace(cleaning, dry_run=True))


def log_folders_of(records: Sequence[JobRecord]) -> tuple[tuple[str, str], ...]:
    """Return the usual log folders and those of these jobs, each with the name of its log."""
    found = [(folder, LOG_NAME) for folder in USUAL]
    found += [(job.log_dir, job.log_name) for job in records if job.log_dir]
    return tuple(dict.fromkeys(found))


def clean_logs(access: Access, cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    """Remove the files on each node. Raise JobRunning if a job has started since `find_logs`,
    unless `cleaning.force`."""
    # Clean the head node first. It alone has the records of jobs, and refuses while one runs; then
    # nothing is removed on the other nodes.
    head = _on(access, [access.head], cleaning)
    for node in head.values:
        if node.busy:
            raise job_running(access.cluster.name, node.busy, BECAUSE)
    others = [target for target in access.targets if target != access.head]
    return FanoutResult((*head.outcomes, *_on(access, others, cleaning).outcomes))


def _on(access: Access, targets: Sequence[Target], cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    result = access.connections.run_all(
        targets, CLEAN.command(), stdin=CLEAN.stdin(vars(cleaning)), timeout_s=TIMEOUT_S
    )
    return parse_outputs(result, parse_logs)


def parse_logs(result: CommandResult) -> NodeLogs:
    """Parse the output of `node/jobs/clean.py`. Raise CommandFailed if the program failed."""
    answer = json_line(result, "removing the logs")
    folders = tuple(
        LogFolder(one["path"], one["bytes"], one["checkpoints"], one["others"])
        for one in answer.get("folders", ())
    )
    failed, links = (tuple(answer.get(name, ())) for name in ("failed", "links"))
    return NodeLogs(result.host, folders, failed, links, answer.get("busy", ""))
