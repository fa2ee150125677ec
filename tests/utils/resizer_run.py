"""Programs of this folder, run with the training environment by the resizer's tests."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
UTILS = HERE.parents[1] / "utils"


def facts_of(python: str, program: str, *argv: object) -> Any:
    """The JSON that a program of this folder prints behind FACTS, or None."""
    command = [python, "-W", "ignore", str(HERE / program), *map(str, argv)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("FACTS ")[2] or "null")
