"""The signatures of the catalogue, and the plain text that the engine searches for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.domain.findings import Severity


class Role(Enum):
    """The relation of a log line to the failure, the most important first."""

    ROOT = "root"  # a cause by itself
    SYMPTOM = "symptom"  # a first sign; its cause may be missing in the log
    CONSEQUENCE = "consequence"  # something else failed before
    HARMLESS = "harmless"  # looks like an error and is none
    FACT = "fact"  # no error, and tells causes of other lines apart

    @property
    def is_failure(self) -> bool:
        """Whether a line of this role reports that something failed."""
        return self not in (Role.HARMLESS, Role.FACT)


# Words for what any signature may name, and the log may not have.
UNNAMED = {"rank": "a rank", "host": "that rank's host", "gpu": "a GPU", "object": "what it names"}


@dataclass(frozen=True)
class Signature:
    """A known log line: its pattern, its cause and what to do about it.

    `cause` and `remedies` are templates. Names in braces are groups of the pattern, values of
    `hook`, `{GROUP_meaning}` of `meanings`, or `{rank}` and `{host}`, which may come from the
    line's tag. Groups `name`, `name2`, ... in several alternatives of the pattern give one value
    `name`.

    `remedies` are pairs of an alternative of the cause and its remedy; the alternative is empty if
    there is only one. `evidence` has, for an alternative, the id of the finding that shows that it
    is the true one, in which `*` stands for any text; mostly a fact's. `source` says where the text
    and its meaning come from. `mistaken_for` is a wrong cause that people assume. `samples` are log
    lines that the pattern matches.

    `retries` is set if the program tries again by itself after such a line: what is in a later line
    once that has worked. If the line names an object such as `pod/a`, the later one has to, too.

    `lines` is the number of lines that the pattern may extend over. With more than one line, `\\s`
    in the pattern matches a line end, and the pattern begins with plain text in its first line.
    `near` is a pattern of what else the log shows where this is the cause: the signature applies
    only if it is found in one of the BESIDE lines of its rank before or after.
    `hook` gets these lines and returns more values, or None if the signature does not apply.
    `meanings` has, by the name of a group, the words for each of its values; a value that is not
    there and has no `else` is no match. `defaults` has words for values that the log does not have.

    If several signatures match a line, the first in the catalogue counts, those that are `generic`
    last. As the answer for a log, a generic signature yields to every other root of the log, and
    each signature yields to roots with the ids in `yields_to`, in which `*` stands for any text.
    """

    id: str
    pattern: str
    cause: str
    remedies: tuple[tuple[str, str], ...]
    source: str
    role: Role = Role.ROOT
    severity: Severity = Severity.ERROR
    mistaken_for: str = ""
    lines: int = 1
    generic: bool = False
    near: str = ""
    retries: str = ""
    yields_to: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)
    meanings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    hook: Callable[[str], Mapping[str, str] | None] | None = None
    samples: tuple[str, ...] = ()


def literals(pattern: str) -> tuple[str, ...]:
    """Return plain texts such that every line that matches the pattern contains one of them.

    Each alternative of the pattern gives at least one text. Raises ValueError if an alternative has
    none that is long enough to search for.
    """
    return tuple(dict.fromkeys(text for branch in branches(pattern) for text in _texts(branch)))


# Parts of very many lines, by which a signature is searched only if its pattern has nothing else.
_COMMON = frozenset(
    (
        *("ailed to", "cannot", "creating", "error", "failed", "launch", "launching", "nable to"),
        *("not found", "ould not", "requesting", "seconds", "timeout", "version", "wrong"),
        *("read", "exit", "status", "machine", "warning", "connection", "running", "received"),
        *("missing", "unknown", "certificate", "permission", "nvme"),
    )
)


def is_rare(text: str) -> bool:
    """Return whether few lines of a log have this text."""
    return text.strip(" :()'").lower() not in _COMMON


def _texts(branch: str) -> tuple[str, ...]:
    """Return the texts for one alternative: a run of plain text in it, else those of a group."""
    runs, groups = _parts(branch)
    of_groups = []
    for group in groups:
        try:
            of_groups.append(literals(group))
        except ValueError:
            pass
    for suits in (is_rare, bool):
        # Prefer the first run of 8 characters to the longest one: a pattern over several lines must
        # be found by a text in its first line.
        some = [run for run in runs if suits(run)]
        run = next((run for run in some if len(run) >= 8), max(some, key=len, default=""))
        if len(run.strip()) >= 6:
            return (run,)
        these = [texts for texts in of_groups if all(map(suits, texts))]
        if these:
            return next((one for one in these if min(map(len, one)) >= 6), these[0])
        if len(run.strip()) >= 4:
            return (run,)
    raise ValueError(f"no plain text to search for in {branch!r}")


def branches(pattern: str) -> list[str]:
    """Return the alternatives on the outermost level of the pattern."""
    found, depth, start = [], 0, 0
    for at, char in _syntax(pattern):
        if char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            found.append(pattern[start:at])
            start = at + 1
    return [*found, pattern[start:]]


def _parts(branch: str) -> tuple[list[str], list[str]]:
    """Return the runs of plain text on the outermost level, and the groups that must match.

    Both are in the order of the pattern. A group begins with the run before it. Optional groups and
    look-arounds are left out.
    """
    runs, groups, run, at = [], [], "", 0
    while at < len(branch):
        char = branch[at]
        if char == "\\" and not branch[at + 1].isalnum():
            at += 1
            run += branch[at]
        elif char in "\\[(.+^$?*{":
            # The quantifier makes the last character of the run optional or repeats it.
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
                inner = re.sub(r"^\?(?::|P<\w+>)", "", branch[start + 1 : at])
                is_optional = branch[at + 1 : at + 2] in ("?", "*", "{")
                if not is_optional and not inner.startswith(("?!", "?=", "?<!", "?<=")):
                    before = re.escape(runs[-1])
                    groups.append("|".join(before + one for one in branches(inner)))
        elif plain := _PLAIN.match(branch, at):
            run += plain[0]
            at = plain.end() - 1
        at += 1
    return [text for text in (*runs, run) if text], groups


def _group_end(pattern: str, start: int) -> int:
    """Return the index of the end of the group that begins at `start`. Raise ValueError."""
    depth = 0
    for at, char in _syntax(pattern, start):
        if char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return at
    raise ValueError(f"a group of {pattern!r} has no end")


# What has no meaning but its own; an escaped character, a character class, or one of ( ) |.
_PLAIN = re.compile(r"[^\\\[(.+^$?*{]+")
_SYNTAX = re.compile(r"\\.|\[\^?(?:\\.|.)(?:\\.|[^\]\\])*\]|([()|])", re.DOTALL)


def _syntax(pattern: str, at: int = 0) -> Iterator[tuple[int, str]]:
    """Yield index and character of each parenthesis and bar of the pattern from `at` on.

    Escaped characters and character classes are left out.
    """
    return ((found.start(), found[1]) for found in _SYNTAX.finditer(pattern, at) if found[1])


def _class_end(pattern: str, at: int) -> int:
    """Return the index of the end of the character class that begins at `at`."""
    at += 2 if pattern[at + 1] != "^" else 3  # a ] in the first place is part of the class
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
