"""The shell of a node: /bin/sh with its own home folder and programs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.programs import completed

# The commands that the scripts may rely on. A test that needs another one provides it.
BASE = "awk cat grep hostname mkdir mv sed sleep ssh-keygen tail touch"


@dataclass(frozen=True)
class ShellNode:
    """A node's login shell. `home` is the user's home; `program` adds a command to its PATH."""

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
        # The path of a home folder may have a space in it.
        return self.folder / "home of ubuntu"

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run the script as the standard input of `sh -s`, as over SSH."""
        return completed(
            ["/bin/sh", "-s"],
            input=script,
            env={"HOME": str(self.home), "PATH": str(self.folder / "bin"), "LANG": "C.UTF-8"},
            cwd=self.home,
            preexec_fn=lambda: os.umask(0o022),
        )
