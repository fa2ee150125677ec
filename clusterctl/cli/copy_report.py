"""What a copy to many hosts shows: `copyclust` and `clusterctl copy`."""

from __future__ import annotations

from clusterctl.cli import hostlines, output
from clusterctl.data.rsync import CopyReport
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.domain.units import count, format_bytes, format_duration


def show_host(outcome: HostOutcome[CopyReport]) -> None:
    """One line for a host that has ended."""
    report = outcome.value
    if report is None:
        hostlines.show_failures([outcome])
    elif report.exit_status:
        output.note(f"{report.host}: {report.message}")
    else:
        what = f"{count(report.files, 'file')}, {format_bytes(report.sent_bytes)}"
        output.line(f"{report.host}: {what} in {format_duration(report.duration_s)}")


def show_data(result: FanoutResult[CopyReport]) -> None:
    output.data([_data(outcome) for outcome in result.outcomes])


def _data(outcome: HostOutcome[CopyReport]) -> dict[str, object]:
    report = outcome.value
    if report is None:
        return hostlines.failure_data(outcome)
    return {
        "host": report.host,
        "exit_status": report.exit_status,
        "files": report.files,
        "bytes": report.sent_bytes,
        "duration_s": round(report.duration_s, 3),
        "message": report.message,
    }


def copy_status(result: FanoutResult[CopyReport]) -> int:
    """The highest of the hosts' rsync exit statuses; 255 if one could not be reached."""
    if result.failures:
        return 255
    return max((report.exit_status for report in result.values), default=0)
