"""The search for the signatures' plain texts in a log."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from ahocorasick_rs import BytesAhoCorasick, Implementation

from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.failing import marks
from clusterctl.explain.lines import CHAINED, LONGEST_LINE, TRACEBACK
from clusterctl.explain.signature import Role, Signature, literals

# Characters of a line that are kept for a finding, and before the match in a longer one.
SHOWN, _BEFORE = 600, 40
# Bytes of a log from which on the faster automaton is worth its making.
_MUCH = 1 << 19


class Search(Enum):
    """Which plain texts are searched: fewer once no more lines of failing forms are matched."""

    ALL = "signatures' texts and all marks of failing lines"
    STRONG = "signatures' texts and strong marks"
    SIGNATURES = "signatures' texts"


class Table:
    """The catalogue, and an automaton that searches for its plain texts.

    Plain texts are referred to by their index in `_of_text`.
    """

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = signatures
        failing, weak = marks()
        strong = {text for one in (TRACEBACK, *CHAINED, *failing) for text in _variants(one)}
        of_text: dict[bytes, list[int]] = {b" <==": []}
        for number, one in enumerate(signatures):
            for text in literals(one.pattern):
                of_text.setdefault(text.encode().lower(), []).append(number)
        # How many of the texts are searched by a Search.
        self._sizes = {Search.SIGNATURES: len(of_text)}
        doubtful = {text for one in weak for text in _variants(one)}
        for search, some in ((Search.STRONG, strong), (Search.ALL, doubtful)):
            of_text |= {text: [] for text in some - of_text.keys()}
            self._sizes[search] = len(of_text)
        self._texts = list(of_text)
        self._numbers_of = list(of_text.values())
        self._strong = {at for at, text in enumerate(of_text) if text in {b" <==", *strong}}
        self._marks = {at for at, numbers in enumerate(self._numbers_of) if not numbers}
        self._automata: dict[tuple[Search, bool], BytesAhoCorasick] = {}

    def hits(self, data: bytes, search: Search) -> list[tuple[int, int, int]]:
        """Return index, start and end of every plain text in `data`, sorted by their ends."""
        # A DFA is up to three times as fast, and takes 80 ms longer to make.
        is_fast = len(data) >= _MUCH or (search, True) in self._automata
        if (search, is_fast) not in self._automata:
            kind = Implementation.DFA if is_fast else Implementation.ContiguousNFA
            texts = self._texts[: self._sizes[search]]
            self._automata[search, is_fast] = BytesAhoCorasick(texts, implementation=kind)
        automaton = self._automata[search, is_fast]
        return automaton.find_matches_as_indexes(data.lower(), overlapping=True)

    def is_mark(self, texts: Iterable[int]) -> bool:
        """Return whether the texts are marks of failing lines, and none is a signature's."""
        return self._marks.issuperset(texts)

    def is_strong(self, texts: Iterable[int]) -> bool:
        """Return whether one of the texts is a mark of lines that are an error by themselves."""
        return not self._strong.isdisjoint(texts)

    def named(self, texts: Iterable[int]) -> list[Signature]:
        """Return the signatures that have one of these texts, in the catalogue's order."""
        numbers = sorted({number for text in texts for number in self._numbers_of[text]})
        return [self._signatures[number] for number in numbers]


def _variants(text: str) -> set[bytes]:
    """Return how a text may be written in a log whose ASCII letters were made lower case."""
    written = [text] if text.isascii() else [text.lower(), text.upper(), text.capitalize()]
    return {one.encode().lower() for one in written}


@functools.lru_cache(maxsize=1)
def table() -> Table:
    """Return the catalogue with its automaton. Making it takes 50 ms, so it is done once."""
    return Table(catalogue())


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a signature's pattern. Only those whose plain text is in a log are compiled."""
    return re.compile(pattern, re.ASCII)


def texts_by_line(
    data: bytes, lines: Sequence[bytes], done: int, search: Search
) -> Iterator[tuple[int, set[int]]]:
    """Yield the index of each of the first `done` lines that has a plain text, and its texts."""
    number = begins = 0
    hits = iter(table().hits(data, search))
    hit = next(hits, None)
    while hit:
        number += data.count(b"\n", begins, hit[1])
        begins = data.rfind(b"\n", begins, hit[1]) + 1 or begins
        if number >= done:
            return
        ends = begins + len(lines[number])
        texts = {hit[0]}
        for hit in hits:
            if hit[1] >= ends:
                break
            texts.add(hit[0])
        else:
            hit = None
        yield number, texts


def first_match(lines: Sequence[str]) -> Signature | None:
    """Return the first signature of the catalogue that matches the first of the lines, or None."""
    hits = table().hits(lines[0].encode(), Search.ALL)
    for one in table().named(hit[0] for hit in hits):
        match = compiled(one.pattern).search("\n".join(lines[: one.lines]))
        if match and one.role is not Role.FACT and with_meanings(one, named(match)) is not None:
            return one
    return None


def named(match: re.Match[str]) -> dict[str, str]:
    """Return the values of the pattern's groups.

    `name`, `name2`, `name3` ... are the same value in several alternatives of a pattern. A `path`
    is without what the line has after it: a quote, a comma.
    """
    found = {name.rstrip("23456789"): text for name, text in match.groupdict().items() if text}
    if "path" in found:
        found["path"] = found["path"].rstrip("\"'`,;") or found["path"]
    return found


def with_meanings(one: Signature, values: dict[str, str]) -> dict[str, str] | None:
    """Return the values with the words of the signature's `meanings`, or None if one has none."""
    found = dict(values)
    for group, words in one.meanings.items():
        value = values.get(group, "")
        meaning = words.get(value) or words.get(value.lower()) or words.get("else")
        if meaning is None:
            return None
        found[f"{group}_meaning"] = meaning
    return found


def part_to_match(line: bytes) -> str:
    """Return the text of a line, or of a long line the part around the first known text."""
    if b"\r" in line.rstrip(b"\r"):  # earlier states of a progress bar
        parts = line.split(b"\r")
        line = next((part for part in parts if table().hits(part, Search.ALL)), parts[-1])
    if len(line) > LONGEST_LINE:
        at = max(first_text(line) - LONGEST_LINE // 2, 0)
        line = line[at : at + LONGEST_LINE]
    return line.decode(errors="replace")


def first_text(line: bytes | str) -> int:
    """Return where the first text of a signature begins, else that of the first mark, else 0."""
    data = line.encode(errors="replace") if isinstance(line, str) else line
    hits = table().hits(data, Search.ALL)
    begins = [hit[1] for hit in hits if not table().is_mark(hit[:1])] or [hit[1] for hit in hits]
    at = min(begins, default=0)
    return len(data[:at].decode(errors="replace")) if isinstance(line, str) else at


def shown(line: str, at: int) -> str:
    """Return what is shown of a line: of a long one, the part about index `at`."""
    at = max(at - _BEFORE, 0) if len(line) > SHOWN else 0
    return ("…" if at else "") + line[at : at + SHOWN].strip()
