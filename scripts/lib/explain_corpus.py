"""How often `clusterctl explain` is right: over logs of failures whose causes are confirmed.

The corpus is tests/explain/corpus. The logs in `develop` are what signatures are written for. Those
in `held` are only counted: nobody reads them to write a signature. docs/explain.md describes the
format of a log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from clusterctl.domain.findings import Severity
from clusterctl.explain import table
from clusterctl.explain.engine import explain
from clusterctl.explain.explanation import Explanation

CORPUS = Path(__file__).parents[2] / "tests" / "explain" / "corpus"
FOLDERS = ("develop", "held")
VERDICTS = ("right", "partly", "silent", "wrong")
# Expected in place of a signature: a cause that the catalogue does not have, and a log of a program
# that did not fail.
UNKNOWN, HEALTHY = "unknown", "healthy"
_HEAD = re.compile(r"#: ([\w-]+): (.+)")
_KEYS = {"source", "root", "expect", "not-yet"}


@dataclass(frozen=True)
class Log:
    """A log of the corpus: its link, the cause in words, the expected signatures and its text.

    Any of `expected` is right. `not_yet` says why `explain` is not right about it so far.
    """

    path: Path
    source: str
    root: str
    expected: tuple[str, ...]
    text: str
    not_yet: str = ""


def read_log(path: Path) -> Log:
    """Return a log of the corpus. Raises ValueError if its head is not complete."""
    head: dict[str, str] = {}
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    while lines and lines[0].startswith("#:"):
        found = _HEAD.match(lines[0])
        if not found or found[1] not in _KEYS or found[1] in head:
            raise ValueError(f"{path}: not a head line, or given twice: {lines[0].strip()}")
        head[found[1]] = found[2].strip()
        lines.pop(0)
    missing = _KEYS - {"not-yet"} - set(head)
    if missing:
        raise ValueError(f"{path}: the head has no `#: {min(missing)}: `")
    return Log(
        path,
        head["source"],
        head["root"],
        tuple(head["expect"].replace(",", " ").split()),
        "".join(lines),
        head.get("not-yet", ""),
    )


def answer_of(found: Explanation) -> str:
    """Return the id of the signature that leads, that of the words, `unknown`, or `nothing`."""
    if found.lead:
        return found.lead.signature.id
    kind = found.unknown[0].by_words if found.unknown else None
    return kind.signature.id if kind else UNKNOWN if found.unknown else "nothing"


def verdict(log: Log, found: Explanation) -> str:
    """Return `right`, `partly`, `silent` or `wrong`.

    Partly right is an answer without the cause that claims no other: the cause is among the
    findings but does not lead, or the answer is a line that is not in the catalogue, only symptoms
    or consequences, or not certain.
    """
    answer = answer_of(found)
    if HEALTHY in log.expected:
        return "right" if found.severity is not Severity.ERROR else "wrong"
    is_unknown = found.lead is None and bool(found.unknown)
    if answer in log.expected or (is_unknown and UNKNOWN in log.expected):
        return "right"
    if found.severity is Severity.INFO:
        return "silent"
    among = any(one.signature.id in log.expected for one in found.findings)
    lead = found.lead
    return "partly" if among or not (lead and found.is_certain) else "wrong"


def count_corpus(folders: Iterable[Path]) -> None:
    """Print the verdicts for each folder of logs, and each log that is not explained rightly."""
    for folder in folders:
        logs = [read_log(path) for path in sorted(folder.glob("*.log"))]
        verdicts: Counter[str] = Counter()
        misses = []
        for log in logs:
            found = explain([log.text])
            kind = verdict(log, found)
            verdicts[kind] += 1
            if kind != "right":
                expected = " or ".join(log.expected)
                misses.append(f"  {kind:7} {log.path.stem}: {answer_of(found)}, not {expected}")
        counts = ", ".join(f"{kind} {verdicts[kind]}" for kind in VERDICTS)
        print(f"{folder.name}: {len(logs)} logs: {counts}")
        print(*sorted(misses), sep="\n", end="\n" if misses else "")


def count_unseen(folder: Path = CORPUS / "develop") -> None:
    """Print what is said of each log without the signatures that are right for it, and the counts.

    That is how a log of a kind is read that nobody has written a signature for. A certain answer is
    another signature's: where it states what the log's root denies, that signature claims too much.
    """
    own: set[str] = set()
    every = table.Table.named
    counts: Counter[str] = Counter()
    with patch.object(
        table.Table,
        "named",
        lambda self, texts: [one for one in every(self, texts) if one.id not in own],
    ):
        for log in map(read_log, sorted(folder.glob("*.log"))):
            own.clear()
            own.update(log.expected)
            found = explain([log.text])
            answer = answer_of(found)
            kind = "certain" if found.is_certain else "silent" if answer == "nothing" else "open"
            kind = "without a kind" if answer == UNKNOWN else kind
            counts[kind] += HEALTHY not in log.expected
            print(f"{kind:14} {log.path.stem}: {answer}; {log.root}")
    print(", ".join(f"{kind} {count}" for kind, count in counts.most_common()))
