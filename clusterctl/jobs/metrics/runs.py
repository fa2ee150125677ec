"""Whole runs out of a log's pieces: resumed ones joined, evaluations with what they evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from clusterctl.jobs.metrics.parse import Section, clean_lines, read_sections
from clusterctl.jobs.metrics.rows import (
    EPOCH_ROUNDING,
    LAST_STARTUP_STEP,
    Run,
    RunFacts,
    TrainingRow,
    usual_interval,
)


def read_runs(texts: Iterable[str]) -> list[Run]:
    """The runs in some logs, read one after the other; a run found twice counts once."""
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


def holding(runs: Sequence[Run], text: str) -> list[Run]:
    """Those of the runs of which this log shows a row, or an evaluation."""
    pieces = read_sections(clean_lines(text))
    rows = {_seen(row) for piece in pieces for row in piece.rows}
    evaluations = {row for piece in pieces for row in piece.evaluations}
    return [
        run
        for run in runs
        if rows & {_seen(row) for row in run.rows} or evaluations & set(run.evaluations)
    ]


def _distinct(sections: Iterable[Section]) -> list[Section]:
    """Without those that another one holds: the log folder and the job's log have the same run."""
    found = list(sections)
    contents = [
        (frozenset(map(_seen, section.rows)), frozenset(section.evaluations)) for section in found
    ]

    def held(index: int) -> bool:
        rows, evaluations = contents[index]
        return any(
            rows <= other_rows
            and evaluations <= other_evaluations
            and (index > other or contents[other] != contents[index])
            for other, (other_rows, other_evaluations) in enumerate(contents)
            if other != index
        )

    return [section for index, section in enumerate(found) if not held(index)]


def _seen(row: TrainingRow) -> tuple[object, ...]:
    # As text: what is not a number equals not even itself.
    return tuple(str(getattr(row, each.name)) for each in fields(row) if each.name != "startup")


def _add(runs: list[Run], section: Section) -> None:
    rows, said = tuple(section.rows), section.facts.resumed_from
    start = rows[0].step if said is None else min(said, rows[0].step)
    if runs and _goes_on(runs[-1], rows, start):
        before = runs[-1]
        kept = tuple(row for row in before.rows if row.step < start)
        runs[-1] = Run(
            facts=_joined(before.facts, section.facts),
            rows=(*kept, *rows),
            evaluations=(*before.evaluations, *section.evaluations),
            resumed_at=(*before.resumed_at, start),
        )
    else:
        resumed_at = () if said is None else (start,)
        facts = section.facts if said is None else _last_part(section.facts)
        runs.append(Run(facts, rows, tuple(section.evaluations), resumed_at))


def _goes_on(before: Run, rows: Sequence[TrainingRow], start: int) -> bool:
    """Whether these rows start at a checkpoint of that run.

    It lies behind its first row and at most an interval behind its last one, and their epochs
    are as many steps long.
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
    """What the later part says, and of what it does not say the earlier; seconds are added."""
    said = {
        each.name: getattr(before if getattr(after, each.name) is None else after, each.name)
        for each in fields(RunFacts)
    }
    times = [before.finished_in_s, after.finished_in_s]
    # The part that was cut short did not say how long it took.
    whole = None if None in times else sum(filter(None, times))
    said["finished_in_s"] = whole
    said["last_part_s"] = after.finished_in_s if whole is None else None
    return RunFacts(**said)


def _last_part(facts: RunFacts) -> RunFacts:
    """Of a part whose earlier ones are in no log."""
    return replace(facts, finished_in_s=None, last_part_s=facts.finished_in_s)


def _evaluated(runs: list[Run], section: Section) -> None:
    """Add evaluations to the last run that has come so far, or else to the last one."""
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
