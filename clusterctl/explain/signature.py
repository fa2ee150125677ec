"""One entry of the catalogue: the line that is recognised, what it means, what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from clusterctl.domain.findings import Severity


class Role(Enum):
    """How a line bears on the failure, the most telling first."""

    ROOT = "root"  # a cause by itself
    SYMPTOM = "symptom"  # the first sign of a cause that the log may not have: no more than a lead
    CONSEQUENCE = "consequence"  # something else failed before
    HARMLESS = "harmless"


@dataclass(frozen=True)
class Signature:
    """A known line. `cause` and `remedy` hold the names of the pattern's groups in braces, and
    `{rank}` and `{host}`, which the line's tag may tell where the pattern does not.

    `lines`: over how many lines the pattern may extend, where `\\s` stands for their ends; such a
    pattern begins with plain text. `read` makes values of these lines; None: not this one.
    `source` is where the text and its meaning are from. Of two signatures that match the same line
    the one that is earlier in the catalogue counts.
    """

    id: str
    pattern: str
    cause: str
    remedy: str
    source: str
    role: Role = Role.ROOT
    severity: Severity = Severity.ERROR
    mistaken_for: str = ""
    lines: int = 1
    read: Callable[[str], Mapping[str, str] | None] | None = None


def literals(pattern: str) -> tuple[str, ...]:
    """Plain text of which each line that the pattern matches has one piece; one for each of its
    alternatives. Raises ValueError where an alternative has none that is worth searching for.
    """
    return tuple(dict.fromkeys(text for branch in branches(pattern) for text in _texts(branch)))


def _texts(branch: str) -> tuple[str, ...]:
    """The pieces of one alternative: a run of plain text, else those of a group in it."""
    runs, groups = _parts(branch)
    # The first that will do: a pattern over several lines is looked for from its beginning.
    run = next((run for run in runs if len(run) >= 8), max(runs, key=len, default=""))
    if len(run.strip()) >= 6:
        return (run,)
    for group in groups:
        try:
            return literals(group)
        except ValueError:
            pass
    if len(run.strip()) < 4:
        raise ValueError(f"no plain text to search for in {branch!r}")
    return (run,)


def branches(pattern: str) -> list[str]:
    """The alternatives of the pattern's outermost level."""
    branches, depth, start = [], 0, 0
    for at, char in _syntax(pattern):
        if char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            branches.append(pattern[start:at])
            start = at + 1
    return [*branches, pattern[start:]]


def _parts(branch: str) -> tuple[list[str], list[str]]:
    """The runs of plain text on the outermost level, in order; the groups that have to match."""
    runs, groups, run, at = [], [], "", 0
    while at < len(branch):
        char = branch[at]
        if char == "\\" and not branch[at + 1].isalnum():
            at += 1
            run += branch[at]
        elif char in "\\[(.+^$?*{":
            if char in "?*{":
                run = run[:-1]
            runs.append(run)
            run = ""
            if char == "\\":
                at += 1
            elif char == "[":
                at = _class_end(branch, at)
            elif char == "{":
                at = branch.index("}", at)
            elif char == "(":
                start, at = at, _group_end(branch, at)
                if branch[start + 1 : start + 3] not in ("?!", "?=", "?<!") and branch[
                    at + 1 : at + 2
                ] not in ("?", "*", "{"):
                    inner = branch[start + 1 : at]
                    groups.append(re.sub(r"^\?(?::|P<\w+>)", "", inner))
        else:
            run += char
        at += 1
    return [text for text in (*runs, run) if text], groups


def _group_end(pattern: str, start: int) -> int:
    """Where the group that begins at `start` ends. Raises ValueError where it does not."""
    depth = 0
    for at, char in _syntax(pattern, start):
        if char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return at
    raise ValueError(f"a group of {pattern!r} has no end")


def _syntax(pattern: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """The characters from `at` on that are neither escaped nor in a class, and where they are."""
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            at = _class_end(pattern, at)
        else:
            yield at, pattern[at]
        at += 1


def _class_end(pattern: str, at: int) -> int:
    """Where the character class that begins at `at` ends."""
    at += 2 if pattern[at + 1] != "^" else 3  # a ] that comes first is part of it
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
