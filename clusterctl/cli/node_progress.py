"""How far nodes are: a table redrawn in place on a terminal, otherwise a line per change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from clusterctl.cli import output
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.units import format_duration
from clusterctl.operations.launcher import LineProgress, Stage, StepProgress

# Nodes that get a row each; more are grouped by stage, with folded names, to fit on a screen.
ROWS = 20


def printed_progress() -> StepProgress:
    """Return what prints one line per step, and per node and stage."""
    return LineProgress(output.note, lambda finding: output.findings([finding]))


class TableProgress(StepProgress):
    """A table of nodes that is redrawn in place. Steps and findings stay as lines above it.

    Drawing begins with the first nodes: before that a question may be open on the terminal.
    """

    def __init__(self, drawing: ExitStack) -> None:
        self._drawing = drawing
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[Stage, str, float]] = {}

    def step(self, text: str) -> None:
        output.note(text)

    def finding(self, finding: Finding) -> None:
        output.findings([finding])

    def nodes(self, names: Sequence[str]) -> None:
        with self._lock:
            begins, self._shown = (
                not self._shown,
                dict.fromkeys(names, (Stage.PENDING, "", time.monotonic())),
            )
        if begins:
            # What a node has failed with may be long.
            self._drawing.enter_context(output.live(self._rows, wraps=1))

    def node(self, name: str, stage: Stage, detail: str = "") -> None:
        with self._lock:
            self._shown[name] = (stage, detail, time.monotonic())

    def _rows(self, width: int) -> Iterator[tuple[str, str, str]]:
        with self._lock:
            shown = dict(self._shown)
        if len(shown) <= ROWS:
            for name, (stage, detail, since) in shown.items():
                is_stable = stage in (Stage.READY, Stage.FAILED)
                after = "" if is_stable else format_duration(time.monotonic() - since)
                yield name, detail or stage.value, after
            return
        by_stage = grouped((stage, name) for name, (stage, _, _) in shown.items())
        for stage in Stage:
            if stage in by_stage:
                names = by_stage[stage]
                yield fold_hosts(names), stage.value, f"{len(names)} of {len(shown)}"


@contextmanager
def node_progress() -> Iterator[StepProgress]:
    """Yield the progress display; it is drawn until the block ends."""
    if not output.is_live():
        yield printed_progress()
        return
    with ExitStack() as drawing:
        yield TableProgress(drawing)
