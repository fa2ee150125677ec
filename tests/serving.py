"""A tiny SavedModel for tests of the model server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def training_python() -> str:
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / "bin" / "python").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    return str(env / "bin" / "python")


def make_model(folder: Path, *versions: int) -> Path:
    """Make the model. Version N returns N * x; for other signatures see serving_model.py."""
    program = Path(__file__).parent / "bootstrap" / "serving_model.py"
    subprocess.run([training_python(), str(program), str(folder), *map(str, versions)], check=True)
    return folder
