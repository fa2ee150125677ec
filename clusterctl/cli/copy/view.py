"""A copy on the screen: redrawn in place on a terminal, otherwise lines; or JSON events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from clusterctl.cli import output
from clusterctl.cli.copy import text
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, TransferReport
from clusterctl.domain.errors import ClusterctlError

if TYPE_CHECKING:
    from clusterctl.cli.app_context import AppContext
    from clusterctl.cli.copy.options import CopyOptions
    from clusterctl.copy.request import CopyRequest
    from clusterctl.domain.findings import Finding
    from clusterctl.operations.access import Access
    from clusterctl.operations.disk import SlowDisk
    from clusterctl.transport.dial import Target

# Seconds between two lines with the total, and between two progress events.
LINE_S = 5.0
EVENT_S = 1.0
# Columns of a terminal from which the bar is drawn.
BAR_FITS = 100


@dataclass(frozen=True)
class NodeEvent(NodeProgress):
    """The state of a node that has changed."""

    event: Literal["node"] = "node"
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class ProgressEvent(CopyProgress):
    """The state of all nodes."""

    event: Literal["progress"] = "progress"
    json_names = ("event", "elapsed_s", "left_s", "slowest_link", "source", "nodes")


class CopyView:
    """Shows one copy; this base class shows no progress (--quiet).

    `watch` may be called from any thread.
    """

    def __init__(self, options: CopyOptions) -> None:
        self.slow_disk: SlowDisk | None = None
        self.findings: list[Finding] = []
        self._options = options
        self._lock = threading.Lock()
        self._last: CopyProgress | None = None
        self._plan_shown = False

    def watch(self, progress: CopyProgress) -> None:
        """Show the copy's progress."""
        with self._lock:
            if progress.plan and not text.are_comparing(progress):
                self._show_plan(progress.plan)
                self._check_disk(max((node.needed_bytes for node in progress.nodes), default=0))
            self._show(self._last, progress)
            self._last = progress

    def finish(self, report: TransferReport) -> int:
        """Show the report, and return its exit status."""
        self._check_disk(max((node.gap.bytes for node in report.nodes if node.gap), default=0))
        if not self._options.as_json:
            self._show_plan(report.plan)
        self._show_report(report)
        return report.exit_status

    def refused(self, error: ClusterctlError) -> None:
        """Handle an error that leaves no report. `main` prints it; only events need more."""

    def _check_disk(self, size: int) -> None:
        """Warn once, before the bytes move, if writing `size` bytes to DST's disk takes long."""
        found = self.slow_disk.finding(size) if self.slow_disk else None
        self.slow_disk = None
        if found:
            self.findings.append(found)
            if not self._options.quiet:
                output.findings(self.findings)

    @property
    def has_started(self) -> bool:
        return self._last is not None

    def drawn(self) -> AbstractContextManager[Any]:
        """Return a context manager; while it is open, the view is drawn."""
        return nullcontext()

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        """Show the change between two states of the copy; nothing with --quiet."""

    def _show_plan(self, plan: dict[str, Any]) -> None:
        if self._options.show_plan and plan and not self._plan_shown:
            self._plan_shown = True
            for line in text.plan_lines(plan):
                output.line(line)

    def _show_report(self, report: TransferReport) -> None:
        if not self._options.quiet:
            _show_result(report)
        if self._options.show_plan and not report.dry_run:
            output.line(text.measured_line(report))
        for line in (*text.warning_lines(report), *text.failure_lines(report)):
            output.note(line)


class Lines(CopyView):
    """Prints a line for each lasting stage, failure and relink, and the total every LINE_S."""

    _next_s = LINE_S

    def __init__(self, options: CopyOptions) -> None:
        super().__init__(options)
        self._stages = text.Stages()

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        for line in (*self._stages.lines(now), *text.failure_and_relink_lines(before, now)):
            output.note(line)
        if now.elapsed_s >= self._next_s:
            self._next_s = now.elapsed_s + LINE_S
            output.note(text.total_line(now))


class InPlace(CopyView):
    """Redraws a row per node and the total; lines on failures and relinks stay above."""

    def drawn(self) -> AbstractContextManager[Any]:
        return output.live(self.rows)

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        for line in text.failure_and_relink_lines(before, now):
            output.note(line)

    def rows(self, width: int) -> Iterator[Sequence[str]]:
        """Yield a row for each node, or stage of many nodes, and the line of the total."""
        progress = self._last
        if progress is None:
            return
        bar = text.COLUMNS.index("bar")
        for row in text.rows(progress):
            yield row if width >= BAR_FITS else (*row[:bar], *row[bar + 1 :])
        yield [text.total_line(progress, width)]


class Events(CopyView):
    """Prints JSON events, one object a line, on standard output."""

    _next_s = 0.0

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        if self._options.quiet:
            return
        for event in node_events(before, now):
            output.event(event)
        if now.elapsed_s >= self._next_s:
            self._next_s = now.elapsed_s + EVENT_S
            output.event(ProgressEvent(**vars(now)))

    def _show_plan(self, plan: dict[str, Any]) -> None:
        """Print nothing: the report event has the plan."""

    def refused(self, error: ClusterctlError) -> None:
        report = TransferReport(None, (), 0.0, dry_run=self._options.dry_run, error=error)
        output.event(report_event(report))

    def _show_report(self, report: TransferReport) -> None:
        output.event(report_event(report, self.findings))


@contextmanager
def showing(options: CopyOptions, goes_on: bool = True) -> Iterator[CopyView]:
    """Yield what shows a copy; it is drawn until the block ends. `goes_on`: the same copy goes on
    later where an interrupt has cut it off."""
    shown = _kind(options)(options)
    try:
        with shown.drawn():
            yield shown
    except KeyboardInterrupt:
        if goes_on and shown.has_started and not options.dry_run:
            output.note("the same command continues this copy")
        raise
    except ClusterctlError as error:
        shown.refused(error)
        raise


def copy_for_job(
    app: AppContext,
    access: Access,
    targets: tuple[Target, ...],
    request: CopyRequest,
    options: CopyOptions,
) -> TransferReport:
    """Copy what a job needs to these nodes, and show the progress."""
    from clusterctl.cli.copy.options import url_access
    from clusterctl.operations.copy import CopyTerms, copy_to_cluster

    urls = url_access(options, request.sources, lambda: app.clients, app.settings.home)
    with showing(options, goes_on=False) as shown:
        return copy_to_cluster(access, targets, request, watch=shown.watch, terms=CopyTerms(urls))


def _kind(options: CopyOptions) -> type[CopyView]:
    if options.as_json:
        return Events
    if options.quiet:
        return CopyView
    return InPlace if output.is_live() else Lines


def _show_result(report: TransferReport) -> None:
    """Print the result, or for a dry run what would be copied."""
    if report.dry_run:
        rows, texts = text.gap_table(report), text.gap_lines(report)
    else:
        rows = text.node_table(report)
        texts = [text.node_line(report), text.summary(report), text.verified_line(report)]
    if rows:
        output.table(rows[0], rows[1:])
    for line in filter(None, texts):
        output.line(line)
    for line in text.move_lines(report):
        output.note(line)


# Events: docs/copy.md has their fields


def node_events(before: CopyProgress | None, now: CopyProgress) -> list[NodeEvent]:
    """Return an event for each node whose stage, upstream or note has changed."""
    known = {node.host: _shown(node) for node in before.nodes} if before else {}
    return [
        NodeEvent(**vars(node), elapsed_s=now.elapsed_s)
        for node in now.nodes
        if known.get(node.host) != _shown(node)
    ]


def report_event(report: TransferReport, findings: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the last event of a copy."""
    return {
        "event": "report",
        "ok": report.ok,
        "exit_status": report.exit_status,
        "dry_run": report.dry_run,
        "duration_s": round(report.duration_s, 3),
        "one_copy_s": None if report.one_copy_s is None else round(report.one_copy_s, 3),
        "limited_by": report.limited_by,
        "source": report.source,
        "nodes": [_node_report(node, report) for node in report.nodes if not node.error],
        "failures": [_node_report(node, report) for node in report.failed],
        "plan": report.plan,
        "missing": list(report.missing),
        "findings": findings,
        **_error(report.error),
    }


def _shown(node: NodeProgress) -> tuple[object, ...]:
    return node.stage, node.upstream, node.note


def _node_report(node: NodeReport, report: TransferReport) -> dict[str, Any]:
    return {
        "host": node.host,
        "ok": not (node.error or node.left_out or node in report.refused),
        "files": node.files,
        "links": node.links,
        "bytes": node.received_bytes,
        "deleted": node.deleted,
        "duration_s": round(node.duration_s, 3),
        "rate": round(node.rate),
        "gap": node.gap,
        "warnings": list(node.warnings),
        "moves": list(node.moves),
        "limits": node.limits,
        "verified": node.host in report.verified,
        **_error(node.error),
    }


def _error(error: ClusterctlError | None) -> dict[str, Any]:
    if error is None:
        return {}
    return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
