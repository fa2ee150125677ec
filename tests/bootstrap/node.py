"""A node's shell: /bin/sh with a home and programs of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What the scripts may count on; anything else must be there or be missed.
BASE = "awk cat grep hostname mkdir mv sed sleep ssh-keygen tail touch"


@dataclass(frozen=True)
class ShellNode:
    """`home` is the login user's; `program` adds a command to its PATH."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        self.home.mkdir()
        for name in BASE.split():
            for place in ("/usr/bin", "/bin"):
                if Path(place, name).exists():
                    (self.folder / "bin" / name).symlink_to(Path(place, name))
                    break

    @property
    def home(self) -> Path:
        # A home may have a space in it.
        return self.folder / "home of ubuntu"

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """`sh -s` with the script on its standard input, as over SSH."""
        return subprocess.run(
            ["/bin/sh", "-s"],
            input=script,
            env={"HOME": str(self.home), "PATH": str(self.folder / "bin"), "LANG": "C.UTF-8"},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            preexec_fn=lambda: os.umask(0o022),
        )
