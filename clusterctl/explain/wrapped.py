"""Logs that a terminal, a viewer or another program wrote otherwise, and how they were before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

# Widths at which lines are broken.
_NARROWEST, _WIDEST = 60, 260
# The begin of a line of its own: a time stamp, a tag, a rule, a traceback.
_BEGINS = re.compile(
    r"\s*$|\[|\d{4}-\d\d-\d\d|\w{3} +\d+ [\d:]{8}|[-=*]{3}|Traceback|\s+File \"|>>>|\$ |==> "
)


def joined(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the log as it may have been before: lines, and the index of each one's first part.

    First only lines of the full width are joined with the next one, then also those to which the
    first word of the next line would not have fit. Lines that begin with the same word as the one
    before or after are lines of their own. Nothing is yielded if no line is joined.
    """
    # A line of one repeated character is a rule.
    widths = [len(line) for line in lines if len(set(line.strip())) > 1]
    width = max(widths, default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return
    for words in (False, True):
        text: list[str] = []
        numbers: list[int] = []
        for number, line in enumerate(lines):
            before = lines[number - 1] if number else ""
            beside = lines[max(number - 1, 0) : number] + lines[number + 1 : number + 2]
            full = len(before) == width
            word = line.strip().partition(" ")[0]
            short = words and 2 * len(before) > width and len(before) + 1 + len(word) > width
            is_alike = _word(line) in map(_word, beside)
            if text and (full or short) and not is_alike and not _BEGINS.match(line):
                text[-1] += f" {line.lstrip()}" if short and not full else line
            else:
                text.append(line)
                numbers.append(number)
        if len(text) < len(lines):
            yield text, numbers


def _word(line: str) -> str:
    """Return the first word of a line, without digits."""
    return re.sub(r"\d", "", line.split(maxsplit=1)[0]) if line.strip() else " "


def unescaped(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the log without the escapes of JSON and of addresses, as `joined` does.

    A text within JSON has its line ends as `\\n`, and an address has `%20` for a space. Nothing is
    yielded if the log has neither.
    """
    text: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines):
        plain = unquote(line) if "%20" in line else line
        parts = re.split(r"\\+n", plain) if "\\n" in plain else [plain]
        text += [re.sub(r"\\+([\"'/])", r"\1", part.replace("\\t", "\t")) for part in parts]
        numbers += [number] * len(parts)
    if text != lines:
        yield text, numbers
