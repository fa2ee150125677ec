"""A program's log as single lines, without what mpirun and terminals add to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

# mpirun --tag-output, horovodrun, PRRTE with and without its job's name, with time stamps:
# `[1,0]<stderr>:`, `[Sat Nov 21 23:08:57 2026][1,0]<stdout>: `, `[prterun-head-77@1,0]<stderr>: `.
TAG = re.compile(r"(?:\[[^\[\]\n]{1,40}\])?\[(?:[^\s\[\]]{1,200}@)?\d{1,9},\d{1,9}\]<std\w+>:")
# Colours and cursor movements.
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# A progress bar goes back to redraw itself: each drawing is a line of its own.
BREAK = re.compile(r"[\n\r\x08\x0b\x0c]+")
# Nothing that is looked for is longer; expressions of users can be slow on longer ones.
LONGEST = 4096


def clean_lines(text: str) -> Iterator[str]:
    """The lines of a log, each as its program wrote it; overlong and empty ones left out.

    mpirun may put the tag of a second line into the first: a line ends before every tag.
    """
    for drawn in BREAK.split(text):
        for line in TAG.split(ESCAPE.sub("", drawn).replace("\0", "")):
            if line.strip() and len(line) <= LONGEST:
                yield line
