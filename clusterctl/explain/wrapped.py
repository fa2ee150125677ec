"""Logs that a terminal, a viewer or another program wrote otherwise, and how they were before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from clusterctl.explain.table import named

# Widths at which lines are broken.
_NARROWEST, _WIDEST = 60, 260
# The least indentation of a column of a log in which a message is broken.
_COLUMN = 8
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
    widths = [len(line) for line in lines if not _is_rule(line)]
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
            margin = len(line) - len(line.lstrip())
            column = margin >= _COLUMN and before[:margin].isspace()
            is_own = _BEGINS.match(line) or (not column and _word(line) in map(_word, beside))
            is_own = is_own or _is_rule(before)
            if text and (full or short or column) and not is_own:
                # What is indented was broken between words, as a log's column is.
                is_word = margin or (short and not full)
                text[-1] = f"{text[-1].rstrip()} {line.lstrip()}" if is_word else text[-1] + line
            else:
                text.append(line)
                numbers.append(number)
        if len(text) < len(lines):
            yield text, numbers


def _is_rule(line: str) -> bool:
    """Return whether a line is empty, or one repeated character: nothing follows in the next."""
    return len(set(line.strip())) < 2


def _word(line: str) -> str:
    """Return the first word of a line, without digits."""
    return re.sub(r"\d", "", line.split(maxsplit=1)[0]) if line.strip() else " "


# An error of AWS as the clients in XML, Go (two of them), Java and JavaScript print it.
_OF_AWS = re.compile(
    r"<Error><Code>(?P<code>[\w.]+)</Code>\s*<Message>(?P<message>[^<]*)</Message>"
    r"(?=[^\n]*<Request[Ii][Dd]>)"
    r"|\boperation error [\w .]+: (?P<call>\w+), [^\n]{0,300}?api error (?P<code2>[\w.]+): "
    r"(?P<message2>[^\n]*)"
    r"|(?P<message3>[^{}\n]{1,400}?) \(Service: \w+; Status Code: \d+; "
    r"Error Code: (?P<code3>[\w.]+);"
    r"|\b(?!Error:)(?P<code4>[A-Z][a-z]\w+(?:\.\w+)?): (?P<message4>[^\n]+?)\s+status code: \d+, "
    r"request id: "
    r"|\b(?P<code5>[A-Z][a-z]\w+(?:\.\w+)?): (?P<message5>[^\n]+)\n\s+at (?:Request\.extractError|"
    r"\w*throwDefaultError|de_\w+)\b"
)


def _as_boto(line: str, after: str) -> str:
    """Return a line with an error of AWS in the words of boto, which the catalogue knows.

    `after` is the next line: Go's first client has the HTTP status there, JavaScript its frame.
    """
    found = _OF_AWS.search(f"{line}\n{after}")
    if not found or found.start() > len(line):
        return line
    part = {"call": "request", **named(found)}
    said = f"An error occurred ({part['code']}) when calling the {part['call']}"
    return f"{line[: found.start()]} {said} operation: {part.get('message', '').strip()}"


# Quotes that a text processor or a page made of plain ones.
_PLAIN_QUOTES = str.maketrans("“”„‘’", '"""\'\'')


def unescaped(lines: list[str]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the log without the escapes of JSON and of addresses, as `joined` does.

    A text within JSON has its line ends as `\\n`, and an address has `%20` for a space. Quotes are
    plain. An error of AWS is written as boto writes it. Nothing is yielded if the log has none of
    these.
    """
    text: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(lines):
        plain = (unquote(line) if "%20" in line else line).translate(_PLAIN_QUOTES)
        plain = _as_boto(plain, lines[number + 1] if number + 1 < len(lines) else "")
        parts = re.split(r"\\+n", plain) if "\\n" in plain else [plain]
        text += [re.sub(r"\\+([\"'/])", r"\1", part.replace("\\t", "\t")) for part in parts]
        numbers += [number] * len(parts)
    if text != lines:
        yield text, numbers
