"""`clusterctl tuning NAME [JOB]`: results of Horovod's timeline and autotuner, and traced steps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.params import LocalPath, job_argument, json_option
from clusterctl.domain.findings import Finding
from clusterctl.domain.units import count, format_bytes

if TYPE_CHECKING:
    from clusterctl.jobs.horovod import Timeline, Tuned
    from clusterctl.node.jobs.spec import JobRecord
    from clusterctl.operations.access import Access
    from clusterctl.operations.tuning import Tuning

# Phases of Horovod's timeline.
MEANING = {
    "negotiate": "some ranks have a gradient, others do not yet",
    "wait for data": "the GPU still computes it",
    "queue": "all ranks have it, and it waits for its turn",
    "copy": "into and out of the fusion buffer",
    "allreduce": "on the network, or between the GPUs of a node",
    "none of these": "nothing to send: computing, reading data",
}


@cluster_command()
@job_argument
@click.option(
    "--output",
    "folder",
    type=LocalPath(file_okay=False, writable=True),
    default=".",
    metavar="DIR",
    help="Copy the files here, not to the current folder.",
)
@json_option("TuningData")
def tuning(app: AppContext, name: str, job_id: str | None, folder: Path, as_json: bool) -> int:
    """Show where the time of a job's gradients went, and what Horovod's autotuner found.

    \b
    clusterctl tuning demo
    clusterctl tuning demo 20261120-154501-3f2a --json

    The job has to have been started with `train --timeline`, --autotune or --trace-steps; without
    JOB it is the latest. The files that it wrote are downloaded.
    """
    from clusterctl.operations.logs import find

    with app.open(name) as access:
        return show_tuning(access, find(access, job_id, training=True), folder, as_json)


def show_tuning(access: Access, job: JobRecord, folder: Path, as_json: bool = False) -> int:
    """Download the files that the job wrote into `folder`, and print what they show.

    Return the exit status: 1 if one of them cannot be read.
    """
    from clusterctl.operations.tuning import fetch_tuning

    found = fetch_tuning(access, job, folder)
    lost = _lost(found)
    files = (found.timeline_file, found.autotune_file, found.steps_file)
    if as_json:
        output.data(
            {
                "job_id": job.job_id,
                "files": [str(one) for one in files if one],
                "timeline": found.timeline,
                "autotune": found.tuned,
                "findings": lost,
            }
        )
        return int(bool(found.unread))
    if found.timeline:
        _timeline(found.timeline)
    if found.timeline_file:
        output.note(f"the trace is in {found.timeline_file}: open it in https://ui.perfetto.dev")
    autotune_unread = any(one.check == "tuning.autotune" for one in found.unread)
    if found.autotune_file:
        if not autotune_unread:
            _autotune(found.tuned)
        output.note(f"the autotuner's log is in {found.autotune_file}")
    if found.steps_file:
        output.note(f"the steps are in {found.steps_file}: open it in https://ui.perfetto.dev")
    output.findings(lost)
    return int(bool(found.unread))


def _lost(found: Tuning) -> list[Finding]:
    """Return a warning for each file of which a part could not be read, and the errors."""
    lost, timeline, tuned = [*found.unread], found.timeline, found.tuned
    if timeline and timeline.unread:
        text = (
            f"{count(timeline.unread, 'place')} in the timeline cannot be read, or "
            f"{'lacks' if timeline.unread == 1 else 'lack'} records that go with others, the first "
            f"at character {timeline.unread_at:,}: the times above lack them"
        )
        lost.append(Finding.warning("tuning.timeline", text))
    if tuned and tuned.unread:
        are = "is no sample" if tuned.unread == 1 else "are no samples"
        text = f"{count(tuned.unread, 'line')} of the autotuner's log {are}, and left out"
        lost.append(Finding.warning("tuning.autotune", text))
    return lost


def _timeline(timeline: Timeline) -> None:
    rows = [
        (phase, _ms(spent), f"{100 * spent / (timeline.span_s or 1):.0f} %", MEANING[phase])
        for phase, spent in timeline.phases.items()
    ]
    output.table(("PHASE", "TIME", "SHARE", "AT LEAST ONE TENSOR"), rows)
    output.line("")
    phases = ("negotiate", "queue", "copy", "allreduce")
    output.table(
        ("TENSORS OF", "NUMBER", "SIZE", *(f"{phase.upper()} EACH" for phase in phases)),
        [
            (
                f"less than {format_bytes(row.below)}" if row.below else "more",
                row.tensors,
                format_bytes(row.size_bytes),
                *(_ms(row.seconds.get(phase, 0) / row.tensors) for phase in phases),
            )
            for row in timeline.sizes
        ],
    )
    rank, waited_s = next(iter(timeline.waited_for.items()), ("", 0.0))
    if waited_s:  # a single rank keeps no others waiting
        output.line(
            f"\nrank {rank} kept all others waiting the longest: {_ms(waited_s)}, added up "
            "over tensors that wait at the same time"
        )


def _autotune(tuned: Tuned | None) -> None:
    if tuned is None:
        output.line("the autotuner had no time for a sample: let the job make some hundred steps")
        return
    tried = f"the best of {count(tuned.tried, 'sample')}, {tuned.score * 1e6 / 2**20:.1f} MiB/s"
    options = shlex.join(tuned.options)
    if tuned.finished:
        output.line(f"autotune: {tried}\nfor the next run: {options}")
    else:
        output.line(f"autotune: {tried}; the job ended before it had tried all")
        output.line(f"not final: let a job make more steps; the best so far: {options}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"
