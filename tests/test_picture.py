"""The picture of a terminal for the README."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "scripts" / "lib" / "picture.py"


def test_a_terminal_is_drawn_without_anything_to_load():
    spec = importlib.util.spec_from_file_location("picture", PROGRAM)
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    shown = picture.terminal_of("printf 'a \\033[31mred\\033[0m <word>\\nlast\\n'")
    drawn = picture.svg(shown, "a & b")
    words = " ".join("".join(ET.fromstring(drawn).itertext()).split())
    assert "a & b a red <word>" in words
    assert "url(http" not in drawn
