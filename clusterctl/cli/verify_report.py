"""What a comparison of nodes shows: while it runs, and what it came to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clusterctl.cli import hostlines, output
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from clusterctl.copy.conversation import Watch
    from clusterctl.copy.verify import Discrepancy, Group
    from clusterctl.operations.verify import Depth, VerifyReport

SHOWN = 20
HEADERS = ("NODES", "FILES", "FOLDERS", "BYTES", "TFRECORDS", "RECORDS")


class _Reading:
    """How far each host is; drawn by rich again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, Mapping[str, Any]] = {}

    def watch(self, host: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self._seen[host] = progress

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        view = Table.grid(padding=(0, 2))
        with self._lock:
            seen = sorted(self._seen.items(), key=lambda item: item[1]["bytes"])
        # The slowest: those that the others wait for.
        for host, progress in seen[:SHOWN]:
            read = format_bytes(progress["bytes"])
            rate = format_bytes(progress["bytes"] / max(progress["wall"], 0.001))
            cells = (host, count(progress["files"], "file"), f"{read} read", f"{rate}/s")
            view.add_row(*(Text(cell) for cell in cells))
        return view


@contextmanager
def checking() -> Iterator[Watch | None]:
    """Progress for as long as it takes, on a terminal."""
    if not output.is_live():
        yield None
        return
    reading = _Reading()
    with output.live(reading):
        yield reading.watch


def show(report: VerifyReport, depth: Depth, as_json: bool) -> int:
    """Print the report; its exit status."""
    if as_json:
        output.data(report_data(report, depth))
    else:
        if report.groups:
            output.table(HEADERS, [_row(group) for group in report.groups])
        for text in report_lines(report, depth):
            output.line(text)
    hostlines.show_failures(report.failures)
    return report.exit_status


def report_lines(report: VerifyReport, depth: Depth) -> list[str]:
    """What stands below the table: that all is the same, or a line for each finding."""
    if report.same:
        return [f"the same on all: {compared(depth)}"]
    lines = [finding_line(finding, report.path) for finding in report.findings[:SHOWN]]
    if len(report.groups) > 1 and lines:
        lines.insert(0, f"compared with {fold_hosts(report.groups[0].hosts)}:")
    more = max(0, len(report.findings) - SHOWN) + report.more
    if more:
        lines.append(f"and {more} more (--json has {len(report.findings)} of them)")
    return lines


def compared(depth: Depth) -> str:
    """What it was that is the same, and what nobody looked at."""
    words = ["names", "sizes", "modes", "links", "TFRecord structure"]
    words += ["times"] if depth.mtime else []
    words += ["the data's CRCs in TFRecords"] if depth.crc else []
    words += ["all content"] if depth.content else []
    left_out = "" if depth.content else "; other content was not read (--content)"
    return ", ".join(words) + left_out


def finding_line(finding: Discrepancy, asked: str) -> str:
    hosts = fold_hosts(finding.hosts)
    return f"{finding.kind.value} on {hosts}: {shown(finding.path or asked)}: {finding.message}"


def shown(path: str) -> str:
    """A path on one line, whatever its bytes are."""
    if path.isprintable():
        return path
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _row(group: Group) -> tuple[str, ...]:
    counts = group.total.counts
    many = f" ({len(group.hosts)})" if len(group.hosts) > 1 else ""
    return (
        fold_hosts(group.hosts) + many,
        str(counts["files"]),
        str(counts["folders"]),
        format_bytes(counts["bytes"]),
        str(counts["tfrecords"]),
        str(counts["records"]),
    )


def report_data(report: VerifyReport, depth: Depth) -> dict[str, Any]:
    """For `--json`. Bytes of paths that are not UTF-8 are \\udc80 to \\udcff, as Python has it."""
    return {
        "path": report.path,
        "same": report.same,
        "compared": asdict(depth),
        "groups": [
            {
                "hosts": list(group.hosts),
                "digest": group.total.digest,
                **group.total.counts,
                "read_bytes": group.total.read_bytes,
                "duration_s": group.total.duration_s,
                "crc_with": group.total.crc_with,
            }
            for group in report.groups
        ],
        "findings": [
            {
                "kind": finding.kind.value,
                "path": finding.path,
                "message": finding.message,
                "hosts": list(finding.hosts),
            }
            for finding in report.findings
        ],
        "findings_left_out": report.more,
        "failures": [hostlines.failure_data(failure) for failure in report.failures],
    }
