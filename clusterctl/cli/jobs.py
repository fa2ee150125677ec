"""`clusterctl jobs`, `logs`, `wait` and `fetch`: the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.following import follow_to_end, lost_output, print_end
from clusterctl.cli.params import JobId, job_argument, json_option, yes_option
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration

if TYPE_CHECKING:
    from clusterctl.node.jobs.spec import JobRecord
    from clusterctl.operations.fetch import Fetched

ASK_FROM_BYTES = 10_000_000_000


@cluster_command()
@json_option("Jobs")
def jobs(app: AppContext, name: str, as_json: bool) -> int:
    """List the jobs of cluster NAME, oldest first.

    \b
    clusterctl jobs demo
    clusterctl jobs demo --json

    COST is that of the nodes with ranks, for as long as the job has run. STEP is the trainer's
    last.
    """
    from clusterctl.operations.logs import jobs_of, with_reasons

    with app.open(name) as access:
        found = [with_reasons(access, job) for job in jobs_of(access)]
    if as_json:
        output.data([job.report() for job in found])
        return 0
    if not found:
        output.note("no jobs")
        return 0
    output.table(
        ("JOB", "STATE", "EXIT", "GPUS", "STARTED (UTC)", "LASTED", "COST", "STEP"),
        [
            (
                job.job_id,
                job.state.value,
                "-" if job.exit_status is None else job.exit_status,
                job.ranks,
                f"{job.started_at:%Y-%m-%d %H:%M:%S}" if job.status.started_at else "-",
                format_duration(job.duration_s) if job.status.started_at else "-",
                "-" if job.usd is None else f"${job.usd:.2f}",
                "-" if job.row.step is None else job.row.step,
            )
            for job in found
        ],
    )
    for job in found:
        for text in job_remarks(job):
            output.note(f"job {job.job_id}{text}")
    return 0


def job_remarks(job: JobRecord) -> list[str]:
    """Return what a job's row has no room for: watchdog, place in the queue, lost attempts."""
    from clusterctl.node.jobs.spec import JobState
    from clusterctl.operations.logs import lost_in

    remarks = [f", its watchdog at {text}" for text in job.status.messages]
    if job.problem:
        remarks.append(f": what was requested is not known: {job.problem}")
    if queue := job.status.waits_for:
        remarks.append(f" begins after {queue[-1]}: {count(len(queue), 'job')} before it")
    if job.state is JobState.LOST and not job.problem:
        remarks.append(f" was lost: {job.why_lost}")
    remarks += [lost_output(job)] if lost_output(job) else []
    for number, attempt in enumerate(job.status.attempts, 1):
        lost = lost_in(attempt)
        remarks += [f", attempt {number} lost {lost}"] if lost else []
        remarks += [f", attempt {number}: {attempt['message']}"] if attempt.get("message") else []
    return remarks


@cluster_command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="What that rank wrote.")
def logs(app: AppContext, name: str, job_id: str | None, follow: bool, rank: int | None) -> int:
    """Show the log of JOB of cluster NAME, or of the latest that has started.

    \b
    clusterctl logs demo -f
    clusterctl logs demo 20261120-154501-3f2a
    clusterctl logs demo -f --rank 3

    With -f the exit status is the job's. Ctrl-C ends the following, not the job.
    """
    from clusterctl.operations.logs import check_rank, find, read_log

    with app.open(name) as access:
        job = find(access, job_id)
        if rank is not None:
            check_rank(job, rank)
        if follow:
            return follow_to_end(access, job.job_id, job.spec.preset, rank=rank, last_read=job)
        read_log(access, job, output.raw, rank)
        if lost_output(job):
            output.note(f"job {job.job_id}{lost_output(job)}")
        return 0


@cluster_command()
@job_argument
@json_option("JobReport")
def wait(app: AppContext, name: str, job_id: str | None, as_json: bool) -> int:
    """Wait until JOB of cluster NAME, or the latest, has ended; the exit status is the job's.

    \b
    clusterctl wait demo
    clusterctl wait demo 20261120-154501-3f2a --json

    A lost connection is made again, as by `logs -f`. A job whose end is not known has status 1.
    """
    from clusterctl.operations.logs import find, wait_for

    with app.open(name) as access:
        job = find(access, job_id, latest=True)
        return print_end(access, wait_for(access, job), as_json)


@cluster_command()
@click.argument("words", nargs=-1, type=JobId(loose=True), metavar="[JOB] [DIR]")
@click.option("--verify", is_flag=True, help="Read all files again at the end, and compare them.")
@yes_option
def fetch(app: AppContext, name: str, words: tuple[str, ...], verify: bool, yes: bool) -> int:
    """Download JOB of cluster NAME, or the latest, into the folder DIR here, or one of its name.

    \b
    clusterctl fetch demo
    clusterctl fetch demo runs/first
    clusterctl fetch demo 20261120-154501-3f2a runs/first

    Its checkpoints, its model, and what it wrote into its working folder or the folder of `train
    --output`; files of other nodes come into DIR/NODE. Also record.json, its log and those of its
    ranks (log-0), the trainer's metrics.jsonl, traced steps, and what a watchdog saw
    (diagnosis.gz). It may be done again, while the job runs, too: only what is missing or has
    changed is copied. More than 10 GB need a confirmation.
    """
    from clusterctl.cli.copy.options import CopyOptions
    from clusterctl.cli.copy.view import showing
    from clusterctl.operations import fetch as fetching
    from clusterctl.operations.logs import find

    job_id, place = job_and_folder(words)

    def confirm_size(size: int) -> None:
        if size > ASK_FROM_BYTES:
            output.confirm(f"Fetch {format_bytes(size)}?", yes)

    with app.open(name) as access:
        job = find(access, job_id)
        place = place or Path(job.job_id)
        with showing(CopyOptions()) as shown:
            scope = fetching.Scope.VERIFIED if verify else fetching.Scope.ALL
            fetched = fetching.fetch(access, job.job_id, place, shown.watch, confirm_size, scope)
    _show_fetched(fetched, job, place, name, verify)
    return 0


def _show_fetched(fetched: Fetched, job: JobRecord, place: Path, name: str, verified: bool) -> None:
    """Print where a job's files are now, and what of them did not come, or may be lost."""
    from clusterctl.operations.fetch import FETCH

    names = output.one_line(fold_hosts(fetched.names))
    written = f"{count(fetched.files, 'file')}, {format_bytes(fetched.size_bytes)}"
    named = job.spec.output  # comes whole, whoever wrote into it
    by = f": what it wrote, and all of {named}" if named else " that it wrote"
    of_it = f" ({written}{by})" if fetched.files else ""
    same = ", and equal to what is on the nodes" if verified else ""
    output.line(f"job {job.job_id} is in {place}{of_it}{same}: {names}")
    spec = job.spec
    if spec.is_training and not (fetched.files or fetched.taken or named or spec.log_dir):
        output.note(
            "nothing was in its working folder; what it wrote elsewhere is not known: "
            "name the folder with train --output"
        )
    if fetched.empty:
        output.note(f"warning: nothing is in {fetched.empty}, the job's folder for its output")
    if fetched.lost:
        output.note(
            f"warning: ranks may have run on machines of {fold_hosts(fetched.lost)} that the "
            "cluster no longer has: what they wrote there and was not fetched before is lost"
        )
    for path, other in fetched.taken.items():
        output.note(
            f"warning: nothing of {path} came: job {other} has written there since; "
            f"{FETCH.format(name, other)}"
        )
    if fetched.unrecorded:
        output.note(
            f"warning: the head node could not record this: {fetched.unrecorded}; `down` names "
            "these files as not fetched"
        )
    if fetched.gone:
        gone = output.one_line(" ".join(fetched.gone))
        output.note(f"here, but no longer this job's on the nodes: {gone}")


def job_and_folder(words: Sequence[str]) -> tuple[str | None, Path | None]:
    """Return the job id and the folder among the words, in any order. Raises UsageError."""
    from clusterctl.jobs.plan import BEGINS_AS_ID, JOB_ID

    if any(not word.strip() for word in words):
        raise UsageError("a word is empty", "is a variable of your shell unset?")
    ids = [word for word in words if JOB_ID.fullmatch(word)]
    folders = [word for word in words if not JOB_ID.fullmatch(word)]
    for word in filter(BEGINS_AS_ID.match, folders):
        raise UsageError(f"not the id of a job: {word}", f"if it is a folder: ./{word}")
    if len(ids) > 1 or len(folders) > 1:
        raise UsageError(
            f"one job and one folder, not {' '.join(words)}", "clusterctl fetch NAME JOB DIR"
        )
    return (ids[0] if ids else None), (Path(folders[0]) if folders else None)
