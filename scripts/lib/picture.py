"""Draw a terminal in which ./scripts/demo ran, for `scripts/picture FOLDER`: two pictures."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
# Each picture shows the terminal from the first of these texts up to the second.
PICTURES = {
    "demo.svg": ("$ clusterctl up", "Go on:"),
    "diagnose.svg": ("$ clusterctl train demo 2 --env", "$ clusterctl cancel"),
}


def terminal_of(command: str) -> str:
    """Run a command in a terminal, and return the terminal's content with escapes for colours.

    Raises SystemExit if the command fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/socket", "-f", "/dev/null"]
        window = f"{command}; echo $? >{folder}/status; tmux wait-for -S ended; exec cat"
        size = ["-x", str(COLUMNS), "-y", "50"]
        history = ["set-option", "-g", "history-limit", "5000", ";"]
        subprocess.run([*tmux, *history, "new-session", "-d", *size, window], check=True)
        try:
            subprocess.run([*tmux, "wait-for", "ended"], check=True)
            capture = [*tmux, "capture-pane", "-p", "-e", "-S", "-"]
            done = subprocess.run(capture, check=True, capture_output=True, text=True)
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
        if Path(folder, "status").read_text() != "0\n":
            raise SystemExit(done.stdout)
    return done.stdout


def svg(terminal: str, title: str) -> str:
    """Return a picture of the terminal. It loads no fonts: web pages that show it forbid that."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(terminal))
    drawn = console.export_svg(title=title, unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    shown = terminal_of("./scripts/demo")
    for name, (first, after) in PICTURES.items():
        begin = shown.index(first)
        part = shown[begin : shown.index(after, begin)].rstrip()
        Path(sys.argv[1], name).write_text(svg(part, "./scripts/demo"))
