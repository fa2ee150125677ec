"""The engine that finds the catalogue's signatures in logs, and what failed first.

Most of a log is not read line by line. An Aho-Corasick automaton searches blocks of a megabyte for
the plain text of all signatures. Only lines in which it finds a text are matched with the
signatures' patterns. The memory that it takes does not grow with the log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile

from clusterctl.domain.findings import Severity
from clusterctl.explain.explanation import (
    Explanation,
    LogFinding,
    UnknownError,
    by_words,
    is_cause,
    with_evidence,
)
from clusterctl.explain.failing import (
    LineKind,
    does_without,
    ended_well,
    goes_on,
    is_frame,
    is_python_frame,
    kind_of,
    tries_again,
)
from clusterctl.explain.lines import (
    CHAINED,
    EXCEPTION,
    FILE,
    FOLLOWING,
    LONGEST_LINE,
    NEAR,
    TRACEBACK,
    clean,
    following,
    is_beside,
    is_near,
    is_source,
    place_of,
    raised_at,
    raised_in,
    tag_of,
    text_of,
    time_of,
    without_label,
    without_prefix,
)
from clusterctl.explain.message import MOST_READ, advice_of, is_bare, is_guess, message_of
from clusterctl.explain.signature import Role, Signature
from clusterctl.explain.table import (
    SHOWN,
    Search,
    compiled,
    first_match,
    first_text,
    named,
    part_to_match,
    shown,
    table,
    texts_by_line,
    with_meanings,
)
from clusterctl.explain.wrapped import joined, unescaped

# Bytes of a block.
BLOCK = 1 << 20
# Ranks or hosts that are kept for a finding, and matching lines.
MOST_RANKS = 4096
MOST_LINES = 20
# Unknown exceptions that are kept, and unknown complaints.
MOST_UNKNOWN = 3
# Lines that differ only in digits: this many of a kind are matched, and the rest is only counted.
# The second number is the number of kinds that are remembered.
MOST_ALIKE = 1000
MOST_SHAPES = 1 << 13

# Open MPI puts its help messages between two lines of 74 dashes.
_FRAME = "-" * 74
# What follows an exception and is no more of its message: another traceback, a help message of Open
# MPI, a line of torchrun's log.
_OTHERS = re.compile(rf".*{re.escape(TRACEBACK)}|\s*{_FRAME}\s*$|[EWIF]\d{{4}} \d\d:")
# A further line of an exception's message, as of cloud-init's: `Exit code: 1`.
_FIELD = re.compile(r"[A-Z][a-z]+( [a-z]+)?: ")
# Lines of such a message, and a line of it with a value: `  Node:        demo-0`.
_FRAME_LINES = 60
_VALUE = re.compile(r"\s{2,}(?P<name>[#A-Z][\w #/-]{1,28}?):\s+(?P<value>\S.{0,80})$")
# Lines at the end of a log in which a doubtful line is taken for the failure.
_LAST = 20
# Lines that are matched with the forms of failures, apart from the last ones: of those that may be
# an error by themselves, and of others.
_MOST_STRONG = 10_000
_MOST_WEAK = 5000
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


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
    is_known = found.lead and is_cause(found.lead) and not found.lead.signature.generic
    if blocks > 1 or is_known:
        return found
    return _unwrapped(whole, origin, found) or found


def _unwrapped(data: bytes, origin: str, found: Explanation) -> Explanation | None:
    """Return what a log of one block says if its lines are as they were before another program.

    Its broken lines are joined, and lines within the texts of JSON and addresses are split. Returns
    None if that says no more than `found` does: joined lines of its own are no more.
    """
    known = {one.signature.id for one in found.findings}
    given = data.decode(errors="replace").splitlines()
    for lines, numbers in (*joined(given), *unescaped(given)):
        reader = _Reader(origin)
        reader.take("\n".join(lines).encode(), last=True)
        other = reader.explanation()
        says_nothing = found.lead is None and not found.unknown
        is_new = other.lead and other.lead.signature.id not in known
        if other.lead and is_new and (says_nothing or _is_better(other.lead, found.lead)):
            of_line = [0, *(number + 1 for number in numbers)]
            findings = (
                replace(
                    one, line=of_line[one.line], lines=tuple(of_line[line] for line in one.lines)
                )
                for one in other.findings
            )
            failing = (replace(one, line=of_line[one.line]) for one in other.failing)
            return Explanation(tuple(with_evidence(tuple(findings))), tuple(failing), found.lines)
    return None


def _is_better(one: LogFinding, before: LogFinding | None) -> bool:
    """Return whether a finding is a cause, and no generic one if there was a cause before."""
    has_cause = before is not None and is_cause(before)
    return is_cause(one) and not (has_cause and one.signature.generic)


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


# Characters in which lines of one kind may differ.
_VARYING = b"0123456789"


@dataclass
class _Shape:
    """A kind of lines, which differ only in digits.

    `signatures` are those whose plain text the lines have, `finding` is the part of the log and the
    id of the one that matched last, if one did.
    """

    signatures: list[Signature]
    seen: int = 1
    finding: tuple[str, str] | None = None


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
        # The last line of a finding all of whose lines say that their program tries again, or whose
        # signature does; else 0.
        self._tried: dict[tuple[str, str], int] = {}
        # Findings of which a line does not say so itself.
        self._untold: set[tuple[str, str]] = set()
        # Whether the last line so far had no end yet, and is not counted.
        self._is_cut = False
        self._shapes: dict[bytes, _Shape] = {}
        # Tags whose last traceback's exception was read, and tags whose next traceback belongs to
        # the same chain.
        self._exceptions: set[str] = set()
        self._chained: set[str] = set()
        # Tags whose last exception says no more than its kind: the next of its chain is noted too.
        self._bare: set[str] = set()
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
        counted = [
            replace(self._weighed(key, one), count=one.count + self._alike.get(key, 0))
            for key, one in found
        ]
        failing = {
            one.line: one
            for one in (*self._unknown, *self._doubtful)
            if one.kind is not LineKind.REMARK or not self._went_on(one.line)
        }
        ordered = [self._at_end(failing[line]) for line in sorted(failing)]
        every: tuple[LogFinding | UnknownError, ...] = (*counted, *ordered)
        if ended_well(self._tail) and all(map(_may_be_handled, every)):
            counted = [_as_warning(one) for one in counted]
            handled = {LineKind.EXCEPTION: LineKind.DOUBTFUL}
            ordered = [replace(one, kind=handled.get(one.kind, one.kind)) for one in ordered]
        return Explanation(tuple(with_evidence(counted)), tuple(ordered), self._line)

    def _at_end(self, one: UnknownError) -> UnknownError:
        """Mark a doubtful line at the end of the log, with no sign of progress after it."""
        is_last = one.kind is LineKind.DOUBTFUL and self._line - one.line < _LAST
        return replace(one, ends_log=True) if is_last and not self._went_on(one.line) else one

    def _weighed(self, key: tuple[str, str], one: LogFinding) -> LogFinding:
        """Return the finding; as a warning if its program tried again, and got further."""
        last = self._tried.get(key, 0)
        is_told = key not in self._untold and not _OBJECTS.search(one.text)
        went_on = last and self._went_on(last, None if is_told else one)
        return _as_warning(one) if went_on else one

    def _went_on(self, line: int, one: LogFinding | None = None) -> bool:
        """Return whether one of the last lines after this one shows progress, or that what is tried
        again after `one` has worked."""
        after = self._tail[line - self._line :] if line < self._line else []
        worked = one.signature.retries if one else ""
        if not (one and worked):
            return goes_on(after)
        objects = _OBJECTS.findall(one.text)
        is_over = compiled(worked).search
        return any(
            is_over(text) and all(name in text for name in objects) and _is_about(text, one.hosts)
            for text in after
        )

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
        search = Search.ALL if last else self._search()
        at_end = unseen
        for number, texts in chain(texts_by_line(data, lines, done, search), [(done, set())]):
            if number >= at_end:
                for one in range(unseen, number):
                    self._line = first + one
                    self._look(set(), lines, one, True)
                unseen = number + 1
            if number < done:
                self._line = first + number
                if number >= at_end or not self._is_counted(lines[number]):
                    self._look(texts, lines, number, number >= at_end)
        # The rest of a line that was cut is no line of its own.
        self._is_cut = not last and done == len(lines)
        self._line = first + done - self._is_cut
        if last:
            self._tail = [clean(one.decode(errors="replace")) for one in lines[-_LAST:]]
        return b"\n".join(lines[done:])

    def _search(self) -> Search:
        """Return which texts matter before the last lines of the log."""
        if self._marked < _MOST_WEAK:
            return Search.ALL
        is_over = self._is_full or self._marked >= _MOST_STRONG
        return Search.SIGNATURES if is_over else Search.STRONG

    def _is_counted(self, line: bytes) -> bool:
        """Count a line, and return whether so many like it were matched that this one is not."""
        shape = self._shapes.get(line.translate(None, _VARYING))
        if shape is None:
            return False
        shape.seen += 1
        if shape.seen <= MOST_ALIKE:
            return False
        if key := shape.finding:
            self._alike[key] = self._alike.get(key, 0) + 1
            if self._tried.get(key):
                self._tried[key] = self._line + 1
        return True

    def _look(self, texts: set[int], lines: Sequence[bytes], number: int, at_end: bool) -> None:
        """Match one line. `texts` are the indices of the plain texts that it has."""
        line = lines[number]
        if b" <==" in line and self._begins_part(line):
            return
        shape = self._shape(line, texts)
        search = self._search()
        strong = search is Search.STRONG and table().is_strong(texts)
        forms = at_end or search is Search.ALL or strong
        if not forms and table().is_mark(texts):
            return
        text = part_to_match(line)
        if TRACEBACK in text:
            self._traceback(lines, number, text)
            if not shape.signatures:
                return  # else a message stands before it on this line
        if any(one in text for one in CHAINED):
            self._chained |= {tag_of(text)} & self._exceptions
            return
        if clean(text).endswith(_FRAME) and self._is_read(lines, number, text):
            return
        for one in shape.signatures:
            said = following(lines, number, one.lines) if one.lines > 1 else [(0, clean(text))]
            matched = self._matched(one, said, text, lines, number)
            if not matched and one.lines > 1 and (labelled := without_label(said)):
                said = labelled
                matched = self._matched(one, said, text, lines, number)
            if matched and one.role is not Role.FACT:
                shape.finding = (self._part, one.id)
                self._cover(text, said[matched - 1][0])
                return
        if forms:
            self._marked += 1
            self._unexplained(text, lines, number, at_end)

    def _begins_part(self, line: bytes) -> bool:
        """Begin a part of the log and return True if the line is `==> file <==`."""
        begins = FILE.match(clean(line[:LONGEST_LINE].decode(errors="replace")))
        if begins:
            self._part = begins["name"]
            self._shapes.clear()
            self._exceptions.clear()
            self._chained.clear()
            self._bare.clear()
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
        said = clean(text)
        if self._covered.get(tag_of(text), -1) >= self._line:
            return
        if is_frame(said):
            self._stack(lines, number)
        elif is_python_frame(said):
            if at_end:  # of a traceback that is cut on both sides
                self._note_unknown(self._line + 1, said, text, LineKind.END, lines, number)
        elif not is_source(lines, number):
            kind = kind_of(said, [text_of(one) for one in lines[number + 1 : number + 3]])
            if kind and (at_end or kind is not LineKind.REMARK):
                self._note_unknown(self._line + 1, said, text, kind, lines, number)

    def _stack(self, lines: Sequence[bytes], number: int) -> None:
        """Note the line before the first frame of a stack, unless a signature matched it."""
        raw = lines[number - 1][:LONGEST_LINE].decode(errors="replace") if number else ""
        said = clean(raw)
        is_known = self._covered.get(tag_of(raw), -1) >= self._line - 1
        if said.strip() and not is_known and not is_frame(said) and "arning" not in said:
            kind = LineKind.EXCEPTION
            self._note_unknown(self._line, said, raw, kind, lines, number - 1)

    def _cover(self, raw: str, more: int) -> None:
        """Note that the current line and `more` after it with its tag belong to one message."""
        tag = tag_of(raw)
        self._covered[tag] = max(self._covered.get(tag, -1), self._line + more)

    def _is_read(self, lines: Sequence[bytes], number: int, text: str) -> bool:
        """Return whether a rule ends a help message of Open MPI, or begins a known one."""
        if self._covered.get(tag_of(text), -1) >= self._line:
            return True
        said = following(lines, number, _FRAME_LINES)
        if said[0][1].strip() != _FRAME:
            said = without_label(said)
        ends = next((at for at, one in enumerate(said) if at and one[1].strip() == _FRAME), 0)
        body = [part for _, part in said[1:ends]]
        firsts = (first_match(body[at:]) for at in range(len(body)))
        # A harmless line of another program may stand between the rules by chance.
        is_known = any(
            one and (one.role.is_failure or one.id.startswith(("mpi.", "pmix."))) for one in firsts
        )
        if is_known:
            self._cover(text, said[ends][0])
        return is_known

    def _note_unknown(
        self,
        line: int,
        said: str,
        raw: str,
        kind: LineKind,
        lines: Sequence[bytes],
        number: int,
        raised: str = "",
    ) -> None:
        is_remark = kind is LineKind.REMARK
        shape = f"{is_remark} {self._part} {said[:LONGEST_LINE].translate(_NO_DIGITS).strip()}"
        if shape in self._noted:
            return
        place = place_of(raw)
        rank, host = place.get("rank", ""), place.get("host", "")
        text = shown(said, first_text(said) if len(said) > SHOWN else 0)
        one = UnknownError(line, text, rank, self._origin, kind, False, self._part, host=host)
        many = 1 if kind is LineKind.END else MOST_UNKNOWN
        if sum(other.kind is kind for other in self._unknown) < many:
            message, advice = _message(said, lines, number)
            when, raised = time_of(lines, number), raised or raised_at(lines, number)
            own = replace(one, time=when, raised_at=raised, message=message, advice=advice)
            self._unknown.append(own)
            self._noted.add(shape)
        elif kind is LineKind.DOUBTFUL:
            self._doubtful.append(replace(one, message=message_of(said.strip())[:MOST_READ]))
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
        match = compiled(one.pattern).search(block)
        if not match or (one.generic and is_beside(lines, number)):
            return 0
        if one.lines == 1 and is_source(lines, number):
            return 0
        if is_guess(said[0][1], match.start()):
            return 0
        if one.near and not is_near(one.near, lines, number):
            return 0
        if one.role is Role.HARMLESS and one.lines == 1:
            rest = f"{block[: match.start()]}-{block[match.end() :]}"
            if kind_of(rest) in (LineKind.FAILING, LineKind.END):
                return 0
        values = {**place_of(raw), **named(match)}
        if one.hook:
            more = one.hook(block)
            if more is None:
                return 0
            values.update(more)
        meant = with_meanings(one, values)
        if meant is None:
            return 0
        values = meant
        rank = values.get("rank", "")
        ranks = frozenset([int(rank)]) if rank.isdigit() else frozenset()
        hosts = frozenset([values["host"]]) if "host" in values else frozenset()
        key = (self._part, one.id)
        before = self._findings.get(key)
        if before is None and (fields := _fields(lines, number)):
            values["fields"] = fields
        if one.generic and "error" in values and before is None:
            values["advised"] = _message(said[0][1], lines, number)[1]
        is_over = before is not None and not self._tried.get(key)
        is_told = (
            tries_again(said[0][1])
            or does_without(said[0][1])
            or any(tries_again(below) for _, below in following(lines, number, 2)[1:])
        )
        self._tried[key] = self._line + 1 if (one.retries or is_told) and not is_over else 0
        if not is_told:
            self._untold.add(key)
        # A rule of dashes says nothing: the line after it is shown.
        below, text = next((part for part in said if re.search(r"\w", part[1])), said[0])
        line = self._line + 1 + below
        if before is None:
            found = LogFinding(
                one,
                line,
                shown(text, 0 if below else match.start()),
                values,
                1,
                ranks,
                hosts,
                self._origin,
                self._part,
                time_of(lines, number),
                (line,),
                raised_at(lines, number),
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
        if is_cause(found):
            near = [one for one in self._doubtful if found.line - one.line <= NEAR]
            self._unknown += near[-MOST_UNKNOWN:]

    def _traceback(self, lines: Sequence[bytes], number: int, text: str) -> None:
        """Note the exception of a traceback, unless a signature explains it.

        In a chain of exceptions the first one is the cause, and the others are left out, unless
        those before say no more than their kind.
        """
        tag = tag_of(text)
        is_first = tag not in self._chained
        self._chained.discard(tag)
        if is_first:
            self._exceptions.discard(tag)
        said = without_prefix(following(lines, number, FOLLOWING))
        indent = len(said[0][1]) - len(said[0][1].lstrip())
        # The exception's line is the first one after the traceback's frames that is not indented.
        ends = (
            at
            for at, (_, line) in enumerate(said)
            if at and line[: indent + 1].strip() and EXCEPTION.match(line.strip())
        )
        after = next(ends, 0)
        if not after:  # the log is cut
            inside = takewhile(lambda one: not one[1][: indent + 1].strip(), said[1:])
            self._cover(text, max((at for at, _ in inside), default=0))
            self._note_unknown(self._line + 1, said[0][1], text, LineKind.END, lines, number)
            return
        self._cover(text, said[after][0])
        if not is_first and tag not in self._bare:
            return
        self._bare = self._bare - {tag} | ({tag} if is_bare(said[after][1]) else set())
        self._exceptions.add(tag)
        # A pattern of several lines may begin in the line above the exception.
        message = [line for _, line in said[after - 1 : after + 12]]
        beside = is_beside(lines, number + said[after][0])
        for at, line in enumerate(message):
            if at and _OTHERS.match(line):
                break
            for one in table().named(hit[0] for hit in table().hits(line.encode(), Search.ALL)):
                found = compiled(one.pattern).search("\n".join(message[at : at + one.lines]))
                is_its = found and (at or found.end() > len(line))
                if is_its and one.near:
                    is_its = is_near(one.near, lines, number + said[after][0])
                # Lines after the exception's own may be another's, but for its fields: what is no
                # cause there, such as the end of the process, does not explain it.
                is_others = at > 1 and one.role is not Role.ROOT and not _FIELD.match(line)
                is_others = is_others or (one.generic and beside)
                if is_its and one.role.is_failure and not is_others:
                    return
        raised = raised_in(line for _, line in reversed(said[:after]))
        number += said[after][0]
        line_number = self._line + 1 + said[after][0]
        self._note_unknown(line_number, message[1], text, LineKind.EXCEPTION, lines, number, raised)


def _may_be_handled(one: LogFinding | UnknownError) -> bool:
    """Return whether it is no error if the log ends well: an exception that a program handled."""
    if isinstance(one, UnknownError):
        if one.kind is LineKind.EXCEPTION:
            return not one.rank
        return not one.fatal and one.kind is not LineKind.END
    known = one.signature
    is_exception = known.generic and bool(one.raised_at) and not one.ranks
    return is_exception or not known.role.is_failure or known.severity is not Severity.ERROR


def _is_about(text: str, hosts: frozenset[str]) -> bool:
    """Return whether a line names all these hosts, or may be about the only one: it names none."""
    return all(host in text for host in hosts) or (len(hosts) == 1 and not _HOST.search(text))


def _as_warning(one: LogFinding) -> LogFinding:
    if one.signature.severity is not Severity.ERROR:
        return one
    return replace(one, signature=replace(one.signature, severity=Severity.WARNING))


# An object of Kubernetes in a line of its events.
_OBJECTS = re.compile(r"\b(?:pod|job|node|deployment|statefulset)s?/[\w.-]+")
# A line that names a host: an address, or what its program connects to.
_HOST = re.compile(r"\b(?:\d+\.){3}\d+\b|\b(?:to|on|host|node) (?!the\b|a\b)[\w-]*[\d.][\w.-]*")
# Lines below a message that may be its rest or its advice, and lines of those that are its rest.
_BELOW, _REST = 7, 3
# A line below a message that begins something else: a tag, a frame, a rule, a prompt, a level, a
# program's name, a traceback.
_BEGINS = re.compile(
    r"\s*(?:File \"|at \S+\(|raise )|\s*(?:\[|[$>] |[-=*#]{3}|\w+ +\||\d{4}-\d\d-\d\d|[EWIF]\d{4} )"
    r"|\s*(?!(?i:hints?|tips?|help|notes?|solutions?|suggestions?|fix|workarounds?|= help):)"
    r"[\w./@-]+(?:\[\d+\])?: |\s*(?:DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b"
    rf"|.*{re.escape(TRACEBACK)}|\s*[A-Za-z_][\w.]*(?:Error|Exception)\b"
)
# The end of a line within a sentence, and the beginning of a line that goes on with it.
_UNENDED = re.compile(
    r"(?:,| (?:an?|the|this|that|these|those|your|its|their|to|of|in|on|at|for|with|without|by|from"
    r"|into|and|or|but|not|no|nor|if|as|than|when|because|while|until|which|is|are|was|were|be|been"
    r"|being|has|have|had|do|does|did|can|could|should|must|may|might|will|would|please))$"
)
_CONTINUED = re.compile(r"(?!\S+(?: [a-z]+)?:(?: |$))[a-z(]\S* (?!=)|\S+\.$")


# A line below a message that begins its reason by a label or an arrow; what is indented may call it
# an error, too. A reason below its label may be numbered, and the last one is the innermost.
_REASON = re.compile(
    r"\s*(?:(?:[-=+]+>|[└├│─→>+|]+)\s*)?(?i:(?:root )?cause|reason|caused by|details?|errno|because"
    r"|stderr|(?<=\s)(?:error|exception|message))\s*[:=]\s*(?P<reason>.*)"
    r"|\s*(?:[-=]+>|[└├│─→]+)\s*(?P<pointed>\w.*)"
)
_NUMBERED = re.compile(r"\s+(?:\d+: )?(?P<reason>\w.*)")


def _reason_in(below: Sequence[str]) -> str:
    """Return the reason that the lines below a message give by a label or an arrow, or "".

    Words that name no failure are no reason: labels stand before other texts, too.
    """
    given, is_labelled = [], False
    for text in below:
        found = _REASON.match(text)
        more = _NUMBERED.match(text) if is_labelled else None
        if found:
            is_labelled = True
            given.append(found["reason"] or found["pointed"] or "")
        elif more:
            given.append(more["reason"])
        elif text.strip() and not text[0].isspace():
            break
    return next((one for one in reversed(given) if by_words(one)), "")


def _fields(lines: Sequence[bytes], number: int) -> str:
    """Return the values in the rest of a help message of Open MPI, one in a line, or ""."""
    found: list[str] = []
    for _, text in following(lines, number, _FRAME_LINES)[1:] if number else ():
        if text.strip() == _FRAME:
            return "\n".join(found)
        if value := _VALUE.match(text):
            found.append(f"{value['name'].strip()}: {value['value'].strip()}")
    return ""


def _is_announced(text: str) -> bool:
    others = ("(most recent call last)", *CHAINED)
    return bool(text) and not is_python_frame(text) and not any(one in text for one in others)


def _message(said: str, lines: Sequence[bytes], number: int) -> tuple[str, str]:
    """Return the message of a line with the lines that belong to it, and what it advises.

    These are the lines that it announces, or the rest of a sentence that goes on below, or a line
    that gives its reason.
    """
    message = message_of(said.strip())[:MOST_READ]
    below = [text[:MOST_READ].rstrip() for _, text in following(lines, number, _BELOW)[1:]]
    if " " not in message or message.endswith(":"):
        below = below[1:] if below[:1] == [""] else below
        announced = list(takewhile(_is_announced, below))[:_REST]
        message = " ".join([message, *map(str.strip, announced)])
        below = below[len(announced) :]
    head = len(said) - len(message_of(said))
    untagged = [text[0 if message_of(f"{text[:head]} ") else head :] for text in below]
    if reason := _reason_in(untagged):
        message += f": reason: {reason}"
    below = list(takewhile(lambda text: not _BEGINS.match(text), below))
    rest = 0
    while rest < min(_REST, len(below)) and _UNENDED.search(message):
        if not _CONTINUED.match(below[rest].strip()):
            break
        message += f" {below[rest].strip()}"
        rest += 1
    return message, advice_of(message, below[rest:])
