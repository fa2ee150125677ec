"""The status line below a followed log, which appears on a terminal only."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from clusterctl.cli.following import TrainingStatus
from tests.job_records import job_record
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

LOG = banner(2) + HEADER + rows([0, 1, 50, 100])
# Prints text like the trainer, and the rest of it once there is a file `go`.
TALK = f"""\
import os, sys, time
sys.stdout.write({LOG!r})
sys.stdout.flush()
while not os.path.exists("/data/go"):
    time.sleep(0.05)
sys.stdout.write("Finished in 12.5\\n")
"""


def status_of(line, usd, duration_s=1000.0):
    job = job_record(duration_s=duration_s, argv=tuple(line.split()), hourly_usd=usd)
    return TrainingStatus(job)


@pytest.mark.parametrize(
    ("line", "log", "usd", "text"),
    [
        ("mpirun x --num_epochs 90", "no rows yet\n", 30.0, ""),
        # After 1000 s, a tenth is done.
        ("mpirun x --num_epochs 90 --num_batches 500", HEADER + rows([0, 50]), 36.0,
         "step 50 of 500, epoch 0.3, 19000.0 images/s, 2 h 30 min left, $10.00 so far"),
        # The run was resumed at a half: a tenth was done in these 1000 s.
        ("mpirun x --num_batches 500", HEADER + rows([250, 300]) + evaluation(300, 61.5), None,
         "step 300 of 500, epoch 1.9, 19000.0 images/s, 1 h 06 min left, top-1 61.50 %"),
        ("mpirun mine.py", HEADER + rows([0, 50]), None, "step 50, epoch 0.3, 19000.0 images/s"),
        ("mpirun keras.py", "Epoch 1/24\n469/469 - 9s - loss: 0.25 - accuracy: 0.92\n", None,
         "train:loss 0.25, train:accuracy 0.92"),
    ],
)  # fmt: skip
def test_the_status_line_of_a_log(line, log, usd, text):
    status = status_of(line, usd)
    status.take(log.encode())
    assert status.text(time.monotonic()) == text


@pytest.mark.lab
@pytest.mark.train
def test_below_the_log_of_a_terminal_and_not_in_a_pipe(pair):
    pair.on(0, "rm -f /data/go; mkdir -p mine; cat > mine/talk.py", TALK.encode())
    fd, inner = pty.openpty()
    argv = [
        *(sys.executable, "-m", "clusterctl", "train", pair.name, "1", "--script"),
        "~/mine/talk.py",
    ]
    process = subprocess.Popen(argv, env=pair.environ, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    seen = b""
    try:
        while b"step 100, epoch 0.6, 19000.0 images/s" not in seen:
            seen += os.read(fd, 1 << 16)
        with pair.start("logs", "-f") as piped:
            pair.on(0, "touch /data/go")
            out, _ = piped.communicate(timeout=240)
        try:
            while more := os.read(fd, 1 << 16):
                seen += more
        except OSError:
            pass  # the other end of the terminal is closed
        assert process.wait(60) == 0
    finally:
        os.close(fd)
        process.kill()
        pair.ctl("cancel")
        pair.on(0, "rm -rf mine /data/go")
    assert out.endswith(LOG + "Finished in 12.5\n")
    assert "\x1b" not in out
    # The line is redrawn in place and erased at the end, so the log is complete.
    left = re.sub(rb"\r\x1b\[2K[^\r\n\x1b]*(?=\r\x1b\[2K)", b"", seen).replace(b"\r\x1b[2K", b"")
    assert out.replace("\n", "\r\n").encode() in left
