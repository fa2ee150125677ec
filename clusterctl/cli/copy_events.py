"""What `--json` of a copy says, one object a line (docs/copy.md). Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clusterctl.copy.report import (
    CopyProgress,
    NodeProgress,
    NodeReport,
    SourceSummary,
    TransferReport,
)
from clusterctl.domain.errors import ClusterctlError


def progress_event(progress: CopyProgress) -> dict[str, Any]:
    """All nodes now."""
    return {
        "event": "progress",
        "elapsed_s": round(progress.elapsed_s, 3),
        "left_s": None if progress.left_s is None else round(progress.left_s, 3),
        "slowest_link": progress.slowest_link,
        "source": _source(progress.source),
        "nodes": [_node(node) for node in progress.nodes],
    }


def node_events(before: CopyProgress | None, now: CopyProgress) -> list[dict[str, Any]]:
    """One event for each node that has another stage, another upstream, or another note."""
    known = {node.host: _said(node) for node in before.nodes} if before else {}
    return [
        {"event": "node", "elapsed_s": round(now.elapsed_s, 3), **_node(node)}
        for node in now.nodes
        if known.get(node.host) != _said(node)
    ]


def report_event(report: TransferReport, exit_status: int) -> dict[str, Any]:
    """The end of it."""
    return {
        "event": "report",
        "ok": report.ok,
        "exit_status": exit_status,
        "dry_run": report.dry_run,
        "duration_s": round(report.duration_s, 3),
        "one_copy_s": None if report.one_copy_s is None else round(report.one_copy_s, 3),
        "limited_by": report.limited_by,
        "source": _source(report.source),
        "nodes": [_node_report(node, report) for node in report.nodes],
        "plan": report.plan,
        "missing": list(report.missing),
        **_error(report.error),
    }


def _said(node: NodeProgress) -> tuple[object, ...]:
    return node.stage, node.upstream, node.note


def _node(node: NodeProgress) -> dict[str, Any]:
    return {**asdict(node), "stage": node.stage.value, "rate": round(node.rate)}


def _source(source: SourceSummary | None) -> dict[str, Any] | None:
    return None if source is None else asdict(source)


def _node_report(node: NodeReport, report: TransferReport) -> dict[str, Any]:
    return {
        "host": node.host,
        "ok": node.error is None and node not in report.refused,
        "files": node.files,
        "bytes": node.received_bytes,
        "deleted": node.deleted,
        "duration_s": round(node.duration_s, 3),
        "rate": round(node.rate),
        "gap": None if node.gap is None else asdict(node.gap),
        "warnings": list(node.warnings),
        "moves": list(node.moves),
        "limits": node.limits,
        "verified": node.host in report.verified,
        **_error(node.error),
    }


def _error(error: ClusterctlError | None) -> dict[str, Any]:
    if error is None:
        return {}
    return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
