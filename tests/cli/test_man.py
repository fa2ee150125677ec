"""The man pages, made from the help texts."""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests.changes import CHECKOUT
from tests.cli.test_every_command import commands


def test_every_command_has_a_page_that_man_shows_whole(tmp_path):
    program = CHECKOUT / "scripts" / "lib" / "man.py"
    for _ in range(2):  # a second time over the first
        subprocess.run([sys.executable, program, tmp_path / "man1"], check=True)
    pages = {page.stem: page.read_text() for page in (tmp_path / "man1").iterdir()}
    assert {f"clusterctl-{name.replace(' ', '-')}" for name, _ in commands()} < pages.keys()
    assert {"clusterctl", "cctl", "clusterctl-lab", "runclust", "copyclust-verify"} < pages.keys()
    up = pages["clusterctl-up"]
    assert ".nf\nclusterctl up demo \\-\\-nodes 4 \\-\\-instance\\-type p4d.24xlarge\n" in up
    assert "\\fB\\-h, \\-\\-help\\fP\n" in up
    for option in ("lab / \\-\\-no\\-lab", "region", "profile", "endpoint\\-url", "config"):
        assert f"\\fB\\-\\-{option}" in up, "the help has one line for these"
    assert not any("\b" in text for text in pages.values())
    # A line that begins with a dot is a macro: an unknown one would vanish from the page.
    macros = {
        line.split()[0] for text in pages.values() for line in text.split("\n") if line[:1] == "."
    }
    assert macros == {".TH", ".SH", ".B", ".BR", ".PP", ".TP", ".nf", ".fi"}
    if shutil.which("groff"):
        files = sorted((tmp_path / "man1").iterdir())
        shown = ["groff", "-man", "-Tutf8", "-ww", "-z", *files]
        assert subprocess.run(shown, capture_output=True, check=True, text=True).stderr == ""
