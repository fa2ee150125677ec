"""The guard's program as a process on this machine, with its own root folder and power commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.bootstrap.guard import GUARD
from clusterctl.node.guard.settings import GuardSettings
from tests.lab.running import wait_until

POWER = """#!/bin/sh
echo "${0##*/} $*" >>"$GUARD_TEST/ends"
exit ${POWER_STATUS:-0}
"""
QUIET = "#!/bin/sh\nexit 0\n"


@dataclass
class GuardProcess:
    """A guard. `folder` is the root that it writes below; `ends` are its power commands."""

    folder: Path
    python: str = sys.executable
    environ: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, text in {"shutdown": POWER, "poweroff": POWER, "wall": QUIET}.items():
            self.command(name, text)
        (self.folder / "dev").mkdir()
        (self.folder / "dev/console").touch()
        self.program.write_bytes(GUARD.zipapp())

    @property
    def program(self) -> Path:
        return self.folder / "guard"

    @property
    def settings(self) -> Path:
        return self.folder / "var/lib/clusterctl/guard.json"

    def command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def tell(self, settings: GuardSettings | str) -> None:
        text = settings if isinstance(settings, str) else settings.text()
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        new = self.settings.with_suffix(".new")
        new.write_text(text)
        new.replace(self.settings)

    def start(self, *arguments: str) -> subprocess.Popen:
        argv = [self.python, "-IS", str(self.program), *(arguments or ("run", str(self.folder)))]
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "GUARD_TEST": str(self.folder), **self.environ}
        process = subprocess.Popen(
            argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.running.append(process)
        return process

    def read(self, path: str) -> str:
        # The guard may be replacing it, or removing it.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return (self.folder / path).read_text()
        return ""

    @property
    def ends(self) -> list[str]:
        return self.read("ends").splitlines()

    @property
    def log(self) -> str:
        return self.read("var/log/clusterctl-guard.log")

    def state(self) -> dict:
        text = self.read("run/clusterctl/guard-state.json")
        return json.loads(text) if text else {}

    def await_log(self, words: str) -> None:
        wait_until(lambda: words in self.log, f"{words!r} in the log: {self.log}")

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
