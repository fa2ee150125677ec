"""The catalogue against logs of public trackers, noise, and hostile input."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from clusterctl.explain.engine import CATALOGUE, explain
from clusterctl.explain.signature import branches

LOGS = sorted((Path(__file__).parent / "logs").glob("*.txt"))
SAMPLES = Path(__file__).parent.parent


def sample(path: Path) -> tuple[dict[str, str], str]:
    """A log's head (`# source: ...`, `# expect: ...`) and the log itself."""
    lines = path.read_text(errors="surrogateescape").splitlines(keepends=True)
    head = [line for line in lines if line.startswith("# ") and ": " in line][:3]
    told = dict(line[2:].rstrip("\n").split(": ", 1) for line in head)
    return told, "".join(lines[len(head) :])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_of_a_public_tracker_is_explained(path):
    """`# expect:` names the signature to begin with; `unknown` is an exception that is shown and
    not explained, `nothing` a log in which nothing is known to be wrong. `# values:` are from it.
    """
    told, log = sample(path)
    found = explain([log])
    lead = found.lead
    answer = lead.signature.id if lead else "unknown" if found.unknown else "nothing"
    assert answer == told["expect"], [(one.signature.id, one.line) for one in found.findings]
    for value in told.get("values", "").split():
        name, wanted = value.split("=", 1)
        assert lead and lead.values[name] == wanted


def test_ids_are_unique_and_every_alternative_fills_in_what_the_text_names():
    assert len({one.id for one in CATALOGUE}) == len(CATALOGUE)
    for one in CATALOGUE:
        assert one.cause and one.remedy and one.source, one.id
        named = set(re.findall(r"\{(\w+)\}", one.cause + one.remedy)) - {"rank", "host", "gpu"}
        for branch in branches(one.pattern):
            groups = {name.rstrip("23456789") for name in re.findall(r"\?P<(\w+)>", branch)}
            assert one.read or named <= groups, f"{one.id}: {named - groups} in {branch}"


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\n\n\n",
        b"no line end",
        bytes(range(256)) * 4000,
        random.Random(1).randbytes(3_000_000),
        b"x" * 5_000_000,
        b"[1,0]<stderr>:" * 300_000,
        b"Traceback (most recent call last):\n" * 5000,
        b"Traceback (most recent call last)",
        b"\x1b[31m\x1b[" * 100_000,
        b"[" * 100_000 + b"undefined symbol: " + b"_" * 100_000,
        b"One or more tensors were submitted to be reduced, gathered or broadcasted by subset",
        b"NVRM: Xid (PCI:" + b"0" * 100_000,
        b"{rank} {} {0} %s\r" * 1000,
    ],
    ids=range(14),
)
def test_hostile_input_does_no_harm(log):
    explain([log]).lead


def test_pieces_may_be_cut_anywhere():
    log = "\n".join(sample(path)[1] for path in LOGS[:20])
    whole = explain([log])
    assert explain(log) == whole
    assert explain([log.encode()[at : at + 7] for at in range(0, len(log.encode()), 7)]) == whole
    assert whole.lines == log.count("\n") + (not log.endswith("\n"))
