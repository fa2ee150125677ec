"""A program in the foreground: its exit status, signals, and suspension of it and of us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.cli.ssh import run_in_foreground
from clusterctl.domain.errors import MissingTool
from tests.lab.running import wait_until

PROGRAM = "import sys; from clusterctl.cli.ssh import run_in_foreground as run; "
NINE_WHEN_TOLD = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137)]
)
def test_its_exit_status(script, status):
    assert run_in_foreground(["sh", "-c", script]) == status


def test_waiting_needs_nothing_that_macos_lacks(monkeypatch):
    for name in ("sigtimedwait", "sigwaitinfo"):
        monkeypatch.delattr(signal, name, raising=False)
    assert run_in_foreground(["sh", "-c", "sleep 0.2; exit 7"]) == 7


def test_a_program_that_is_not_there():
    with pytest.raises(MissingTool):
        run_in_foreground(["/no/such/program"])


def test_signals_are_ours_again_afterwards():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_in_foreground(["true"])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@contextmanager
def start(script: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    program = f"{before}{PROGRAM}sys.exit(run(['sh', '-c', sys.argv[1]]))"
    words = [sys.executable, "-c", program, script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # if it has not ended, the test has failed


def test_it_ends_when_we_are_told_to():
    with start(NINE_WHEN_TOLD) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 9


def test_what_comes_before_it_is_known_to_run_is_passed_on(tmp_path):
    """The program ends only when it receives the signal that it sent to its parent."""
    told = tmp_path / "told"
    slow = f"""
import pathlib, subprocess, time
class Slow(subprocess.Popen):
    def __init__(self, argv):
        super().__init__(argv)
        while not pathlib.Path({str(told)!r}).exists():
            time.sleep(0.01)
subprocess.Popen = Slow
"""
    script = f"trap 'exit 9' TERM; kill -TERM $PPID; : >'{told}'; while :; do sleep 0.05; done"
    with start(script, slow) as process:
        assert process.wait(120) == 9


def test_a_signal_that_does_not_interrupt_the_wait_is_passed_on():
    """Another thread receives it, so it changes nothing of what the main thread waits for: as if it
    had come just before the wait."""
    elsewhere = """
import signal, subprocess, threading, time
threading.Thread(target=time.sleep, args=[120], daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
class Unblocked(subprocess.Popen):
    def __init__(self, argv):
        unblock = lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        super().__init__(argv, preexec_fn=unblock)
subprocess.Popen = Unblocked
"""
    with start(NINE_WHEN_TOLD, elsewhere) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 9


def test_an_interrupt_is_its_own_affair():
    with start("echo ready; exec sleep 600") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_suspended_and_on_again():
    with start("kill -STOP $$; exit 5") as process:
        wait_until(lambda: state(process.pid) == "T", "us to be suspended")
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(120) == 5
