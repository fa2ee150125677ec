"""What others say does not command the user's terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

SAY = """\
import sys
from clusterctl.cli import output
chunks = [bytes.fromhex(text) for text in sys.argv[2:]]
if sys.argv[1] in ("stdout", "stderr"):
    for chunk in chunks:
        output.raw(chunk, sys.argv[1])
elif sys.argv[1] == "live":
    from rich.table import Table
    from rich.text import Text
    table = Table(box=None)
    table.add_row(Text(chunks[0].decode(), style="red"))
    with output.live(table):
        pass
else:
    getattr(output, sys.argv[1])(chunks[0].decode(errors="surrogateescape"))
"""


def on_a_terminal(*arguments, **environ):
    """What reaches a terminal, which says how lines end."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SAY, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environ},
    ):
        os.close(theirs)
        read = b""
        try:
            while more := os.read(ours, 4096):
                read += more
        except OSError:
            pass  # Linux says so when nobody has the other end any more
        os.close(ours)
    return read.replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("loss \x1b[1;31m7.1\x1b[0m é☃\n", "loss \x1b[1;31m7.1\x1b[0m é☃\n"),
        ("10%\b\b\b20%\r30%\x1b[K\n", "10%\b\b\b20%\r30%\x1b[K\n"),
        ("\x1b]0;title\x07\x1b[2J\x1b[1A\x1bc", "^[]0;title^G^[[2J^[[1A^[c"),
        ("\x1b[6n\x1b[?1049h\x1b[31", "^[[6n^[[?1049h"),
        ("\x9b2J \x85\x7f\x00\x0e\t.", "\\x9b2J \\x85^?^@^N\t."),
    ],
)
@pytest.mark.parametrize(("stream", "size"), [("stdout", 1), ("stderr", 1000)])
def test_a_hosts_output(said, shown, stream, size):
    data = said.encode()
    chunks = [data[at : at + size].hex() for at in range(0, len(data), size)]
    assert on_a_terminal(stream, *chunks).decode() == shown
    command = [sys.executable, "-c", SAY, stream, *chunks]
    piped = subprocess.run(command, capture_output=True, check=True)
    assert getattr(piped, stream) == data, "a file gets what was said"


def test_bytes_that_are_no_utf_8_and_a_terminal_without_it():
    assert on_a_terminal("stdout", b"\xff\x9b2J\xc3(".hex()) == b"\\xff\\x9b2J\\xc3("
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert on_a_terminal("stdout", "é".encode().hex(), **ascii_only) == b"\\xe9"


@pytest.mark.parametrize("kind", ["line", "note", "live"])
def test_lines_and_views(kind):
    shown = on_a_terminal(kind, b"node\x1b[2J\x1b]0;x\x07\r\x1b[32mfine\xc2\x9b".hex())
    # rich's own colours and redrawing apart, and what it leaves out.
    text = re.sub(rb"\x1b\[[0-9;?]*[mAKhl]", b"", shown)
    assert b"\x1b" not in text
    assert b"node^[[2J^[]0;x" in text
    if kind != "live":
        assert shown == b"node^[[2J^[]0;x^G^M\x1b[32mfine\\x9b\n"
    assert on_a_terminal("note", b"\xff".hex()) == b"\\xff\n"


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8:strict", "é\\udcff\n"), ("ascii", "\\xe9\\udcff\n")]
)
def test_a_line_in_a_pipe_that_has_not_its_letters(encoding, shown):
    said = subprocess.run(
        [sys.executable, "-c", SAY, "line", b"\xc3\xa9\xff".hex()],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert said.stdout.decode() == shown


@pytest.mark.parametrize(("kind", "closed"), [("line", "1"), ("note", "2")])
def test_a_line_for_a_closed_output_goes_nowhere(kind, closed):
    shell = f'exec "$@" {closed}>&-'
    said = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", SAY, kind, b"line".hex()],
        capture_output=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, b"", b"")
