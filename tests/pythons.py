"""Other versions of Python on this machine: that of nodes may be older or newer than ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def python_or_skip(version: str) -> Path:
    """Return a `pythonVERSION` that starts, from the PATH or pyenv. Skip the test without one."""
    for candidate in _candidates(version):
        probe = subprocess.run([candidate, "-c", "pass"], capture_output=True, check=False)
        if probe.returncode == 0:
            return candidate
    pytest.skip(f"there is no python{version}")


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    if root := os.environ.get("PYENV_ROOT"):
        yield from Path(root).glob(f"versions/{version}.*/bin/python{version}")
