"""`copyclust verify`, and the options and output that it shares with `clusterctl data verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.host_options import HostsCommand, hosts_argument
from clusterctl.cli.params import NodePath, json_option, timeout_option, together
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes

if TYPE_CHECKING:
    from clusterctl.copy.verify import Discrepancy, HostGroup
    from clusterctl.node.relay.messages import Progress
    from clusterctl.operations.verify import Depth, VerifyReport, Watch

# Findings that are printed, and hosts that are drawn.
SHOWN = 20
HEADERS = ("NODES", "FILES", "FOLDERS", "BYTES")
verify_options = together(
    click.option("--content", is_flag=True, help="Read all files, and compare their SHA-256."),
    click.option("--mtime", is_flag=True, help="Compare modification times too."),
    timeout_option,
    json_option("Verified"),
)


@click.command(
    "copyclust verify", cls=HostsCommand, context_settings={"help_option_names": ["-h", "--help"]}
)
@hosts_argument
@click.argument("dst", type=NodePath())
@verify_options
def copyclust_verify(
    hosts: Path | list[str],
    dst: str,
    user: str | None,
    key: Path | None,
    content: bool,
    mtime: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Compare what the hosts of the hosts file HOSTS have at DST, a file or a folder.

    \b
    copyclust verify hosts '~/data/tf-imagenet'
    copyclust verify hosts --content /data/tf-imagenet

    Names, kinds, sizes, modes, links. The exit status is 0 if all have the same, 1 if not or if
    there is nothing at DST anywhere, and 255 if a host could not be reached.
    """
    from clusterctl.config import home_folder
    from clusterctl.operations.hosts_access import LoginOptions, open_hosts
    from clusterctl.operations.verify import Depth, verify

    depth = Depth(content, mtime)
    with (
        open_hosts(hosts, LoginOptions(user, key), home=home_folder()) as access,
        checking() as watch,
    ):
        report = verify(
            access.connections, access.targets, dst, depth, watch=watch, timeout_s=timeout_s
        )
    return show(report, as_json)


@contextmanager
def checking() -> Iterator[Watch]:
    """Yield a function that draws the progress of hosts until the block ends."""
    progress_of: dict[str, Progress] = {}

    def rows(width: int) -> Iterator[Sequence[str]]:
        # A copy, since another thread adds hosts. The slowest first: the others wait for them.
        slowest = sorted(progress_of.copy().items(), key=lambda item: item[1].bytes)
        for host, progress in slowest[:SHOWN]:
            rate = format_bytes(progress.bytes / max(progress.wall, 0.001))
            read = f"{format_bytes(progress.bytes)} read"
            yield host, count(progress.files, "file"), read, f"{rate}/s"

    with output.live(rows):
        yield progress_of.__setitem__


def show(report: VerifyReport, as_json: bool) -> int:
    """Print the report, and return its exit status."""
    if as_json:
        output.data(report)
    else:
        if report.groups:
            output.table(HEADERS, [_row(group) for group in report.groups])
        for text in report_lines(report):
            output.line(text)
    hostlines.show_failures(report.failures)
    return report.exit_status


def report_lines(report: VerifyReport) -> list[str]:
    """Return the lines below the table: that all is the same, or a line for each finding."""
    if report.same:
        return [f"the same on all: {compared(report.compared)}"]
    lines = [finding_line(finding, report.path) for finding in report.findings[:SHOWN]]
    if len(report.groups) > 1 and lines:
        lines.insert(0, f"compared with {fold_hosts(report.groups[0].hosts)}:")
    more = max(0, len(report.findings) - SHOWN) + report.findings_left_out
    if more:
        lines.append(f"and {more} more (--json has {len(report.findings)} of them)")
    return lines


def compared(depth: Depth) -> str:
    """Return what was compared, and whether content was not read."""
    words = ["names", "sizes", "modes", "links"]
    words += ["times"] if depth.mtime else []
    words += ["all content"] if depth.content else []
    left_out = "" if depth.content else "; content was not read (--content)"
    return ", ".join(words) + left_out


def finding_line(finding: Discrepancy, requested: str) -> str:
    hosts, path = fold_hosts(finding.hosts), output.one_line(finding.path or requested)
    return f"{finding.kind.value} on {hosts}: {path}: {finding.message}"


def _row(group: HostGroup) -> tuple[str, ...]:
    many = f" ({len(group.hosts)})" if len(group.hosts) > 1 else ""
    return (
        fold_hosts(group.hosts) + many,
        str(group.total.files),
        str(group.total.folders),
        format_bytes(group.total.bytes),
    )
