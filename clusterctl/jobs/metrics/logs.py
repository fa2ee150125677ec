"""Parsers of training logs: the trainer's JSON lines, its tables, and other programs' metrics.

The trainer writes each row as a JSON line into `metrics.jsonl` (docs/trainer.md). The rest of this
module is for logs without that file: the tables that this trainer and the original one of the AWS
Deep Learning AMI print, Keras's progress lines, and metrics that users define.

    Step Epoch Speed   Loss  FinLoss   LR
    step  epoch  top1    top5     loss   checkpoint_time(UTC)

Rows are recognized by the number of decimals of each value, which printf fixes (1, 1, 3, 3 and 5 in
a row of the first table). Column positions are no use: wide numbers shift them, and logs are cut
and interleaved.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any, Optional, Union

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.flops import IMAGE_SIZE
from clusterctl.jobs.trainer import IMAGENET_IMAGES
from clusterctl.node.record import RecordError, from_data, from_json

# The trainer prints its first two rows after steps 0 and 1: their speed includes the start-up.
LAST_STARTUP_STEP = 1
# Largest rounding error of the epoch column, which has one decimal.
EPOCH_ROUNDING = 0.05


@dataclass(frozen=True)
class TrainingRow:
    """One row of the trainer's table.

    `images_per_s` is that of all GPUs since the previous row; `final_loss` is `loss` plus weight
    decay. `startup`: the speed includes the program's start-up. `time` is in seconds since 1970;
    None if the log has no times, as in a printed table.
    """

    step: int
    epoch: float
    images_per_s: float
    loss: float
    final_loss: float
    learning_rate: float
    startup: bool = False
    time: Optional[float] = field(default=None, compare=False)


@dataclass(frozen=True)
class EvaluationRow:
    """The evaluation of one checkpoint on the validation images. `top1` and `top5` are in percent.

    `checkpoint_time` is in UTC. `time` is that of the evaluation, as in a TrainingRow.
    """

    step: int
    epoch: float
    top1: float
    top5: float
    loss: float
    checkpoint_time: str
    time: Optional[float] = field(default=None, compare=False)


@dataclass(frozen=True)
class RunFacts:
    """What a log has besides its tables. A fact that is not in the log is None.

    `resumed_from`: the number of steps done before this part of the run. `finished_in_s`: seconds
    that the whole run took. `last_part_s`: seconds that the last part took, if the whole is unknown
    because an earlier part was cut short or is not in the logs. `image_size` is in pixels,
    `precision` is float16 or float32, and `gpu` has the distinct names of the ranks' GPUs.
    """

    gpus: Optional[int] = None
    data: Optional[str] = None
    training_samples: Optional[int] = None
    validation_samples: Optional[int] = None
    peak_learning_rate: Optional[float] = None
    tensorflow: Optional[str] = None
    resumed_from: Optional[int] = None
    finished_in_s: Optional[float] = None
    last_part_s: Optional[float] = None
    model: Optional[str] = None
    image_size: Optional[int] = None
    precision: Optional[str] = None
    gpu: Optional[str] = None
    json_names = (
        *("gpus", "data", "training_samples", "validation_samples", "peak_learning_rate"),
        *("tensorflow", "resumed_from", "finished_in_s", "last_part_s", "model", "image_size"),
        *("precision", "gpu", "synthetic"),
    )

    @property
    def finished(self) -> bool:
        """Whether the run finished, in one part or in several."""
        return self.finished_in_s is not None or self.last_part_s is not None

    @property
    def synthetic(self) -> bool:
        """Whether the run used synthetic data: the log's banner is complete and names no data."""
        return self.peak_learning_rate is not None and not (self.data or self.training_samples)

    @property
    def data_kind(self) -> Optional[str]:
        """`synthetic` or `real`; None if the log does not have it."""
        if self.synthetic:
            return "synthetic"
        return "real" if self.data or self.training_samples else None

    @property
    def other_model(self) -> str:
        """The model with its image size, if it is not the tutorial's; else empty."""
        model, size = self.model or "resnet50", self.image_size or IMAGE_SIZE
        is_same = (model, size) == ("resnet50", IMAGE_SIZE)
        return "" if is_same else f"{model} with {size} pixels"

    @property
    def other_data(self) -> bool:
        """Whether it trained on other images than ImageNet's. 1 % may be missing, as corrupt."""
        lacking = abs((self.training_samples or IMAGENET_IMAGES) - IMAGENET_IMAGES)
        return self.synthetic or lacking > IMAGENET_IMAGES / 100


# Tags of mpirun --tag-output, of horovodrun, and of PRRTE, with or without job name and time:
# `[1,0]<stderr>:`, `[Sat Nov 21 23:08:57 2026][1,0]<stdout>: `, `[prterun-head-77@1,0]<stderr>: `.
TAG = re.compile(r"(?:\[[^\[\]\n]{1,40}\])?\[(?:[^\s\[\]]{1,200}@)?\d{1,9},(\d{1,9})\]<std\w+>:")
# Terminal escape sequences: colours and cursor movements.
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# A progress bar moves the cursor back to redraw itself: each drawing counts as a line.
BREAK = re.compile(r"[\n\r\x08\x0b\x0c]+")
# Longest line in characters that is read: users' regular expressions can be slow on long lines.
LONGEST = 1 << 16


def clean_lines(text: str) -> Iterator[str]:
    """Yield the lines of a log without tags and escape sequences; overlong and empty ones left out.

    A line ends before every tag, since mpirun may write the tag of the next line within a line.
    """
    return (line for _, line in ranked_lines(text))


def ranked_lines(
    text: str, rank: int | None = None, longest: float = LONGEST
) -> Iterator[tuple[int | None, str]]:
    """Yield the lines as clean_lines does, each with the rank of its tag; None without a tag.

    What redraws a line has the line's tag. `rank` is that of what the text's first line redraws.
    Lines of more than `longest` characters are left out.
    """
    for row, written in enumerate(text.split("\n")):
        rank = None if row else rank
        for drawn in BREAK.split(written):
            line, *tagged = TAG.split(ESCAPE.sub("", drawn).replace("\0", ""))
            for number, part in [(rank, line), *zip(map(int, tagged[::2]), tagged[1::2])]:
                rank = number
                if len(part) <= longest and part.strip():
                    yield rank, part


def _number(decimals: int) -> str:
    return rf"(-?\d{{1,12}}\.\d{{{decimals}}}|-?nan|-?inf)"


# A row may begin within a line, after other output that ends in a blank, a colon or ">". It may be
# followed by other output, too.
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
    # First, since the original trainer prints it and "Horovod size" on one line.
    ("tensorflow", re.compile(r"\]TF(\d{1,4}\.\d[0-9A-Za-z.+-]*?)(?=Horovod|\s|$)"), str),
    ("gpus", re.compile(r"(?:Horovod|DistributedDataParallel) size: *(\d{1,9})(?!\.?\d)"), int),
    ("data", re.compile(r"Using data from: *(\S.*)"), str),
    ("training_samples", re.compile(r"Found (\d{1,15}) training samples"), int),
    ("validation_samples", re.compile(r"Validation dataset size: *(\d{1,15})\b"), int),
    ("peak_learning_rate", re.compile(rf"Using a learning rate of {_FLOAT}"), float),
    ("resumed_from", re.compile(r"Going on from \S.*: (\d{1,12}) of \d{1,12} steps"), int),
    ("finished_in_s", re.compile(rf"Finished in {_FLOAT}"), float),
)
# A quick test for lines that may have a fact: most have none.
_ANY_FACT = re.compile(r" size:|Using |Found |Validation d|Finished in|Going on|\]TF")


@dataclass
class Section:
    """The output of one program: a training run, an evaluation, or both.

    `evaluating`: the program's banner announced an evaluation. `exact`: the section is from
    `metrics.jsonl`, whose numbers are not rounded.
    """

    facts: RunFacts = RunFacts()
    rows: list[TrainingRow] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    evaluating: bool = False
    exact: bool = False

    def add(self, row: TrainingRow) -> None:
        """Add a row, and mark it if its speed includes the start-up."""
        # A run that resumes from a checkpoint has another step in its first row.
        # Without a banner the section is an excerpt: its first row followed others.
        is_first = not self.rows and self.facts != RunFacts()
        self.rows.append(replace(row, startup=is_first or row.step <= LAST_STARTUP_STEP))

    def learn(self, name: str, value: Any) -> None:
        self.facts = replace(self.facts, **{name: value})

    @property
    def has_started(self) -> bool:
        """Whether this program has printed its banner or a row: another banner is another's."""
        return bool(self.rows or self.evaluations or self.evaluating or self.facts.gpus)


def read_sections(lines: Iterable[str]) -> list[Section]:
    """Return the programs' outputs in a log; those without any row are left out.

    Those read from printed output come first, in the log's order, then those from `metrics.jsonl`.
    """
    sections = [Section()]
    written: dict[str, Section] = {}
    for line in lines:
        if line.startswith(_ROW):
            # One that is damaged is no row of a table either: see `damaged_rows`.
            with contextlib.suppress(RecordError):
                run, found = parse_row(line)
                _add_line(written.setdefault(run, Section(exact=True)), found)
            continue
        for name, value in _facts(line):
            if name in ("tensorflow", "gpus") and sections[-1].has_started:
                sections.append(Section())
            sections[-1].learn(name, value)
        if line.strip() == "Evaluating":
            sections[-1].evaluating = True
        if _HEADER.search(line) and sections[-1].rows:
            sections.append(Section())
        for row in _training_rows(line):
            _take(sections, row)
        sections[-1].evaluations.extend(_evaluation_rows(line))
    every = [*sections, *written.values()]
    return [section for section in every if section.rows or section.evaluations]


# How every line of `metrics.jsonl` begins.
_ROW = '{"run": '


@dataclass(frozen=True)
class _Line:
    """What every line of `metrics.jsonl` has. Of a line of another kind, its facts are read."""

    run: str
    kind: str


def parse_row(line: str) -> tuple[str, TrainingRow | EvaluationRow | RunFacts]:
    """Return the run and the content of a line of `metrics.jsonl`. Raises RecordError.

    A null in a row stands for a number that is not finite.
    """
    data = from_json(dict[str, Any], line)
    head = from_data(_Line, data)
    if head.kind not in ("train", "eval"):
        return head.run, from_data(RunFacts, data)
    kind: Any = TrainingRow if head.kind == "train" else EvaluationRow
    lost = [one.name for one in fields(kind) if data.get(one.name, 0) is None]
    row = from_data(kind, {**data, **dict.fromkeys(lost, 0.0)})
    return head.run, replace(row, **dict.fromkeys(lost, math.nan))


def damaged_rows(text: str) -> list[str]:
    """Return what is wrong with each line of `metrics.jsonl` that cannot be read. A last line
    without an end is being written."""
    found = []
    for line in text.split("\n")[:-1]:
        if line.startswith(_ROW):
            try:
                parse_row(line)
            except RecordError as error:
                found.append(str(error))
    return found


def _add_line(section: Section, found: TrainingRow | EvaluationRow | RunFacts) -> None:
    if isinstance(found, TrainingRow):
        section.add(found)
    elif isinstance(found, EvaluationRow):
        section.evaluations.append(found)
    else:
        known = {name: value for name, value in vars(found).items() if value is not None}
        section.facts = replace(section.facts, **known)


def _take(sections: list[Section], row: TrainingRow) -> None:
    """Add a row to the current section, or to a new one if another program began."""
    current = sections[-1]
    last = current.rows[-1] if current.rows else None
    if last == replace(row, startup=last.startup if last else False):
        return  # the same row again: stdout and stderr of the program went into one log
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


_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)"
# Without a sign it may be a part of a name, as in 12e45ab, unless the unit of a time follows.
_EXPONENT = re.compile(r"[eE](?:[-+]\d+|\d+(?=(?:[munµμ]?s)?(?!\w)))")
_NAME = re.compile(r"[eE]\d\w*")
_EPOCH = re.compile(r"^\s*Epoch (\d{1,9})/\d{1,9}\b")
_BAR = re.compile(r"^\s*(\d{1,9})/(\d{1,9})(?= )")
_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}


@dataclass(frozen=True)
class MetricDefinition:
    """A metric and the regular expression whose first group is its value.

    A number's exponent belongs to the value, also if the group ends before it, as in `([0-9.]+)`.
    If the expression has a group `unit` (s, ms, us), the value is converted to seconds.
    `of_epochs`: whether a value belongs to the epoch in which it is printed.
    """

    name: str
    regex: re.Pattern[str]
    of_epochs: bool = True

    def value(self, line: str) -> float | str | None:
        """Return the metric's value in a line, as text if it is no number, or one that a float
        cannot hold; None without a match."""
        match = self.regex.search(line)
        if not match:
            return None
        text, end = match[1] or "", match.end(1)
        more = (_EXPONENT.match(line, end) or _NAME.match(line, end)) if text else None
        text += more[0] if more else ""
        try:
            value = float(text)
        except ValueError:
            return text
        is_lost = math.isinf(value) or (not value and re.match(r"[^eE]*[1-9]", text))
        if is_lost and re.search(r"\d", text):
            return text
        return value * _UNITS_S.get(match.groupdict().get("unit") or "", 1.0)


SEARCH_LIMIT_S = 10.0


@contextlib.contextmanager
def limited_searches(limit_s: float = SEARCH_LIMIT_S) -> Iterator[None]:
    """End a search for a metric in one line that takes longer than `limit_s` seconds, at most twice
    as long, with a UsageError: some expressions backtrack for years. In the main thread only."""
    searching: list[FrameType | None] = [None]

    def check(_: int, frame: FrameType | None) -> None:
        while frame and frame.f_code is not MetricDefinition.value.__code__:
            frame = frame.f_back
        if frame and frame is searching[0]:
            name, line = frame.f_locals["self"].name, frame.f_locals["line"]
            raise UsageError(
                f"metric {name}: its expression takes longer than {limit_s:g} s for one line of "
                f"{count(len(line), 'character')}",
                "repetition within repetition, as in (a+)+, tries all ways to match: repeat once",
            )
        searching[0] = frame

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class MetricPoint:
    """One value of a metric.

    `epoch` is Keras's, None outside of epochs. `line` counts from 1, redrawn bars included.
    """

    line: int
    epoch: Optional[int]
    value: float


@dataclass(frozen=True)
class MetricSeries:
    """All values of one metric, in the order of the log. `notes` are what they lack or may mix."""

    name: str
    points: tuple[MetricPoint, ...]
    notes: tuple[str, ...] = ()

    @property
    def per_epoch(self) -> dict[int, float]:
        """The last value of each epoch."""
        return {point.epoch: point.value for point in self.points if point.epoch is not None}


def parse_definitions(texts: Iterable[str]) -> list[MetricDefinition]:
    """Return the definitions in values of --metric: `NAME=REGEX`, or `@FILE`.

    The file has SageMaker's `metric_definitions` as JSON: a list of {"Name": ..., "Regex": ...}.
    Raises UsageError, also for a name given twice.
    """
    found: list[MetricDefinition] = []
    for text in texts:
        if not text.startswith("@"):
            found.append(parse_definition(text))
            continue
        found += [_definition(name, regex) for name, regex in _listed(Path(text[1:]))]
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"metric {twice} is given twice", "one expression, as in (?:a|b)=(.+)")
    return found


_LISTED = '[{"Name": "train:loss", "Regex": "loss: ([0-9.]+)"}]'


def _listed(path: Path) -> list[tuple[str, str]]:
    """Return the names and expressions in a file of `metric_definitions`. Raises UsageError."""
    example = f"as JSON: {_LISTED}"
    try:
        # A user's own: the error names line and column.
        listed = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        message = f"--metric @{path}: {error.strerror}"
        raise UsageError(message, "name a file: @FILE") from None
    except json.JSONDecodeError as error:
        hint = "JSON wants a backslash twice, as in \\\\d" if "escape" in error.msg else example
        place = f"{path}, line {error.lineno}, column {error.colno}"
        raise UsageError(f"{place}: this is no JSON: {error.msg}", hint) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no list of metrics: {error}", example) from None
    if not isinstance(listed, list):
        raise UsageError(f"{path} is no list of metrics, with [ and ] around all of them", example)
    found = []
    for number, one in enumerate(listed, start=1):
        keys = list(one) if isinstance(one, dict) else []
        values = [one[key] for key in ("Name", "Regex") if key in keys]
        if len(values) < 2 or not all(isinstance(value, str) for value in values):
            what = f"the keys {', '.join(keys)}" if keys else json.dumps(one)[:60]
            raise UsageError(
                f"{path}, metric {number}: Name and Regex are wanted, each a text, not {what}",
                example,
            )
        found.append((values[0], values[1]))
    if not found:
        raise UsageError(f"{path} lists no metric", example)
    return found


def parse_definition(text: str) -> MetricDefinition:
    """Return the definition in `NAME=REGEX`. Raises UsageError, also for a regex without group."""
    name, found, regex = text.partition("=")
    if not (name.strip() and found and regex):
        raise UsageError(f"not a metric: {text!r}", f"write NAME=REGEX, {_EXAMPLE}")
    return _definition(name, regex)


_EXAMPLE = "for example --metric 'train:loss=loss: ([0-9.]+)'"


def _definition(name: str, regex: str) -> MetricDefinition:
    name = name.strip()
    if not (name and regex):
        raise UsageError(f"a metric lacks its {'expression' if name else 'name'}", _EXAMPLE)
    try:
        with warnings.catch_warnings():
            # Python warns of what it may read in another way some day, as of [[:digit:]].
            warnings.simplefilter("error", FutureWarning)
            pattern = re.compile(regex)
    except FutureWarning as warning:
        hint = "Python's expressions have no [[:digit:]]: write [0-9]; and \\[ for a bracket"
        message = f"metric {name}: the expression may mean two things: {warning}"
        raise UsageError(message, hint) from None
    except (re.error, RecursionError, OverflowError) as error:
        message = f"metric {name}: not a regular expression: {error}"
        raise UsageError(message, _EXAMPLE) from None
    if not pattern.groups:
        raise UsageError(
            f"metric {name}: the expression has no group (...) for the value", _EXAMPLE
        )
    return MetricDefinition(name, pattern)


def _keras(name: str, regex: str, of_epochs: bool = True) -> MetricDefinition:
    return MetricDefinition(name, re.compile(regex), of_epochs)


# Keras prints a metric at the start of a line, or after a dash that follows a bar, a time or
# another metric. A line with a word before, as in `Validation loss: 0.5`, is not Keras's at all.
_TRAINED = (
    r"^(?!.*[^\W\d_] (?:loss|acc(?:uracy)?): )"
    r"(?:.*?(?:[\d.\]]|\d[mu\u00b5\u03bc]?s|/(?:step|sample|epoch)|nan|inf) - |\s*(?:- )?)"
)
# Keras's own examples print the result of `evaluate` as `Test loss: 0.5`.
_TESTED = r"(?<!\w)(?<![^\W\d_] )Test "
# Keras prints the time of a step after the metrics (one line per epoch) or before them (the bar),
# so each metric has an expression of its own.
KERAS = (
    _keras("train:loss", rf"{_TRAINED}loss: {_NUMBER}(?= - |\s|$)"),
    _keras("train:accuracy", rf"{_TRAINED}acc(?:uracy)?: {_NUMBER}(?= - |\s|$)"),
    _keras("validation:loss", rf"\bval_loss: {_NUMBER}(?= - |\s|$)"),
    _keras("validation:accuracy", rf"\bval_acc(?:uracy)?: {_NUMBER}(?= - |\s|$)"),
    _keras("sec/steps", r"\b(\d+(?:\.\d+)?)(?P<unit>[mu\u00b5\u03bc]?s)/(?:step|sample)\b"),
    _keras("test:loss", rf"{_TESTED}loss: {_NUMBER}(?=[,;\s]|$)", of_epochs=False),
    _keras("test:accuracy", rf"{_TESTED}acc(?:uracy)?: {_NUMBER}(?=[,;\s]|$)", of_epochs=False),
)


def read_metrics(
    texts: Iterable[str], definitions: Sequence[MetricDefinition]
) -> list[MetricSeries]:
    """Return a series of logs for each definition, also an empty one; those of one name share one.

    Of lines with mpirun's tags, a series has those of the lowest rank that prints the metric.
    """
    collected = {each.name: _Collected() for each in definitions}
    epochs = _RankedEpochs()
    number = overlong = 0
    for rank, line in (line for text in texts for line in ranked_lines(text, longest=math.inf)):
        if len(line) > LONGEST:
            overlong += 1
            continue
        number += 1
        for name, value in _points(line, number, epochs.of(rank, line), definitions):
            collected[name].add(rank, value)
    of_all = (left_out(overlong),)
    repeated = epochs.repeated()
    return [each.series(name, repeated, of_all) for name, each in collected.items()]


def left_out(overlong: int) -> str:
    """Return a note on so many lines that were too long to be read; "" for none."""
    note = f"{count(overlong, 'line')} of more than {LONGEST:,} characters left out"
    return note * bool(overlong)


class _Collected:
    """The values of one metric by rank, and those that are no numbers."""

    def __init__(self) -> None:
        self._points: dict[int | None, list[MetricPoint]] = {}
        self._texts: list[str] = []

    def add(self, rank: int | None, value: MetricPoint | str) -> None:
        if isinstance(value, str):
            self._texts.append(value)
        else:
            self._points.setdefault(rank, []).append(value)

    def series(self, name: str, repeated: str, notes: Iterable[str]) -> MetricSeries:
        """Return the lowest rank's values. `repeated` is a note for values of lines untagged,
        `notes` are those of all series, or empty."""
        rank = lowest(self._points)
        points = self._points.get(rank, [])
        notes = [note for note in notes if note]
        if self._texts:
            what = "whose value" if len(self._texts) == 1 else "whose first value"
            lines, first = count(len(self._texts), "line"), self._texts[0]
            why = "too large or small" if re.fullmatch(_NUMBER, first) else "no number"
            notes.append(f"matched {lines}, {what} {first[:40]!r} is {why}")
        untagged = len(self._points.get(None, ())) if rank is not None else 0
        if untagged:
            notes.append(f"{count(untagged, 'value')} of lines without a rank left out")
        others = sum(map(len, self._points.values())) - len(points) - untagged
        if others:
            notes.append(f"{count(others, 'value')} of other ranks than {rank} left out")
        if repeated and rank is None and any(point.epoch is not None for point in points):
            notes.append(repeated)
        return MetricSeries(name, tuple(points), tuple(notes))


def lowest(ranks: Iterable[int | None]) -> int | None:
    """Return the lowest rank; None if there is none, as for lines without tags."""
    return min((rank for rank in ranks if rank is not None), default=None)


class _RankedEpochs:
    """Tracks the epochs of each rank's lines."""

    def __init__(self) -> None:
        self._of: dict[int | None, _Epochs] = {}

    def of(self, rank: int | None, line: str) -> int | None:
        """Return the epoch that a rank's next line belongs to."""
        epochs = self._of.setdefault(rank, _Epochs())
        epochs.read(line)
        return epochs.current

    def repeated(self) -> str:
        """Return a note if lines without a rank begin an epoch twice; "" if they do not."""
        times = self._of[None].starts if None in self._of else {}
        first = next((line for line, number in times.items() if number > 1), "")
        if not first:
            return ""
        return (
            f"{first!r} comes {times[first]} times, without mpirun's tags: values of several "
            "ranks, calls of fit or logs may be mixed; let only rank 0 print, and read one log at "
            "a time"
        )


class _Epochs:
    """Tracks the epoch that Keras's lines belong to, and how often each one began.

    There is none once another bar follows the epoch's full one: that bar is an evaluation's.
    """

    def __init__(self) -> None:
        self.current: int | None = None
        self.starts: dict[str, int] = {}
        self._full: str | None = None

    def read(self, line: str) -> None:
        begins = _EPOCH.match(line)
        if begins:
            self.current, self._full = int(begins[1]), None
            text = begins[0].strip()
            self.starts[text] = self.starts.get(text, 0) + 1
            return
        bar = _BAR.match(line)
        if not bar:
            return
        if self._full is not None and self._full != bar[0].strip():
            self.current = None
        elif bar[1] == bar[2] and "ETA:" not in line:
            self._full = bar[0].strip()


def _points(
    line: str, number: int, epoch: int | None, definitions: Sequence[MetricDefinition]
) -> Iterator[tuple[str, MetricPoint | str]]:
    """Yield the metrics in a line, each with its name; a text for a value that is no number."""
    for definition in definitions:
        value = definition.value(line)
        if isinstance(value, float):
            point = MetricPoint(number, epoch if definition.of_epochs else None, value)
            yield definition.name, point
        elif value is not None:
            yield definition.name, value


# What a GrowingLog finds: rows of tables, or a metric's name and value.
LogItem = Union[TrainingRow, EvaluationRow, tuple[str, MetricPoint]]


class GrowingLog:
    """Reads a log while it is written, chunk by chunk.

    Without definitions it reads Keras's metrics until the first row of a table. A metric has
    the values of the lowest rank that has printed it so far. `overlong` is the number of lines that
    were left out since they are too long.
    """

    def __init__(self, definitions: Sequence[MetricDefinition] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._lines = self.overlong = 0
        self._epochs = _RankedEpochs()
        self._rank: int | None = None  # that of what the next text redraws
        self._ranks: dict[str, int | None] = {}  # by metric
        self._last: TrainingRow | None = None
        self._definitions, self._is_defined = definitions or KERAS, bool(definitions)

    def feed(self, chunk: bytes) -> list[LogItem]:
        """Return the rows and metrics of the lines that end in this chunk."""
        text = self._rest + self._decoder.decode(chunk)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        # One character more than LONGEST is enough for clean_lines to leave the line out later, and
        # bounds the memory that an endless line takes.
        self._rest = text[end : end + LONGEST + 1]
        found: list[LogItem] = []
        for rank, line in ranked_lines(text[:end], self._rank, longest=math.inf):
            if len(line) > LONGEST:
                self.overlong += 1
                continue
            self._rank = rank
            self._lines += 1
            for row in _training_rows(line):
                if row != self._last:  # stdout and stderr of the program may go into one log
                    self._last = row
                    found.append(row)
            found.extend(_evaluation_rows(line))
            definitions = self._definitions if self._is_defined or not self._last else ()
            found.extend(self._metrics(line, definitions))
        if text[:end].endswith("\n"):
            self._rank = None
        return found

    def _metrics(
        self, line: str, definitions: Sequence[MetricDefinition]
    ) -> Iterator[tuple[str, MetricPoint]]:
        epoch = self._epochs.of(self._rank, line)
        for name, point in _points(line, self._lines, epoch, definitions):
            rank = lowest((self._rank, self._ranks.get(name)))
            if isinstance(point, MetricPoint) and rank == self._rank:
                self._ranks[name] = rank
                yield name, point
