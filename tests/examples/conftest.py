"""Fixtures for the example programs, which run in the training environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.programs import completed

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"
IMAGENET = EXAMPLES / "tensorflow" / "train_imagenet_resnet_hvd.py"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def imagenet() -> SimpleNamespace:
    """Import the parts of the ImageNet trainer that need only the standard library."""
    sys.path.insert(0, str(IMAGENET.parent))  # they import each other as top-level modules
    try:
        flags, schedule = import_module("flags"), import_module("schedule")
    finally:
        sys.path.remove(str(IMAGENET.parent))
    return SimpleNamespace(
        parse_args=flags.parse_args,
        make_schedule=schedule.make_schedule,
        whole_epochs=schedule.whole_epochs,
    )


@pytest.fixture(scope="session")
def training_env() -> Path:
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / ".clusterctl-training").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    return env


@pytest.fixture(scope="session")
def ranks_in(training_env: Path) -> Run:
    """Run a program in the training environment and a folder, as one rank or as several."""

    def run(folder: Path, ranks: int, *argv: object) -> subprocess.CompletedProcess[str]:
        command = [str(training_env / "bin" / "python"), *map(str, argv)]
        if ranks > 1:
            command = [*mpirun(training_env, ranks), *command]
        env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return completed(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, timeout=1200)

    return run


@pytest.fixture
def run_ranks(ranks_in: Run, tmp_path: Path) -> Run:
    """Return `ranks_in` with `tmp_path` as its folder."""
    return partial(ranks_in, tmp_path)


def mpirun(training_env: Path, ranks: int) -> list[str]:
    return [
        str(training_env / "bin" / "mpirun"),
        *("-np", str(ranks)),
        *("-H", f"localhost:{ranks}"),
        *("--bind-to", "none"),
        *("-x", "OMPI_MCA_mpi_yield_when_idle=1"),
    ]


def after(marker: str, output: str) -> Any:
    """Return the JSON after a marker. mpirun may put other output at the start of the line."""
    return json.JSONDecoder().raw_decode(output.partition(marker + " ")[2])[0]
