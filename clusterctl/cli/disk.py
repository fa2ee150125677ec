"""`clusterctl disk NAME`: how full the nodes' disks are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.node_options import nodes_option
from clusterctl.domain.units import format_bytes, format_duration

if TYPE_CHECKING:
    from clusterctl.operations.disk import CopyParts, DiskReport


@click.command(cls=ClusterCommand)
@click.argument("name")
@nodes_option
@click.option("--json", "as_json", is_flag=True, help="Sizes and findings as JSON.")
@account_options
def disk(app: AppContext, name: str, indices: tuple[int, ...] | None, as_json: bool) -> int:
    """Show how full the disks of cluster NAME are: /, /data, /opt/dlami/nvme, the home folder.

    \b
    clusterctl disk demo
    clusterctl disk demo --nodes 0 --json

    Then what interrupted copies have left there. Above 90 % is a warning; from 98 % on it is an
    error, and the exit status 1.
    """
    from clusterctl.operations.disk import disk as ask_disks

    with app.open(name) as access:
        report = ask_disks(access, indices)
    if as_json:
        output.data(_as_data(report))
    else:
        output.table(
            ("NODE", "MOUNT", "SIZE", "FREE", "USED"),
            [
                (
                    usage.host,
                    usage.mount,
                    format_bytes(usage.size_bytes),
                    format_bytes(usage.free_bytes),
                    f"{usage.used_percent} %",
                )
                for usages in report.nodes.values
                for usage in usages
            ],
        )
        show_copies(report.copies)
        if any(not one.in_use for one in report.copies):
            output.note(f"run the same copies again, or: clusterctl clean-logs {name} --copies")
        output.findings(report.findings)
    hostlines.show_failures(report.nodes.failures)
    return report.exit_status


def show_copies(copies: Sequence[CopyParts]) -> None:
    """What interrupted copies have left, if anything."""
    rows = [
        (
            one.host,
            one.path,
            format_bytes(one.size_bytes),
            "in use" if one.in_use else f"{format_duration(one.age_s)} ago",
        )
        for one in copies
    ]
    if rows:
        output.table(("NODE", "PARTS OF A COPY TO", "SIZE", "LAST WRITTEN"), rows)


def _as_data(report: DiskReport) -> dict[str, object]:
    return {
        "disks": [
            {
                "host": usage.host,
                "mount": usage.mount,
                "size_bytes": usage.size_bytes,
                "free_bytes": usage.free_bytes,
                "used_percent": usage.used_percent,
            }
            for usages in report.nodes.values
            for usage in usages
        ],
        "copies": [one.as_data() for one in report.copies],
        "findings": [output.finding_data(finding) for finding in report.findings],
        "failures": [hostlines.failure_data(failure) for failure in report.nodes.failures],
    }
