"""Remove what training runs wrote: the trainer's log folders, and ended jobs' logs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.domain.errors import HostError
from clusterctl.domain.results import CommandResult, FanoutResult, json_lines, read_each
from clusterctl.jobs.detached import JobRecord
from clusterctl.jobs.plan import EXAMPLES_FOLDER
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access
from clusterctl.operations.logs import job_running, jobs_of, refuse_beside_a_run, what_runs
from clusterctl.operations.results import LOG_FOLDER, LOG_NAME
from clusterctl.transport.target import Target

CLEAN = program_of("clusterctl.node.jobs.clean")
TIMEOUT_S = 600.0
BECAUSE = "their logs are being written"
# Of runs that were started by hand; where the tutorial has it, and where its scripts are.
USUAL = (
    f"~/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{SYNTHETIC_LOG_FOLDER}",
)


@dataclass(frozen=True)
class Cleaning:
    """What is to be removed: a training's files in `folders` (path, log's name), but for those in
    `keep`; with `jobs` also the ended jobs' own folders, those that are not in `running`.
    `keep_last`: but for so many checkpoints of each folder, with all else in it, and so many jobs.
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
    """A folder with what a training wrote, or of an ended job. `others` are no training's: they
    stay."""

    path: str
    size_bytes: int
    checkpoints: int = 0
    others: int = 0


@dataclass(frozen=True)
class NodeLogs:
    """What was removed on a node, or would be. `failed` has a sentence for each thing that could
    not be removed, `links` for each link, which is left alone.

    `busy` is a job that runs there: nothing was removed.
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
    """What there is to remove on every node, and how to. Nothing is removed yet.

    Raises JobRunning unless `force` or `dry_run`, HostError of the head node.
    """
    access.connections.ask_again = False
    running = what_runs(access)
    if not (force or dry_run):
        refuse_beside_a_run(access, running, BECAUSE)
    records: list[JobRecord] = []
    with contextlib.suppress(HostError):  # the head node is among the failures then
        records = jobs_of(access)
    keep = [job.log_dir for job in running.jobs if job.log_dir]
    by_hand = any(process.job_id is None for process in running.launchers)
    if by_hand or any(not job.log_dir for job in running.jobs):
        # A program of the user's own, or train.sh: nobody knows where, but the usual is likely.
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
    """The usual log folders and those of these jobs, each with the name of a log there."""
    found = [(folder, LOG_NAME) for folder in USUAL]
    found += [(job.log_dir, job.log_name) for job in records if job.log_dir]
    return tuple(dict.fromkeys(found))


def clean_logs(access: Access, cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    """Clean every node. Raises JobRunning for a job that was started since, unless forced."""
    # First the head node, which knows of it.
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
    return read_each(result, parse_logs)


def parse_logs(result: CommandResult) -> NodeLogs:
    """What `node/jobs/clean.py` printed. Raises CommandFailed."""
    [answer] = json_lines(result, "removing the logs")
    folders = tuple(
        LogFolder(one["path"], one["bytes"], one["checkpoints"], one["others"])
        for one in answer.get("folders", ())
    )
    failed, links = (tuple(answer.get(name, ())) for name in ("failed", "links"))
    return NodeLogs(result.host, folders, failed, links, answer.get("busy", ""))
