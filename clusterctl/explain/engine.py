"""The engine that finds the catalogue's signatures in logs, and what failed first.

Most of a log is not read line by line. An Aho-Corasick automaton searches blocks of a megabyte for
the plain text of all signatures. Only lines in which it finds a text are matched with the
signatures' patterns. The memory that it takes does not grow with the log.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from itertools import chain

from ahocorasick_rs import BytesAhoCorasick, Implementation

from clusterctl.domain.findings import Severity
from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.failing import (
    STRONG_MARKS,
    WEAK_MARKS,
    LineKind,
    goes_on,
    is_frame,
    is_python_frame,
    kind_of,
    tries_again,
)
from clusterctl.explain.signature import Role, Signature, literals
from clusterctl.explain.wrapped import joined, unescaped

# Bytes of a block.
BLOCK = 1 << 20
# Lines after a line that may belong to it, as in tracebacks and stall reports.
FOLLOWING = 400
# Bytes of a line that are matched. Of a longer line these are around the first known text.
LONGEST_LINE = 4000
# Characters of a line that are kept for a finding, and before the match in a longer one.
SHOWN, _BEFORE = 600, 40
# Ranks or hosts that are kept for a finding, and matching lines.
MOST_RANKS = 4096
MOST_LINES = 20
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
# Open MPI puts its help messages between two lines of 74 dashes.
_FRAME = "-" * 74
# What follows an exception and is no more of its message: another traceback, a help message of Open
# MPI, a line of torchrun's log.
_OTHERS = re.compile(rf".*{re.escape(_TRACEBACK)}|\s*{_FRAME}\s*$|[EWIF]\d{{4}} \d\d:")
# A further line of an exception's message, as of cloud-init's: `Exit code: 1`.
_FIELD = re.compile(r"[A-Z][a-z]+( [a-z]+)?: ")
# Lines of such a message.
_FRAME_LINES = 60
# Lines at the end of a log in which a doubtful line is taken for the failure.
_LAST = 20
# Lines before the lead in which a doubtful line makes it uncertain.
_NEAR = 40
# Lines that are matched with the forms of failures, apart from the last ones: of those that may be
# an error by themselves, and of others.
_MOST_STRONG = 20_000
_MOST_WEAK = 5000
# `tail` and `head` print this before each of several files.
_FILE = re.compile(r"^==> (?P<name>.+) <==$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Tags with the rank: mpirun's `[1,6]<stderr>:` and `[prterun-demo-0-17@1,6]<stderr>:`, horovodrun's
# `[6]<stderr>:`, all with or without a time stamp; PyTorch's `[rank6]:`, torchrun's `[default6]:`.
_TAG = re.compile(
    r"(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[(?:[\w.@-]+,)?(?P<rank>\d+)\](?:\[[\w.:-]+\])?<std"
    r"(?:out|err|diag)>: ?"
    r"|\[(?:rank|default)(?P<torch>\d+)\]: ?"
)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_MONTH = "[A-Z][a-z]{2}"
# Time stamps: 2026-11-22T10:07:44.5 | Sun Nov 22 10:07:44 2026 | I1122 10:07:44.5
_STAMP = re.compile(
    rf"(?:\b\d{{4}}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]|\b(?P<name>{_MONTH}) +(?P<day2>\d+) "
    rf"|\b(?P<day3>\d\d) (?P<name2>{_MONTH}) \d{{4}} )(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
# Prefixes of log lines that tell host, pid or rank, and the characters in which they are searched.
_PREFIX = 600
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        # [demo-1][[20817,1],5][btl_tcp_frag.c:242:mca_btl_tcp_frag_recv]
        r"\[(?P<host>[\w.-]+)\]\[\[\d+,\d+\],(?P<rank>\d+)\]\[",
        # demo-1:3063:3066 [0] misc/socket.cc:49 NCCL WARN
        r"(?<![\w.-])(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[-?\d+\].*NCCL",
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
# A frame of a traceback, and the folders of Python and of installed packages.
_FRAME_OF = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python[\d.]+/|^<")
# Lines of a traceback that are read for where its exception was raised.
_FRAMES = 120
# Words for values that the log does not have.
_WORDS = {"rank": "a rank", "host": "that rank's host", "gpu": "a GPU"}


@dataclass(frozen=True)
class LogFinding:
    """A signature that was found in a log.

    `line` (from 1), `text` and `values` are those of the first matching line. `count` is the number
    of matching lines. `ranks` and `hosts` are those that the lines name. `origin` names the log,
    and `part` the file in it that a line `==> file <==` begins. `time` is the line's time stamp or
    the last one before it, `MM-DD hh:mm:ss`, or empty. `lines` are the first matching lines.
    `raised_at` is where Python raised the exception: `file:line, in function`, or empty.
    """

    signature: Signature
    line: int
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    origin: str = ""
    part: str = ""
    time: str = ""
    lines: tuple[int, ...] = ()
    raised_at: str = ""

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
    """A line that reports a failure and is not in the catalogue.

    `ends_log` is set for a doubtful line at the end of its log, with no sign of progress after it.
    `raised_at` is where Python raised the exception: `file:line, in function`, or empty.
    """

    line: int
    text: str
    rank: str = ""
    origin: str = ""
    kind: LineKind = LineKind.EXCEPTION
    ends_log: bool = False
    part: str = ""
    time: str = ""
    raised_at: str = ""

    @property
    def fatal(self) -> bool:
        """Whether the line may be the cause of a failure by itself."""
        return self.kind in (LineKind.EXCEPTION, LineKind.FAILING) or (
            self.kind is LineKind.DOUBTFUL and self.ends_log
        )


# What mpirun prints when a rank ends with an exit status, whatever the reason.
_MPIRUN_ENDS = {"mpi.primary-job", "mpi.child-ended", "mpi.exit-code"}


@dataclass(frozen=True)
class Explanation:
    """The result for one or several logs.

    `findings` are in the order of their first lines, log by log. `failing` are the lines that
    report a failure and are not in the catalogue, the first of each kind. `lines` counts the lines
    read.
    """

    findings: tuple[LogFinding, ...] = ()
    failing: tuple[UnknownError, ...] = ()
    lines: int = 0

    def of(self, role: Role) -> tuple[LogFinding, ...]:
        """Return the findings of a role, errors before warnings, each in the order of the log."""
        found = [finding for finding in self.findings if finding.signature.role is role]
        return tuple(sorted(found, key=lambda one: _SEVERITIES.index(one.signature.severity)))

    @functools.cached_property
    def _first(self) -> LogFinding | None:
        """The finding that leads if no unknown line has to."""
        ranked = [one for role in _ROLES[:3] for one in self.of(role)]
        ranked.sort(key=lambda one: _SEVERITIES.index(one.signature.severity))
        if not ranked:
            return None
        peers = [
            one
            for one in ranked
            if (one.signature.role, one.signature.severity)
            == (ranked[0].signature.role, ranked[0].signature.severity)
        ]
        if len({log_of(one) for one in peers}) > 1 and all(one.time for one in peers):
            peers.sort(key=lambda one: one.time)
        first = next((one for one in peers if not _yields(one, peers)), peers[0])
        named = (one for one in self.of(Role.ROOT) if _names(first, one))
        return next(named, first)

    @functools.cached_property
    def lead(self) -> LogFinding | None:
        """The finding to begin with, or None.

        It is the earliest root that does not yield to another, else the earliest symptom, else the
        earliest consequence; a warning only if there is no error. Of several logs the earliest by
        time stamps counts, or that of the first log if one has no time stamps. It is None if
        nothing is known to be wrong. It is also None if there is no root that is an error, and the
        log has an exception that is not in the catalogue, or another unknown failing line before
        that finding: then the unknown line is the most likely cause.
        """
        first = self._first
        if first is None or _is_cause(first):
            return first
        hides = [LineKind.EXCEPTION, LineKind.FAILING]
        if first.signature.role is not Role.SYMPTOM:
            hides.append(LineKind.DOUBTFUL)
        hidden = any(
            one.kind is LineKind.EXCEPTION
            or (one.kind in hides and one.fatal and _is_before(one, first))
            for one in self.failing
        )
        return None if hidden else first

    @property
    def unknown(self) -> tuple[UnknownError, ...]:
        """The lines of `failing` to look at: with a known cause only those that may precede it."""
        cause = self._first if self._first and _is_cause(self._first) else None
        return tuple(
            one
            for one in self.failing
            if one.kind in (LineKind.EXCEPTION, LineKind.COMPLAINT)
            or (one.fatal and (cause is None or _is_before(one, cause)))
        )

    @property
    def unknown_before(self) -> tuple[UnknownError, ...]:
        """The unknown lines of the lead's log that stand before it. Any may be the cause."""
        lead = self.lead
        return tuple(
            one
            for one in self.failing
            if lead
            and _is_before(one, lead)
            and (one.fatal or (one.kind is LineKind.DOUBTFUL and lead.line - one.line <= _NEAR))
        )

    @property
    def symptoms_before(self) -> tuple[LogFinding, ...]:
        """The symptoms before the lead of which one may be the cause: it or they are generic."""
        lead = self.lead
        return tuple(
            one
            for one in self.of(Role.SYMPTOM)
            if lead
            and _is_cause(lead)
            and (lead.signature.generic or one.signature.generic)
            and one.signature.severity is Severity.ERROR
            and log_of(one) == log_of(lead)
            and one.line < lead.line
        )

    @functools.cached_property
    def firsts(self) -> tuple[LogFinding | UnknownError, ...]:
        """The first failure of each log that has one: its lead, or its first unknown line.

        They are sorted by their time stamps if all have one.
        """
        found: list[LogFinding | UnknownError] = []
        logs = [*map(log_of, self.findings), *map(log_of, self.failing)]
        for log in dict.fromkeys(logs):
            alone = Explanation(
                tuple(one for one in self.findings if log_of(one) == log),
                tuple(one for one in self.failing if log_of(one) == log),
            )
            if alone.severity is Severity.ERROR:
                found += [alone.lead] if alone.lead else (alone.unknown or alone.failing)[:1]
        if all(one.time for one in found):
            found.sort(key=lambda one: one.time)
        return tuple(found)

    @property
    def is_certain(self) -> bool:
        """Whether the lead is a cause by itself, and no other error may be the cause of it."""
        lead = self.lead
        is_root = lead is not None and lead.signature.role is Role.ROOT
        return is_root and not self.unknown_before and not self.symptoms_before

    @property
    def exit_without_error(self) -> str:
        """The rank that ended by itself, and its status; empty if anything else is reported.

        mpirun names the first rank that ended. It may be a victim only if another failed.
        """
        bad = [one for one in self.findings if one.signature.role is not Role.HARMLESS]
        if self.failing or not {one.signature.id for one in bad} <= _MPIRUN_ENDS:
            return ""
        ended = [one.values for one in bad if "code" in one.values]
        if not ended:
            return ""
        rank, code = ended[0]["first"], ended[0]["code"]
        return f"rank {rank} ended with exit status {code} by itself, without an error message"

    @property
    def severity(self) -> Severity:
        """ERROR, WARNING, or INFO if no line reports a failure."""
        if any(one.fatal or one.kind is LineKind.END for one in self.failing):
            return Severity.ERROR
        bad = (
            one.signature.severity
            for one in self.findings
            if one.signature.role is not Role.HARMLESS
        )
        least = Severity.WARNING if self.failing else Severity.INFO
        return min((*bad, least), key=_SEVERITIES.index)


def _is_cause(one: LogFinding) -> bool:
    return one.signature.role is Role.ROOT and one.signature.severity is Severity.ERROR


def _is_before(one: UnknownError, finding: LogFinding) -> bool:
    if log_of(one) == log_of(finding):
        return one.line < finding.line
    return "" < one.time < finding.time


def log_of(one: LogFinding | UnknownError) -> tuple[str, str]:
    """Return the name of a finding's log, and of the file in it."""
    return one.origin, one.part


def _yields(one: LogFinding, peers: Sequence[LogFinding]) -> bool:
    """Return whether a finding gives way to another of its log, wherever that stands."""
    return any(
        (one.signature.generic and not other.signature.generic and log_of(other) == log_of(one))
        or _names(one, other)
        for other in peers
        if other is not one
    )


def _names(one: LogFinding, other: LogFinding) -> bool:
    """Return whether a finding's signature names another of its log as one to which it yields."""
    return log_of(other) == log_of(one) and any(
        fnmatchcase(other.signature.id, name) for name in one.signature.yields_to
    )


def explain(pieces: Iterable[bytes | str], origin: str = "") -> Explanation:
    """Return what a log says. `pieces` are its parts in order; they may be cut anywhere.

    The memory used does not grow with the log. `origin` names the log in the findings.
    """
    reader = _Reader(origin)
    held = b""
    blocks = 0
    for block in _blocks(pieces):
        blocks += 1
        whole = held + block
        held = reader.take(whole)
    reader.take(held, last=True)
    found = reader.explanation()
    if blocks > 1 or (found.lead and _is_cause(found.lead)):
        return found
    return _unwrapped(whole, origin, found) or found


def _unwrapped(data: bytes, origin: str, found: Explanation) -> Explanation | None:
    """Return what a log of one block says if its lines are as they were before another program.

    Its broken lines are joined, and lines within the texts of JSON and addresses are split. Returns
    None if that says no more than `found` does.
    """
    given = data.decode(errors="replace").splitlines()
    for lines, numbers in (*joined(given), *unescaped(given)):
        reader = _Reader(origin)
        reader.take("\n".join(lines).encode(), last=True)
        other = reader.explanation()
        says_nothing = found.lead is None and not found.unknown
        if other.lead and (says_nothing or _is_cause(other.lead)):
            of_line = [0, *(number + 1 for number in numbers)]
            findings = (
                replace(
                    one, line=of_line[one.line], lines=tuple(of_line[line] for line in one.lines)
                )
                for one in other.findings
            )
            failing = (replace(one, line=of_line[one.line]) for one in other.failing)
            return Explanation(tuple(findings), tuple(failing), found.lines)
    return None


def merge(parts: Sequence[Explanation]) -> Explanation:
    """Return one explanation of several logs, in the order given."""
    return Explanation(
        tuple(finding for part in parts for finding in part.findings),
        tuple(one for part in parts for one in part.failing),
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


class _Search(Enum):
    """Which plain texts are searched: fewer once no more lines of failing forms are matched."""

    ALL = "signatures' texts and all marks of failing lines"
    STRONG = "signatures' texts and strong marks"
    SIGNATURES = "signatures' texts"


class _Table:
    """The catalogue, and an automaton that searches for its plain texts.

    Plain texts are referred to by their index in `_of_text`.
    """

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = signatures
        strong = (_TRACEBACK, *_CHAINED, " <==", *STRONG_MARKS)
        of_text: dict[str, list[int]] = {" <==": []}
        for number, one in enumerate(signatures):
            for text in literals(one.pattern):
                of_text.setdefault(text, []).append(number)
        # How many of the texts are searched by a _Search.
        self._sizes = {_Search.SIGNATURES: len(of_text)}
        for search, marks in ((_Search.STRONG, strong), (_Search.ALL, WEAK_MARKS)):
            for text in marks:
                of_text.setdefault(text, [])
            self._sizes[search] = len(of_text)
        self._texts = [text.encode() for text in of_text]
        self._numbers_of = list(of_text.values())
        self._strong = {at for at, text in enumerate(of_text) if text in strong}
        self._marks = {at for at, numbers in enumerate(self._numbers_of) if not numbers}
        self._automata: dict[_Search, BytesAhoCorasick] = {}

    def hits(self, data: bytes, search: _Search) -> list[tuple[int, int, int]]:
        """Return index, start and end of every plain text in `data`, sorted by their ends."""
        if search not in self._automata:
            # A DFA is three times as fast as what the library chooses by itself.
            texts = self._texts[: self._sizes[search]]
            self._automata[search] = BytesAhoCorasick(texts, implementation=Implementation.DFA)
        return self._automata[search].find_matches_as_indexes(data, overlapping=True)

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
        self._part = ""
        self._line = 0
        # By the part of the log and the signature's id.
        self._findings: dict[tuple[str, str], LogFinding] = {}
        # The number of lines that were counted without being matched.
        self._alike: dict[tuple[str, str], int] = {}
        # The last line of a finding all of whose lines say that their program tries again; else 0.
        self._tried: dict[tuple[str, str], int] = {}
        # Whether the last line so far had no end yet, and is not counted.
        self._is_cut = False
        self._shapes: dict[bytes, _Shape] = {}
        # Tags whose last traceback's exception was read, and tags whose next traceback belongs to
        # the same chain.
        self._exceptions: set[str] = set()
        self._chained: set[str] = set()
        self._unknown: list[UnknownError] = []
        # Texts of the unknown lines so far, without digits.
        self._noted: set[str] = set()
        # The last doubtful lines.
        self._doubtful: deque[UnknownError] = deque(maxlen=_LAST)
        # Lines without a text of a signature that were matched with the forms of failures, and
        # whether more failing lines are not kept.
        self._marked = 0
        self._is_full = False
        # By a tag, the number of the last line that belongs to a message that was read already.
        self._covered: dict[str, int] = {}
        self._tail: list[str] = []

    def explanation(self) -> Explanation:
        """Return the result so far."""
        found = sorted(self._findings.items(), key=lambda item: item[1].line)
        counted = (
            replace(self._weighed(key, one), count=one.count + self._alike.get(key, 0))
            for key, one in found
        )
        failing = {
            one.line: one
            for one in (*self._unknown, *self._doubtful)
            if one.kind is not LineKind.REMARK or not self._went_on(one.line)
        }
        ordered = (self._at_end(failing[line]) for line in sorted(failing))
        return Explanation(tuple(counted), tuple(ordered), self._line)

    def _at_end(self, one: UnknownError) -> UnknownError:
        """Mark a doubtful line at the end of the log, with no sign of progress after it."""
        is_last = one.kind is LineKind.DOUBTFUL and self._line - one.line < _LAST
        return replace(one, ends_log=True) if is_last and not self._went_on(one.line) else one

    def _weighed(self, key: tuple[str, str], one: LogFinding) -> LogFinding:
        """Return the finding; as a warning if its program tried again, and got further."""
        last = self._tried.get(key, 0)
        if one.signature.severity is Severity.ERROR and last and self._went_on(last):
            return replace(one, signature=replace(one.signature, severity=Severity.WARNING))
        return one

    def _went_on(self, line: int) -> bool:
        """Return whether one of the last lines that follow this one shows progress."""
        after = self._line - line
        return bool(after) and goes_on(self._tail[-after:])

    def take(self, data: bytes, last: bool = False) -> bytes:
        """Read the lines in `data` that have FOLLOWING lines after them. Return the other bytes.

        The caller puts these before the next block. With `last`, all lines are read.
        """
        lines = data.split(b"\n")
        keep = 0 if last else FOLLOWING
        if last and not lines[-1] and not (self._is_cut and len(lines) == 1):
            lines.pop()
        if not last and len(lines) <= FOLLOWING:
            if len(data) < 8 * BLOCK:
                return data
            keep = min(1, len(lines) - 1)  # a line without an end is cut anywhere
        done = len(lines) - keep
        first = self._line
        # Of the last lines each is matched, and of the others those with a text.
        unseen = max(0, done - _LAST) if last else done
        search = _Search.ALL if last else self._search()
        for number, texts in chain(_texts_by_line(data, lines, done, search), [(done, set())]):
            for one in range(min(unseen, number), number + 1):
                self._line = first + one
                if one < done:
                    said = texts if one == number else set()
                    self._look(said, lines, one, last and one >= done - _LAST)
            unseen = max(unseen, number + 1)
        # The rest of a line that was cut is no line of its own.
        self._is_cut = not last and done == len(lines)
        self._line = first + done - self._is_cut
        if last:
            self._tail = [_clean(one.decode(errors="replace")) for one in lines[-_LAST:]]
        return b"\n".join(lines[done:])

    def _search(self) -> _Search:
        """Return which texts matter before the last lines of the log."""
        if self._marked < _MOST_WEAK:
            return _Search.ALL
        is_over = self._is_full or self._marked >= _MOST_STRONG
        return _Search.SIGNATURES if is_over else _Search.STRONG

    def _look(self, texts: set[int], lines: Sequence[bytes], number: int, at_end: bool) -> None:
        """Match one line. `texts` are the indices of the plain texts that it has."""
        if b" <==" in lines[number] and self._begins_part(lines[number]):
            return
        line = lines[number]
        shape = self._shape(line, texts)
        shape.seen += 1
        key = (self._part, shape.matched)
        is_counted = shape.seen > MOST_ALIKE and not at_end
        if is_counted and (not shape.matched or key in self._findings):
            if shape.matched:
                self._alike[key] = self._alike.get(key, 0) + 1
                if self._tried.get(key):
                    self._tried[key] = self._line + 1
            return
        search = self._search()
        strong = search is _Search.STRONG and table().is_strong(texts)
        forms = at_end or search is _Search.ALL or strong
        if not forms and table().is_mark(texts):
            return
        text = _part_to_match(line)
        if _TRACEBACK in text:
            self._traceback(lines, number, text)
            return
        if any(one in text for one in _CHAINED):
            self._chained |= {_tag(text)} & self._exceptions
            return
        if _clean(text).strip() == _FRAME and self._is_read(lines, number, text):
            return
        for one in shape.signatures:
            said = _following(lines, number, one.lines) if one.lines > 1 else [(0, _clean(text))]
            matched = self._matched(one, said, text, lines, number)
            if matched:
                shape.matched = one.id
                self._cover(text, said[matched - 1][0])
                return
        if forms:
            self._marked += 1
            self._unexplained(text, lines, number, at_end)

    def _begins_part(self, line: bytes) -> bool:
        """Begin a part of the log and return True if the line is `==> file <==`."""
        begins = _FILE.match(_clean(line[:LONGEST_LINE].decode(errors="replace")))
        if begins:
            self._part = begins["name"]
            self._exceptions.clear()
            self._chained.clear()
            self._covered.clear()
        return bool(begins)

    def _shape(self, line: bytes, texts: set[int]) -> _Shape:
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
        return shape

    def _unexplained(self, text: str, lines: Sequence[bytes], number: int, at_end: bool) -> None:
        """Note a line that no signature matches, if it reports a failure."""
        clean = _clean(text)
        if self._covered.get(_tag(text), -1) >= self._line:
            return
        if is_frame(clean):
            self._stack(lines, number)
        elif at_end and is_python_frame(clean):  # of a traceback that is cut on both sides
            self._note_unknown(self._line + 1, clean, text, LineKind.END, lines, number)
        else:
            kind = kind_of(clean)
            below = lines[number + 1 : number + 2]
            if kind is LineKind.FAILING and any(
                tries_again(one[:LONGEST_LINE].decode(errors="replace")) for one in below
            ):
                kind = LineKind.DOUBTFUL
            if kind and (at_end or kind is not LineKind.REMARK):
                self._note_unknown(self._line + 1, clean, text, kind, lines, number)

    def _stack(self, lines: Sequence[bytes], number: int) -> None:
        """Note the line before the first frame of a stack, unless a signature matched it."""
        raw = lines[number - 1][:LONGEST_LINE].decode(errors="replace") if number else ""
        said = _clean(raw)
        is_known = self._covered.get(_tag(raw), -1) >= self._line - 1
        if said.strip() and not is_known and not is_frame(said) and "arning" not in said:
            kind = LineKind.EXCEPTION
            self._note_unknown(self._line, said, raw, kind, lines, number - 1)

    def _cover(self, raw: str, more: int) -> None:
        """Note that the current line and `more` after it with its tag belong to one message."""
        tag = _tag(raw)
        self._covered[tag] = max(self._covered.get(tag, -1), self._line + more)

    def _is_read(self, lines: Sequence[bytes], number: int, text: str) -> bool:
        """Return whether a rule ends a help message of Open MPI, or begins a known one."""
        if self._covered.get(_tag(text), -1) >= self._line:
            return True
        said = _following(lines, number, _FRAME_LINES)
        ends = next((at for at, one in enumerate(said) if at and one[1].strip() == _FRAME), 0)
        body = [part for _, part in said[1:ends]]
        firsts = (_first_match(body[at:]) for at in range(len(body)))
        # A harmless line of another program may stand between the rules by chance.
        is_known = any(
            one and (one.role is not Role.HARMLESS or one.id.startswith(("mpi.", "pmix.")))
            for one in firsts
        )
        if is_known:
            self._cover(text, said[ends][0])
        return is_known

    def _note_unknown(
        self, line: int, said: str, raw: str, kind: LineKind, lines: Sequence[bytes], number: int
    ) -> None:
        is_remark = kind is LineKind.REMARK
        shape = f"{is_remark} {self._part} {said[:LONGEST_LINE].translate(_NO_DIGITS).strip()}"
        if shape in self._noted:
            return
        rank = _place(raw).get("rank", "")
        shown = _shown(said, _first_text(said) if len(said) > SHOWN else 0)
        one = UnknownError(line, shown, rank, self._origin, kind, part=self._part)
        many = 1 if kind is LineKind.END else MOST_UNKNOWN
        if sum(other.kind is kind for other in self._unknown) < many:
            raised_at = _raised_at(lines, number)
            self._unknown.append(replace(one, time=_time(lines, number), raised_at=raised_at))
            self._noted.add(shape)
        elif kind is LineKind.DOUBTFUL:
            self._doubtful.append(one)
        else:
            self._is_full = True

    def _matched(
        self,
        one: Signature,
        said: list[tuple[int, str]],
        raw: str,
        lines: Sequence[bytes],
        number: int,
    ) -> int:
        """Add a finding and return the number of its lines if the signature matches, else 0.

        `said` is the line and, for some signatures, lines after it, without tags, each with its
        distance. `raw` is the line with its tag.
        """
        block = "\n".join(part for _, part in said)
        match = _compiled(one.pattern).search(block)
        if not match or (one.generic and _is_beside(lines, number)):
            return 0
        values = {**_place(raw), **_named(match)}
        if one.hook:
            more = one.hook(block)
            if more is None:
                return 0
            values.update(more)
        for group, words in one.meanings.items():
            meaning = words.get(values.get(group, ""), words.get("else"))
            if meaning is None:
                return 0
            values[f"{group}_meaning"] = meaning
        rank = values.get("rank", "")
        ranks = frozenset([int(rank)]) if rank.isdigit() else frozenset()
        hosts = frozenset([values["host"]]) if "host" in values else frozenset()
        key = (self._part, one.id)
        before = self._findings.get(key)
        is_over = before is not None and not self._tried.get(key)
        self._tried[key] = 0 if is_over or not tries_again(said[0][1]) else self._line + 1
        # A rule of dashes says nothing: the line after it is shown.
        below, text = next((part for part in said if re.search(r"\w", part[1])), said[0])
        line = self._line + 1 + below
        if before is None:
            found = LogFinding(
                one,
                line,
                _shown(text, 0 if below else match.start()),
                values,
                1,
                ranks,
                hosts,
                self._origin,
                self._part,
                _time(lines, number),
                (line,),
                _raised_at(lines, number),
            )
            self._keep_doubtful(found)
        else:
            more_lines = (line,) if len(before.lines) < MOST_LINES else ()
            found = replace(before, count=before.count + 1, lines=before.lines + more_lines)
            if len(before.ranks) < MOST_RANKS and len(before.hosts) < MOST_RANKS:
                found = replace(found, ranks=before.ranks | ranks, hosts=before.hosts | hosts)
        self._findings[key] = found
        return block.count("\n", 0, match.end()) + 1

    def _keep_doubtful(self, found: LogFinding) -> None:
        """Keep the doubtful lines shortly before a cause: one of them may be the real one."""
        if _is_cause(found):
            near = [one for one in self._doubtful if found.line - one.line <= _NEAR]
            self._unknown += near[-MOST_UNKNOWN:]

    def _traceback(self, lines: Sequence[bytes], number: int, text: str) -> None:
        """Note the exception of a traceback, unless a signature explains it.

        In a chain of exceptions the first one is the cause, and the others are left out.
        """
        tag = _tag(text)
        is_first = tag not in self._chained
        self._chained.discard(tag)
        if is_first:
            self._exceptions.discard(tag)
        said = _following(lines, number, FOLLOWING)
        indent = len(said[0][1]) - len(said[0][1].lstrip())
        # The exception's line is the first one after the traceback's frames that is not indented.
        ends = (
            at
            for at, (_, line) in enumerate(said)
            if at and line[: indent + 1].strip() and _EXCEPTION.match(line.strip())
        )
        after = next(ends, 0)
        if not after:  # the log is cut
            self._note_unknown(self._line + 1, said[0][1], text, LineKind.END, lines, number)
            return
        self._cover(text, said[after][0])
        if not is_first:
            return
        self._exceptions.add(tag)
        # A pattern of several lines may begin in the line above the exception.
        message = [line for _, line in said[after - 1 : after + 12]]
        is_beside = _is_beside(lines, number + said[after][0])
        for at, line in enumerate(message):
            if at and _OTHERS.match(line):
                break
            for one in table().named(hit[0] for hit in table().hits(line.encode(), _Search.ALL)):
                found = _compiled(one.pattern).search("\n".join(message[at:]))
                is_its = found and (at or found.end() > len(line))
                # Lines after the exception's own may be another's, but for its fields: a symptom
                # there, such as the end of the process, does not explain it.
                is_others = at > 1 and one.role is Role.SYMPTOM and not _FIELD.match(line)
                is_others = is_others or (one.generic and is_beside)
                if is_its and one.role is not Role.HARMLESS and not is_others:
                    return
        number += said[after][0]
        line_number = self._line + 1 + said[after][0]
        self._note_unknown(line_number, message[1], text, LineKind.EXCEPTION, lines, number)


def _texts_by_line(
    data: bytes, lines: Sequence[bytes], done: int, search: _Search
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


def _first_match(lines: Sequence[str]) -> Signature | None:
    """Return the first signature of the catalogue that matches the first of the lines, or None."""
    hits = table().hits(lines[0].encode(), _Search.ALL)
    some = table().named(hit[0] for hit in hits)
    return next(
        (one for one in some if _compiled(one.pattern).search("\n".join(lines[: one.lines]))), None
    )


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


def _following(lines: Sequence[bytes], number: int, count: int) -> list[tuple[int, str]]:
    """Return a line and up to `count` - 1 lines after it with the same tag, without tags.

    Each comes with its distance from the first one. Lines of other ranks in between are left out.
    """
    found: list[tuple[int, str]] = []
    own: str | None = None
    for distance, line in enumerate(lines[number : number + min(4 * count, FOLLOWING)]):
        raw = line[:LONGEST_LINE].decode(errors="replace")
        tag = _tag(raw)
        own = tag if own is None else own
        if tag == own:
            if found and b" <==" in line and _FILE.match(_clean(raw)):
                break
            found.append((distance, _clean(raw)))
            if len(found) == count:
                break
    return found


def _raised_at(lines: Sequence[bytes], number: int) -> str:
    """Return where Python raised the exception of a line: `file:line, in function`, or "".

    It is the last frame of the traceback outside of installed packages, else the last one.
    """
    frames = [frame for line in _frames(lines, number) if (frame := _FRAME_OF.match(line))]
    own = [frame for frame in frames if not _INSTALLED.search(frame["file"])]
    return "{file}:{line}, in {name}".format(**(own or frames)[0].groupdict()) if frames else ""


def _frames(lines: Sequence[bytes], number: int) -> Iterator[str]:
    """Yield the lines of a traceback from the one before its exception to its first one."""
    if number >= len(lines) or not _EXCEPTION.match(_text(lines[number]).strip()):
        return
    for line in reversed(lines[max(0, number - _FRAMES) : number]):
        text = _text(line)
        yield text
        if _TRACEBACK in text or not text.strip():
            return


def _is_beside(lines: Sequence[bytes], number: int) -> bool:
    """Return whether Python ignored the exception of a line, or raised another one handling it."""
    above = list(_frames(lines, number))
    first = number - len(above)
    ignored = above and first and b"Exception ignored in" in lines[first - 1]
    return bool(ignored) or any(
        _CHAINED[0].encode() in line for line in lines[number + 1 : number + 4]
    )


def _text(line: bytes) -> str:
    return _clean(line[:LONGEST_LINE].decode(errors="replace"))


def _part_to_match(line: bytes) -> str:
    """Return the text of a line, or of a long line the part around the first known text."""
    if b"\r" in line.rstrip(b"\r"):  # earlier states of a progress bar
        parts = line.split(b"\r")
        line = next((part for part in parts if table().hits(part, _Search.ALL)), parts[-1])
    if len(line) > LONGEST_LINE:
        at = max(_first_text(line) - LONGEST_LINE // 2, 0)
        line = line[at : at + LONGEST_LINE]
    return line.decode(errors="replace")


def _first_text(line: bytes | str) -> int:
    """Return where the first text of a signature begins, else that of the first mark, else 0."""
    data = line.encode(errors="replace") if isinstance(line, str) else line
    hits = table().hits(data, _Search.ALL)
    begins = [hit[1] for hit in hits if not table().is_mark(hit[:1])] or [hit[1] for hit in hits]
    at = min(begins, default=0)
    return len(data[:at].decode(errors="replace")) if isinstance(line, str) else at


def _shown(line: str, at: int) -> str:
    """Return what is shown of a line: of a long one, the part about index `at`."""
    at = max(at - _BEFORE, 0) if len(line) > SHOWN else 0
    return ("…" if at else "") + line[at : at + SHOWN].strip()


def _time(lines: Sequence[bytes], number: int) -> str:
    """Return the time stamp of a line or the last one before it, `MM-DD hh:mm:ss`, or ""."""
    for line in reversed(lines[max(0, number - _NEAR) : number + 1]):
        found = _STAMP.search(line[:200].decode(errors="replace"))
        if found:
            name = found["name"] or found["name2"]
            month = found["month"] or f"{_MONTHS.find(name) // 3 + 1:02}"
            day = int(found["day"] or found["day2"] or found["day3"])
            return f"{month}-{day:02} {found['time']}".replace(",", ".")
    return ""


def _place(text: str) -> dict[str, str]:
    """Return rank, host and pid, if the line's tag or its program's prefix tells them."""
    found: dict[str, str] = {}
    tag = _TAG.search(text)
    if tag:
        found["rank"] = tag["rank"] or tag["torch"]
        text = text[: tag.start()] + text[tag.end() :]
    for pattern in _PLACES:
        match = pattern.search(text, 0, _PREFIX)
        if match:
            return {**match.groupdict(), **found}
    return found


class _Words(dict[str, str]):
    """Values for a template, with a replacement for each value that the log does not have."""

    def __missing__(self, name: str) -> str:
        return _WORDS.get(name, f"({name} not in the log)")
