"""`watch` on two hosts of the lab: drawn on a real terminal, or as lines without a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from clusterctl.cli.watch import LiveView, event_of, job_line, line_of
from clusterctl.diagnosis.evidence import JobEvidence
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations.watch import WatchedNode
from tests.lab.running import CLUSTERCTL
from tests.pair import eventually
from tests.variants import usual

pytestmark = pytest.mark.lab

# Two ranks of /usr/bin/mpirun: one sleeps, one is busy at a low priority. By default, mpirun's ssh
# and so the job would end after a node is frozen for 30 s; on a busy machine, drawing the frozen
# node may take longer.
RANK = """\
import os, time
os.nice(19)
while True:
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        time.sleep(0.1)
"""
MPIRUN = (
    "cd ~/examples/horovod/tensorflow; setsid /usr/bin/mpirun -np 2 --hostfile hosts"
    " --map-by node --mca plm_rsh_args '-o ServerAliveInterval=0' python3 /home/ubuntu/rank.py"
    " </dev/null >/dev/null 2>&1 &"
)
# A shell leads the session, as for a user: when a session leader ends, Linux hangs up the terminal
# and unread output is lost.
SHELL = 'trap : INT HUP; "$@"; echo "ended with $?"; exec sleep 600'
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
NORMAL_SCREEN, SHOWN_CURSOR = "\x1b[?1049l", "\x1b[?25h"


@pytest.mark.parametrize(
    ("state", "lasts"), [(JobState.RUNNING, "for"), (JobState.CANCELLED, "after")]
)
def test_how_long_a_job_has_run(state, lasts):
    job = JobEvidence(job_id="J", state=state, age_s=21, size=2)
    assert job_line(job, ()) == f"job J {state} {lasts} 21 s, 2 ranks"


@pytest.mark.parametrize(
    ("group", "of_second", "words"),
    [
        ("a", "a", "2 ranks"),
        ("a", "", "2 ranks"),  # it may be of the same job
        ("a", "b", "1 rank, and 1 rank of 1 other job"),
        ("", "b", "2 ranks of 2 jobs"),
    ],
)
def test_ranks_of_two_jobs_by_hand_are_not_those_of_one(group, of_second, words):
    nodes = [WatchedNode("h", {"ranks": [{"rank": 0, "group": one}]}) for one in ("a", of_second)]
    job = JobEvidence(state=JobState.RUNNING, age_s=21)
    assert job_line(job, nodes, group) == f"an mpirun typed by hand, running for 21 s, {words}"


@pytest.fixture(scope="module")
def ranks(pair):
    pair.put("rank.py", RANK)
    pair.on(0, MPIRUN)
    eventually(lambda: pair.on(1, "pgrep -f '[r]ank.py' || :"), "the rank of node 1")
    yield pair
    pair.ctl("kill")
    for node in (0, 1):
        pair.on(node, "rm rank.py")


class Terminal:
    """`clusterctl watch pair` on its own terminal. `seen` is all that was drawn."""

    def __init__(self, pair, *options: str) -> None:
        self.fd, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 140))
        self.before = termios.tcgetattr(inner)
        argv = [CLUSTERCTL, "watch", pair.name, "--interval", "1s"]
        environ = {**pair.environ, "TERM": "xterm-256color"}
        # Settings of the terminal in which the tests run.
        environ.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            ["sh", "-c", SHELL, "sh", *argv, *options],
            env=environ,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            # ^C reaches only processes with this controlling terminal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.inner = inner
        self.seen = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while chunk := os.read(self.fd, 1 << 16):
            self.seen += chunk.decode(errors="replace")

    def screen(self) -> str:
        """Return the current content. Each drawing starts at the top."""
        return CODES.sub("", self.seen.rpartition("\x1b[H")[2])

    def shows(self, pattern: str) -> None:
        try:
            eventually(lambda: re.search(pattern, self.screen()), pattern)
        except AssertionError:
            raise AssertionError(f"{pattern} is not on:\n{self.screen()}") from None

    def signal(self, number: int) -> None:
        """Send a signal to clusterctl, not to the shell."""
        search = ["pgrep", "-P", str(self.process.pid)]
        os.kill(int(subprocess.run(search, stdout=subprocess.PIPE, check=True).stdout), number)

    def end(self, how) -> int:
        """Return the exit status. The terminal's settings have to be as before."""
        how()
        ended = eventually(lambda: re.search(r"ended with (\d+)", self.seen), "its end")
        assert termios.tcgetattr(self.inner) == self.before
        assert NORMAL_SCREEN in self.seen
        assert SHOWN_CURSOR in self.seen
        assert "Traceback" not in self.seen
        return int(ended[1])


@pytest.fixture
def terminal(ranks):
    made = Terminal(ranks)
    yield made
    os.killpg(made.process.pid, signal.SIGKILL)
    made.process.wait()


@pytest.mark.all
def test_a_frozen_node_is_a_row_and_q_quits(ranks, terminal):
    terminal.shows(r"an mpirun typed by hand, running .*, 2 ranks")
    terminal.shows(r"pair-0 +0 [SR] \d+% ")
    terminal.shows(r"pair-1 +1 R \d+% ")
    with ranks.fault(1, "freeze"):
        terminal.shows(r"no answer: pair-1")
        # On a busy machine, clusterctl has connected again meanwhile, which changes the message.
        terminal.shows(r"pair-1 +(no answer|takes connections)")
        terminal.shows(r"pair-0 +0 [SR] \d+% .* \d+(\.\d)? s ago")
    terminal.shows(r"pair-1 +1 R .* [01]\.\d s ago")
    assert terminal.end(lambda: os.write(terminal.fd, b"q")) == 0


def test_d_diagnoses(ranks, terminal):
    terminal.shows(r"pair-1 +1 R ")
    ranks.on(1, "kill -STOP $(pgrep -f '[r]ank.py')")
    try:
        os.write(terminal.fd, b"d")
        terminal.shows(r"last finding: [\d:]+ rank 1 on pair-1 .* is stopped")
        terminal.shows(r"hint: clusterctl run pair --nodes 1 'kill -CONT \d+'")
    finally:
        ranks.on(1, "kill -CONT $(pgrep -f '[r]ank.py')")
    terminal.shows(r"pair-1 +1 R .* [01]\.\d s ago")
    assert terminal.end(lambda: os.write(terminal.fd, b"q")) == 0


@pytest.mark.parametrize(
    ("how", "status"),
    [
        pytest.param(how, status, id=name, marks=() if name == "^C" else pytest.mark.all)
        for name, how, status in (
            ("^C", lambda terminal: os.write(terminal.fd, b"\x03"), 130),
            ("INT", lambda terminal: terminal.signal(signal.SIGINT), 130),
            ("TERM", lambda terminal: terminal.signal(signal.SIGTERM), 130),
            ("HUP", lambda terminal: terminal.signal(signal.SIGHUP), 130),
        )
    ],
)
def test_the_terminal_is_as_it_was(terminal, how, status):
    terminal.shows("pair-0 ")
    assert terminal.end(lambda: how(terminal)) == status


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_lines_where_there_is_no_terminal(ranks, as_json):
    ranks.on(1, "kill -STOP $(pgrep -f '[r]ank.py')")
    options = ("--interval", "1s", *(("--json",) if as_json else ()))
    process = replace(ranks, by_hosts_file=as_json).start("watch", *options)
    try:
        if as_json:
            stopped = lambda node: [one["state"] for one in node.get("ranks", ())] == ["T"]  # noqa: E731
            line = eventually(
                lambda: (
                    (said := json.loads(process.stdout.readline()))
                    and stopped(said["nodes"][1])
                    and said["job"]
                    and said
                ),
                "the stopped rank",
            )
            assert (line["cluster"], line["hosts"].startswith("--hosts ")) == (None, True)
        else:
            line = eventually(
                lambda: (
                    (said := process.stdout.readline())
                    # The head node's state may arrive later than the worker's.
                    and re.search("pair-1: 1 stopped; 2 nodes at ", said)
                    and said
                ),
                "the stopped rank",
            )
            assert re.match(r"\d\d:\d\d:\d\d pair: an mpirun typed by hand, running for ", line)
    finally:
        ranks.on(1, "kill -CONT $(pgrep -f '[r]ank.py')")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert (process.returncode, err.strip()) == (130, "interrupted")


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_a_narrow_terminal_shows_who_is_in_trouble(width):
    gpu = {"utilization_percent": 88, "power_w": 300}
    said = {
        "cpu": 0.5,
        "gpus": {"gpus": [gpu] * 8},
        "net": [1.2e9, 1.1e9],
        "disk": [2e8, 1e7],
        "filesystems": [{"path": "/opt/dlami/nvme", "used_bytes": 5, "free_bytes": 5}],
        "ranks": [{"rank": rank, "state": "ST"[rank == 5], "cpu": 0.9} for rank in range(8)],
    }
    silent = WatchedNode("demo-1", error="demo-1: does not answer in time at 198.18.16.4")
    nodes = [WatchedNode("demo-0", said, time.monotonic()), silent]
    console = Console(width=width, height=20, file=io.StringIO())
    console.print(LiveView("demo", SimpleNamespace(job=None, nodes=nodes, head=nodes[0]), 2.0))
    drawn = console.file.getvalue()
    assert re.search(r"^demo-0  0-7 SSSSSTSS 90% 5 stopped( |$)", drawn, re.MULTILINE), drawn
    assert re.search(r"^demo-1  demo-1: does not answer", drawn, re.MULTILINE), drawn
    assert ("190.7 MiB/s/9.5 MiB/s" in drawn) == (width == 200)


SAID = {"cpu": 0.5, "net": [0, 0], "disk": [0, 0]}


@pytest.mark.parametrize(
    ("head", "said", "silent"),
    [
        (WatchedNode("demo-0", since=math.inf), "is being read", False),
        (WatchedNode("demo-0"), "the head node demo-0 does not answer", True),
        (WatchedNode("demo-0", error="cut off"), "the head node demo-0 does not answer", True),
        (
            WatchedNode("demo-0", error="no python3", is_reached=True),
            "the head node demo-0 cannot be read",
            False,
        ),
        (WatchedNode("demo-0", SAID, math.inf), "no job is on record", False),
        (WatchedNode("demo-0", SAID, 0.0), "the head node demo-0 does not answer", True),
    ],
)
def test_before_the_first_look_nobody_is_silent_and_a_silent_head_has_jobs(head, said, silent):
    view = LiveView("demo", SimpleNamespace(job=None, nodes=[head], head=head), 2.0)
    line = line_of(view)
    assert said in line and ("no answer: demo-0" in line) == silent
    assert ("no job is on record" in line) == (said == "no job is on record")
    console = Console(width=100, height=20, file=io.StringIO())
    console.print(view)
    assert said in console.file.getvalue()
    assert event_of(view)["job"] is None


@pytest.mark.parametrize(
    ("second", "job"),
    [
        (WatchedNode("n2", SAID, math.inf), "no job found;"),
        (WatchedNode("n2", since=math.inf),
         "no job found on the hosts that were read; not read yet: n2"),
        (WatchedNode("n2", error="cut off"),
         "no job found on the hosts that were read; no answer: n2"),
        (WatchedNode("n2", error="too old: python3 is 3.6.9", is_reached=True),
         "on the hosts that were read; cannot be read: n2 (too old: python3 is 3.6.9)"),
    ],
)  # fmt: skip
def test_hosts_have_no_job_only_when_all_have_been_read(second, job):
    nodes = [WatchedNode("n1", SAID, math.inf), second]
    assert job in line_of(
        LiveView("--hosts hosts", SimpleNamespace(job=None, nodes=nodes, head=None), 2.0)
    )


def test_hosts_that_are_read_first_are_not_silent():
    silent, asked = WatchedNode("n1", error="cut off"), WatchedNode("n2", since=math.inf)
    for nodes, why in (
        ([silent, asked], "is not known yet: the hosts are being read"),
        ([silent], "is not known: no host can be read"),
    ):
        view = LiveView("--hosts hosts", SimpleNamespace(job=None, nodes=nodes, head=None), 2.0)
        assert why in line_of(view)


INTERRUPTED = """\
import click, os, time
from clusterctl.cli import output
from clusterctl.cli.main import run_program
class View:
    def __rich_console__(self, console, options):
        os.kill(os.getpid(), self.number)
        time.sleep(0.1)
        yield "never"
@click.command()
@click.argument("number", type=int)
def watch(number):
    View.number = number
    with output.screen(View()) as key:
        key(1)
run_program(watch)
"""


@pytest.mark.parametrize("number", usual(1, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
def test_a_signal_within_the_first_picture_leaves_the_terminal_as_it_was(number):
    fd, inner = pty.openpty()
    argv = [sys.executable, "-c", INTERRUPTED, str(int(number))]
    subprocess.run(argv, stdin=inner, stdout=inner, stderr=subprocess.DEVNULL, check=False)
    os.close(inner)
    seen = ""
    with contextlib.suppress(OSError):  # Linux's end of file on a terminal
        while more := os.read(fd, 4096):
            seen += more.decode()
    os.close(fd)
    assert "never" not in seen
    assert NORMAL_SCREEN in seen
    assert SHOWN_CURSOR in seen
