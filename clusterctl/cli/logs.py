"""`clusterctl logs NAME`: what the jobs of a cluster wrote, and which there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.joblog import follow_to_end
from clusterctl.cli.params import JobId
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.jobs.detached import JobRecord


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--job", "job_id", type=JobId(), metavar="ID", help="This job, not the latest.")
@click.option("--list", "as_list", is_flag=True, help="List the jobs, oldest first.")
@click.option("--json", "as_json", is_flag=True, help="The jobs as JSON, with --list.")
@account_options
def logs(
    app: AppContext, name: str, follow: bool, job_id: str | None, as_list: bool, as_json: bool
) -> int:
    """Show the log of the latest job of cluster NAME.

    \b
    clusterctl logs demo -f
    clusterctl logs demo --list
    clusterctl logs demo --job 20261120-154501-3f2a

    With -f the exit status is the job's.
    """
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.logs import find, jobs_of, read_log

    job_id = check_job_id(job_id) if job_id else None
    with app.open(name) as access:
        if as_list or as_json:
            jobs = jobs_of(access)
            _show(jobs, as_json)
            return 0
        job = find(access, job_id)
        if follow:
            return follow_to_end(access, job.job_id, job.preset)
        read_log(access, job.job_id, output.raw)
        return 0


def _show(jobs: list[JobRecord], as_json: bool) -> None:
    if as_json:
        output.data([job.as_data() for job in jobs])
    elif jobs:
        output.table(
            ("JOB", "STATE", "EXIT", "GPUS", "PRESET", "STARTED (UTC)", "DURATION"),
            [
                (
                    job.job_id,
                    job.state.value,
                    "-" if job.exit_status is None else job.exit_status,
                    job.ranks,
                    job.preset,
                    f"{job.started_at:%Y-%m-%d %H:%M:%S}",
                    format_duration(job.duration_s),
                )
                for job in jobs
            ],
        )
    else:
        output.note("no jobs")
