"""The report of `selftest`: the verdict on each step, and the text file to send. Pure.

The file goes to other people, so free text (messages, figures, logs) is masked: secrets as in the
bundles of `diagnose`, account numbers, addresses, and the user's home folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from clusterctl.diagnosis.bundle import redacted
from clusterctl.domain.units import count, format_duration
from clusterctl.jobs.metrics.logs import clean_lines

TAIL_LINES = 40  # of what a step printed
INSIDE = """\
This file has the steps with their verdicts, figures and times, the versions on the nodes, the
costs, and the last lines that each step printed. Keys, passwords, account numbers and IP addresses
are taken out (so is any other number of the form 1.2.3.4 in a log). Read it before you send it."""
# A version as package indices and drivers write them. Nothing else is printed unmasked.
_VERSION = re.compile(r"[\w.+~:() -]{1,60}", re.ASCII)
_MASKS = (
    # One of 200 ids of EC2's resources has twelve digits in a row, too, and names what to remove.
    (
        re.compile(r"\b([a-z]+-[0-9a-f]{17})\b|(?<!\d)\d{12}(?!\d)"),
        lambda found: found[1] or "[account]",
    ),
    (re.compile(r"\b(?:ip|ec2)(?:-\d{1,3}){4}[\w.-]*"), "[host]"),
    (re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"), "[address]"),
    # IPv6 addresses and MAC addresses. Times and PCI ids have fewer colons.
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){3,}[0-9a-f]{0,4}(?![\w:])", re.I), "[address]"),
    (re.compile(r"\b(ssh-ed25519|ssh-rsa|ecdsa-\S+) AAAA[\w+/=]+"), r"\1 [key]"),
)


class StepVerdict(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StepResult:
    """The result of one step. `message` is what it found, or the reason of another verdict.

    `figures` are lines, `log` the last lines that it printed, `versions` by program.
    """

    name: str
    verdict: StepVerdict
    message: str = ""
    duration_s: float = 0.0
    figures: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class SelftestReport:
    """A self-test, as far as it has come. The texts are for people; `results` are in order.

    `machine` is where clusterctl ran, `place` where the nodes were and what they were. `estimate`
    and `spent` are the costs before and after. `interrupted`: a signal has come, in a step or not.
    `file` is where the text is.
    """

    version: str
    machine: str
    began: str
    place: str
    estimate: str
    spent: str = ""
    results: tuple[StepResult, ...] = ()
    interrupted: bool = False
    file: str = ""
    json_names = (
        *("version", "machine", "began", "place", "estimate", "spent", "summary", "versions"),
        *("results", "file"),
    )

    @property
    def exit_status(self) -> int:
        """130 after an interrupt, 1 if a step failed, else 0."""
        verdicts = {one.verdict for one in self.results}
        if self.interrupted or StepVerdict.INTERRUPTED in verdicts:
            return 130
        return int(StepVerdict.FAILED in verdicts)

    @property
    def is_removed(self) -> bool:
        """Whether EC2 has shown that nothing is left, or nothing was launched."""
        gone = (StepVerdict.PASSED, StepVerdict.NOT_RUN)
        return any(one.name == "verify" and one.verdict in gone for one in self.results)

    @property
    def summary(self) -> str:
        """The results counted by verdict: `7 passed, 1 failed, 2 not run`."""
        counts = {
            verdict.value: sum(one.verdict is verdict for one in self.results)
            for verdict in StepVerdict
        }
        return ", ".join(f"{number} {word}" for word, number in counts.items() if number)

    @property
    def versions(self) -> dict[str, str]:
        """The versions on the nodes by program, of all steps."""
        found = {name: text for one in self.results for name, text in one.versions.items()}
        return {name: text for name, text in found.items() if _VERSION.fullmatch(text)}


def masked(lines: Iterable[str], names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the lines without secrets, account numbers and addresses.

    `names` are replaced first: a node's address by its name, the home folder by `~`.
    """
    known = sorted((text for text in names if text), key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<![\d.]){re.escape(text)}(?!\.?\d)" for text in known))
    found = []
    for line in redacted(list(lines)):
        text = pattern.sub(lambda match: names[match[0]], line) if known else line
        for form, instead in _MASKS:
            text = form.sub(instead, text)
        found.append(text)
    return found


def tail_of(output: bytes) -> list[str]:
    """Return the last lines of a step's output, without escape sequences."""
    lines = list(clean_lines(output.decode(errors="replace")))[-TAIL_LINES:]
    return ["".join(one if one.isprintable() else "?" for one in line.rstrip()) for line in lines]


def rows(results: Sequence[StepResult]) -> list[tuple[str, str, str, str]]:
    """Return a row for each step: name, verdict, time, message."""
    return [
        (
            one.name,
            one.verdict.value,
            format_duration(one.duration_s) if one.duration_s else "-",
            one.message.partition("\n")[0],
        )
        for one in results
    ]


def render(report: SelftestReport) -> str:
    """Return the text of the file."""
    done = report.summary or "nothing has run yet"
    heads = [
        f"clusterctl selftest: {done}",
        "",
        *INSIDE.splitlines(),
        "",
        f"clusterctl   {report.version}",
        f"machine      {report.machine}",
        f"began        {report.began}",
        f"nodes        {report.place}",
        f"estimate     {report.estimate}",
        f"spent        {report.spent or 'not known: the self-test has not ended'}",
        "",
        "VERSIONS ON THE NODES",
        *([f"  {name:<17} {text}" for name, text in report.versions.items()] or ["  none found"]),
        "",
        count(len(report.results), "step").upper(),
    ]
    for one in report.results:
        took = f" in {format_duration(one.duration_s)}" if one.duration_s else ""
        heads.append(f"  {one.name}: {one.verdict.value}{took}")
        heads += [f"    {line}" for line in (*one.message.splitlines(), *one.figures)]
    for one in report.results:
        if one.log:
            heads += ["", f"LAST LINES OF {one.name.upper()}", *(f"  {line}" for line in one.log)]
    return "\n".join(line.rstrip() for line in heads) + "\n"
