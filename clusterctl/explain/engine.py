"""Reads logs with the catalogue: what failed first, what followed from it, what means nothing.

Most of a log is never looked at line by line: an Aho-Corasick automaton of the signatures' plain
text goes over blocks of a megabyte, and the exact patterns over the lines that it finds. What is
kept does not grow with the log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ahocorasick_rs import BytesAhoCorasick, Implementation

from clusterctl.domain.findings import Severity
from clusterctl.explain import ec2, gpu, horovod, mpi, nccl, network, programs, system, tensorflow
from clusterctl.explain.signature import Role, Signature, literals

# In this order: of two signatures for the same line the earlier counts.
CATALOGUE: tuple[Signature, ...] = (
    *horovod.SIGNATURES,
    *tensorflow.HARMLESS,
    *mpi.SIGNATURES,
    *nccl.SIGNATURES,
    *gpu.SIGNATURES,
    *tensorflow.SIGNATURES,
    *network.SIGNATURES,
    *ec2.SIGNATURES,
    *system.SIGNATURES,
    *programs.SIGNATURES,
)

BLOCK = 1 << 20
# How many lines after one may belong to it: tracebacks, stall reports.
FOLLOWING = 400
LONGEST_LINE = 4000
MOST_RANKS = 4096
MOST_UNKNOWN = 3
# How many lines that differ in digits only are read for their values; of how many kinds of lines
# that is remembered.
MOST_ALIKE = 1000
MOST_SHAPES = 1 << 13

_ROLES = list(Role)
_SEVERITIES = [Severity.ERROR, Severity.WARNING, Severity.INFO]
_TRACEBACK = "Traceback (most recent call last)"
# What programs call errors themselves: shown where no signature knows the line. The first two end
# a process, as an exception of Python's does.
_FATAL = ("what():  ", "Check failed: ")
_COMPLAINTS = (*_FATAL, "NCCL WARN ", "rsync error: ", "UCX  ERROR ")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# `[1,6]<stderr>:`, `[prterun-demo-0-17@1,6]<stderr>:`, horovodrun's `[6]<stderr>:`, PyTorch's
# `[rank6]:` and torchrun's `[default6]:`.
_TAG = re.compile(
    r"(?:\w{3} \w{3} +\d+ [\d:]{8} \d{4})?\[(?:[\w.@-]+,)?(?P<rank>\d+)\](?:\[[\w.:-]+\])?<std"
    r"(?:out|err|diag)>: ?"
    r"|\[(?:rank|default)(?P<torch>\d+)\]: ?"
)
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
_WORDS = {"rank": "a rank", "host": "that rank's host", "gpu": "a GPU"}


@dataclass(frozen=True)
class LogFinding:
    """A signature that the log has. `line`, `text` and `values` are those of its first line.

    `line` counts from 1. `count` is how many lines said it; `ranks` and `hosts` which ones, where
    the lines told.
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
        """What it means, with the log's values."""
        return _filled(self.signature.cause, self.values)

    @property
    def remedy(self) -> str:
        """What to do about it, with the log's values."""
        return _filled(self.signature.remedy, self.values)


@dataclass(frozen=True)
class Unknown:
    """What the catalogue does not know: the last line of an exception's traceback, or a line that
    its program calls an error, which ends no process (`fatal` is False).
    """

    line: int
    text: str
    rank: str = ""
    origin: str = ""
    fatal: bool = True


@dataclass(frozen=True)
class Explanation:
    """What one log, or several, tell. `findings` are in the order of their first lines."""

    findings: tuple[LogFinding, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    lines: int = 0

    def of(self, role: Role) -> tuple[LogFinding, ...]:
        """The findings of this role: errors before warnings, then as they are in the log."""
        found = [finding for finding in self.findings if finding.signature.role is role]
        return tuple(sorted(found, key=lambda one: _SEVERITIES.index(one.signature.severity)))

    @property
    def lead(self) -> LogFinding | None:
        """What to begin with: the earliest root, else the earliest symptom, else the earliest
        consequence; a warning only where no error is. None where nothing is known to be wrong, and
        where an exception that is not in the catalogue is all that can have led to the rest.
        """
        ranked = [one for role in _ROLES[:3] for one in self.of(role)]
        ranked.sort(key=lambda one: _SEVERITIES.index(one.signature.severity))
        first = ranked[0] if ranked else None
        sure = first and first.signature.role is Role.ROOT
        if first and not (sure and first.signature.severity is Severity.ERROR):
            return None if any(one.fatal for one in self.unknown) else first
        return first

    @property
    def severity(self) -> Severity:
        """ERROR, WARNING, or INFO where nothing is known to be wrong."""
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
    """What a log says. `pieces` are its parts in order, cut anywhere; memory does not grow with it.

    `origin` names the log in its findings.
    """
    reader = _Reader(origin)
    held = b""
    for block in _blocks(pieces):
        held = reader.take(held + block)
    reader.take(held, last=True)
    return reader.explanation()


def joined(parts: Sequence[Explanation]) -> Explanation:
    """One explanation of several logs, in the order given: clocks of nodes may differ, so times
    say nothing about what came first.
    """
    return Explanation(
        tuple(finding for part in parts for finding in part.findings),
        tuple(one for part in parts for one in part.unknown),
        sum(part.lines for part in parts),
    )


def _blocks(pieces: Iterable[bytes | str]) -> Iterator[bytes]:
    """The log in blocks of at least a megabyte, the last but one excepted."""
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


# One entry of the catalogue, ready to search with.
_Entry = tuple[Signature, "re.Pattern[str]"]


class _Table:
    """The catalogue, ready to search with."""

    def __init__(self, catalogue: Sequence[Signature]) -> None:
        self._entries: list[_Entry] = [
            (one, re.compile(one.pattern, re.ASCII)) for one in catalogue
        ]
        self._of_text: dict[str, list[int]] = {text: [] for text in (_TRACEBACK, *_COMPLAINTS)}
        for number, one in enumerate(catalogue):
            for text in literals(one.pattern):
                self._of_text.setdefault(text, []).append(number)
        self._entries_of = list(self._of_text.values())
        # The automaton of states is three times as fast as what the library chooses by itself.
        self._search = BytesAhoCorasick(
            [text.encode() for text in self._of_text], implementation=Implementation.DFA
        )

    def hits(self, data: bytes) -> list[tuple[int, int, int]]:
        """Where a signature's plain text is: number of the text, start and end. By their ends."""
        return self._search.find_matches_as_indexes(data, overlapping=True)

    def named(self, texts: Iterable[int]) -> list[_Entry]:
        """The signatures that have one of these texts."""
        numbers = sorted({number for text in texts for number in self._entries_of[text]})
        return [self._entries[number] for number in numbers]

    def matching(self, text: str) -> list[_Entry]:
        """The signatures whose plain text the line has."""
        return self.named(hit[0] for hit in self.hits(text.encode()))


@functools.lru_cache(maxsize=1)
def table() -> _Table:
    """The catalogue's. It takes 50 ms to make."""
    return _Table(CATALOGUE)


# What differs between lines that are alike.
_VARYING = b"0123456789"


@dataclass
class _Shape:
    """Lines that differ in digits only."""

    signatures: list[_Entry]
    seen: int = 0
    matched: str = ""


class _Reader:
    """Goes through one log, block by block."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._findings: dict[str, LogFinding] = {}
        self._unknown: list[Unknown] = []
        self._line = 0
        self._traceback_ends = -1
        self._shapes: dict[bytes, _Shape] = {}
        # Lines like others that were read: they are counted only.
        self._alike: dict[str, int] = {}

    def explanation(self) -> Explanation:
        """What was found so far."""
        found = sorted(self._findings.values(), key=lambda one: one.line)
        counted = (
            replace(one, count=one.count + self._alike.get(one.signature.id, 0)) for one in found
        )
        return Explanation(tuple(counted), tuple(self._unknown), self._line)

    def take(self, data: bytes, last: bool = False) -> bytes:
        """Look at all lines of which the following ones are there; return the rest."""
        lines = data.split(b"\n")
        keep = 0 if last else FOLLOWING
        if last and not lines[-1]:
            lines.pop()
        if not last and len(lines) <= FOLLOWING:
            if len(data) < 8 * BLOCK:
                return data
            keep = min(1, len(lines) - 1)  # endless lines are cut anywhere
        done = len(lines) - keep
        first, number, begins = self._line, 0, 0
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
        """At one line, which has these plain texts of signatures."""
        line = lines[number]
        key = line.translate(None, _VARYING)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shape = _Shape(table().named(texts))
            # A dump without line ends is no kind of line, and would have to be kept.
            if len(line) <= LONGEST_LINE:
                self._shapes[key] = shape
        shape.seen += 1
        if shape.seen > MOST_ALIKE:
            if shape.matched:
                self._alike[shape.matched] = self._alike.get(shape.matched, 0) + 1
            return
        if b"\r" in line.rstrip(b"\r"):  # a progress bar's former states
            parts = line.split(b"\r")
            line = next((part for part in parts if table().hits(part)), parts[-1])
        if len(line) > LONGEST_LINE:  # what is around the first known text
            at = max(min(hit[1] for hit in table().hits(line)) - LONGEST_LINE // 2, 0)
            line = line[at : at + LONGEST_LINE]
        text = line.decode(errors="replace")
        if _TRACEBACK in text:
            self._traceback(lines, number, text)
            return
        for one, pattern in shape.signatures:
            block = _clean(text) if one.lines == 1 else _block(lines, number, one.lines)
            if self._matched(one, pattern, block, text):
                shape.matched = one.id
                return
        if any(complaint in text for complaint in _COMPLAINTS):
            self._note_unknown(
                self._line + 1, _clean(text), text, any(one in text for one in _FATAL)
            )

    def _note_unknown(self, line: int, said: str, raw: str, fatal: bool) -> None:
        rank = _place(raw).get("rank", "")
        if sum(one.fatal is fatal for one in self._unknown) < MOST_UNKNOWN:
            self._unknown.append(Unknown(line, said.strip()[:600], rank, self._origin, fatal))

    def _matched(self, one: Signature, pattern: re.Pattern[str], block: str, raw: str) -> bool:
        """Note the signature if the line, or the block that it begins, is really it."""
        match = pattern.search(block)
        if not match:
            return False
        values = {**_place(raw), **_named(match)}
        if one.read:
            read = one.read(block)
            if read is None:
                return False
            values.update(read)
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
        """Note the exception of a traceback that no signature explains."""
        if self._line < self._traceback_ends:
            return
        said = _following(lines, number, FOLLOWING)
        indent = len(said[0]) - len(said[0].lstrip())
        ends = (
            number
            for number, line in enumerate(said)
            if number and line[: indent + 1].strip() and _EXCEPTION.match(line.strip())
        )
        after = next(ends, 0)
        if not after:
            return
        # Of a chain the first is the cause; the others repeat it.
        self._traceback_ends = self._line + after + 4
        message = said[after : after + 12]
        for at, line in enumerate(message):
            if _TRACEBACK in line:
                break
            for one, pattern in table().matching(line):
                if one.role is not Role.HARMLESS and pattern.search("\n".join(message[at:])):
                    return
        self._note_unknown(self._line + 1 + after, said[after], text, fatal=True)


def _named(match: re.Match[str]) -> dict[str, str]:
    """The pattern's groups. `name`, `name2` and `name_` are one value in several alternatives."""
    return {name.rstrip("23456789"): text for name, text in match.groupdict().items() if text}


def _clean(text: str) -> str:
    """The line without colours and mpirun's tag."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "<std" in text or "]:" in text:
        text = _TAG.sub("", text)
    return text.rstrip()


def _following(lines: Sequence[bytes], number: int, count: int) -> list[str]:
    """The line and those after it that have the same tag, cleaned."""
    found: list[str] = []
    own: str | None = None
    for line in lines[number : number + min(4 * count, FOLLOWING)]:
        raw = line[:LONGEST_LINE].decode(errors="replace")
        tag = _TAG.search(raw)
        mark = f"{tag['rank']},{tag['torch']}" if tag else ""
        own = mark if own is None else own
        if mark == own:
            found.append(_clean(raw))
            if len(found) == count:
                break
    return found


def _block(lines: Sequence[bytes], number: int, count: int) -> str:
    return "\n".join(_following(lines, number, count))


def _place(text: str) -> dict[str, str]:
    """Rank, host and pid, as far as the line's tag and its program's prefix tell them."""
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
    def __missing__(self, name: str) -> str:
        return _WORDS.get(name, f"({name} not in the log)")


def _filled(template: str, values: Mapping[str, str]) -> str:
    words = _Words(values)
    if "rank" in values:
        words["rank"] = f"rank {values['rank']}"
    return template.format_map(words)
