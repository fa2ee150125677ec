"""Following a job on the screen: its log, how it ended, and how to come back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.cli import output
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.domain.errors import HostError
    from clusterctl.jobs.detached import JobRecord
    from clusterctl.operations.access import Access

INTERRUPTED = 130


def follow_to_end(access: Access, job_id: str, preset: str, as_json: bool = False) -> int:
    """Show the log until the job ends: its exit status, or 130 after Ctrl-C.

    On GPUs of several nodes it also says which way NCCL takes between them.
    """
    from clusterctl.jobs.nccl import TransportWatch
    from clusterctl.jobs.trainer import EFA
    from clusterctl.operations.logs import follow

    watch = TransportWatch(preset == EFA.name, lambda finding: output.findings([finding]))

    def show(chunk: bytes) -> None:
        output.raw(chunk, "stderr" if as_json else "stdout")
        watch.take(chunk)

    def lost(why: HostError, delay_s: float) -> None:
        output.note(f"{why.host}: {why.message}. Trying again in {format_duration(delay_s)}")

    try:
        job = follow(access, job_id, show, lost)
    except KeyboardInterrupt:
        output.note(f"\nno longer following; that does not end job {job_id}")
        how_to_come_back(access.cluster.name)
        return INTERRUPTED
    if as_json:
        output.data(job.as_data())
    output.note(how_it_ended(job))
    return exit_status(job)


def how_to_come_back(name: str, job_id: str = "") -> None:
    """`job_id`: where other jobs may run beside it."""
    job = f" --job {job_id}" if job_id else ""
    output.note(f"  follow it: clusterctl logs {name} -f{job}")
    output.note(f"  end it:    clusterctl cancel {name}{job}")


def how_it_ended(job: JobRecord) -> str:
    """`job … succeeded after 42 s`."""
    # What a cancelled mpirun ends with says nothing: 1 or 143.
    failed = job.exit_status and job.state.value == "failed"
    status = f" with exit status {job.exit_status}" if failed else ""
    lost = (
        " (its process is gone: was the head node rebooted?)" if job.state.value == "lost" else ""
    )
    return (
        f"job {job.job_id} {job.state.value}{status} after {format_duration(job.duration_s)}{lost}"
    )


def exit_status(job: JobRecord) -> int:
    """The job's own; 1 for one that nobody saw the end of."""
    return 1 if job.exit_status is None else job.exit_status
