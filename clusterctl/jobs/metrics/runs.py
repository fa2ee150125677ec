"""Whole runs from the sections of logs: joins resumed parts, assigns evaluations to their runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import Optional

from clusterctl.jobs.metrics.flops import Utilization, utilization
from clusterctl.jobs.metrics.logs import (
    EPOCH_ROUNDING,
    LAST_STARTUP_STEP,
    EvaluationRow,
    RunFacts,
    Section,
    TrainingRow,
    clean_lines,
    read_sections,
)
from clusterctl.jobs.trainer import IMAGENET_IMAGES


@dataclass(frozen=True)
class Run:
    """One training run. `rows` are in the order of steps; at `resumed_at` steps it was resumed.

    `alike_from` is the step from which on it ran as `facts` say: before it, on other GPUs, another
    number of them, or with another precision. 0 if it never changed. `list_hourly_usd` is AWS's
    price on demand for the nodes of its job; None if unknown.
    """

    facts: RunFacts = RunFacts()
    rows: tuple[TrainingRow, ...] = ()
    evaluations: tuple[EvaluationRow, ...] = ()
    resumed_at: tuple[int, ...] = ()
    alike_from: int = 0
    list_hourly_usd: Optional[float] = None
    json_names = (
        *("facts", "images_per_s", "images_per_s_per_gpu", "tflops_per_gpu", "mfu"),
        *("images_per_s_per_hourly_usd", "resumed_at", "alike_from", "not_a_number_from"),
        *("rows", "evaluations"),
    )

    @property
    def rows_alike(self) -> tuple[TrainingRow, ...]:
        """The rows whose speed is that of the GPUs in `facts`."""
        return tuple(row for row in self.rows if row.step >= self.alike_from)

    @cached_property
    def images_per_s(self) -> Optional[float]:
        """All images of `rows_alike` by all their seconds, without rows of the start-up; None if no
        other rows exist."""
        return throughput(self.rows_alike)

    @property
    def images_per_s_per_gpu(self) -> Optional[float]:
        speed, gpus = self.images_per_s, self.facts.gpus
        return speed / gpus if speed is not None and gpus else None

    @property
    def utilization(self) -> Utilization:
        return utilization(self.images_per_s_per_gpu, self.facts)

    @property
    def tflops_per_gpu(self) -> Optional[float]:
        return self.utilization.tflops

    @property
    def mfu(self) -> Optional[float]:
        return self.utilization.mfu

    @property
    def images_per_s_per_hourly_usd(self) -> Optional[float]:
        """Images/s for each dollar an hour of the nodes on demand; None if unknown."""
        usd, speed = self.list_hourly_usd, self.images_per_s
        return speed / usd if speed is not None and usd else None

    @cached_property
    def epochs_per_step(self) -> float | None:
        """Epochs per step, from the last row, where rounding matters least; None if that shows 0.0.

        The table rounds epochs to one decimal. Each GPU takes a whole number of images a step: if
        only one such number agrees with the table, the result is computed from it and is exact.
        """
        last = self.rows[-1] if self.rows else None
        if not (last and last.step and last.epoch):
            return None
        measured, rounding = last.epoch / last.step, EPOCH_ROUNDING / last.step
        samples = self.facts.training_samples or IMAGENET_IMAGES
        gpus = self.facts.gpus or 0
        if gpus and rounding * samples < gpus / 2:
            exact = round(measured * samples / gpus) * gpus / samples
            if abs(exact - measured) <= rounding * (1 + 1e-9):
                return exact
        return measured

    @property
    def not_a_number_from(self) -> Optional[int]:
        """The first step whose loss is not a finite number; None if there is none."""
        lost = (row for row in self.rows if not math.isfinite(row.loss + row.final_loss))
        return next((row.step for row in lost), None)

    @property
    def result(self) -> EvaluationRow | None:
        """The last evaluation of the latest checkpoint."""
        return max(reversed(self.evaluations), key=lambda row: row.step, default=None)


def throughput(rows: Sequence[TrainingRow]) -> float | None:
    """Return images per second over the rows: all images by all seconds. None without usable rows.

    The speed in a row after a gap (lines that were left out) covers only the steps since the last
    line that was printed, so a gap counts as one usual interval. Rows of the start-up are left out.
    """
    usual = usual_interval(rows)
    steps = seconds = 0.0
    for before, row in zip((None, *rows), rows):
        if row.startup or not (math.isfinite(row.images_per_s) and row.images_per_s > 0):
            continue
        interval = row.step - before.step if before else usual
        weight = min(interval, usual) if interval > 0 else usual
        steps += weight
        seconds += weight / row.images_per_s
    return steps / seconds if seconds else None


def usual_interval(rows: Sequence[TrainingRow]) -> int:
    """Return the most frequent number of steps from one row to the next; 1 for a single row."""
    intervals = Counter(
        after.step - before.step for before, after in zip(rows, rows[1:]) if not after.startup
    )
    # If two are equally frequent, the longer one: the interval after the row of step 1 is one step
    # too short.
    return max(intervals, key=lambda steps: (intervals[steps], steps), default=1)


def read_runs(texts: Iterable[str]) -> list[Run]:
    """Return the runs in some logs, read one after the other; a run in two logs counts once."""
    runs: list[Run] = []
    pending: list[Section] = []
    for section in _distinct(
        section for text in texts for section in read_sections(clean_lines(text))
    ):
        if section.rows:
            _add(runs, section)
        elif runs:
            _evaluated(runs, section)
        else:
            pending.append(section)
    for section in pending:
        if runs:
            _evaluated(runs, section)
        else:
            runs.append(Run(section.facts, (), tuple(section.evaluations)))
    return runs


def runs_in_log(runs: Sequence[Run], text: str) -> list[Run]:
    """Return those of the runs of which this log has a row or an evaluation."""
    pieces = read_sections(clean_lines(text))
    rows = {_content_of(row) for piece in pieces for row in piece.rows}
    evaluations = {_content_of(row) for piece in pieces for row in piece.evaluations}
    return [
        run
        for run in runs
        if rows & set(map(_content_of, run.rows))
        or evaluations & set(map(_content_of, run.evaluations))
    ]


def _distinct(sections: Iterable[Section]) -> list[Section]:
    """Return the sections without those that another one contains.

    The log folder and the job's log have the same rows: `metrics.jsonl`, which is exact, wins.
    """
    kept: dict[tuple[frozenset[str], frozenset[str]], Section] = {}
    for section in sections:
        content = (
            frozenset(map(_content_of, section.rows)),
            frozenset(map(_content_of, section.evaluations)),
        )
        if content not in kept or section.exact:
            kept[content] = section
    return [
        section
        for (rows, evaluations), section in kept.items()
        if not any(
            rows <= other and evaluations <= others and (rows, evaluations) != (other, others)
            for other, others in kept
        )
    ]


def _content_of(row: TrainingRow | EvaluationRow) -> str:
    """Return a row as text, rounded as in the trainer's table, since `metrics.jsonl` is not."""
    decimals = (1, 1, 3, 3, 5) if isinstance(row, TrainingRow) else (1, 3, 2, 2)
    step, *values = astuple(row)[:6]
    numbers = (f"{v:.{n}f}" if math.isfinite(v) else "-" for v, n in zip(values, decimals))
    return " ".join([str(step), *numbers, *(v for v in values if isinstance(v, str))])


# The facts on which the speed of a part depends, and which may change when a run is resumed.
_ALIKE = ("gpus", "gpu", "model", "image_size", "precision")


def _add(runs: list[Run], section: Section) -> None:
    """Add a section with rows: as the continuation of the last run, or as a new run."""
    rows, resumed_from = tuple(section.rows), section.facts.resumed_from
    start = rows[0].step if resumed_from is None else min(resumed_from, rows[0].step)
    if runs and _goes_on(runs[-1], rows, start):
        before = runs[-1]
        kept = tuple(row for row in before.rows if row.step < start)
        facts = _joined(before.facts, section.facts)
        earlier = {name: getattr(before.facts, name) for name in _ALIKE}
        changed = any(old not in (None, getattr(facts, name)) for name, old in earlier.items())
        runs[-1] = Run(
            facts=facts,
            rows=(*kept, *rows),
            evaluations=(*before.evaluations, *section.evaluations),
            resumed_at=(*before.resumed_at, start),
            alike_from=start if changed else before.alike_from,
        )
    else:
        facts, resumed_at = section.facts, () if resumed_from is None else (start,)
        if resumed_at:  # the parts before are in no log: the time of the whole is unknown
            facts = replace(facts, finished_in_s=None, last_part_s=facts.finished_in_s)
        runs.append(Run(facts, rows, tuple(section.evaluations), resumed_at))


def _goes_on(before: Run, rows: Sequence[TrainingRow], start: int) -> bool:
    """Return whether rows that start at step `start` continue that run from a checkpoint.

    The step has to lie behind the run's first row and at most one interval behind its last one,
    and both have to have the same number of steps per epoch, within rounding.
    """
    if not before.rows or start < 1 or rows[0].step <= LAST_STARTUP_STEP:
        return False
    first, last = before.rows[0], before.rows[-1]
    interval = max(usual_interval(before.rows), usual_interval(rows))
    if not first.step < start <= last.step + interval:
        return False
    if not last.step:
        return True
    rounding = EPOCH_ROUNDING * (1 / last.step + 1 / rows[-1].step)
    return abs(last.epoch / last.step - rows[-1].epoch / rows[-1].step) <= rounding


def _joined(before: RunFacts, after: RunFacts) -> RunFacts:
    """Join the facts of two parts: the later one's where known, and the sum of their seconds."""
    values = {
        each.name: getattr(before if getattr(after, each.name) is None else after, each.name)
        for each in fields(RunFacts)
    }
    times = [before.finished_in_s, after.finished_in_s]
    # A part that was cut short did not print how long it took, so the sum is unknown.
    whole = None if None in times else sum(filter(None, times))
    values["finished_in_s"] = whole
    values["last_part_s"] = after.finished_in_s if whole is None else None
    return RunFacts(**values)


def _evaluated(runs: list[Run], section: Section) -> None:
    """Add evaluations to the latest run that ended at the evaluated step, or else to the last run.

    A run ended there if the step lies between its last row and the row that would have followed.
    """
    step = section.evaluations[-1].step
    matching = (
        index
        for index in reversed(range(len(runs)))
        if runs[index].rows
        and runs[index].rows[-1].step <= step
        and step <= runs[index].rows[-1].step + usual_interval(runs[index].rows)
    )
    index = next(matching, len(runs) - 1)
    run = runs[index]
    samples = run.facts.validation_samples or section.facts.validation_samples
    runs[index] = replace(
        run,
        facts=replace(run.facts, validation_samples=samples),
        evaluations=(*run.evaluations, *section.evaluations),
    )
