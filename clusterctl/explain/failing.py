"""The forms in which programs say that they failed, for lines that no signature knows.

A form says that something failed, not what. The forms are data (`catalogue/forms.toml`): a line is
harmless only if all of it has a harmless form, or if nothing of a failure is left of it without the
parts that say that nothing failed. Each form has plain texts that the engine searches for, so that
most lines are never matched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ahocorasick_rs import AhoCorasick

from clusterctl.explain.message import message_of
from clusterctl.toml_file import read_toml


class LineKind(Enum):
    """What an unknown line says about a failure, the surest first."""

    EXCEPTION = "exception"  # the last line of a Python traceback, or of a C++ exception
    FAILING = "failing"  # its program calls it an error
    COMPLAINT = "complaint"  # a warning of a library that usually comes before a failure
    DOUBTFUL = "doubtful"  # something did not work, and the program may have gone on
    END = "end"  # something ended with a status other than 0
    REMARK = "remark"  # its program calls it a warning; it counts at the end of a log only


# The forms of lines with their samples. `kind` is a LineKind, `harmless` or `nothing`.
FORMS_FILE = Path(__file__).parent / "catalogue" / "forms.toml"


@dataclass(frozen=True)
class Form:
    """A form of lines. Each line of it has one of the lower-case `texts`."""

    name: str
    kind: str
    regex: str
    texts: tuple[str, ...]
    samples: tuple[str, ...]
    others: tuple[str, ...] = ()

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern. Only those of which a text is in a log are compiled."""
        return re.compile(self.regex, re.IGNORECASE)


@functools.lru_cache(maxsize=1)
def forms() -> Mapping[str, tuple[Form, ...]]:
    """Return the forms by their kind, each kind's in the order in which they are tried."""
    found: dict[str, list[Form]] = {}
    for row in read_toml(FORMS_FILE)["form"]:
        pattern = row["pattern"]
        joined = pattern if isinstance(pattern, str) else "|".join(pattern)
        regex = joined.replace("{texts}", "|".join(map(re.escape, row["texts"])))
        lists = (tuple(row.get(key, ())) for key in ("texts", "samples", "others"))
        one = Form(row["name"], row["kind"], regex, *lists)
        found.setdefault(one.kind, []).append(one)
    return {kind: tuple(some) for kind, some in found.items()}


def marks() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of lines that are an error by themselves, and of lines that may be one."""
    texts = [[text for one in forms()[kind] for text in one.texts] for kind in _FAILURES]
    return tuple(text for some in texts[:-1] for text in some), tuple(texts[-1])


# The order in which the forms of failures are tried.
_FAILURES = ("end", "complaint", "failing", "doubtful")

# A level below an error.
_MILD = re.compile(
    r"(?<![=\w-])(?:WARN(?:ING)?|INFO|DEBUG|TRACE|NOTICE|NOTE|VERBOSE)\b|\b(?:\w*[Ww]arning|[Ww]arn"
    r"|note|info|debug\d?|hint)\s*[:\]]|: [WID] |^\[?[WID]\d{4} |^\[[WID] "
)
# Words by which a program says that it goes on, and that it only tries something.
_GOES_ON = re.compile(
    r"(?<!not )\b[Rr]etry(?! (?:limit|count|exceeded|failed))|\bwill try|\b[Ii]gnor|\b[Ss]kip"
    r"|\b[Ff]all(?:ing)?[ -]?back|\b[Dd]eprecat|\b[Dd]ropping the\b"
    r"|\bnot (?:an error|fatal)|\bnon-fatal|\bharmless|\boptional"
)
# Words by which it says that it does the same again.
_AGAIN = re.compile(
    r"(?<![Pp]lease )\b(?:[Rr]etry(?:ing)?\b(?! (?:limit|count|later|exceeded|failed))|will try\b"
    r"|[Tt]rying again\b|[Aa]ttempt \d+ ?(?:of|/) ?\d+)"
)
# Words by which it says that it does without: "no checkpoint there, starting from scratch".
_WITHOUT = re.compile(
    r"\b[Ss]tarting (?:from scratch|fresh|anew)|\b[Cc]ontinuing (?:without|anyway)\b"
    r"|\b[Pp]roceeding without\b|\b[Uu]s(?:e|ing) (?:the )?defaults?\b"
    r"|\b[Ff]all(?:ing|s)? back to\b"
)
# The same of what it leaves out: one file of many. No step of a service that it calls failed.
_LEFT_OUT = re.compile(r"[,;:(] ?(?:skipp|ignor)(?:ed|ing)\b(?!.*\[ *FAILED *\]$)")
# A kernel prints errors of firmware and of devices at every start.
_KERNEL = re.compile(r"^(?:.* kernel: )?\[ *\d+\.\d+\] |^.* kernel: ")
# Words of advice and of guesses, as in "this is usually caused by".
_ADVICE = re.compile(
    r"\b(?:usually|possibl[ye]|probably|likely|may (?:be|have)|might (?:be|have)|typically|e\.g\."
    r"|for example|[Pp]lease(?! note)|in case|if you)\b"
)
_STACK_FRAME = re.compile(
    r"^\s+at \S.*(?:[.](?:js|java|kt|scala|ts|mjs|cjs):\d+(?::\d+)?\)?"
    r"|\((?:Native Method|Unknown Source|<generated>)\))(?: ~?\[[^\]]*\])?$"
)
_PYTHON_FRAME = re.compile(
    r'\s*File "[^"]+", line \d+, in \S|.*\sFile "[^"]+\.py", line \d+, in \S'
)
# Words of a program that got somewhere.
_PROGRESS = re.compile(
    r"\b(?:[Ss]uccess(?:ful(?:ly)?)?|[Cc]ompleted?|[Dd]one|[Ff]inished|passed|PASSED|[Rr]eady"
    r"|[Ee]poch|[Ss]teps?[ :/]|images?/s(?:ec)?|[Ll]istening|[Rr]unning|OK"
    r"|SUCCESS(?:FUL)?|(?:[Dd]own|[Uu]p)loaded|[Ww]rote \d+|[\w.-]*\d is up)\b"
)


# The last line of a program that did what it was to do.
_ENDED_WELL = re.compile(
    r"(?!.*(?i:error|fail|abort|exception|kill|warn|0 of))(?:.*\b(?:[Tt]raining|[Ee]valuation"
    r"|[Jj]ob|[Rr]un|[Pp]rogram|[Tt]ests?|All)\b.{0,40}\b(?:completed?|finished|done|succeeded)\b"
    r"|.*\b[Ss]uccessfully (?:completed|finished)\b|.*\bcompleted successfully\b"
    r"|.*\bexit(?:ed)? (?:with )?(?:code|status) 0\b)"
)


def kind_of(line: str, below: Sequence[str] = ()) -> LineKind | None:
    """Return what a line without tags says about a failure, or None if it says nothing.

    `below` are the next two lines: the next one may say that the program tries again, and both may
    be rows of a table.
    """
    text = _parts_that_matter(line.strip())
    message = message_of(text)
    kind, end = _form(text, message)
    after = below[0].strip() if below else ""
    if kind is None or after == "...ignoring" or _is_harmless(message):
        return None
    if kind is LineKind.DOUBTFUL and _is_table(message, below):
        return None
    if kind is LineKind.END:  # "exit status 1: /data: read-only file system" says why
        why = text[end:]
        reason = _form(why, why)[0] if ": " in why else None
        kind = reason if reason in (LineKind.FAILING, LineKind.EXCEPTION) else kind
    left = _without_nothing(message)
    if left != message:
        kind, end = _form(text[: len(text) - len(message)] + left, left)
    if kind is None or kind is LineKind.COMPLAINT:
        return kind
    if kind is LineKind.FAILING and (
        _KERNEL.match(text) or _LEFT_OUT.search(message) or tries_again(after)
    ):
        kind = LineKind.DOUBTFUL
    # "fatal: cannot connect: Warning: …" is no warning.
    called = end if kind is LineKind.FAILING else _form(text, message, "failing")[1] or len(text)
    is_mild = (
        _MILD.search(text[:called])
        or (kind is not LineKind.FAILING and _GOES_ON.search(text))
        or (kind is LineKind.DOUBTFUL and _is_advice(left))
    )
    return LineKind.REMARK if is_mild else kind


# Characters at the begin and at the end of a long line in which forms are searched, and on both
# sides of a form's text of at least so many characters between them.
_BEGIN, _END, _AROUND, _SHORTEST = 500, 300, 150, 4


def _parts_that_matter(text: str) -> str:
    """Return a line, or of a long one its begin, its end and what is around the forms' texts."""
    if len(text) <= _BEGIN + _END:
        return text
    hits = _automaton()[0].find_matches_as_indexes(text.lower(), overlapping=True)
    around = sorted((at, end) for _, at, end in hits if end - at >= _SHORTEST)
    parts, done = [text[:_BEGIN]], _BEGIN
    for at, end in (*around, (len(text) - _END + _AROUND, len(text))):
        if end + _AROUND > done:
            begin = max(at - _AROUND, done)
            parts.append(" … " if begin > done else "")
            parts.append(text[begin : end + _AROUND])
            done = end + _AROUND
    return "".join(parts)


def _form(text: str, message: str, *kinds: str) -> tuple[LineKind | None, int]:
    """Return the form of a line, of some kinds or any, and where in it what has that form ends.

    `message` is its text without time stamps and the like.
    """
    for one in _with_text(text, *(kinds or _FAILURES)):
        before = len(text) - len(message)
        for at in (before, 0) if before else (0,):
            found = one.pattern.search(text[at:])
            if found:
                return LineKind(one.kind), at + found.end()
    return None, 0


def _with_text(text: str, *kinds: str) -> Iterator[Form]:
    """Yield the forms of some kinds of which a text has one of the plain texts."""
    numbers = _numbers(text)
    for kind in kinds:
        for number, one in enumerate(forms()[kind]):
            if (kind, number) in numbers:
                yield one


@functools.lru_cache(maxsize=8)
def _numbers(text: str) -> frozenset[tuple[str, int]]:
    """Return kind and number of each form of which a text has one of the plain texts."""
    automaton, numbers_of = _automaton()
    hits = automaton.find_matches_as_indexes(text.lower(), overlapping=True)
    return frozenset(number for hit in hits for number in numbers_of[hit[0]])


@functools.lru_cache(maxsize=1)
def _automaton() -> tuple[AhoCorasick, list[list[tuple[str, int]]]]:
    """Return an automaton that searches for the forms' texts, and the forms of each text."""
    of_text: dict[str, list[tuple[str, int]]] = {}
    for kind, some in forms().items():
        for number, one in enumerate(some):
            for text in one.texts:
                of_text.setdefault(text, []).append((kind, number))
    return AhoCorasick(list(of_text)), list(of_text.values())


def _is_harmless(message: str) -> bool:
    """Return whether all of a message has a form of lines in which nothing failed."""
    return any(one.pattern.fullmatch(message) for one in _with_text(message, "harmless"))


def _without_nothing(text: str) -> str:
    """Return a text without its parts that say that nothing failed."""
    for one in _with_text(text, "nothing"):
        text = one.pattern.sub(lambda part: part.groupdict().get("keep") or " - ", text)
    return text


# A row of a table: a name and at least three figures.
_FIGURE = r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?(?:%|[a-z]{1,2})?"
_ROW = re.compile(rf"[\w -]{{1,40}}?(?:\s*[|\s]\s*{_FIGURE}){{3,}}\s*$")
_HEAD = re.compile(r"\w+(?:,\w+){2,}$")
_RULE = re.compile(r"\s*[-=+| ]*[-=]{3}[-=+| ]*$")
# Words of a sentence, which no head of columns has: "could not reach these", and the nodes below.
_SENTENCE = re.compile(
    r"(?i)\b(?:not?|cannot|unable|too|to|was|were|is|are|has|have|these|this|of|in|on|at|for|by)\b|n't"
)


def _is_table(message: str, below: Sequence[str]) -> bool:
    """Return whether a line is a row of figures, or the head of columns of which a row follows.

    Without a fraction or a column's line, figures may be what failed: "nodes unreachable 4 5 6".
    """
    if _HEAD.match(message):
        return True
    if _SENTENCE.search(message):
        return False
    if _ROW.match(message):
        return "|" in message or bool(re.search(r"\d\.\d", message))
    head, row = _cells(message), below[0] if below else ""
    if _RULE.match(row):
        return len(head) > 1 and len(below) > 1 and len(_cells(below[1])) == len(head)
    if len(head) > 1 and len(_cells(row)) == len(head):
        return any(re.fullmatch(_FIGURE, cell) for cell in _cells(row))
    words, cells = message.split(), row.split() if "." in row else []
    figures = sum(bool(re.fullmatch(_FIGURE, one)) for one in cells)
    is_row = figures >= 2 and 2 * figures >= len(cells)
    return is_row and figures <= len(words) <= 3 * figures and ":" not in message


def _cells(line: str) -> list[str]:
    """Return the cells of a line, between which stand two spaces, a tab, a comma or a bar."""
    return [cell for cell in re.split(r"\s*[|,]\s*|\s{2,}|\t", line.strip(" |")) if cell]


def _is_advice(message: str) -> bool:
    """Return whether each sentence that something did not work gives advice or guesses."""
    parts = re.split(r"(?<=[.!?])\s+", message) if _ADVICE.search(message) else ()
    said = [part for part in parts if _form(part, part)[0]]
    return bool(said) and all(map(_ADVICE.search, said))


def is_frame(line: str) -> bool:
    """Return whether a line is a frame of a stack of JavaScript or Java."""
    return bool(_STACK_FRAME.match(line))


def is_python_frame(line: str) -> bool:
    """Return whether a line is a frame of a Python traceback."""
    return bool(_PYTHON_FRAME.match(line))


def tries_again(line: str) -> bool:
    """Return whether a line says that its program does again what did not work."""
    return bool(_AGAIN.search(line))


def does_without(line: str) -> bool:
    """Return whether a line says that its program goes on without what did not work."""
    return bool(_WITHOUT.search(line))


def goes_on(lines: list[str]) -> bool:
    """Return whether one of the lines says that a program got somewhere."""
    return any(_PROGRESS.search(line) and not kind_of(line) for line in lines)


def ended_well(lines: list[str]) -> bool:
    """Return whether the last line says that its program did what it was to do."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return bool(_ENDED_WELL.match(last)) and not kind_of(last)
