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
_WHOLE = rf"(\d+){_END}"
# Numbered steps, as in `step 120 loss 0.5` or `iteration 7`.
NUMBERED = re.compile(rf"(?i)\b(?:step|iter(?:ation)?|batch)s?\b\W{{0,3}}{_WHOLE}")
# The same with all that may count within a step, and `17/100`.
_COUNTER = re.compile(
    rf"(?i)\b(step|epoch|iter|iteration|batch|micro\w*|update|image|sample|example|token)s?\b"
    rf"\W{{0,3}}{_WHOLE}|(?<![\d./])(\d+)(?=/\d+(?!/){_END})"
)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]?|\d+(?::\d\d)+(?:[.,]\d+)?")
_SPEED = re.compile(
    r"(?i)[\d.]+\s*(?:[nuµm]?s|secs?|seconds?|min|h)\b|[\d.]+\s*\w+/s(?:ec)?\b|[\d.]+\s*s/\w+"
)
# Which rank or host has printed a line.
_WHOSE = re.compile(
    r"(?i)^\s*(?:\[(?:[\w.-]+[:,])?\d+\]|\d+\s*:)|\b(?:rank|worker|node|host|process|gpu)\W{0,3}\d+"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RESULT = re.compile(r"(?i)(?:loss|acc)\w*\W{0,3}([\d.e+-]+|nan)")
# A monitor measures that speed while a job hangs, but a slow job may be rounded to it.
_NO_SPEED = re.compile(r"(?i)(?<![\d.])0(?:\.0*)?\s*(?:images?|img|samples?|it|tokens?)/s")
# Several ranks print steps that are not far apart.
_RECENT = 8


class Sign(Enum):
    """What a line about a step shows: a step, the one before again, or one of the two."""

    STEP = "step"
    REPEATED = "repeated"
    UNCLEAR = "unclear"


class _Line(NamedTuple):
    """A line without its clock time, also without speeds, with what counts and what was measured
    in it."""

    text: str
    at_any_speed: str
    counters: tuple[tuple[str, str], ...]
    results: tuple[str, ...]


def _counters(line: str) -> tuple[tuple[str, str], ...]:
    found = (one.groups() for one in _COUNTER.finditer(line))
    return tuple((name.lower(), a) if name else ("/", b) for name, a, b in found)


def signs(lines: Sequence[str], more: Iterable[str] = ()) -> list[Sign]:
    """Return what each of these lines about steps shows. `more` are lines that came before."""
    values: dict[str, set[str]] = {}
    for line in (*more, *lines):
        for name, value in _counters(line):
            values.setdefault(name, set()).add(value)
    last: dict[str, _Line] = {}
    last_at: dict[str, int] = {}
    counted: list[tuple[tuple[str, str], ...]] = []
    recent: dict[str, deque[tuple[tuple[str, str], ...]]] = {}
    found = []
    for line in lines:
        text = _CLOCK.sub("", line)
        whose = "".join(_WHOSE.findall(text))
        counters = tuple(one for one in _counters(text) if len(values[one[0]]) > 1)
        now = _Line(text, _SPEED.sub("", text), counters, tuple(_RESULT.findall(text)))
        form = whose + _NUMBER.sub("#", text)
        known = recent.setdefault(form, deque(maxlen=_RECENT))
        sign = _sign(now, last.get(form), known)
        # Where others have counted meanwhile, it is not the job that repeats a step.
        others = {*counted[last_at.get(form, len(counted)) :]} - {counters}
        found.append(Sign.UNCLEAR if sign is Sign.REPEATED and others else sign)
        last[form], last_at[form] = now, len(counted)
        known.append(counters)
        counted.append(counters)
    return found


def _sign(now: _Line, before: _Line | None, recent: Iterable[tuple[tuple[str, str], ...]]) -> Sign:
    """Return what a line shows. `before` is the last one of the same form, of the same rank."""
    if not now.counters:
        # What is the same on all lines, as `batch=32`, does not count steps.
        is_same = before and before.text == now.text
        return Sign.UNCLEAR if is_same or _NO_SPEED.search(now.text) else Sign.STEP
    if before is None or before.results != now.results:
        return Sign.STEP
    if before.counters != now.counters:
        return Sign.UNCLEAR if now.counters in recent else Sign.STEP
    return Sign.REPEATED if before.at_any_speed == now.at_any_speed else Sign.UNCLEAR
