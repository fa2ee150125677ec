"""The guard's files on a node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

LOG_BYTES = 128 * 1024
SETTINGS_BYTES = 256 * 1024


class GuardFiles:
    """Where the files are; tests have a root of their own. What cannot be written is left out:
    a full disk ends no guard."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self.kept = self.root / "var/lib/clusterctl"
        self.settings = self.kept / "guard.json"
        self.good = self.kept / "guard-good.json"
        self.used = self.kept / "guard-used.json"
        self.log_file = self.root / "var/log/clusterctl-guard.log"
        self.state = self.root / "run/clusterctl/guard-state.json"
        self.spot = self.root / "run/clusterctl/spot-interruption"
        self.console = self.root / "dev/console"

    def log(self, text: str) -> None:
        """One line, in a log that does not grow without end."""
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
            with self.log_file.open("a", encoding="utf-8", errors="replace") as log:
                log.write(line)
        except OSError:
            pass


def read_text(path: Path) -> str:
    """The file's text. Raises OSError, or ValueError where it is none."""
    with path.open("rb") as file:
        content = file.read(SETTINGS_BYTES + 1)
    if len(content) > SETTINGS_BYTES:
        raise ValueError(f"{path} is too large")
    return content.decode()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def put(path: Path, text: str) -> bool:
    """The whole file or nothing; False where it could not be written."""
    new = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
    except OSError:
        return False
    return True
