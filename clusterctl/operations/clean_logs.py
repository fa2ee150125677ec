"""Remove the files that training runs wrote: the trainer's log folders and the folders of ended
jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.domain.errors import HostError
from clusterctl.domain.results import FanoutResult
from clusterctl.jobs.plan import EXAMPLES_FOLDER
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER
from clusterctl.node.jobs.clean import Cleaning, NodeLogs, clean
from clusterctl.node.jobs.spec import LOG_NAME, JobRecord
from clusterctl.node.record import to_json
from clusterctl.operations.access import Access
from clusterctl.operations.logs import job_running, jobs_of, refuse_while_running, running_work
from clusterctl.operations.results import LOG_FOLDER
from clusterctl.transport.call import call_all
from clusterctl.transport.target import Target

TIMEOUT_S = 600.0
BECAUSE = "logs are being written"
# The log folders of runs that were started by hand: in the home folder, as in the tutorial, and
# next to the shipped scripts, for real and for synthetic data.
USUAL = (
    f"~/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{SYNTHETIC_LOG_FOLDER}",
)


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
    keep = [job.spec.log_dir for job in running.jobs if job.spec.log_dir]
    by_hand = any(process.job_id is None for process in running.launchers)
    if by_hand or any(not job.spec.log_dir for job in running.jobs):
        # The log folder of a user's own program or of train.sh is not known. It is likely to be
        # one of the usual ones, so none of these is touched.
        keep += USUAL
    folders = [(folder, LOG_NAME) for folder in USUAL]
    folders += [(job.spec.log_dir, job.spec.log_name) for job in records if job.spec.log_dir]
    # A running job may read an earlier one's folder: a model that is served from it, a checkpoint.
    used = "".join(to_json(job.spec) for job in running.jobs)
    cleaning = Cleaning(
        tuple(dict.fromkeys(folders)),
        tuple(keep),
        jobs,
        keep_last,
        force=force,
        running=tuple(one.job_id for one in (*running.jobs, *records) if one.job_id in used),
        recorded=tuple(job.job_id for job in records),
    )
    return cleaning, _on(access, access.targets, replace(cleaning, dry_run=True))


def clean_logs(access: Access, cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    """Remove the files on each node. Raise JobRunning if a job has started since `find_logs`,
    unless `cleaning.force`."""
    # Clean the head node first. Only it has the records of jobs, and refuses while one runs; then
    # nothing is removed on the other nodes; nor if it is silent by now.
    head = _on(access, [access.head], cleaning)
    if head.failures and not cleaning.force:
        return head
    for node in head.values:
        if node.busy:
            raise job_running(access.cluster.name, node.busy, BECAUSE)
    others = [target for target in access.targets if target != access.head]
    return FanoutResult((*head.outcomes, *_on(access, others, cleaning).outcomes))


def _on(access: Access, targets: Sequence[Target], cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    return call_all(
        access.connections,
        targets,
        clean,
        cleaning,
        doing="removing the logs",
        timeout_s=TIMEOUT_S,
    )
