"""The trainer's log, read: what its lines say, and where one program's output ends.

The tables are those of the original trainer of the AWS Deep Learning AMI and of this project's:

    Step Epoch Speed   Loss  FinLoss   LR
    step  epoch  top1    top5     loss   checkpoint_time(UTC)

Rows are told by their numbers' decimals, which printf fixed (1, 1, 3, 3 and 5 of them in a row of
the first table), not by their columns: wide numbers move those, and logs are cut and interleaved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.jobs.metrics.rows import LAST_STARTUP_STEP, EvaluationRow, RunFacts, TrainingRow

# mpirun --tag-output, horovodrun, PRRTE with and without its job's name, with time stamps:
# `[1,0]<stderr>:`, `[Sat Nov 21 23:08:57 2026][1,0]<stdout>: `, `[prterun-head-77@1,0]<stderr>: `.
TAG = re.compile(r"(?:\[[^\[\]\n]{1,40}\])?\[(?:[^\s\[\]]{1,200}@)?\d{1,9},\d{1,9}\]<std\w+>:")
# Colours and cursor movements.
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# A progress bar goes back to redraw itself: each drawing is a line of its own.
BREAK = re.compile(r"[\n\r\x08\x0b\x0c]+")
# Nothing that is looked for is longer; expressions of users can be slow on longer ones.
LONGEST = 4096


def clean_lines(text: str) -> Iterator[str]:
    """The lines of a log, each as its program wrote it; overlong and empty ones left out.

    mpirun may put the tag of a second line into the first: a line ends before every tag.
    """
    for drawn in BREAK.split(text):
        for line in TAG.split(ESCAPE.sub("", drawn).replace("\0", "")):
            if line.strip() and len(line) <= LONGEST:
                yield line


def _number(decimals: int) -> str:
    return rf"(-?\d{{1,12}}\.\d{{{decimals}}}|-?nan|-?inf)"


# Other programs' output may come right before a row, ending in a blank or colon, and right after.
_START = r"(?<![^\s:>])"
_TRAINING_ROW = re.compile(
    rf"{_START}(\d{{1,12}})\s+{_number(1)}\s+{_number(1)}\s+{_number(3)}\s+{_number(3)}"
    rf"\s+{_number(5)}"
)
_EVALUATION_ROW = re.compile(
    rf"{_START}(\d{{1,12}})\s+{_number(1)}\s+{_number(3)}\s+{_number(2)}\s+{_number(2)}"
    r"\s+(?:UTC:\s*)?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)"
)
_HEADER = re.compile(r"\bStep\s+Epoch\s+Speed\s+Loss\s+FinLoss\s+LR\b")
_FLOAT = r"([-+0-9.eE]{1,40}|nan|inf)"
_FACTS: tuple[tuple[str, re.Pattern[str], type], ...] = (
    # First, since the original's banner ran into the next line.
    ("tensorflow", re.compile(r"\]TF(\d{1,4}\.\d[0-9A-Za-z.+-]*?)(?=Horovod|\s|$)"), str),
    ("gpus", re.compile(r"Horovod size: *(\d{1,9})(?!\.?\d)"), int),
    ("data", re.compile(r"Using data from: *(\S.*)"), str),
    ("training_samples", re.compile(r"Found (\d{1,15}) training samples"), int),
    ("validation_samples", re.compile(r"Validation dataset size: *(\d{1,15})\b"), int),
    ("peak_learning_rate", re.compile(rf"Using a learning rate of {_FLOAT}"), float),
    ("resumed_from", re.compile(r"Going on from \S.*: (\d{1,12}) of \d{1,12} steps"), int),
    ("finished_in_s", re.compile(rf"Finished in {_FLOAT}"), float),
)
# Most lines say none of them.
_ANY_FACT = re.compile(r"Horovod size|Using |Found |Validation d|Finished in|Going on|\]TF")


@dataclass
class Section:
    """The output of one program: of a training run, of an evaluation, or of both."""

    facts: RunFacts = RunFacts()
    rows: list[TrainingRow] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    evaluating: bool = False

    def add(self, row: TrainingRow) -> None:
        # A run that goes on from a checkpoint prints its first row with another step.
        startup = not self.rows or row.step <= LAST_STARTUP_STEP
        self.rows.append(replace(row, startup=startup and not self._middle(row)))

    def _middle(self, row: TrainingRow) -> bool:
        # Without a banner it is an excerpt: its first row follows others that are not shown.
        return not self.rows and row.step > LAST_STARTUP_STEP and self.facts == RunFacts()

    def learn(self, name: str, value: Any) -> None:
        self.facts = replace(self.facts, **{name: value})

    @property
    def begun(self) -> bool:
        """Whether a banner or a row that comes now is another program's."""
        return bool(self.rows or self.evaluations or self.evaluating or self.facts.gpus)


def read_sections(lines: Iterable[str]) -> list[Section]:
    """The programs' outputs in a log, in its order; those without any row are left out."""
    sections = [Section()]
    for line in lines:
        for name, value in _facts(line):
            if name in ("tensorflow", "gpus") and sections[-1].begun:
                sections.append(Section())
            sections[-1].learn(name, value)
        if line.strip() == "Evaluating":
            sections[-1].evaluating = True
        if _HEADER.search(line) and sections[-1].rows:
            sections.append(Section())
        for row in _training_rows(line):
            _take(sections, row)
        sections[-1].evaluations.extend(_evaluation_rows(line))
    return [section for section in sections if section.rows or section.evaluations]


def _take(sections: list[Section], row: TrainingRow) -> None:
    current = sections[-1]
    last = current.rows[-1] if current.rows else None
    if last == replace(row, startup=last.startup if last else False):
        return  # both streams of the program went into one log
    if current.evaluations or current.evaluating or (last and row.step <= last.step):
        sections.append(Section())
    sections[-1].add(row)


def _facts(line: str) -> Iterator[tuple[str, Any]]:
    for name, pattern, kind in _FACTS if _ANY_FACT.search(line) else ():
        match = pattern.search(line)
        if match:
            try:
                yield name, kind(match[1].strip())
            except ValueError:
                continue


def _training_rows(line: str) -> Iterator[TrainingRow]:
    for match in _TRAINING_ROW.finditer(line):
        epoch, speed, loss, final_loss, rate = map(float, match.groups()[1:])
        yield TrainingRow(int(match[1]), epoch, speed, loss, final_loss, rate)


def _evaluation_rows(line: str) -> Iterator[EvaluationRow]:
    for match in _EVALUATION_ROW.finditer(line):
        epoch, top1, top5, loss = map(float, match.groups()[1:5])
        yield EvaluationRow(int(match[1]), epoch, top1, top5, loss, match[6].replace("T", " "))
