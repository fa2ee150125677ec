"""Run clusterctl's programs as processes, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.forks import run_one

BIN = Path(sys.executable).parent


def call(*argv: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(BIN / str(argv[0])), *map(str, argv[1:])]
    given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(words, capture_output=True, timeout=240, check=False, **given)
    return subprocess.CompletedProcess(
        words, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def forked(program: str, *argv: object) -> subprocess.CompletedProcess[str]:
    """As `call`, in a tenth of the processor time: a fork has the imports already."""
    words = [*map(str, argv)]
    return subprocess.CompletedProcess(
        [program, *words], *run_one(words, os.environ, program=program)
    )
