"""Output of other programs cannot control the user's terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from clusterctl.cli import output
from clusterctl.cli.main import cli, run_command
from tests.cli.programs import BIN
from tests.programs import completed

SAY = """\
import sys
from clusterctl.cli import output
chunks = [bytes.fromhex(text) for text in sys.argv[2:]]
if sys.argv[1] in ("stdout", "stderr"):
    for chunk in chunks:
        output.raw(chunk, sys.argv[1])
elif sys.argv[1] == "live":
    with output.live(lambda width: [[chunks[0].decode()]]):
        pass
else:
    getattr(output, sys.argv[1])(chunks[0].decode(errors="surrogateescape"))
"""


def on_a_terminal(*arguments, **environ):
    """Return the bytes that reach a terminal, with the terminal's line ends."""
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
            pass  # Linux's error when the other end is closed
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
    # Without rich's own colours, its redrawing, and characters that it omits.
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


@pytest.mark.parametrize("kind", ["note", "status_line"])
def test_work_goes_on_when_its_terminal_is_gone(kind):
    with Path("/dev/full").open("w") as gone:
        said = subprocess.run(
            [sys.executable, "-c", f"{SAY}print('went on')", kind, b"text".hex()],
            stdout=subprocess.PIPE,
            stderr=gone,
            check=False,
        )
    assert said.stdout == b"went on\n"


LOST = "error: cannot write the output: {}\n  hint: the command may have done its work"
FULL, CLOSED = LOST.format("No space left on device"), LOST.format("it is closed")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "redirected", "status", "said"),
    [
        ("iam-policy operator", ">/dev/full", 1, FULL),
        ("iam-policy operator", ">&-", 1, CLOSED),
        ("iam-policy operator", "<&- >&- 2>&-", 1, ""),
        ("iam-policy operator", ">/dev/full 2>&1", 1, ""),
        ("iam-policy operator", ">&$GONE", 141, ""),
        ("--help", ">/dev/full", 1, "error: No space left on device\n"),
        ("stauts", "2>/dev/full", 2, ""),
        # All its output is messages: the work is done, and the status reports the lost output.
        ("lab stop", "2>/dev/full", 1, ""),
        ("lab stop", "2>&$GONE", 141, ""),
        ("lab stop", "2>&-", 0, ""),
    ],
)
def test_outputs_that_take_nothing(words, redirected, status, said, unbuffered, tmp_path):
    reader, gone = os.pipe()
    os.close(reader)
    shown = completed(
        ["bash", "-c", f'exec "$@" {redirected}', "", BIN / "clusterctl", *words.split()],
        env={
            **os.environ,
            "CLUSTERCTL_HOME": str(tmp_path),
            "PYTHONUNBUFFERED": unbuffered,
            "GONE": str(gone),
        },
        pass_fds=[gone],
    )
    os.close(gone)
    assert (shown.returncode, shown.stdout) == (status, "")
    assert said in shown.stderr
    assert bool(said) == bool(shown.stderr)
    assert "Traceback" not in shown.stderr
    assert "Exception" not in shown.stderr


def test_a_user_without_a_home():
    shown = completed(
        ["unshare", "--user", "--map-user=54321", BIN / "clusterctl", "list"],
        env={"PATH": os.environ["PATH"]},
    )
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: this user has no home folder\n")


def test_all_modules_load_for_a_user_without_a_home(tmp_path):
    program = (
        "import clusterctl.api, clusterctl.node.jobs.runner, sys\n"
        "from clusterctl.cli import main\n"
        "for module, _ in main.COMMANDS.values(): __import__(f'clusterctl.cli.{module}')\n"
        "sys.exit(main.run_command(main.cli, ['doctor', '--hosts', 'a']))"
    )
    shown = completed(
        ["unshare", "--user", "--map-user=54321", sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "CLUSTERCTL_HOME": str(tmp_path)},
    )
    assert (shown.returncode, shown.stdout) == (3, "")
    assert shown.stderr == "error: this user has no home folder\n  hint: name one: HOME=DIR\n"


@pytest.mark.parametrize(("term", "redrawn"), [("xterm", True), ("", True), ("dumb", False)])
def test_a_terminal_that_takes_only_lines_gets_lines(monkeypatch, term, redrawn):
    """As in Emacs' shell. rich draws nothing there: `watch` showed nothing until `q`."""
    monkeypatch.setenv("TERM", term)
    near, far = pty.openpty()
    with Path(f"/dev/fd/{far}").open("w") as terminal:
        for stream in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, stream, terminal)
        shown = output.has_screen(), output.is_live(), output.has_status_line()
        monkeypatch.undo()
    os.close(near)
    os.close(far)
    assert shown == (redrawn,) * 3


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("stauts", "No such command 'stauts'. (Did you mean 'status'?)"),
        ("lab fault frezee x", "No such command 'frezee'. (Did you mean 'freeze'?)"),
        ("network stauts", "No such command 'stauts'. (Did you mean 'status'?)"),
        ("download demo", "No such command 'download'. (Did you mean 'fetch'?)"),
        ("train demo 1 --syntetic", "did you mean --synthetic?"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(words, meant, capsys):
    assert run_command(cli, words.split()) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["status", "--json", "No!"],
            {
                "error": "UsageError",
                "message": "not a cluster name: 'No!'",
                "hint": "use up to 40 lower-case letters, digits and hyphens, a letter first",
                "exit_status": 2,
            },
        ),
        (
            ["add", "demo", "one", "--json"],
            {
                "error": "UsageError",
                "message": "Invalid value for 'N': 'one' is not a valid integer.",
                "hint": "",
                "exit_status": 2,
            },
        ),
        (
            ["list", "--lab", "--json"],
            {
                "error": "LabError",
                "message": "the local EC2 is not running",
                "hint": "start it: clusterctl lab start",
                "exit_status": 1,
            },
        ),
        (["train", "demo", "--lab", "1", "--", "--json"], None),
    ],
)
def test_an_error_is_an_object_where_json_is_read(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    assert run_command(cli, words) == (told or {"exit_status": 1})["exit_status"]
    said = capsys.readouterr()
    assert (json.loads(said.out) if told else said.out) == (told or "")
    assert said.err


def interrupted(as_json):
    # As a codec of Python raises it: the text is not for users.
    raise KeyboardInterrupt("encoding with 'idna' codec failed (KeyboardInterrupt: )")


@pytest.mark.parametrize(
    ("program", "words", "continues"),
    [
        ("clusterctl", ["wait", "two words"], "clusterctl wait 'two words'"),
        ("clusterctl", ["copy"], "clusterctl copy"),
        ("clusterctl", ["logs", "demo"], "clusterctl logs demo"),
        ("copyclust", ["hosts"], "copyclust hosts"),
        ("clusterctl", ["down", "demo", "--yes"], "clusterctl down demo --yes"),
        ("clusterctl", ["run", "demo"], ""),
        ("clusterctl", ["copy", "-"], ""),  # its standard input is used up
        ("copyclust", ["hosts", "--files-from=-"], ""),
    ],
)
def test_after_an_interrupt_the_command_that_continues_is_shown(program, words, continues, capsys):
    argument = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    command = click.Command(
        words[0],
        params=[argument],
        callback=lambda words: interrupted(False),
        context_settings={"ignore_unknown_options": True},
    )
    if program == "clusterctl":
        command = click.Group("cli", {words[0]: command})
    else:
        command.name = program
    assert run_command(command, words) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (f"to go on: {continues}" if continues else "interrupted")


@pytest.mark.parametrize("called", ["cctl", "python -m clusterctl"])
def test_the_command_that_continues_is_that_of_the_program_as_it_was_called(
    called, capsys, monkeypatch
):
    monkeypatch.setattr(output, "program", called)
    command = click.Command("wait", callback=lambda: interrupted(False))
    assert run_command(click.Group("cli", {"wait": command}), ["wait"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"to go on: {called} wait"


@pytest.mark.parametrize("callback", [interrupted, lambda as_json: 130])
def test_an_interrupt_is_an_object_too(callback, capsys):
    # `train` handles the interrupt itself, since the job continues.
    option = click.Option(["--json", "as_json"], is_flag=True)
    command = click.Command("train", params=[option], callback=callback)
    assert run_command(command, ["--json"]) == 130
    told = {"error": "Interrupted", "message": "interrupted", "hint": "", "exit_status": 130}
    assert json.loads(capsys.readouterr().out) == told


def test_json_has_null_for_a_number_that_json_does_not_have(capsys):
    output.data({"loss": [float("nan"), 0.5], "speed": float("inf")})
    assert json.loads(capsys.readouterr().out) == {"loss": [None, 0.5], "speed": None}
