"""Logs whose long lines were broken by a terminal or a viewer, and how to join them again."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Widths at which lines are broken.
_NARROWEST, _WIDEST = 60, 260
# The begin of a line of its own: a time stamp, a tag, a rule, a traceback.
_BEGINS = re.compile(
    r"\s*$|\[|\d{4}-\d\d-\d\d|\w{3} +\d+ [\d:]{8}|[-=*]{3}|Traceback|\s+File \"|>>>|\$ |==> "
)


def joined(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the log as it may have been before: lines, and the index of each one's first part.

    First only lines of the full width are joined with the next one, then also those to which the
    first word of the next line would not have fit. Nothing is yielded if no line is joined.
    """
    # A line of one repeated character is a rule.
    widths = [len(line) for line in lines if len(set(line.strip())) > 1]
    width = max(widths, default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return
    for words in (False, True):
        text: list[str] = []
        numbers: list[int] = []
        before = ""
        for number, line in enumerate(lines):
            full = len(before) == width
            word = line.strip().partition(" ")[0]
            short = words and 2 * len(before) > width and len(before) + 1 + len(word) > width
            if text and (full or short) and not _BEGINS.match(line):
                text[-1] += f" {line.lstrip()}" if short and not full else line
            else:
                text.append(line)
                numbers.append(number)
            before = line
        if len(text) < len(lines):
            yield text, numbers
