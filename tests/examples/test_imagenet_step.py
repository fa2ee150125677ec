"""The ImageNet trainer's mathematics compared with NumPy in float64, and the format of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import IMAGENET, after

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).with_name("step_reference.py")


def test_the_step_does_what_the_formulas_say(run_ranks):
    result = run_ranks(1, PROGRAM, IMAGENET)
    assert result.returncode == 0, result.stderr
    facts = after("FACTS", result.stdout)

    assert len(facts["errors"]) == 8
    assert all(error < 1e-5 for error in facts["errors"].values()), facts["errors"]

    # The compiled update trains as the other one does, and skips the step that overflows.
    assert facts["fifty_steps"]["losses"] < 1e-4
    assert facts["fifty_steps"]["state"] < 1e-4
    assert facts["fifty_steps"]["scales"] == ["Loss scale: 512, skipped steps: 1"] * 2

    # A zero weight and a zero gradient have their own rate of 1. The third layer has |w| = 5 and
    # |g| = 2, so its own rate is 0.1 x 5 / 2 = 0.25.
    at_half, at_four = facts["zero_norms"]
    assert at_half == pytest.approx([1.0, 0.0, 2 * 0.25 / 0.5])
    assert at_four == pytest.approx([1 / 4, 0.0, 2 * 0.25 / 4])

    assert facts["smoothed"] == pytest.approx(6.9078, abs=1e-4)
    assert facts["row"] == "     1   0.0  2215.4  6.923  7.837 0.00305"
    assert facts["wide_row"] == "  1400  71.6 143451.0  1.189  1.720 0.14850"

    # Without a loss scale, these gradients vanish in float16. With one, they are correct.
    assert facts["float16"]["1"] > 0.5
    assert facts["float16"]["65536"] < 0.01

    assert len(facts["decays"]) == 6
    assert all(difference < 2e-5 for difference in facts["decays"].values()), facts["decays"]
