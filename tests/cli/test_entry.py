"""Signals that end a program: while its modules are imported, and while it ends its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.programs import completed

# In place of Click, which all programs import first.
INTERRUPTS = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("program", ["clusterctl", "runclust", "copyclust"])
def test_an_interrupt_during_the_imports_ends_without_a_traceback(tmp_path, program):
    (tmp_path / "click.py").write_text(INTERRUPTS)
    start = f"from clusterctl.entry import {program}; {program}()"
    done = completed(
        [sys.executable, "-c", start], env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


ENDING = """\
import click, signal
from clusterctl.cli.main import run_program
@click.command()
@click.argument("number", type=int)
def work(number):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        signal.raise_signal(number)
        print("ended what runs on the hosts")
        raise
run_program(work)
"""


READING = """\
import click, sys
from clusterctl.cli.main import run_program
@click.command()
def work():
    print("reads", flush=True)
    print(sys.stdin.buffer.read())
run_program(work)
"""


def test_a_standard_input_that_does_not_block_is_read_to_its_end():
    read, write = os.pipe()
    os.set_blocking(read, False)
    argv = [sys.executable, "-c", READING]
    with subprocess.Popen(argv, stdin=read, stdout=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stdout.readline() == b"reads\n"
        os.write(write, b"later")
        os.close(write)
        os.close(read)
        assert program.stdout.read() == b"b'later'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_signal_of_one_press_does_not_cut_the_ending_off(number):
    """`timeout` sends two SIGTERMs, a closed terminal two SIGHUPs."""
    argv = [sys.executable, "-c", ENDING, str(int(number))]
    done = completed(argv, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
    assert done.stdout == "ended what runs on the hosts\n"


def test_files_are_utf8_in_any_locale(tmp_path):
    """Also the programs for nodes, which are read from files. This locale's encoding is ASCII."""
    (tmp_path / "file").write_text("…", encoding="utf-8")
    program = (
        "import sys, types, clusterctl.entry\n"
        "from clusterctl.node.packer import program_of\n"
        "program_of('clusterctl.node.guard.guard').zipapp(comments=False)\n"
        "main = lambda: print(open(sys.argv[1]).read())\n"
        "sys.modules['program'] = types.SimpleNamespace(main=main)\n"
        "clusterctl.entry.run('program')\n"
    )
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = completed(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        env={**os.environ, **ascii_locale, "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.stdout, done.stderr) == ("…\n", "")
