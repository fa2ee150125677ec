"""`clusterctl cancel NAME`: end a job on all nodes."""

from __future__ import annotations

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.joblog import how_it_ended
from clusterctl.cli.params import JobId
from clusterctl.cli.process_table import show_left
from clusterctl.cli.wiring import ClusterCommand, Wiring, account_options
from clusterctl.domain.units import count


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--job", "job_id", type=JobId(), metavar="ID", help="This job, not what runs now.")
@click.option("--json", "as_json", is_flag=True, help="What was ended as JSON.")
@account_options
def cancel(wiring: Wiring, name: str, job_id: str | None, as_json: bool) -> int:
    """End what runs on cluster NAME: mpirun first, then what it left on any node.

    \b
    clusterctl cancel demo
    clusterctl cancel demo --job 20261120-154501-3f2a

    Nothing running is success. `clusterctl kill` also ends what no job knows of.
    """
    from clusterctl.jobs.ids import check_job_id
    from clusterctl.operations.cancel import cancel as cancel_job

    job_id = check_job_id(job_id) if job_id else None
    with wiring.open(name) as access:
        cancelled = cancel_job(access, job_id)
    if as_json:
        output.data([each.job.as_data() for each in cancelled])
    elif not cancelled:
        output.line("nothing is running")
    for each in cancelled:
        if not as_json:
            output.line(
                how_it_ended(each.job) if each.was_running else f"{how_it_ended(each.job)} already"
            )
        if each.leftovers.ended:
            ended = count(len(each.leftovers.ended), "process")
            output.note(f"ended {ended} that mpirun had left")
        show_left(each.leftovers.left)
        hostlines.show_failures(each.leftovers.failures)
    return max((each.leftovers.exit_status for each in cancelled), default=0)
