"""The data tools: modules without NumPy are imported here, the others are run as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import completed

HERE = Path(__file__).parent
UTILS = HERE.parents[1] / "utils"

sys.path += [str(UTILS), str(HERE)]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def training_python() -> str:
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / ".clusterctl-training").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    return str(env / "bin" / "python")


@pytest.fixture(scope="session")
def tool(training_python: str) -> Run:
    """Run a program of utils/ (or of this folder, by its path) in the training environment."""

    def run(name: str, *argv: object, **options: object) -> subprocess.CompletedProcess[str]:
        return completed(
            [training_python, str(UTILS / name), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def facts_of(tool: Run) -> Callable[..., Any]:
    """Return the JSON that a program of this folder prints after FACTS, or None."""

    def run(program: str, *argv: object) -> Any:
        done = tool(str(HERE / program), *argv)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.partition("FACTS ")[2] or "null")

    return run


@pytest.fixture(scope="session")
def raw(tool: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stand-in's raw data in folders: 60 training images of 5 classes, 10 others."""
    folder = tmp_path_factory.mktemp("raw") / "it's raw, ü"
    done = tool("make_sample_imagenet.py", "--output_dir", folder, *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


SMALL = ["--classes", "5", "--images", "60", "--validation_images", "10", "--size", "32"]
SHARDS = ["--train_shards", "4", "--validation_shards", "2", "--num_processes", "2"]


@pytest.fixture(scope="session")
def tars(tool: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same data packed like image-net.org's."""
    folder = tmp_path_factory.mktemp("tars")
    done = tool("make_sample_imagenet.py", "--output_dir", folder, "--as_tars", *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="session")
def made(
    tool: Run, raw: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the stand-in's shards, and the result of the program that made them."""
    folder = tmp_path_factory.mktemp("made") / "tf imagenet"
    done = tool("preprocess_imagenet.py", "--raw_data_dir", raw, "--output_dir", folder, *SHARDS)
    return folder, done
