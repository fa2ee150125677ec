"""`clusterctl disk NAME`: how full disks are. `clean-logs NAME`: remove logs and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command, nodes_option
from clusterctl.cli.params import dry_run_option, json_option, yes_option
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import FanoutResult, status_of
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.node.jobs.clean import NodeLogs

if TYPE_CHECKING:
    from clusterctl.operations.disk import DiskReport, DiskUsage, PartsOnHost
    from clusterctl.operations.losses import Losses


@cluster_command()
@nodes_option
@click.option(
    "--grow", type=click.IntRange(1, 65_536), metavar="GIB", help="Root volumes so large."
)
@yes_option
@json_option("Disks")
def disk(
    app: AppContext,
    name: str,
    indices: tuple[int, ...] | None,
    grow: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Show how full the disks of cluster NAME are: /, /data, /opt/dlami/nvme, the home folder.

    \b
    clusterctl disk demo
    clusterctl disk demo --nodes 0 --json
    clusterctl disk demo --grow 500

    Also shows what fills nearly full disks, when the others will be full at the present rate, and
    what interrupted copies have left there. Above 90 % is a warning; from 98 % on it is an error,
    and the exit status 1.

    --grow makes the root volumes larger, and the file systems on them; nothing is stopped for that.
    EBS takes one change every six hours, and never makes a volume smaller. The additional cost is
    printed, and on a terminal has to be confirmed.
    """
    if grow:
        return _grow(app, name, indices, grow, yes, as_json)
    from clusterctl.operations.disk import disk as read_disks

    with app.open(name) as access:
        report = read_disks(access, indices)
    if as_json:
        output.data(report)
    else:
        _show_usage(report.disks)
        _show_fills(report)
        show_copies(report.copies)
        if any(not one.in_use for one in report.copies):
            output.note(f"run the same copies again, or: clusterctl clean-logs {name} --copies")
        output.findings(report.findings)
    hostlines.show_failures(report.failures)
    return report.exit_status


def _show_usage(disks: Sequence[DiskUsage]) -> None:
    output.table(
        ("NODE", "MOUNT", "SIZE", "FREE", "USED", "INODES", "FULL IN"),
        [
            (
                usage.host,
                usage.mount,
                format_bytes(usage.size_bytes),
                format_bytes(usage.free_bytes),
                f"{usage.used_percent} %",
                f"{usage.inodes_percent} %",
                "-" if usage.full_in_s is None else format_duration(usage.full_in_s),
            )
            for usage in disks
        ],
    )


def _grow(
    app: AppContext, name: str, indices: tuple[int, ...] | None, gib: int, yes: bool, as_json: bool
) -> int:
    """Grow root volumes to `gib` GiB; return the exit status. Answering no raises click.Abort."""
    from clusterctl.ec2.money.costs import format_usd
    from clusterctl.ec2.money.prices import GP3_GIB_MONTH_USD
    from clusterctl.operations.disk import grow_disks

    def confirm_cost(added_gib: int) -> None:
        if app.settings.lab or not added_gib:
            return
        monthly = format_usd(added_gib * GP3_GIB_MONTH_USD)
        output.note(f"{added_gib} GiB more cost {monthly} a month (us-east-1), as long as they are")
        output.confirm("Grow?", yes, scripts=True)

    with app.open(name) as access:
        result = grow_disks(access, app.ec2, indices, gib, confirm_cost)
    if as_json:
        output.data(hostlines.data_of(result))
    else:
        for one in result.values:
            output.line(f"{one.host}: {one.before_gib} GiB, now {one.gib}; {one.message}")
    hostlines.show_failures(result.failures)
    return status_of(result.failures)


def _show_fills(report: DiskReport) -> None:
    """Print the largest folders and files of nearly full disks."""
    rows = [
        (usage.host, path, format_bytes(size) + ("" if usage.whole else " at least"))
        for usage in report.disks
        for path, size in usage.fills
    ]
    if rows:
        output.table(("NODE", "FOLDER OR FILE", "SIZE"), rows)


def show_copies(copies: Sequence[PartsOnHost]) -> None:
    """Print what interrupted copies have left on each host, if anything."""
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


@dataclass(frozen=True)
class CleanedNode(NodeLogs):
    """What was removed on a node, or would be."""

    host: str = ""
    json_names = ("host", "size_bytes", "folders", "failed", "links", "busy")


@cluster_command("clean-logs", explicit=True)
@click.option("--jobs", is_flag=True, help="Ended jobs too: logs, models, programs.")
@click.option(
    "--keep-last",
    type=click.IntRange(1),
    metavar="N",
    help="Only what is older: each folder keeps its log and N checkpoints; with --jobs, N jobs.",
)
@click.option("--copies", is_flag=True, help="No logs: what interrupted copies have left.")
@yes_option
@dry_run_option
@click.option("--force", is_flag=True, help="Even while a job runs; what it writes stays.")
@json_option("Cleanings")
def clean_logs(
    app: AppContext,
    name: str,
    jobs: bool,
    keep_last: int | None,
    copies: bool,
    yes: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Remove what trainings wrote into their log folders on every node of cluster NAME.

    \b
    clusterctl clean-logs demo --dry-run
    clusterctl clean-logs demo --jobs
    clusterctl clean-logs demo --keep-last 2
    clusterctl clean-logs demo --copies

    These are the folders of the cluster's jobs (--log_dir), ~/imagenet_resnet, and imagenet_resnet
    and imagenet_resnet_synthetic in ~/examples/horovod/tensorflow. Other files there stay. --jobs
    removes all that is kept of ended jobs, and what their programs wrote next to themselves. Asks
    on a terminal before it removes checkpoints, or what was not fetched; elsewhere that needs
    --yes. --copies removes no logs, only what interrupted copies have left, unless a copy uses it.
    """
    if copies:
        if jobs or keep_last:
            raise UsageError("--copies removes no logs", "leave out --jobs and --keep-last")
        return _discard_copies(app, name, dry_run, as_json)
    from clusterctl.operations.disk import clean_logs as clean
    from clusterctl.operations.disk import find_logs
    from clusterctl.operations.losses import Losses, find_losses

    with app.open(name) as access:
        cleaning, result = find_logs(access, jobs, force, dry_run, keep_last or 0)
        if not as_json:
            _show(result)
        losses = Losses()
        if jobs and (kept := _kept_of_jobs(result)):
            losses = find_losses(access, app.timeouts.at_risk_s).of_jobs(*zip(*kept))
            output.findings(losses.findings(access.folder))
        if not dry_run:
            _confirm(result, losses, yes)
            result = clean(access, cleaning)
    if as_json:
        nodes = [CleanedNode(**vars(node), host=host) for host, node in result.by_host.items()]
        output.data({"nodes": nodes, "failures": result.failures})
    verb = "would free" if dry_run else "freed"
    for host, node in result.by_host.items():
        if not as_json:
            folders = count(len(node.folders), "folder")
            output.line(f"{host}: {verb} {format_bytes(node.size_bytes)} ({folders})")
        for sentence in node.links:
            output.note(f"note: {host}: not removed: {sentence}")
        for sentence in node.failed:
            output.note(f"error: {host}: not removed: {sentence}")
    hostlines.show_failures(result.failures)
    return status_of(result.failures, any(node.failed for node in result.values))


def _discard_copies(app: AppContext, name: str, dry_run: bool, as_json: bool) -> int:
    """Remove what interrupted copies have left; return the exit status."""
    from clusterctl.operations.disk import PartsOnHost, discard_copies

    with app.open(name) as access:
        result = discard_copies(access, dry_run=dry_run)
    found = [
        PartsOnHost(**vars(one), host=host)
        for host, parts in result.by_host.items()
        for one in parts
    ]
    if as_json:
        output.data({"copies": found, "failures": result.failures})
    else:
        show_copies(found)
        gone = [one for one in found if not (one.in_use or one.failed)]
        size = format_bytes(sum(one.size_bytes for one in gone))
        output.line(f"{'would free' if dry_run else 'freed'} {size} ({count(len(gone), 'folder')})")
    for one in found:
        if one.failed:
            output.note(f"error: {one.host}: not removed: {one.path}: {one.failed}")
    hostlines.show_failures(result.failures)
    return status_of(result.failures, any(one.failed for one in found))


def _show(found: FanoutResult[NodeLogs]) -> None:
    """Print the log folders of all nodes."""
    rows = [
        (
            host,
            folder.path,
            format_bytes(folder.size_bytes),
            count(folder.checkpoints, "checkpoint") if folder.checkpoints else "",
            folder.others or "",
        )
        for host, node in found.by_host.items()
        for folder in node.folders
    ]
    if rows:
        output.table(("NODE", "FOLDER", "SIZE", "CHECKPOINTS", "OTHER FILES, KEPT"), rows)


def _kept_of_jobs(found: FanoutResult[NodeLogs]) -> list[tuple[str, str]]:
    """Return the ID and the host for each folder of a job that goes."""
    return [
        (Path(folder.path).name, host)
        for host, node in found.by_host.items()
        for folder in node.folders
        if Path(folder.path).parent.parent.name == ".clusterctl"
    ]


def _confirm(found: FanoutResult[NodeLogs], losses: Losses, yes: bool) -> None:
    """Ask before checkpoints or results are removed. Raises UsageError if it cannot ask."""
    hosts = [host for host, node in found.by_host.items() if node.checkpoints]
    going = []
    if hosts:
        checkpoints = count(sum(node.checkpoints for node in found.values), "checkpoint")
        going.append(f"{checkpoints} on {fold_hosts(hosts)}")
    jobs = {one.job_id for one in losses.written} | {*losses.unread}
    if jobs:
        going.append(f"what {count(len(jobs), 'job')} wrote and was not fetched")
    if losses.unknown:
        going.append(f"what jobs wrote on {fold_hosts([*losses.unknown])}, which is not known")
    if going:
        output.confirm(f"Remove {', and '.join(going)}?", yes)
