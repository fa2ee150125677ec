"""The only place that prints. Results go to stdout, everything about the work to stderr.

Much of it is words of others: logs, outputs, names. What a terminal would obey in them (a title, a
moved cursor, an answer typed for the user) is made visible where it would reach one; colours and
erasing to the end of the line pass. Files and pipes get every byte as it is.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.findings import Finding

_COLOUR = r"\x1b\[[0-9;:]*[mK]"
# C1 (\x9b is another ESC [) and bytes that are no UTF-8 among them.
_CONTROL = r"\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"
_IN_LINES = re.compile(rf"({_COLOUR})|[\b\r{_CONTROL}]")
_IN_STREAMS = re.compile(rf"({_COLOUR})|[{_CONTROL}]")  # a progress bar goes back with \b and \r
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")

# Completes the commands that a text suggests; cli/wiring.py knows what the user typed.
suggested: Callable[[str], str] = str


def line(text: str = "") -> None:
    """One line of the result."""
    _print(text, sys.stdout)


def note(text: str) -> None:
    """One line about the work: progress, what was reused, what comes next."""
    _print(suggested(text), sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    if stream is None:  # it was closed before Python began: `>&-`
        return
    shown = _IN_LINES.sub(_visible, text) if stream.isatty() else text
    try:
        print(shown, file=stream, flush=True)
    except UnicodeEncodeError:  # a locale without that letter, or a name that is no UTF-8
        encoded = shown.encode(stream.encoding, "backslashreplace")
        print(encoded.decode(stream.encoding), file=stream, flush=True)


def _visible(found: re.Match[str]) -> str:
    """As `cat -v` shows it: ESC is ^[. What is passed on is the pattern's first group."""
    if found[1]:
        return found[1]
    number = ord(found[0])
    return f"^{chr(number ^ 0x40)}" if number < 0x80 else f"\\x{number & 0xFF:02x}"


def raw(text: bytes, stream: str = "stdout") -> None:
    """Bytes of a host's output to the stream of that name; they may be cut anywhere."""
    if not text:
        return
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.flush()
    rest = _SCREENS[stream].shown(text, out.encoding) if out.isatty() else text
    # With PYTHONUNBUFFERED this is the file itself: a write ends early when the reader goes away,
    # and only the next one says so.
    while rest:
        rest = rest[out.buffer.write(rest) :]
    out.buffer.flush()


class _Screen:
    """A terminal's part of a stream: what is cut within a letter or a colour waits for the rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""

    def shown(self, chunk: bytes, encoding: str) -> bytes:
        text = self._held + self._decoder.decode(chunk)
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished[0] if unfinished else ""
        text = text[: len(text) - len(self._held)]
        return _IN_STREAMS.sub(_visible, text).encode(encoding, "backslashreplace")


_SCREENS = {"stdout": _Screen(), "stderr": _Screen()}


def data(value: Any) -> None:
    """The result as JSON (`--json`)."""
    print(json.dumps(_with_hints(value), indent=2, default=str), flush=True)


def event(value: Any) -> None:
    """One JSON object on a line of its own, for a program that reads along."""
    print(json.dumps(_with_hints(value), default=str), flush=True)


def _with_hints(value: Any) -> Any:
    """The value with its hints completed; what commands wrote stays as it is."""
    if isinstance(value, dict):
        return {
            key: suggested(inner) if key == "hint" and inner else _with_hints(inner)
            for key, inner in value.items()
        }
    return [_with_hints(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def error(failure: ClusterctlError) -> None:
    """What happened, and the next step."""
    findings(getattr(failure, "findings", ()))
    host = f"{failure.host}: " if isinstance(failure, HostError) else ""
    note(f"error: {host}{failure.message}")
    if failure.hint:
        note(f"  hint: {failure.hint}")


def is_live() -> bool:
    """Whether progress can be drawn in place: stderr is a terminal."""
    return sys.stderr.isatty()


def live(view: Any) -> Any:
    """rich's Live on stderr, for a view that is redrawn in place and gone at the end."""
    from rich.console import Console
    from rich.live import Live

    shown, console = _VisibleView(view), Console(stderr=True)
    return Live(shown, console=console, refresh_per_second=8, transient=True)


class _VisibleView:
    """A view of rich's with the names and messages in it made visible."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        for segment in console.render(self._view, options):
            # rich's own control codes are no text of ours.
            text = segment.text if segment.control else _IN_LINES.sub(_visible, segment.text)
            yield segment._replace(text=text)


def findings(found: Sequence[Finding]) -> None:
    """One line per finding, its hint below."""
    for finding in found:
        host = f"{finding.host}: " if finding.host else ""
        note(f"{finding.severity.value}: {host}{finding.message} [{finding.check_id}]")
        if finding.hint:
            note(f"  hint: {finding.hint}")


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding for `--json`."""
    return {
        "check": finding.check_id,
        "severity": finding.severity.value,
        "host": finding.host,
        "message": finding.message,
        "hint": finding.hint,
    }


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table: columns as wide as their widest cell, two spaces between."""
    cells = [[str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
