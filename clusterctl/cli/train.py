"""`clusterctl train NAME GPUS`: a Horovod job on a cluster, detached and followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.joblog import follow_to_end, how_to_come_back
from clusterctl.cli.wiring import Wiring, account_options

if TYPE_CHECKING:
    from clusterctl.jobs.plan import JobPlan
    from clusterctl.operations.train import StartedJob


@click.command()
@click.argument("name")
@click.argument("gpus", type=int)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--synthetic", is_flag=True, help="Train on random images: no data set needed.")
@click.option(
    "--script", metavar="PATH", help="Run this Python program of the nodes, not the trainer."
)
@click.option(
    "--preset",
    type=click.Choice(["auto", "gpu", "cpu"]),
    default="auto",
    show_default=True,
    help="Settings for GPUs or CPUs; auto: by the NVIDIA driver.",
)
@click.option("-d", "--detach", is_flag=True, help="Return once the job runs.")
@click.option("--dry-run", is_flag=True, help="Show the mpirun line, and start nothing.")
@click.option("--force", is_flag=True, help="Start it even while another job runs.")
@click.option("--json", "as_json", is_flag=True, help="The job as JSON; its log goes to stderr.")
@account_options
def train(
    wiring: Wiring,
    name: str,
    gpus: int,
    arguments: tuple[str, ...],
    synthetic: bool,
    script: str | None,
    preset: str,
    detach: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Train on GPUS of the GPUs of cluster NAME; the head node's are used first.

    \b
    clusterctl train demo 32 --synthetic
    clusterctl train demo 32 --detach
    clusterctl train demo 8 --synthetic -- --batch_size 128 --num_batches 200

    What follows -- goes to the trainer. The job runs detached on the head node: Ctrl-C or a lost
    connection ends the following, not the job. The exit status is the job's.
    """
    from clusterctl.jobs.plan import JobRequest
    from clusterctl.operations.train import plan_training, start_training

    request = JobRequest(gpus, synthetic, preset, script, arguments)
    with wiring.open(name) as access:
        plan = plan_training(access, request)
        if dry_run:
            _show_plan(plan.job, as_json)
            return 0
        output.note(plan.job.line)
        started = start_training(access, plan, force)
        _show_started(started)
        if not detach:
            return follow_to_end(access, started.job.job_id, as_json)
        if as_json:
            output.data({"id": started.job.job_id, "line": started.job.line})
        how_to_come_back(name)
        return 0


def _show_plan(job: JobPlan, as_json: bool) -> None:
    if as_json:
        plan = {"line": job.line, "workdir": job.workdir, "preset": job.preset, "gpus": job.ranks}
        output.data(plan)
    else:
        output.line(job.line)


def _show_started(started: StartedJob) -> None:
    for file, hosts in started.kept:
        output.note(f"note: ~/{file} was changed on {hosts} and stays as it is there")
    output.note(f"job {started.job.job_id} runs on the head node ({started.runs_in})")
