"""`clusterctl explain [FILE...]`: what failed first in a log, and what only followed from it."""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import re
import sys
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.host_options import check_launcher, host_options, launcher_option
from clusterctl.cli.params import json_option, launched_here
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import NOT_KNOWN, STATUSES, Severity
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.cli.json_types import Explained, LogFindingData, UnknownLine
    from clusterctl.explain.explanation import Explanation, LogFinding, UnknownError
    from clusterctl.operations.hosts_access import HostSource

# Characters of each piece that are read, and the share of them that text has at most of those
# that no text has.
MEASURED, MOST_ODD = 1 << 16, 0.3
_ODD = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
# Findings that are printed under each title.
SHOWN = 12
# Bytes read at a time.
PIECE = 1 << 20
_GZIP = b"\x1f\x8b"
# First bytes of compressed files that are refused: xz, bzip2, zstd, zip, gzip in gzip.
_PACKED = (b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", _GZIP)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, metavar="[FILE]...")
@json_option("Explained")
@host_options("slurm")
@launcher_option
def explain(
    files: tuple[str, ...], as_json: bool, source: HostSource | None, launcher: str | None
) -> int:
    """Say what failed first in logs: a job's, a kernel's, cloud-init's. No cluster is needed.

    \b
    clusterctl explain train.log
    clusterctl logs demo | clusterctl explain
    clusterctl explain train.log dmesg-*.txt.gz --json
    clusterctl explain --hosts hosts

    Without FILE, and for -, it reads standard input. Of hosts of no cluster, named by --hosts, -w
    or --local, it reads the files to which the jobs that run there write. What it does not
    know it leaves unexplained.
    The exit status is 2 if a line reports a failure, 1 if there are warnings only, 0 if there is
    neither, and 3 if something was not read, and no line of the rest reports a failure.
    """
    from clusterctl.explain.engine import explain as explained
    from clusterctl.explain.explanation import merge

    check_launcher(launcher, source)
    if source and files:
        raise UsageError(f"two are named: {files[0]} and {source.options}", "leave one of them out")
    of_hosts: dict[str, str] = {}
    partial: dict[str, str] = {}
    if source:
        from clusterctl.operations.diagnose_hosts import logs_of

        found_logs = logs_of(source, launcher or "")
        of_hosts, partial = found_logs.texts, found_logs.unread
        for name, why in partial.items():
            output.note(f"warning: {name} {why}")
        files = tuple(of_hosts)
        output.note(f"read: {', '.join(files)}")
    elif not files and sys.stdin.isatty():
        raise UsageError("no log was given", "name a file: clusterctl explain FILE")
    names = dict.fromkeys(files or ("-",))
    if len(files) == 2 and not of_hosts:
        _require_files(*files)
    read = {name: _Content() for name in names}
    found = merge(
        [
            explained(
                content.measured(iter([of_hosts[name]]) if of_hosts else _pieces(name)),
                "" if len(names) == 1 and not of_hosts else name,
            )
            for name, content in read.items()
        ]
    )
    is_clean = found.severity is Severity.INFO
    unread = {name: content.lacks for name, content in read.items() if content.lacks}
    blank = {name: one for name, one in read.items() if one.lacks and not one.is_cut}
    if len(blank) == len(read) and is_clean:
        for content in blank.values():
            if content.error:
                raise content.error
        what = ", ".join(dict.fromkeys(unread.values()))
        logs = "the log" if len(read) == 1 else "each of the logs"
        raise ClusterctlError(f"{logs} {what}", "name the log of the job that failed")
    if as_json:
        output.data(_as_data(found))
    else:
        _show(found)
    for name, what in unread.items():
        log = "standard input" if name == "-" else name
        known = "what comes before is read" if read[name].is_cut else "nothing is known of it"
        output.note(f"warning: {log} {what}: {known}")
    status = STATUSES[found.severity]
    return NOT_KNOWN if (unread or partial) and status < STATUSES[Severity.ERROR] else status


def _require_files(cluster: str, job: str) -> None:
    """Raise ClusterctlError if the two arguments are a cluster and its job, and not two files."""
    if launched_here(cluster) and not (Path(cluster).exists() or Path(job).exists()):
        raise ClusterctlError(
            f"{cluster} is a cluster, and explain reads files",
            f"pipe the log of the job: clusterctl logs {cluster} {job} | clusterctl explain",
        )


class _Content:
    """What the bytes of a log are, by the begin of each of its pieces."""

    def __init__(self) -> None:
        self.characters = self.odd = 0
        self.has_text = False
        self.error: ClusterctlError | None = None

    def measured(self, pieces: Iterator[bytes | str]) -> Iterator[bytes | str]:
        """Yield the pieces until one cannot be read, and take note of them, and of the error."""
        try:
            for piece in pieces:
                begin = piece[:MEASURED]
                text = begin.decode(errors="replace") if isinstance(begin, bytes) else begin
                self.characters += len(text)
                self.odd += len(_ODD.findall(text))
                self.has_text = self.has_text or bool(piece.strip())
                yield piece
        except ClusterctlError as error:
            self.error = error

    @property
    def is_cut(self) -> bool:
        """Whether only its beginning could be read."""
        return bool(self.error and self.has_text)

    @property
    def lacks(self) -> str:
        """Why a log without a finding is no good sign; empty if it is one."""
        if self.error:
            return f"was not read to its end ({self.error.message})"
        if not self.has_text:
            return "is empty"
        return "is no text" if self.odd > MOST_ODD * self.characters else ""


def _pieces(name: str) -> Iterator[bytes | str]:
    """Yield a log in pieces; gzip is unpacked, UTF-16 decoded. Raises ClusterctlError."""
    try:
        file = sys.stdin.fileno() if name == "-" else name
        # The first write to a pipe may be shorter than the head. A buffer reads once for `peek`,
        # but fills another buffer by as many reads as that takes.
        with (
            open(file, "rb", closefd=name != "-") as pipe,  # noqa: PTH123
            io.BufferedReader(pipe) as raw,
        ):
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            # What one step unpacks is a piece, so that a file that is cut is read until there.
            read = gzip.GzipFile(fileobj=raw).read1 if packed else raw.read
            first = read(PIECE)
            if first.startswith(_PACKED):
                raise ClusterctlError(f"{name} is compressed", "unpack it, or name a .gz file")
            pieces = itertools.chain((first,), iter(lambda: read(PIECE), b""))
            wide = _utf16(first[:1024], name)
            yield from codecs.iterdecode(pieces, wide, "replace") if wide else pieces
    except (OSError, EOFError, zlib.error) as error:
        of_job = f"clusterctl logs {name} | clusterctl explain"
        raise ClusterctlError(
            f"cannot read {name}: {getattr(error, 'strerror', None) or error}",
            f"the log of a job of that cluster: {of_job}"
            if launched_here(name)
            else "name a log file",
        ) from None


def _utf16(head: bytes, name: str) -> str:
    """Return the UTF-16 codec of a log by its first bytes, or "" for another encoding.

    Raises ClusterctlError for UTF-32.
    """
    # The mark of UTF-32 begins with that of UTF-16.
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise ClusterctlError(f"{name} is UTF-32", "convert it: iconv -f UTF-32 -t UTF-8")
    # PowerShell's `>` writes UTF-16 with a byte order mark.
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a mark, most characters are ASCII: one of their two bytes is NUL, always the same one.
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) or max(even, odd) * 4 <= len(head):
        return ""
    return "utf-16-le" if odd else "utf-16-be"


def _show(found: Explanation) -> None:
    from clusterctl.explain.signature import Role

    lead = found.lead
    if lead is None:
        _show_without_lead(found)
    else:
        if lead.signature.role is Role.SYMPTOM:
            output.line("The log shows a symptom and no cause of it by itself:")
        elif found.exit_without_error:
            output.line(f"{found.exit_without_error}.".capitalize())
        elif lead.signature.role is Role.CONSEQUENCE:
            output.line("Only consequences are in this log: something else failed before them.")
        _show_finding(lead)
        _show_unknown(
            "Not certain: these lines are not in the catalogue, and may be the cause:",
            found.possible_causes,
        )
        if found.other_errors:
            first = found.other_errors[0]
            output.line(
                f"Not certain: {first.signature.id}, {_where(first)}, failed, too, and both may "
                "have another cause."
            )
    _show_firsts(found)
    after = [
        one
        for role in (Role.ROOT, Role.SYMPTOM, Role.CONSEQUENCE)
        for one in found.of(role)
        if one is not lead
    ]
    for title, role in (
        ("Also found, each a cause of its own or one more effect:", Role.ROOT),
        ("Symptoms and consequences:", None),
    ):
        rows = [one for one in after if (one.signature.role is Role.ROOT) == (role is Role.ROOT)]
        if rows:
            output.line(title)
        for one in rows[:SHOWN]:
            times = f", {one.count} times" if one.count > 1 else ""
            head = f"{_where(one)}{times}: {one.signature.id}: {one.cause}"
            output.line(textwrap.fill(head, 98, initial_indent="  ", subsequent_indent="      "))
        if len(rows) > SHOWN:
            output.line(f"  and {len(rows) - SHOWN} more (--json has all)")
    if lead:
        rest = [one for one in found.unknown if one not in found.possible_causes]
        _show_unknown("Not in the catalogue, and not explained:", rest)
    harmless = found.of(Role.HARMLESS)
    if harmless:
        lines = count(sum(one.count for one in harmless), "line")
        output.line(f"Harmless: {lines} ({', '.join(one.signature.id for one in harmless)})")


def _show_without_lead(found: Explanation) -> None:
    if found.unknown and found.severity is Severity.ERROR:
        _show_unknown(
            "These lines report a failure that is not in the catalogue. Begin with the first:",
            found.unknown,
            is_answer=True,
        )
    elif found.severity is Severity.ERROR:
        _show_unknown(
            "Something failed, and no line of this log that is in the catalogue explains it:",
            found.failing,
        )
    else:
        lines = count(found.lines, "line")
        output.line(f"{lines}: nothing that this catalogue knows to be wrong")
        _show_unknown("Not in the catalogue, and perhaps a failure:", found.failing)


def _show_unknown(title: str, rows: Sequence[UnknownError], is_answer: bool = False) -> None:
    """Show unknown lines; if they are the answer, the first one with what its words say."""
    from clusterctl.explain.message import is_harmless

    if rows:
        output.line(title)
        for one in rows[:SHOWN]:
            rank = f", rank {one.rank}" if one.rank else ""
            rank += f", on {one.host}" if one.host else ""
            shown = one.text if one.message in one.text else one.message
            output.line(f"  {_where(one)}{rank}: {shown[:300]}")
            if one.raised_at:
                output.line(f"      raised at {one.raised_at}")
            if is_answer and one is rows[0]:
                kind = one.by_words
                advice = ("advice", f"of the program itself: {one.advice}")
                own = [("do", kind.remedy)] if kind else []
                advised = [advice] if one.advice else []
                steps = [*advised, *own] if is_harmless(one.advice) else [*own, *advised]
                _show_texts(6, *([("cause", kind.cause)] if kind else ()), *steps)
        output.line()


def _show_firsts(found: Explanation) -> None:
    """Show which of several logs failed first."""
    firsts = found.firsts
    if len(firsts) < 2:
        return
    timed = all(one.time for one in firsts)
    by = "by their time stamps" if timed else "in the order given, since not all have time stamps"
    output.line(f"The first failure in each log, {by}:")
    for one in firsts[:SHOWN]:
        ranks = [str(rank) for rank in sorted(getattr(one, "ranks", ()))[:1]]
        rank = "".join(f", rank {name}" for name in ranks or [getattr(one, "rank", "")] if name)
        known = getattr(one, "signature", None)
        what = known.id if known else f"not in the catalogue: {one.text[:100]}"
        output.line(f"  {f'{one.time}  ' if timed else ''}{_where(one)}{rank}: {what}")
    if len(firsts) > SHOWN:
        output.line(f"  and {len(firsts) - SHOWN} more")


def _show_finding(one: LogFinding) -> None:
    several = "s" if len(one.ranks) > 1 else ""
    ranks = f", rank{several} {format_indices(one.ranks)}" if one.ranks else ""
    several_hosts = count(len(one.hosts), "host")
    hosts = f", on {next(iter(one.hosts))}" if len(one.hosts) == 1 else f", {several_hosts}"
    hosts = hosts if one.hosts else ""
    times = f", {one.count} times" if one.count > 1 else ""
    known = one.signature
    output.line(f"{known.severity.value}: {known.id}, {_where(one)}{times}{ranks}{hosts}")
    output.line(f"  | {one.text[:200]}")
    if one.raised_at:
        output.line(f"  raised at {one.raised_at}")
    _show_texts(
        2,
        ("cause", one.cause),
        *(("do", f"{when}: {do}" if when else do) for when, do in one.remedies),
        ("not", known.mistaken_for),
        ("source", known.source),
    )


def _show_texts(indent: int, *texts: tuple[str, str]) -> None:
    for title, text in texts:
        for at, part in enumerate(text.splitlines()):
            head = f"{' ' * indent}{title + ':' if not at else '':8}"
            # A text of several lines has commands to copy: its lines are not wrapped.
            width = 98 if len(text.splitlines()) == 1 else 10_000
            below = " " * (indent + 8)
            output.line(textwrap.fill(part, width, initial_indent=head, subsequent_indent=below))


def _where(one: LogFinding | UnknownError) -> str:
    where = f"{one.origin}:{one.line}" if one.origin else f"line {one.line}"
    return f"{where} (==> {one.part} <==)" if one.part else where


def _as_data(found: Explanation) -> Explained:
    return {
        "severity": found.severity.value,
        "lines": found.lines,
        "lead": _finding_data(found.lead) if found.lead else None,
        "is_certain": found.is_certain,
        "findings": [_finding_data(one) for one in found.findings],
        "unknown": [_unknown_data(one) for one in found.unknown],
        "failing": [_unknown_data(one) for one in found.failing],
        "firsts": [
            {"file": one.origin, "part": one.part, "line": one.line, "time": one.time}
            for one in found.firsts
        ],
    }


def _unknown_data(one: UnknownError) -> UnknownLine:
    return {
        "file": one.origin,
        "part": one.part,
        "line": one.line,
        "rank": one.rank,
        "host": one.host,
        "text": one.text,
        "kind": one.kind.value,
        "time": one.time,
        "raised_at": one.raised_at,
        "by_words": one.by_words.signature.id if one.by_words else "",
        "cause": one.by_words.cause if one.by_words else "",
        "advice": one.advice,
        "hint": one.by_words.remedy if one.by_words else "",
    }


def _finding_data(one: LogFinding) -> LogFindingData:
    known = one.signature
    return {
        "signature": known.id,
        "role": known.role.value,
        "severity": known.severity.value,
        "file": one.origin,
        "part": one.part,
        "line": one.line,
        "lines": list(one.lines),
        "time": one.time,
        "count": one.count,
        "text": one.text,
        "raised_at": one.raised_at,
        "values": dict(one.values),
        "ranks": sorted(one.ranks),
        "hosts": sorted(one.hosts),
        "cause": one.cause,
        "hint": one.remedy,
        "remedies": [{"if": when, "do": do} for when, do in one.remedies],
        "mistaken_for": known.mistaken_for,
        "source": known.source,
    }
