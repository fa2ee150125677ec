"""The only place that prints. Results go to stdout, everything about the work to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.findings import Finding


def line(text: str = "") -> None:
    """One line of the result."""
    print(text, flush=True)


def note(text: str) -> None:
    """One line about the work: progress, what was reused, what comes next."""
    print(text, file=sys.stderr, flush=True)


def raw(text: bytes, stream: str = "stdout") -> None:
    """Bytes of a host's output, as they are, to the stream of that name."""
    if not text:
        return
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.flush()
    out.buffer.write(text)
    out.buffer.flush()


def data(value: Any) -> None:
    """The result as JSON (`--json`)."""
    print(json.dumps(value, indent=2, default=str), flush=True)


def event(value: Any) -> None:
    """One JSON object on a line of its own, for a program that reads along."""
    print(json.dumps(value, default=str), flush=True)


def error(failure: ClusterctlError) -> None:
    """What happened, and the next step."""
    findings(getattr(failure, "findings", ()))
    host = f"{failure.host}: " if isinstance(failure, HostError) else ""
    note(f"error: {host}{failure.message}")
    if failure.hint:
        note(f"  hint: {failure.hint}")


def is_live() -> bool:
    """Whether progress can be drawn in place: stderr is a terminal."""
    return sys.stderr.isatty()


def live(view: Any) -> Any:
    """rich's Live on stderr, for a view that is redrawn in place and gone at the end."""
    from rich.console import Console
    from rich.live import Live

    return Live(view, console=Console(stderr=True), refresh_per_second=8, transient=True)


def findings(found: Sequence[Finding]) -> None:
    """One line per finding, its hint below."""
    for finding in found:
        host = f"{finding.host}: " if finding.host else ""
        note(f"{finding.severity.value}: {host}{finding.message} [{finding.check_id}]")
        if finding.hint:
            note(f"  hint: {finding.hint}")


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding for `--json`."""
    return {
        "check": finding.check_id,
        "severity": finding.severity.value,
        "host": finding.host,
        "message": finding.message,
        "hint": finding.hint,
    }


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table: columns as wide as their widest cell, two spaces between."""
    cells = [[str(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
