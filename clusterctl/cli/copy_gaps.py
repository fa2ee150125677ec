"""A copy's plan, and what a dry run found, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterctl.cli.copy_report import NAMED, Table, limit_words
from clusterctl.cli.copy_rows import one_line
from clusterctl.copy.report import Gap, NodeReport, TransferReport
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration


def gap_table(report: TransferReport) -> Table:
    """What each node lacks: a row per node, nodes that lack the same together."""
    groups: dict[tuple[int, int, int], list[NodeReport]] = {}
    for node in report.nodes:
        if node.gap:
            key = (node.gap.files, node.gap.bytes, node.gap.delete)
            groups.setdefault(key, []).append(node)
    head = ("NODE", "FILES", "BYTES", "DELETE", "FREE")
    rows = [
        (
            fold_hosts([node.host for node in nodes]),
            str(files),
            format_bytes(size),
            str(delete),
            format_bytes(min(node.gap.free_bytes for node in nodes if node.gap)),
        )
        for (files, size, delete), nodes in groups.items()
    ]
    return [head, *rows] if rows else []


def gap_lines(report: TransferReport) -> list[str]:
    """What would be deleted, what would not fit, and the sum."""
    found = [(node, node.gap) for node in report.nodes if node.gap]
    deletions: dict[tuple[tuple[str, ...], int], list[str]] = {}
    for node, gap in found:
        if gap.delete:
            deletions.setdefault((gap.delete_names, gap.delete), []).append(node.host)
    lines = [
        line
        for (names, number), hosts in deletions.items()
        for line in _deletion(fold_hosts(hosts), names, number)
    ]
    if not found:
        return []
    copied = any(gap.can_be_filled and not gap.is_empty for _, gap in found)
    return [
        *lines,
        *_refusals(report),
        *_sum([gap for _, gap in found]),
        *(_predicted(report.plan) if copied else []),
    ]


def _refusals(report: TransferReport) -> list[str]:
    refused = [(node.host, node.gap) for node in report.refused if node.gap]
    full = [host for host, gap in refused if not gap.fits]
    closed = [host for host, gap in refused if gap.fits]
    return [
        *([f"{fold_hosts(full)}: there is not enough free space"] if full else []),
        *([f"{fold_hosts(closed)}: DST cannot be written to"] if closed else []),
    ]


def _deletion(hosts: str, names: Sequence[str], number: int) -> list[str]:
    more = number - len(names[:NAMED])
    return [
        f"{hosts}: {count(number, 'file')} would be deleted",
        *(f"  {one_line(name)}" for name in names[:NAMED]),
        *([f"  ... and {more} more"] if names and more > 0 else []),
    ]


def _sum(gaps: Sequence[Gap]) -> list[str]:
    if all(gap.is_empty for gap in gaps):
        return ["nothing would be copied"]
    copied = [gap for gap in gaps if gap.can_be_filled and not gap.is_empty]
    size = format_bytes(sum(gap.bytes for gap in copied))
    return [f"{size} would be copied to {len(copied)} of {count(len(gaps), 'node')}"]


def _predicted(plan: dict[str, Any]) -> list[str]:
    if not plan:
        return []
    seconds = plan["predicted_s"]
    if seconds is None:
        return ["how long that would take is not known without --link-rate"]
    return [f"it would take about {format_duration(seconds)}"]


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """The plan of a copy (CopyPlan.as_data()): what, in which order, how long, and why."""
    if not plan:
        return []
    order = plan["order"]
    lines = [f"plan: {_WAYS.get(plan['way'], plan['way'])}"]
    if plan["way"] == "chain":
        lines.append(f"  order: {', '.join(_runs(order))}")
    if plan["way"] in ("chain", "exchange"):
        block = format_bytes(plan["block_bytes"])
        lines.append(f"  {count(plan['streams'], 'connection')} per hop, blocks of {block}")
    return [*lines, *(f"  {reason}" for reason in plan["why"]), f"  {_prediction(plan)}"]


_WAYS = {
    "chain": "a chain, each node passes on what it gets",
    "direct": "every node pulls all by itself",
    "exchange": "every node pulls a share and swaps it for the others'",
    "tool": "a download tool on every node",
}


def _prediction(plan: dict[str, Any]) -> str:
    if plan["predicted_s"] is None:
        return "predicted: not known"
    phases = ", ".join(
        f"{name} {format_duration(seconds)}" for name, seconds in plan["phases"].items() if seconds
    )
    limit = f"; limited by {limit_words(plan['limited_by'])}" if plan["limited_by"] else ""
    return f"predicted: {format_duration(plan['predicted_s'])} ({phases}){limit}"


def _runs(order: Sequence[str]) -> list[str]:
    """Hosts in their order; neighbours that fold without changing it are folded.

    >>> _runs(["demo-0", "demo-1", "demo-2", "demo-7", "demo-5"])
    ['demo-[0-2]', 'demo-7', 'demo-5']
    """
    runs: list[list[str]] = []
    for host in order:
        if runs and _number_after(runs[-1][-1]) == host:
            runs[-1].append(host)
        else:
            runs.append([host])
    return [fold_hosts(run) for run in runs]


def _number_after(host: str) -> str:
    """The host of the next number: `demo-3` for `demo-2`."""
    digits = len(host) - len(host.rstrip("0123456789"))
    if not digits:
        return ""
    stem, number = host[:-digits], host[-digits:]
    return f"{stem}{str(int(number) + 1).zfill(len(number))}"


def measured_line(report: TransferReport) -> str:
    """Predicted against measured."""
    took = format_duration(report.duration_s)
    predicted = report.plan.get("predicted_s")
    if not predicted:
        return f"measured: {took}"
    off = round((report.duration_s / predicted - 1) * 100)
    return f"measured: {took}, {off:+d} % against the {format_duration(predicted)} predicted"
