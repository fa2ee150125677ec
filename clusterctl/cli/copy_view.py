"""A copy on the screen: drawn in place on a terminal, else lines; or events for programs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from clusterctl.cli import copy_events, copy_gaps, copy_report, copy_rows, output
from clusterctl.copy.report import CopyProgress, TransferReport
from clusterctl.domain.errors import ClusterctlError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

    from clusterctl.cli.copy_options import CopyOptions

# Seconds between two lines in total, and between two events of progress.
LINE_S = 5.0
EVENT_S = 1.0
# Columns of a terminal.
BAR_FITS = 100


class Shown:
    """What is shown of one copy. `watch` may be called from any thread."""

    def __init__(self, options: CopyOptions) -> None:
        self.report: TransferReport | None = None
        self._options = options
        self._lock = threading.Lock()
        self._last: CopyProgress | None = None
        self._plan_shown = False

    def watch(self, progress: CopyProgress) -> None:
        """Show how far it is."""
        with self._lock:
            if progress.plan and not copy_rows.are_comparing(progress):
                self._show_plan(progress.plan)
            self._show(self._last, progress)
            self._last = progress

    def finish(self) -> int:
        """Show the report; the exit status that it comes to."""
        assert self.report
        if not self._options.as_json:
            self._show_plan(self.report.plan)
        self._show_report(self.report)
        return copy_report.copy_status(self.report)

    def refused(self, error: ClusterctlError) -> None:
        """Nothing was done. Others say why to people."""

    @property
    def has_begun(self) -> bool:
        return self._last is not None

    def drawn(self) -> AbstractContextManager[Any]:
        """While this is open, what is drawn in place is drawn."""
        return nullcontext()

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        """Nothing (-q)."""

    def _show_plan(self, plan: dict[str, Any]) -> None:
        if self._options.show_plan and plan and not self._plan_shown:
            self._plan_shown = True
            for text in copy_gaps.plan_lines(plan):
                output.line(text)

    def _show_report(self, report: TransferReport) -> None:
        if not self._options.quiet:
            _show_result(report)
        if self._options.show_plan and not report.dry_run:
            output.line(copy_gaps.measured_line(report))
        for text in (*copy_report.warning_lines(report), *copy_report.failure_lines(report)):
            output.note(text)


class Lines(Shown):
    """A line for each stage that lasts and for what goes wrong, and one in total at times."""

    _next_s = LINE_S

    def __init__(self, options: CopyOptions) -> None:
        super().__init__(options)
        self._stages = copy_rows.Stages()

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        for text in (*self._stages.lines(now), *copy_rows.troubles(before, now)):
            output.note(text)
        if now.elapsed_s >= self._next_s:
            self._next_s = now.elapsed_s + LINE_S
            output.note(copy_rows.total_line(now))


class InPlace(Shown):
    """A line per node and one in total, drawn again and again; what goes wrong stays above."""

    def drawn(self) -> AbstractContextManager[Any]:
        live: AbstractContextManager[Any] = output.live(self)
        return live

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        for text in copy_rows.troubles(before, now):
            output.note(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        progress = self._last
        if progress is None:
            return
        shown = [
            place
            for place, name in enumerate(copy_rows.COLUMNS)
            if name != "bar" or options.max_width >= BAR_FITS
        ]
        view = Table.grid(padding=(0, 2))
        for place in shown:
            # Where it is narrow the last column, the remark, becomes shorter, and no other.
            view.add_column(no_wrap=place != shown[-1])
        # Text, not str: names may look like rich's markup.
        for row in copy_rows.rows(progress):
            view.add_row(*(Text(row[place], no_wrap=True, overflow="ellipsis") for place in shown))
        yield view
        line = copy_rows.total_line(progress, options.max_width)
        yield Text(line, no_wrap=True, overflow="ellipsis")


class Events(Shown):
    """JSON, one object a line, on the standard output."""

    _next_s = 0.0

    def _show(self, before: CopyProgress | None, now: CopyProgress) -> None:
        if self._options.quiet:
            return
        for event in copy_events.node_events(before, now):
            output.event(event)
        if now.elapsed_s >= self._next_s:
            self._next_s = now.elapsed_s + EVENT_S
            output.event(copy_events.progress_event(now))

    def _show_plan(self, plan: dict[str, Any]) -> None:
        """It is in the report."""

    def refused(self, error: ClusterctlError) -> None:
        report = TransferReport(None, (), 0.0, dry_run=self._options.dry_run, error=error)
        output.event(copy_events.report_event(report, error.exit_status))

    def _show_report(self, report: TransferReport) -> None:
        output.event(copy_events.report_event(report, copy_report.copy_status(report)))


@contextmanager
def showing(options: CopyOptions) -> Iterator[Shown]:
    """What shows a copy for as long as it takes."""
    shown = _kind(options)(options)
    try:
        with shown.drawn():
            yield shown
    except KeyboardInterrupt:
        if shown.has_begun and not options.dry_run:
            output.note("what has arrived is kept: running it again goes on from there")
        raise
    except ClusterctlError as error:
        shown.refused(error)
        raise


def _kind(options: CopyOptions) -> type[Shown]:
    if options.as_json:
        return Events
    if options.quiet:
        return Shown
    return InPlace if output.is_live() else Lines


def _show_result(report: TransferReport) -> None:
    """The table or line of what was done, or would be."""
    if report.dry_run:
        rows, texts = copy_gaps.gap_table(report), copy_gaps.gap_lines(report)
    else:
        rows = copy_report.node_table(report)
        texts = [
            copy_report.node_line(report),
            copy_report.summary(report),
            copy_report.verified_line(report),
        ]
    if rows:
        output.table(rows[0], rows[1:])
    for text in filter(None, texts):
        output.line(text)
    for text in copy_report.move_lines(report):
        output.note(text)
