"""The only module that prints. Results go to stdout, messages about the work to stderr.

Much of the text comes from elsewhere: logs, outputs, names. On a terminal, control characters in it
are made visible, since they could set a title, move the cursor or type an answer for the user.
Colours and erasing to the end of the line pass. Files and pipes get every byte unchanged.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import click

from clusterctl.domain.errors import ClusterctlError, HostError, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.node.untrusted import COLOUR

# C0 and C1 (\x9b is another ESC [), and bytes that are not UTF-8, decoded as surrogates.
_CONTROL = r"\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"
_IN_LINES = re.compile(rf"({COLOUR})|[\b\r{_CONTROL}]")
_IN_STREAMS = re.compile(rf"({COLOUR})|[{_CONTROL}]")  # progress bars use \b and \r
# Exit status if the reader of the output closed it: 128 + SIGPIPE, as shells report it.
BROKEN_PIPE_STATUS = 141
# Exit status after Ctrl-C: 128 + SIGINT.
INTERRUPTED = 130
# A colour that is cut at the end of a chunk.
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")

# A command as a text suggests it: `clusterctl up demo`. Not a path (~/.clusterctl/demo), nor a
# longer name that ends in clusterctl, nor what has its interpreter already. The group has the words
# after the program.
SUGGESTION = re.compile(r"(?<![\w./-])(?<!-m )clusterctl((?: \w[\w-]*)+)")
# The program as the user called it: clusterctl, cctl or `python -m clusterctl`. Another program on
# the PATH, that of Kubernetes' Cluster API, may have the first name.
program = "clusterctl"


def named(text: str) -> str:
    """Return a text with the commands that it suggests under the name of this program."""
    return text if program == "clusterctl" else SUGGESTION.sub(rf"{program}\1", text)


# Completes the commands that a text suggests. `account_options` (cli/app_context.py) replaces it by
# a function that knows what the user typed.
suggested: Callable[[str], str] = named


@dataclass
class _Outputs:
    """The state of this command's outputs.

    `typed` is the command line after `program`. `as_json`: JSON is wanted; `has_json`: some was
    printed. `failed` is the exit status of every failure of the command; None: that of the error.
    `lost` has the first error of each stream that could not be written. `has_resume_command`: the
    command that continues was printed.
    """

    program: str = ""
    typed: Sequence[str] = ()
    as_json: bool = False
    has_json: bool = False
    has_resume_command: bool = False
    failed: int | None = None
    lost: dict[str, OSError] = field(default_factory=dict)


_outputs = _Outputs()


def begin(program: str, typed: Sequence[str], as_json: bool, failed: int | None = None) -> None:
    """Reset the state for a new command. `as_json`: its result and its errors are read as JSON.
    `failed`: the exit status of every failure; None: that of the error."""
    global _outputs, suggested
    _outputs, suggested = _Outputs(program, typed, as_json, failed=failed), named


def open_closed_streams() -> None:
    """Open the standard streams that the caller has closed (`>&-`).

    Otherwise the next file that is opened would get the number of one, and with it the output of
    child processes. As in GNU's programs, writing to a closed stdout fails, and messages to a
    closed stderr are dropped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() takes the lowest free number, which is that of the closed one. Writes to stdout
            # fail, as it is opened for reading.
            opened = os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
            setattr(sys, name, os.fdopen(opened, mode))


def close_streams(status: int) -> int:
    """Flush stdout and stderr at the end of the program.

    Return `status`, or if that is 0 the status for output that was lost. A stream that fails is
    redirected to /dev/null: otherwise Python would flush it again at exit, and print a traceback.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError as failure:
            _outputs.lost.setdefault(name, failure)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status or lost_output_status()


def lost_output_status() -> int:
    """Return the exit status for output that was lost.

    It is 141 if the reader closed it, that of a failure for any other reason, 0 if nothing was
    lost.
    """
    causes = _outputs.lost.values()
    if not causes:
        return 0
    if all(isinstance(cause, BrokenPipeError) for cause in causes):
        return BROKEN_PIPE_STATUS
    return _outputs.failed or ClusterctlError.exit_status


def is_stdout_failure(failure: OSError) -> bool:
    """Return whether `failure` is that of writing the result.

    Once stdout has failed, later writes by any thread fail as well. An error of another file has
    that file's name.
    """
    return "stdout" in _outputs.lost and not failure.filename


@contextmanager
def writing_to(stream: str) -> Iterator[None]:
    """Record that a stream cannot be written, for the exit status.

    An error of stdout is raised again, since the result is lost. An error of stderr is not:
    work such as `up` goes on without its messages.
    """
    try:
        yield
    except OSError as failure:
        _outputs.lost.setdefault(stream, failure)
        if stream == "stdout":
            raise


def line(text: str = "") -> None:
    """Print one line of the result."""
    _print(text, "stdout")


def note(text: str, hint: str = "") -> None:
    """Print one line about the work: progress, what was reused, what comes next. `hint` is what to
    do about it, on a line of its own."""
    for one in (text, f"  hint: {hint}") if hint else (text,):
        _print(suggested(one), "stderr")


def note_resume_command() -> None:
    """Print once that the same command line continues what an interrupt has cut off, unless its
    standard input is used up."""
    if _outputs.has_resume_command or any(re.fullmatch("(.*=)?-", one) for one in _outputs.typed):
        return
    _outputs.has_resume_command = True
    name = program if _outputs.program == "clusterctl" else _outputs.program
    # The name may be three words, `python -m clusterctl`, which are not quoted.
    _print(" ".join(["to go on:", name, *map(shlex.quote, _outputs.typed)]), "stderr")


def print_job_commands(name: str, job_id: str) -> None:
    """Print the commands that follow and end a job of cluster NAME.

    They have its id: other jobs may run or wait, and a `cancel` without an id ends all.
    """
    note(f"  follow it: clusterctl logs {name} {job_id} -f")
    note(f"  end it:    clusterctl cancel {name} {job_id}")


def _print(text: str, name: str) -> None:
    stream = getattr(sys, name)
    with writing_to(name):
        shown = _IN_LINES.sub(_visible, text) if stream.isatty() else text
        try:
            print(shown, file=stream, flush=True)
        except UnicodeEncodeError:  # the locale lacks a letter, or a name is not UTF-8
            encoded = shown.encode(stream.encoding, "backslashreplace")
            print(encoded.decode(stream.encoding), file=stream, flush=True)


def _visible(found: re.Match[str]) -> str:
    """Return a control character as `cat -v` shows it: ESC is ^[.

    The pattern's first group, a colour, is returned unchanged.
    """
    if found[1]:
        return found[1]
    number = ord(found[0])
    return f"^{chr(number ^ 0x40)}" if number < 0x80 else f"\\x{number & 0xFF:02x}"


def one_line(text: str) -> str:
    """Return text from elsewhere, such as a file's name, with control characters escaped.

    It then fits on one line and cannot move the cursor.
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    )


def raw(text: bytes, stream: str = "stdout") -> None:
    """Write a chunk of a host's output to `stream`, stdout or stderr.

    A chunk may begin and end anywhere, even within a character.
    """
    if not text:
        return
    out = sys.stdout if stream == "stdout" else sys.stderr
    with writing_to(stream):
        out.flush()
        rest = _SCREENS[stream].shown(text, out.encoding) if out.isatty() else text
        # With PYTHONUNBUFFERED the buffer is the raw file: when the reader has closed it, a write
        # is short, and only the next one raises.
        while rest:
            rest = rest[out.buffer.write(rest) :]
        out.buffer.flush()


class _Screen:
    """Makes a stream safe for a terminal. A cut character or colour waits for its rest."""

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
    """Print the result as JSON (`--json`)."""
    _outputs.has_json = True
    line(json.dumps(_strict(value), indent=2, default=_text))


def event(value: Any) -> None:
    """Print one JSON object on its own line, for a program that reads while the command runs."""
    _outputs.has_json = True
    line(json.dumps(_strict(value), default=_text))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _strict(value: Any) -> Any:
    """Return the value as data of JSON: records become objects, NaN null; hints are completed."""
    from clusterctl.node.record import finite, to_data

    return finite(_with_hints(to_data(value)))


def _with_hints(value: Any) -> Any:
    """Return the value with the commands in its hints completed; other text stays as it is."""
    if isinstance(value, dict):
        return {
            key: suggested(inner) if key == "hint" and inner else _with_hints(inner)
            for key, inner in value.items()
        }
    return [_with_hints(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def error(failure: ClusterctlError) -> None:
    """Print an error: its findings, what happened, the next step."""
    findings(failure.findings)
    host = f"{failure.host}: " if isinstance(failure, HostError) else ""
    note(f"error: {host}{failure.message}", failure.hint)


def error_data(failure: ClusterctlError) -> dict[str, Any]:
    """Return an error for `--json`."""
    reason = {"error": type(failure).__name__, "message": failure.message, "hint": failure.hint}
    return {
        **({"host": failure.host} if isinstance(failure, HostError) else {}),
        **reason,
        "exit_status": _outputs.failed or failure.exit_status,
        **({"findings": failure.findings} if failure.findings else {}),
    }


def error_object(reason: dict[str, Any]) -> int:
    """Print an error as the result if JSON is wanted and none was printed yet. Return its exit
    status.

    A reader could not parse two objects.
    """
    if _outputs.as_json and not _outputs.has_json and "stdout" not in _outputs.lost:
        with suppress(OSError):  # the message is on stderr all the same
            data(reason)
    return int(reason["exit_status"])


def is_live() -> bool:
    """Return whether progress can be redrawn in place: stderr is a terminal with a screen."""
    return _is_redrawn(sys.stderr)


def confirm(question: str, yes: bool, scripts: bool = False, instead: str = "--yes") -> None:
    """Ask before something is removed or costs money, but not with `yes` (--yes).

    Answering no raises click.Abort. Raises UsageError if no answer can be read. With
    `scripts` there is no question where stdin is no terminal: for a price, since whoever launches
    something in a script has requested it. `instead` is the option that answers the question.
    """
    if will_ask(question, yes, scripts, instead):
        click.confirm(question, abort=True, err=True)


def will_ask(question: str, yes: bool, scripts: bool, instead: str = "--yes") -> bool:
    """Return whether `confirm` will prompt. Raises UsageError if no answer can be read: it
    would not be shown, or, without `scripts`, could not be answered."""
    has_input = sys.stdin is not None and sys.stdin.isatty()
    if yes or (scripts and not has_input):
        return False
    if not has_input:
        raise UsageError(
            f"nothing was done: no terminal to answer this question: {question}",
            f"in a script, give {instead}",
        )
    if sys.stderr is None or not sys.stderr.isatty():
        raise UsageError(
            f"nothing was done: no terminal to show this question: {question}",
            f"leave stderr on the terminal, or give {instead}",
        )
    return True


def has_status_line() -> bool:
    """Return whether a status line can be drawn: stdout and stderr are terminals with a screen."""
    return _is_redrawn(sys.stdout, sys.stderr)


def status_line(text: str) -> None:
    """Redraw the line that the cursor is in; an empty text clears it."""
    width = shutil.get_terminal_size().columns - 1
    with writing_to("stderr"):
        sys.stderr.write(f"\r\x1b[2K{_IN_LINES.sub(_visible, text)[:width]}")
        sys.stderr.flush()


# The cells of each row for a terminal of so many columns. A row of one cell is a line.
Rows = Callable[[int], Iterable[Sequence[str]]]


@contextmanager
def live(rows: Rows, wraps: int = -1) -> Iterator[None]:
    """Redraw rows in place on stderr until the block ends, and then remove them; nothing without a
    terminal. It is the one display of progress. For `wraps` see RowsView."""
    if not is_live():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    view, console = _VisibleView(RowsView(rows, wraps)), Console(stderr=True)
    with Live(view, console=console, refresh_per_second=8, transient=True):
        yield


class RowsView:
    """Rows of cells as rich draws them. On a narrow terminal the column `wraps` is wrapped."""

    def __init__(self, rows: Rows, wraps: int = -1) -> None:
        self._rows, self._wraps = rows, wraps

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        rows = [*self._rows(options.max_width)]
        if not rows:
            return
        columns = max(map(len, rows))
        table, lines = Table.grid(padding=(0, 2)), []
        for column in range(columns):
            table.add_column(no_wrap=column != self._wraps % columns)
        # Text, not str: rich would read what is in brackets as markup.
        for row in rows:
            if len(row) == 1:
                lines.append(Text(row[0], no_wrap=True, overflow="ellipsis"))
            else:
                table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
        yield table
        yield from lines


def has_screen() -> bool:
    """Return whether `screen` can be used: stdin and stdout are terminals with a screen."""
    return _is_redrawn(sys.stdin, sys.stdout)


def _is_redrawn(*ends: Any) -> bool:
    """Return whether these are terminals that take more than lines. On a dumb one rich draws
    nothing."""
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return not is_dumb and all(stream is not None and stream.isatty() for stream in ends)


@contextmanager
def screen(view: Any) -> Iterator[Callable[[float], str]]:
    """Give the whole terminal to a view.

    It yields a function that redraws the view, waits so many seconds for a key, and returns that
    key, or an empty text if none was pressed. However the block ends, also by Ctrl-C, the
    terminal's state is restored.
    """
    import select
    import signal
    import termios
    import tty

    from rich.console import Console
    from rich.live import Live

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    # Ctrl-Z is ignored: the shell would get the terminal with this screen and these settings.
    kept = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    drawn = Live(_VisibleView(view), console=Console(), screen=True, auto_refresh=False)

    def key(wait_s: float) -> str:
        drawn.refresh()
        if not select.select([fd], [], [], wait_s)[0]:
            return ""
        # An empty read means that the terminal is gone: quit.
        return os.read(fd, 1).decode(errors="replace") or "q"

    try:
        tty.setcbreak(fd)
        try:
            # Not `with`: start() draws; interrupted there, `with` would leave rich's screen on.
            drawn.start()
            yield key
        finally:
            drawn.stop()
    finally:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTSTP, kept)


class _VisibleView:
    """A view of rich's in which control characters of the text are made visible."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        for segment in console.render(self._view, options):
            # rich's own control codes have to pass.
            text = segment.text if segment.control else _IN_LINES.sub(_visible, segment.text)
            yield segment._replace(text=text)


def findings(found: Sequence[Finding]) -> None:
    """Print one line per finding, with its hint below."""
    for finding in found:
        host = f"{finding.host}: " if finding.host else ""
        note(f"{finding.severity.value}: {host}{finding.message} [{finding.check}]", finding.hint)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a plain table: columns as wide as their widest cell, two spaces between."""
    cells = [[str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
