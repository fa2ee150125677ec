"""Which lines about steps show that a job goes on, and which only repeat where it is.

A monitor may print `step 42, 3.1 GB` each second while the job hangs. Several ranks may print each
step, and so may the parts of one. What cannot be told apart is unclear.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

# Not a part of a decimal number, nor with a unit of time, memory or parts.
_END = r"(?!\.?\d|\s*(?:%|(?:m?s|secs?|min|h|[kMGT]?i?B)\b))"
# Python refuses to read numbers of thousands of digits.
_WHOLE = rf"(\d{{1,18}}){_END}"
# Numbered steps, as in `step 120 loss 0.5` or `iteration 7`.
NUMBERED = re.compile(rf"(?i)\b(?:step|iter(?:ation)?|batch)s?\b\W{{0,3}}{_WHOLE}")
# The same with all that may count within a step, and `17/100`.
_COUNTER = re.compile(
    rf"(?i)\b(step|epoch|iter|iteration|batch|micro\w*|update|image|sample|example|token)s?\b"
    rf"\W{{0,3}}{_WHOLE}|(?<![\d./])(\d{{1,18}})(?=/\d+(?!/){_END})"
)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]?|(?<!\d)\d{1,9}(?::\d\d)+(?:[.,]\d+)?")
# A number begins in one place and ends soon: else a line of digits would take minutes.
_SPEED = re.compile(
    r"(?i)(?<![\d.])[\d.]{1,24}\s{0,9}"
    r"(?:(?:[nuµm]?s|secs?|seconds?|min|h)\b|\w{1,24}/s(?:ec)?\b|s/\w+)"
)
# Which rank or host has printed a line.
_WHOSE = re.compile(
    r"(?i)^\s*(?:\[(?:[\w.-]+[:,])?\d+\]|\d+\s*:)|\b(?:rank|worker|node|host|process|gpu)\W{0,3}\d+"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RESULT = re.compile(r"(?i)(?:loss|acc)\w{0,24}\W{0,3}([\d.e+-]+|nan)")
# A monitor measures that speed while a job hangs, but a slow job may be rounded to it.
_NO_SPEED = re.compile(r"(?i)(?<![\d.])0(?:\.0*)?\s*(?:images?|img|samples?|it|tokens?)/s")
# A batch that is the same on all lines may be the batch's size.
_STEPS = ("step", "iter", "iteration")
# Several ranks print steps that are not far apart.
_RECENT = 8
# So many speeds fall one after another by chance in one of 120 cases.
_ENOUGH = 5
# What differs between the lines of one series: stamps and levels in front, values with their
# units, and how a bar is drawn.
_VALUE = re.compile(
    r"(?i)<std(?:out|err)>|(?<![a-z])[+-]?\.?\d[\w.:,/+-]*"
    r"|\b(?:nan|inf|(?:s|ms|it|sec|batch|step|sample|image)s?/\w+|days?|eta|info|debug)\b"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
# A series is regular if it has so many lines, and others came between them so often.
_MOST_MISSED, _TURNS = 10, 3


class Sign(Enum):
    """What a line about a step shows: a step, the one before again, or one of the two."""

    STEP = "step"
    REPEATED = "repeated"
    UNCLEAR = "unclear"


class _Line(NamedTuple):
    """A line without its clock time, also without speeds, with what was measured in it.

    `form`: the line with its numbers left out. Of `counters`, those are left out that are the same
    on all lines. `has_step`: a step is numbered in it, and not the epoch alone.
    """

    form: str
    text: str
    at_any_speed: str
    counters: tuple[tuple[str, int], ...]
    has_step: bool
    results: tuple[str, ...]


def _counters(line: str) -> list[tuple[str, int]]:
    found = (one.groups() for one in _COUNTER.finditer(line))
    return [(name.lower(), int(a)) if name else ("/", int(b)) for name, a, b in found]


def _form(text: str) -> str:
    return "".join(_WHOSE.findall(text)) + _NUMBER.sub("#", text)


def without_clock(line: str) -> str:
    """Return a line without the times of day in it."""
    return _CLOCK.sub("", line)


def numbered_step(line: str) -> int | None:
    """Return the number of a step in a line; None without one."""
    found = NUMBERED.search(without_clock(line))
    return int(found[1]) if found else None


def count_up(lines: Iterable[str]) -> bool:
    """Return whether lines about steps show a step though none before them is known: by a number,
    or a loss, that is not the same in all lines of one form. One line may be a monitor's."""
    seen: dict[tuple[str, str], set[object]] = {}
    for text in (without_clock(line) for line in lines):
        for name, value in (*_counters(text), ("result", tuple(_RESULT.findall(text)))):
            seen.setdefault((_form(text), name), set()).add(value)
    return any(len(several) > 1 for several in seen.values())


def signs(lines: Sequence[str], more: Iterable[str] = ()) -> list[Sign]:
    """Return what each of these lines about steps shows. `more` are lines that came before."""
    values: dict[str, set[int]] = {}
    of_form: dict[tuple[str, str], set[int]] = {}
    for text in (without_clock(line) for line in (*more, *lines)):
        for name, value in _counters(text):
            values.setdefault(name, set()).add(value)
            of_form.setdefault((_form(text), name), set()).add(value)
    last_at: dict[str, int] = {}
    counted: list[tuple[tuple[str, int], ...]] = []
    recent: dict[str, deque[_Line]] = {}
    found = []
    for text in (without_clock(line) for line in lines):
        every = _counters(text)
        counters = tuple(one for one in every if len(values[one[0]]) > 1)
        has_step = any(name != "epoch" for name, _ in counters)
        has_step = has_step or any(name in _STEPS for name, _ in every)
        results = tuple(_RESULT.findall(text))
        now = _Line(_form(text), text, _SPEED.sub("", text), counters, has_step, results)
        known = recent.setdefault(now.form, deque(maxlen=_RECENT))
        before = known[-1] if known else None
        if before and _begins_again(now, before, of_form):
            known.clear()
        sign = _sign(now, before, known)
        # Where others have counted meanwhile, it is not the job that repeats a step.
        others = {*counted[last_at.get(now.form, len(counted)) :]} - {counters}
        found.append(Sign.UNCLEAR if sign is Sign.REPEATED and others else sign)
        last_at[now.form] = len(counted)
        known.append(now)
        counted.append(counters)
    return found


def stopped(lines: Sequence[str], found: Sequence[Sign]) -> str:
    """Return the last line of a series that has stopped while others that it took turns with go on.

    It is empty without one. `lines` are about steps, and `found` is what they show. A series are
    the lines with the same words, of all ranks. It has stopped if ten of its lines are missing, and
    more than ever came between two of them. Another one may have followed it, as epochs follow a
    warm-up, and one of which only the others tell a loss is none of the job's steps.
    """
    words = [tuple(_WORD.findall(_VALUE.sub(" ", _WHOSE.sub(" ", line)))) for line in lines]
    places: dict[tuple[str, ...], list[int]] = {}
    for at, form in enumerate(words):
        places.setdefault(form, []).append(at)
    for own in places.values():
        turns = [b - a - 1 for a, b in zip(own, own[1:]) if b - a > 1]
        if len(own) < _MOST_MISSED or len(turns) < _TURNS:
            continue
        after, half = range(own[-1] + 1, len(lines)), (own[-1] + len(lines)) // 2
        begun = {one: its for one, its in places.items() if its[0] > own[-1]}
        follows = any(
            its[-1] >= half and sum(found[one] is Sign.STEP for one in its) >= _TURNS
            for its in begun.values()
        )
        here = [one for one in after if words[one] not in begun]
        missed = len(here) * len(own) / sum(turns)
        is_long = missed >= _MOST_MISSED and len(here) > 1.5 * max(turns) + 2
        results = {value for one in here for value in _RESULT.findall(lines[one])}
        is_other = len(results) > 1 and not _RESULT.search(lines[own[-1]])
        if is_long and not follows and not is_other:
            return lines[own[-1]]
    return ""


def _begins_again(now: _Line, before: _Line, of_form: dict[tuple[str, str], set[int]]) -> bool:
    """Return whether a counter is at its lowest value after its highest, as with a new epoch. Two
    values alone may be of two ranks, unless a speed is measured."""
    for (name, was), (_, value) in zip(before.counters, now.counters):
        seen = of_form[now.form, name]
        if was == max(seen) and value == min(seen) and len(seen) > 1:
            return len(seen) > 2 or _has_speed(now)
    return False


def _has_speed(line: _Line) -> bool:
    return line.text != line.at_any_speed and not _NO_SPEED.search(line.text)


def _only_ages(lines: Sequence[_Line]) -> bool:
    """Return whether in all of these lines, if they are enough, no time falls and no speed rises:
    so they do where a monitor measures a job that stands, since its start for example."""
    if len(lines) < _ENOUGH:
        return False
    measured = [[_aged(one) for one in _SPEED.findall(line.text)] for line in lines]
    return all(a <= b for was, now in zip(measured, measured[1:]) for a, b in zip(was, now))


def _aged(measured: str) -> float:
    """Return a time, or a speed as a negative number: it grows while nothing happens."""
    number = _NUMBER.search(measured)
    value = float(number[0]) if number else 0.0
    return -value if "/s" in measured else value


def _sign(now: _Line, before: _Line | None, recent: Iterable[_Line]) -> Sign:
    """Return what a line shows. `before` is the last one of the same form, of the same rank."""
    is_idle = bool(_NO_SPEED.search(now.text))
    if before is None:
        return Sign.UNCLEAR if is_idle and not now.counters else Sign.STEP
    if before.results != now.results:
        return Sign.STEP
    if before.counters != now.counters:
        again = any(one.counters == now.counters for one in recent)
        return Sign.UNCLEAR if again else Sign.STEP
    if not (now.has_step or is_idle):
        # The steps of an epoch have one epoch, and may have one loss. Their speeds rise and fall.
        if _has_speed(now):
            return Sign.UNCLEAR if _only_ages([*recent, now]) else Sign.STEP
        if now.results or before.text != now.text:
            return Sign.UNCLEAR
    is_same = before.at_any_speed == now.at_any_speed
    if now.counters:
        return Sign.REPEATED if is_same else Sign.UNCLEAR
    # A number that is the same on all lines may be no step, or that of a job that hangs for long.
    return Sign.UNCLEAR if is_same or is_idle else Sign.STEP
