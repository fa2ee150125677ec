"""Numbers and lines that other programs have written, which may have written anything.

Python refuses to read numbers of thousands of digits, `isdigit()` is true of `²`, and what takes
time that grows with the square of a line's length never ends on a line of megabytes. What is read
of /proc, logs and dumps goes through these functions. JSON goes through `record.py`.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import AnyStr

MOST_DIGITS = 18  # of a whole number: it has 64 bits
MOST_RANKS = 1 << 20  # of a job; a size or a rank beyond is not known
LONGEST_LINE = 4096  # characters that are read of a line
# SGR colours, and erasing to the end of the line (K).
COLOUR = r"\x1b\[[0-9;:]*[mK]"
# The decimals of a loss have up to 21 digits. Nothing reads those as a whole number.
_LONG = re.compile(rf"(?<![\d.])\d{{{MOST_DIGITS + 1},}}|\d{{100,}}")


def text_in(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def whole(text: AnyStr, most: int = 10**MOST_DIGITS) -> int | None:
    """Return the whole number below `most` that a text is; None for any other text."""
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        return None
    return int(text) if int(text) < most else None


def legible(line: str) -> str:
    """Return a line as it can be read and shown: its beginning, in characters that UTF-8 has,
    without line ends and colours in it, and with … for a number that is too long to be one."""
    line = line[:LONGEST_LINE].encode(errors="replace").decode().replace("\n", " ")
    line = re.sub(COLOUR, "", line)
    return _LONG.sub("…", line)
