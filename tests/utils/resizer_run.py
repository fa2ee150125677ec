"""Programs of the training environment, run by the resizer's tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
UTILS = HERE.parents[1] / "utils"


def training_python() -> str:
    """The training environment's Python; the test is skipped where there is none."""
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / ".clusterctl-training").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    return str(env / "bin" / "python")


def facts_of(program: str, *argv: object) -> Any:
    """The JSON that a program of this folder prints behind FACTS, or None."""
    command = [training_python(), "-W", "ignore", str(HERE / program), *map(str, argv)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("FACTS ")[2] or "null")
