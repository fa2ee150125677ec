"""`clusterctl bench NAME --network`: what the network between the nodes carries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.bench.network import NetworkFigures
from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count, format_duration

if TYPE_CHECKING:
    from clusterctl.operations.bench_network import NetworkProgress

# Nodes up to which the matrix of rates is printed; --json has those of more.
MOST_COLUMNS = 16


@dataclass(frozen=True)
class CheckedNetwork(NetworkFigures):
    """What `bench --network` reports; rates in bytes a second."""

    findings: tuple[Finding, ...] = ()
    json_names = (*NetworkFigures.json_names, "findings")


def bench_network(
    app: AppContext,
    name: str,
    *,
    streams: int,
    seconds: float,
    force: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Measure the network between the nodes, and print the figures.

    With `out` the figures are kept in that benchmark's folder, for its scaling model.

    Return 1 if something is wrong, 255 if a node did not answer, else 0.
    """
    from clusterctl.bench.network import findings
    from clusterctl.ec2.machines import find_machine_types
    from clusterctl.operations.bench import write_network
    from clusterctl.operations.bench_network import measure_network

    with app.open(name) as access:
        types = find_machine_types(
            app.ec2, sorted({node.instance_type for node in access.cluster.in_service})
        )
        # Bytes a second of the slowest node's link, as EC2 describes its type; None if unknown.
        link = min((one.link_gbps for one in types.values()), default=0.0) * 1e9 / 8 or None
        view = _Progress()
        with output.live(view.rows):
            report = measure_network(
                access, streams=streams, seconds=seconds, force=force, watch=view.watch
            )
    report = replace(report, link_bytes_s=link)
    found = findings(report, name)
    if out:
        write_network(out, report)
        output.note(f"kept in {out}: the scaling model takes it")
    if as_json:
        output.data(CheckedNetwork(**vars(report), findings=tuple(found)))
    else:
        show(report)
        output.findings(found)
    if report.failures:
        return 255
    return int(any(one.severity is not Severity.INFO for one in found))


class _Progress:
    """The pairs measured and the time left."""

    def __init__(self) -> None:
        self._step: NetworkProgress | None = None
        self._began = self._stepped = time.monotonic()

    def watch(self, step: NetworkProgress) -> None:
        if step.done == 0:
            self._began = time.monotonic()
        self._step, self._stepped = step, time.monotonic()

    def rows(self, width: int) -> Iterator[Sequence[str]]:
        step = self._step
        if step is None or not step.pairs:
            yield [step.doing if step else ""]
            return
        text = f"{step.done} of {count(step.pairs, 'pair')}"
        if step.done:
            left = (self._stepped - self._began) / step.done * (step.pairs - step.done)
            # Count down between two steps as well.
            left -= time.monotonic() - self._stepped
            text += f", about {format_duration(max(0.0, left))} left"
        yield [text]


def show(report: NetworkFigures) -> None:
    """Print the matrix of rates if it fits, the summary of all pairs, and the collectives."""
    from clusterctl.bench.network import NO_MPI, allreduce_lines, matrix, summary

    names = [node.rpartition("-")[2] for node in report.nodes]
    if report.many and len(names) <= MOST_COLUMNS:
        rows = (
            [node, *("-" if value != value else f"{value * 8e-9:.3g}" for value in values)]
            for node, values in zip(report.nodes, matrix(report, report.many))
        )
        output.table([f"Gbit/s, {count(report.streams, 'stream')}, to".upper(), *names], list(rows))
        output.line()
    for text in summary(report):
        output.line(text)
    for table in (*report.allreduce, *report.collectives):
        if table.error and table.program != NO_MPI:
            continue  # it is among the findings
        output.line()
        if table.error:
            output.note(f"{table.program}: {table.error}")
            continue
        by = f"NCCL {table.nccl}, " if table.nccl else ""
        ranks = count(table.ranks, "rank")
        output.line(f"{table.operation} by {table.program}, {by}{ranks}")
        rows_of = allreduce_lines(table)
        shown = any(row[-1] for row in rows_of)
        headers = ("SIZE", "TIME", "BUS BANDWIDTH", f"EXPECTED ({table.expected_by})")
        width = len(headers) if shown else len(headers) - 1
        output.table(headers[:width], [row[:width] for row in rows_of])
    output.note(f"measured in {format_duration(report.duration_s)}")
