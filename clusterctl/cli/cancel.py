"""`clusterctl cancel NAME`: end a job on all nodes."""

from __future__ import annotations

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.joblog import how_it_ended
from clusterctl.cli.kill import how_they_ended
from clusterctl.cli.params import JobId
from clusterctl.cli.process_table import saying_what_is_left, show_left, show_processes
from clusterctl.domain.ranges import fold_hosts


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--job", "job_id", type=JobId(), metavar="ID", help="This job, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="The jobs and processes ended, as JSON.")
@account_options
def cancel(app: AppContext, name: str, job_id: str | None, as_json: bool) -> int:
    """End what runs on cluster NAME: jobs, an mpirun started by hand, what either left anywhere.

    \b
    clusterctl cancel demo
    clusterctl cancel demo --job 20261120-154501-3f2a

    mpirun is asked first. What is left then on any node is ended as by `clusterctl kill`, with its
    second look that has to find nothing. Nothing running is success; a node that does not answer
    is not (exit status 255).
    """
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.cancel import cancel as cancel_job

    job_id = check_job_id(job_id) if job_id else None
    with app.open(name) as access, saying_what_is_left(name):
        cancelled = cancel_job(access, job_id)
    others = cancelled.others
    if as_json:
        jobs = [job.as_data() for _, job in cancelled.jobs]
        processes = [process.as_data() for process in others.ended]
        failures = [hostlines.failure_data(failure) for failure in others.failures]
        output.data({"jobs": jobs, "processes": processes, "failures": failures})
    else:
        for before, job in cancelled.jobs:
            output.line(how_it_ended(job) + ("" if before.running else " already"))
        if others.found:
            show_processes(others.found)
            output.line(how_they_ended(others))
        elif others.answered:
            # Nothing is known of a node that does not answer.
            where = f" on {fold_hosts(others.answered)}" if others.failures else ""
            output.line(f"nothing {'of it is left' if cancelled.jobs else 'is running'}{where}")
    show_left(others.left)
    hostlines.show_failures(others.failures)
    return others.exit_status
