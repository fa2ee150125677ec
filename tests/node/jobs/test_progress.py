"""What is a step of a job, and how long may pass without one."""

from __future__ import annotations

import pytest

from clusterctl.node.jobs.runner import TrainingProgress


def test_what_is_a_step_and_how_long_may_pass_without_one():
    progress = TrainingProgress(0.0, rows=3)
    assert progress.silent_s(60, 170) is None, "three times as long before the first row"
    progress.add_rows(0, 175)
    assert (progress.silent_s(60, 175), progress.has_stepped) == (None, False), "rows are cleared"
    assert progress.silent_s(60, 185) == 185
    progress.add_rows(3, 186)
    assert (progress.silent_s(60, 186), progress.has_stepped) == (None, True)


@pytest.mark.parametrize("tag", [b"", b"[1,0]<stderr>:", b"[prterun-demo-0-77@1,0]<stderr>: "])
def test_lines_about_a_stall_are_no_step(tag):
    progress = TrainingProgress(0.0)
    progress.add_rows(3, 1)
    progress.add(tag + b"loss 0.1\n", 2)
    progress.add(tag + b"Missing ranks:\n" + tag + b"1: [grads/conv1]\n" + tag + b"\n", 63)
    assert progress.silent_s(60, 63) == 61
    progress.add(tag + b"lo", 64)
    assert progress.silent_s(60, 64) == 62, "half a line"
    progress.add(b"ss 0.1\n", 65)
    assert progress.silent_s(60, 65) is None
