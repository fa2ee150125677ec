"""Ctrl-C while a program's modules are imported."""

from __future__ import annotations

import os
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
