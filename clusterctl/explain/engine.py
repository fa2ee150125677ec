"""The engine that finds the catalogue's signatures in logs, and what failed first.

Most of a log is not read line by line. An Aho-Corasick automaton searches blocks of a megabyte for
the plain text of all signatures. Only lines in which it finds a text are matched with the
signatures' patterns. The memory that it takes does not grow with the log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ahocorasick_rs import BytesAhoCorasick, Implementation

from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.signature import Role, Signature, literals

# Bytes of a block.
BLOCK = 1 << 20
# Lines after a line that may belong to it, as in tracebacks and stall reports.
FOLLOWING = 400
# Bytes of a line that are matched. Of a longer line these are around the first known text.
LONGEST_LINE = 4000
# Ranks or hosts that are kept for a finding.
MOST_RANKS = 4096
# Unknown exceptions that are kept, and unknown complaints.
MOST_UNKNOWN = 3
# Lines that differ only in digits: this many of a kind are matched, and the rest is only counted.
# The second number is the number of kinds that are remembered.
MOST_ALIKE = 1000
MOST_SHAPES = 1 << 13

_ROLES = list(Role)
_SEVERITIES = [Severity.ERROR, Severity.WARNING, Severity.INFO]
_TRACEBACK = "Traceback (most recent call last)"
# Python prints one of these between two tracebacks of a chain of exceptions.
_CHAINED = ("During handling of the above exception", "was the direct cause of the following")
# Marks of lines that programs themselves call errors. They are shown if no signature matches them.
# The first two end the process, as a Python exception does.
_FATAL = ("what():  ", "Check failed: ")
_COMPLAINTS = (*_FATAL, "NCCL WARN ", "rsync error: ", "UCX  ERROR ")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Tags with the rank: mpirun's `[1,6]<stderr>:` and `[prterun-demo-0-17@1,6]<stderr>:`, horovodrun's
# `[6]<stderr>:`, all with or without a time stamp; PyTorch's `[rank6]:`, torchrun's `[default6]:`.
_TAG = re.compile(
    r"(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[(?:[\w.@-]+,)?(?P<rank>\d+)\](?:\[[\w.:-]+\])?<std"
    r"(?:out|err|diag)>: ?"
    r"|\[(?:rank|default)(?P<torch>\d+)\]: ?"
)
# Prefixes of log lines that tell host, pid or rank.
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        # [demo-1][[20817,1],5][btl_tcp_frag.c:242:mca_btl_tcp_frag_recv]
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[",
        # demo-1:3063:3066 [0] misc/socket.cc:49 NCCL WARN
        r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[-?\d+\].*NCCL",
        # [demo-1:03063] *** An error occurred in MPI_Init
        r"^\[(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+)\]",
        # Jun  1 12:00:00 demo-1 kernel: | 2026-11-22T10:07:44+00:00 demo-1 kernel:
        r"^(?:\w{3} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (?P<host>[\w.-]+) [\w.-]+(?:\[\d+\])?:",
    )
)
# The last line of a traceback: `tensorflow.python.framework.errors_impl.NotFoundError: ...`
_EXCEPTION = re.compile(
    r"[A-Za-z_][\w.]*(?:\.[A-Z]\w*|Error|Exception|Interrupt|Exit|Warning)\b|[A-Z]\w*:"
)
# Words for values that the log does not have.
_WORDS = {"rank": "a rank", "host": "that rank's host", "gpu": "a GPU"}


@dataclass(frozen=True)
class LogFinding:
    """A signature that was found in a log.

    `line` (from 1), `text` and `values` are those of the first matching line. `count` is the number
    of matching lines. `ranks` and `hosts` are those that the lines name. `origin` names the log.
    """

    signature: Signature
    line: int
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    origin: str = ""

    @property
    def cause(self) -> str:
        """The signature's cause, with the values from the log."""
        return self._filled(self.signature.cause)

    @property
    def remedies(self) -> tuple[tuple[str, str], ...]:
        """Alternatives of the cause, each with its remedy; one without a name if it is alone."""
        return tuple((self._filled(when), self._filled(do)) for when, do in self.signature.remedies)

    @property
    def remedy(self) -> str:
        """The remedies as text, a line for each alternative."""
        return "\n".join(f"{when}: {do}" if when else do for when, do in self.remedies)

    def _filled(self, template: str) -> str:
        words = _Words({**self.signature.defaults, **self.values})
        if "rank" in self.values:
            words["rank"] = f"rank {self.values['rank']}"
        return template.format_map(words)


@dataclass(frozen=True)
class UnknownError:
    """An error in the log that is not in the catalogue.

    With `fatal` it ends its process: the last line of a Python traceback, or a line with one of
    _FATAL. Otherwise it is a line that its program calls an error.
    """

    line: int
    text: str
    rank: str = ""
    origin: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class Explanation:
    """The result for one or several logs.

    `findings` are in the order of their first lines, log by log. `lines` counts the lines read.
    """

    findings: tuple[LogFinding, ...] = ()
    unknown: tuple[UnknownError, ...] = ()
    lines: int = 0

    def of(self, role: Role) -> tuple[LogFinding, ...]:
        """Return the findings of a role, errors before warnings, each in the order of the log."""
        found = [finding for finding in self.findings if finding.signature.role is role]
        return tuple(sorted(found, key=lambda one: _SEVERITIES.index(one.signature.severity)))

    @property
    def lead(self) -> LogFinding | None:
        """The finding to begin with, or None.

        It is the earliest root, else the earliest symptom, else the earliest consequence; a warning
        only if there is no error. It is None if nothing is known to be wrong. It is also None if
        the log has a fatal error that is not in the catalogue, and no root that is an error: then
        the unknown error is the most likely cause.
        """
        ranked = [one for role in _ROLES[:3] for one in self.of(role)]
        ranked.sort(key=lambda one: _SEVERITIES.index(one.signature.severity))
        first = ranked[0] if ranked else None
        sure = first and first.signature.role is Role.ROOT
        if first and not (sure and first.signature.severity is Severity.ERROR):
            return None if any(one.fatal for one in self.unknown) else first
        return first

    @property
    def unknown_before(self) -> tuple[UnknownError, ...]:
        """The unknown errors of the lead's log that stand before it. Any may be the cause."""
        lead = self.lead
        if lead is None:
            return ()
        return tuple(
            one for one in self.unknown if one.origin == lead.origin and one.line < lead.line
        )

    @property
    def is_certain(self) -> bool:
        """Whether the lead is a cause by itself, and no unknown error stands before it."""
        lead = self.lead
        return bool(lead and lead.signature.role is Role.ROOT and not self.unknown_before)

    @property
    def severity(self) -> Severity:
        """ERROR, WARNING, or INFO if nothing is known to be wrong."""
        if any(one.fatal for one in self.unknown):
            return Severity.ERROR
        bad = (
            one.signature.severity
            for one in self.findings
            if one.signature.role is not Role.HARMLESS
        )
        least = Severity.WARNING if self.unknown else Severity.INFO
        return min((*bad, least), key=_SEVERITIES.index)


def explain(pieces: Iterable[bytes | str], origin: str = "") -> Explanation:
    """Return what a log says. `pieces` are its parts in order; they may be cut anywhere.

    The memory used does not grow with the log. `origin` names the log in the findings.
    """
    reader = _Reader(origin)
    held = b""
    for block in _blocks(pieces):
        held = reader.take(held + block)
    reader.take(held, last=True)
    return reader.explanation()


def merge(parts: Sequence[Explanation]) -> Explanation:
    """Return one explanation of several logs, in the order given.

    The lines are not sorted by time, since the clocks of nodes may differ.
    """
    return Explanation(
        tuple(finding for part in parts for finding in part.findings),
        tuple(one for part in parts for one in part.unknown),
        sum(part.lines for part in parts),
    )


def _blocks(pieces: Iterable[bytes | str]) -> Iterator[bytes]:
    """Yield the log in blocks of at least BLOCK bytes. The last one may be shorter."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        data = piece.encode(errors="replace") if isinstance(piece, str) else piece
        for start in range(0, len(data), BLOCK):
            held.append(data[start : start + BLOCK])
            size += len(held[-1])
            if size >= BLOCK:
                yield b"".join(held)
                held, size = [], 0
    yield b"".join(held)


class _Table:
    """The catalogue, and an automaton that searches for its plain texts.

    Plain texts are referred to by their index in `_of_text`.
    """

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = signatures
        marks = (_TRACEBACK, *_CHAINED, *_COMPLAINTS)
        self._of_text: dict[str, list[int]] = {text: [] for text in marks}
        for number, one in enumerate(signatures):
            for text in literals(one.pattern):
                self._of_text.setdefault(text, []).append(number)
        self._numbers_of = list(self._of_text.values())
        # A DFA is three times as fast as the implementation that the library chooses by itself.
        self._search = BytesAhoCorasick(
            [text.encode() for text in self._of_text], implementation=Implementation.DFA
        )

    def hits(self, data: bytes) -> list[tuple[int, int, int]]:
        """Return index, start and end of every plain text in `data`, sorted by their ends."""
        return self._search.find_matches_as_indexes(data, overlapping=True)

    def named(self, texts: Iterable[int]) -> list[Signature]:
        """Return the signatures that have one of these texts, in the catalogue's order."""
        numbers = sorted({number for text in texts for number in self._numbers_of[text]})
        return [self._signatures[number] for number in numbers]


@functools.lru_cache(maxsize=1)
def table() -> _Table:
    """Return the catalogue with its automaton. Making it takes 50 ms, so it is done once."""
    return _Table(catalogue())


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a signature's pattern. Only those whose plain text is in a log are compiled."""
    return re.compile(pattern, re.ASCII)


# Characters in which lines of one kind may differ.
_VARYING = b"0123456789"


@dataclass
class _Shape:
    """A kind of lines, which differ only in digits.

    `signatures` are those whose plain text the lines have, `matched` is the id of the one that
    matched last, or empty.
    """

    signatures: list[Signature]
    seen: int = 0
    matched: str = ""


class _Reader:
    """Reads one log, block by block."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._findings: dict[str, LogFinding] = {}
        self._unknown: list[UnknownError] = []
        self._line = 0
        # Tags whose last traceback's exception was read, and tags whose next traceback belongs to
        # the same chain.
        self._exceptions: set[str] = set()
        self._chained: set[str] = set()
        self._shapes: dict[bytes, _Shape] = {}
        # By a signature's id, the number of lines that were counted without being matched.
        self._alike: dict[str, int] = {}

    def explanation(self) -> Explanation:
        """Return the result so far."""
        found = sorted(self._findings.values(), key=lambda one: one.line)
        counted = (
            replace(one, count=one.count + self._alike.get(one.signature.id, 0)) for one in found
        )
        return Explanation(tuple(counted), tuple(self._unknown), self._line)

    def take(self, data: bytes, last: bool = False) -> bytes:
        """Read the lines in `data` that have FOLLOWING lines after them. Return the other bytes.

        The caller puts these before the next block. With `last`, all lines are read.
        """
        lines = data.split(b"\n")
        keep = 0 if last else FOLLOWING
        if last and not lines[-1]:
            lines.pop()
        if not last and len(lines) <= FOLLOWING:
            if len(data) < 8 * BLOCK:
                return data
            keep = min(1, len(lines) - 1)  # a line without an end is cut anywhere
        done = len(lines) - keep
        first, number, begins = self._line, 0, 0
        # `number` and `begins` are index and offset of the line with the current hit. All hits of a
        # line are collected before it is matched.
        hits = iter(table().hits(data))
        hit = next(hits, None)
        while hit:
            number += data.count(b"\n", begins, hit[1])
            begins = data.rfind(b"\n", begins, hit[1]) + 1 or begins
            if number >= done:
                break
            ends = begins + len(lines[number])
            texts = {hit[0]}
            for hit in hits:
                if hit[1] >= ends:
                    break
                texts.add(hit[0])
            else:
                hit = None
            self._line = first + number
            self._look(texts, lines, number)
        self._line = first + done
        return b"\n".join(lines[done:])

    def _look(self, texts: set[int], lines: Sequence[bytes], number: int) -> None:
        """Match one line. `texts` are the indices of the plain texts that it has."""
        line = lines[number]
        key = line.translate(None, _VARYING)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shape = _Shape(table().named(texts))
            # The line is the key of its shape. A binary dump without line ends would take much
            # memory as a key.
            if len(line) <= LONGEST_LINE:
                self._shapes[key] = shape
        shape.seen += 1
        if shape.seen > MOST_ALIKE:
            if shape.matched:
                self._alike[shape.matched] = self._alike.get(shape.matched, 0) + 1
            return
        if b"\r" in line.rstrip(b"\r"):  # earlier states of a progress bar
            parts = line.split(b"\r")
            line = next((part for part in parts if table().hits(part)), parts[-1])
        if len(line) > LONGEST_LINE:  # keep the part around the first known text
            at = max(min(hit[1] for hit in table().hits(line)) - LONGEST_LINE // 2, 0)
            line = line[at : at + LONGEST_LINE]
        text = line.decode(errors="replace")
        if _TRACEBACK in text:
            self._traceback(lines, number, text)
            return
        if any(one in text for one in _CHAINED):
            self._chained |= {_tag(text)} & self._exceptions
            return
        for one in shape.signatures:
            said = [_clean(text)] if one.lines == 1 else _following(lines, number, one.lines)
            block = "\n".join(said)
            if self._matched(one, block, text):
                shape.matched = one.id
                return
        if any(complaint in text for complaint in _COMPLAINTS):
            self._note_unknown(
                self._line + 1, _clean(text), text, any(one in text for one in _FATAL)
            )

    def _note_unknown(self, line: int, said: str, raw: str, fatal: bool) -> None:
        rank = _place(raw).get("rank", "")
        if sum(one.fatal is fatal for one in self._unknown) < MOST_UNKNOWN:
            self._unknown.append(UnknownError(line, said.strip()[:600], rank, self._origin, fatal))

    def _matched(self, one: Signature, block: str, raw: str) -> bool:
        """Add a finding and return True if the signature's pattern matches `block`.

        `block` is the line and, for some signatures, lines after it, without tags. `raw` is the
        line with its tag.
        """
        match = _compiled(one.pattern).search(block)
        if not match:
            return False
        values = {**_place(raw), **_named(match)}
        if one.hook:
            more = one.hook(block)
            if more is None:
                return False
            values.update(more)
        for group, words in one.meanings.items():
            meaning = words.get(values.get(group, ""), words.get("else"))
            if meaning:
                values[f"{group}_meaning"] = meaning
        rank = values.get("rank", "")
        ranks = frozenset([int(rank)]) if rank.isdigit() else frozenset()
        hosts = frozenset([values["host"]]) if "host" in values else frozenset()
        before = self._findings.get(one.id)
        if before is None:
            text = block.split("\n")[0].strip()[:600]
            found = LogFinding(one, self._line + 1, text, values, 1, ranks, hosts, self._origin)
        else:
            found = replace(before, count=before.count + 1)
            if len(before.ranks) < MOST_RANKS and len(before.hosts) < MOST_RANKS:
                found = replace(found, ranks=before.ranks | ranks, hosts=before.hosts | hosts)
        self._findings[one.id] = found
        return True

    def _traceback(self, lines: Sequence[bytes], number: int, text: str) -> None:
        """Note the exception of a traceback, unless a signature explains it.

        In a chain of exceptions the first one is the cause, and the others are left out.
        """
        tag = _tag(text)
        if tag in self._chained:
            self._chained.remove(tag)
            return
        self._exceptions.discard(tag)
        said = _following(lines, number, FOLLOWING)
        indent = len(said[0]) - len(said[0].lstrip())
        # The exception's line is the first one after the traceback's frames that is not indented.
        ends = (
            number
            for number, line in enumerate(said)
            if number and line[: indent + 1].strip() and _EXCEPTION.match(line.strip())
        )
        after = next(ends, 0)
        if not after:
            return
        self._exceptions.add(tag)
        message = said[after : after + 12]
        for at, line in enumerate(message):
            if _TRACEBACK in line:
                break
            for one in table().named(hit[0] for hit in table().hits(line.encode())):
                found = _compiled(one.pattern).search("\n".join(message[at:]))
                if found and one.role is not Role.HARMLESS:
                    return
        self._note_unknown(self._line + 1 + after, said[after], text, fatal=True)


def _named(match: re.Match[str]) -> dict[str, str]:
    """Return the values of the pattern's groups.

    `name`, `name2`, `name3` ... are the same value in several alternatives of a pattern.
    """
    return {name.rstrip("23456789"): text for name, text in match.groupdict().items() if text}


def _clean(text: str) -> str:
    """Return the line without colours and without the tag of mpirun, horovodrun or PyTorch."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<std" in text or "]:" in text:
        text = _TAG.sub("", text)
    return text.rstrip()


def _tag(raw: str) -> str:
    """Return the rank in a line's tag, or "" if the line has no tag."""
    tag = _TAG.search(raw)
    return tag["rank"] or tag["torch"] if tag else ""


def _following(lines: Sequence[bytes], number: int, count: int) -> list[str]:
    """Return a line and up to `count` - 1 lines after it with the same tag, without tags.

    Lines of other ranks in between are left out.
    """
    found: list[str] = []
    own: str | None = None
    for line in lines[number : number + min(4 * count, FOLLOWING)]:
        raw = line[:LONGEST_LINE].decode(errors="replace")
        tag = _tag(raw)
        own = tag if own is None else own
        if tag == own:
            found.append(_clean(raw))
            if len(found) == count:
                break
    return found


def _place(text: str) -> dict[str, str]:
    """Return rank, host and pid, if the line's tag or its program's prefix tells them."""
    found: dict[str, str] = {}
    tag = _TAG.search(text)
    if tag:
        found["rank"] = tag["rank"] or tag["torch"]
        text = text[: tag.start()] + text[tag.end() :]
    for pattern in _PLACES:
        match = pattern.search(text)
        if match:
            return {**match.groupdict(), **found}
    return found


class _Words(dict[str, str]):
    """Values for a template, with a replacement for each value that the log does not have."""

    def __missing__(self, name: str) -> str:
        return _WORDS.get(name, f"({name} not in the log)")

