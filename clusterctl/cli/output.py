"""The only place that prints. Results go to stdout, everything about the work to stderr.

Much of it is words of others: logs, outputs, names. What a terminal would obey in them (a title, a
moved cursor, an answer typed for the user) is made visible where it would reach one; colours and
erasing to the end of the line pass. Files and pipes get every byte as it is.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.findings import Finding

_COLOUR = r"\x1b\[[0-9;:]*[mK]"
# C1 (\x9b is another ESC [) and bytes that are no UTF-8 among them.
_CONTROL = r"\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"
_IN_LINES = re.compile(rf"({_COLOUR})|[\b\r{_CONTROL}]")
_IN_STREAMS = re.compile(rf"({_COLOUR})|[{_CONTROL}]")  # a progress bar goes back with \b and \r
UNHEARD = 141  # as a shell says of a program that SIGPIPE ended
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")

# Completes the commands that a text suggests; cli/app_context.py knows what the user typed.
suggested: Callable[[str], str] = str


@dataclass
class _Outputs:
    """This command's outputs: whether JSON is wanted and some is out, and the first error of each
    stream that could not be written. `typed` is the command.
    """

    typed: Sequence[str] = ()
    as_json: bool = False
    has_json: bool = False
    lost: dict[str, OSError] = field(default_factory=dict)


_outputs = _Outputs()


def begin(typed: Sequence[str], as_json: bool) -> None:
    """A command begins. `as_json`: its result and its errors are read as JSON."""
    global _outputs, suggested
    _outputs, suggested = _Outputs(typed, as_json), str


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed (`>&-`).

    Otherwise the next file that is opened takes the place of one, and gets what programs that we
    start print. As in GNU's programs a write to a closed stdout fails; messages were not wanted.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number is that of the closed one.
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, mode))


def close_streams(status: int) -> int:
    """The exit status of a program that ends with `status`: another one if output was lost.

    Left to itself Python would write again what was refused, and a traceback about it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError as failure:
            _outputs.lost.setdefault(name, failure)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status or lost_status()


def lost_status() -> int:
    """The exit status for what did not get out: 141 where the reader went away; 0 for nothing."""
    causes = _outputs.lost.values()
    if not causes:
        return 0
    return UNHEARD if all(isinstance(cause, BrokenPipeError) for cause in causes) else 1


def was_lost(failure: OSError) -> bool:
    """Whether the result could not be written. Later writes of any thread fail, too."""
    return "stdout" in _outputs.lost and not failure.filename


@contextmanager
def writing_to(stream: str) -> Iterator[None]:
    """Note an output that cannot be written; the exit status tells of it.

    A lost result ends the work on it. A lost message does not: `up` is more than its messages.
    """
    try:
        yield
    except OSError as failure:
        _outputs.lost.setdefault(stream, failure)
        if stream == "stdout":
            raise


def line(text: str = "") -> None:
    """One line of the result."""
    _print(text, "stdout")


def note(text: str) -> None:
    """One line about the work: progress, what was reused, what comes next."""
    _print(suggested(text), "stderr")


def note_way_on() -> None:
    """Say that the same command, as it was typed, goes on with what an interrupt has left."""
    _print(f"to go on: {shlex.join(['clusterctl', *_outputs.typed])}", "stderr")


def how_to_come_back(name: str, job_id: str) -> None:
    """To a job of cluster NAME. By its id: others may run, or wait, beside it, and a `cancel` that
    names none ends them all."""
    note(f"  follow it: clusterctl logs {name} -f --job {job_id}")
    note(f"  end it:    clusterctl cancel {name} --job {job_id}")


def _print(text: str, name: str) -> None:
    stream = getattr(sys, name)
    with writing_to(name):
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
    with writing_to(stream):
        out.flush()
        rest = _SCREENS[stream].shown(text, out.encoding) if out.isatty() else text
        # With PYTHONUNBUFFERED this is the file itself: a write ends early when the reader goes
        # away, and only the next one says so.
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
    _outputs.has_json = True
    line(json.dumps(_with_hints(value), indent=2, default=str))


def event(value: Any) -> None:
    """One JSON object on a line of its own, for a program that reads along."""
    _outputs.has_json = True
    line(json.dumps(_with_hints(value), default=str))


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


def error_data(failure: ClusterctlError) -> dict[str, Any]:
    """What happened, and the next step, for `--json`."""
    told = {"error": type(failure).__name__, "message": failure.message, "hint": failure.hint}
    found = [finding_data(finding) for finding in getattr(failure, "findings", ())]
    return {
        **({"host": failure.host} if isinstance(failure, HostError) else {}),
        **told,
        "exit_status": failure.exit_status,
        **({"findings": found} if found else {}),
    }


def error_object(told: dict[str, Any]) -> None:
    """Print the error as the result where JSON is wanted, unless a result is out: two objects
    cannot be read as one.
    """
    if _outputs.as_json and not _outputs.has_json and "stdout" not in _outputs.lost:
        with suppress(OSError):  # the message is on stderr all the same
            data(told)


def is_live() -> bool:
    """Whether progress can be drawn in place: stderr is a terminal."""
    return sys.stderr.isatty()


def can_ask() -> bool:
    """Whether there is somebody to answer a question: stdin and stderr are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def has_status_line() -> bool:
    """Whether a line below the output is seen, and disturbs no reader of it."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def status_line(text: str) -> None:
    """Draw the line that the cursor is in anew; with an empty text it is as it was before."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[2K{_IN_LINES.sub(_visible, text)[:width]}")
    sys.stderr.flush()


def live(view: Any) -> Any:
    """rich's Live on stderr, for a view that is redrawn in place and gone at the end."""
    from rich.console import Console
    from rich.live import Live

    shown, console = _VisibleView(view), Console(stderr=True)
    return Live(shown, console=console, refresh_per_second=8, transient=True)


def has_screen() -> bool:
    """Whether the whole terminal can be drawn on, and somebody is there to press keys."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


@contextmanager
def screen(view: Any) -> Iterator[Callable[[float], str]]:
    """The whole terminal for a view. What it yields draws the view and waits for a key: that key,
    or empty after so many seconds.

    However the block ends, by Ctrl-C, TERM or HUP, too, the terminal is as it was before.
    """
    import select
    import signal
    import termios
    import tty

    from rich.console import Console
    from rich.live import Live

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    # Suspended, it would leave its screen and its settings to the shell.
    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: end, signal.SIGHUP: end}
    handlers[signal.SIGTSTP] = signal.SIG_IGN
    kept = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    drawn = Live(_VisibleView(view), console=Console(), screen=True, auto_refresh=False)

    def key(wait_s: float) -> str:
        drawn.refresh()
        if not select.select([fd], [], [], wait_s)[0]:
            return ""
        # Nothing to read any more: the terminal is gone.
        return os.read(fd, 1).decode(errors="replace") or "q"

    try:
        tty.setcbreak(fd)
        try:
            # Not by `with`: its beginning draws, and what ends it there leaves rich's screen.
            drawn.start()
            yield key
        finally:
            drawn.stop()
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in kept.items():
            signal.signal(number, handler)


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
