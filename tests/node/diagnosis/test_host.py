"""A node's facts. A query that hangs or dies does not delay the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from clusterctl.node.diagnosis import doctor, host


def test_what_hangs_dies_or_fails_is_named_and_holds_nothing_up():
    questions = {
        "hangs": lambda: time.sleep(600),
        "dies": lambda: os._exit(3),
        "fails": lambda: 1 / 0,
        "large": lambda: "x" * 300_000,
        "none": lambda: None,
    }
    began = time.monotonic()
    answers, errors = host.ask(questions, 5.0)
    assert time.monotonic() - began < 240
    assert {name: len(value or "") for name, value in answers.items()} == {
        "large": 300_000,
        "none": 0,
    }
    assert errors == {
        "hangs": "no answer within 5 s",
        "dies": "its process died",
        "fails": "ZeroDivisionError: division by zero",
    }


@pytest.mark.parametrize(("test", "over_ssh"), [("_greeting", False), ("_ssh", True)])
def test_peers_are_tested_at_once(test, over_ssh, monkeypatch):
    together = threading.Barrier(8, timeout=60)
    monkeypatch.setattr(doctor, test, lambda peer: "dead" if together.wait() else "")
    peers = [f"10.0.0.{n}" for n in range(8)]
    assert list(doctor.unreached(peers, over_ssh).values()) == ["dead"] * 7


def test_a_question_that_hangs_holds_no_output_open():
    """SSH waits until no process has the program's output open. No process is left, either."""
    text = (
        "import time; from clusterctl.node.diagnosis import host\n"
        "def hangs(): open('/proc/self/comm', 'w').write('hangs-here'); time.sleep(600)\n"
        "print(host.ask({'q': hangs}, 0.5)[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "{'q': 'no answer within 0.5 s'}\n", done.stderr
    left = subprocess.run(["pgrep", "-x", "hangs-here"], capture_output=True, check=False)
    assert left.stdout == b""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "[  100.500000] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
            (900, "NVRM"),
        ),
        ("[100.5] ip-10-0-3-7 kernel: Out of memory: Killed process 7 (python)", (900, "Out")),
        ("Nov 23 00:00:01 Out of memory: Killed process 7", (None, "Nov")),
    ],
)
def test_a_line_of_the_kernel_has_its_age(line, told):
    said = host._kernel_line(line, 1000.5)
    assert (said["age_s"], said["text"].split()[0].rstrip(":")) == told
