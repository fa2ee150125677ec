"""What a copy has come to, as text: a line or a table, a summary, what went wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.cli.copy_rows import one_line
from clusterctl.copy.report import NodeReport, TransferReport
from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration, format_rate

Table = list[tuple[str, ...]]
# As many of the same kind are named; the others are counted.
NAMED = 20
# Shorter copies say nothing about ratios.
TELLING_S = 1.0


def copy_status(report: TransferReport) -> int:
    """0; 255 if a host could not be reached; 1 if a node failed or is missing, or files were."""
    statuses = [node.error.exit_status for node in report.nodes if node.error]
    if report.missing or report.refused:
        statuses.append(1)
    if report.error:
        statuses.append(report.error.exit_status)
    if statuses:
        return max(statuses)
    left_out = any(node.left_out for node in report.nodes)
    return 1 if left_out or (report.source and report.source.warnings) else 0


def node_table(report: TransferReport) -> Table:
    """A row per node, with its headers; empty where node_line says it all."""
    good = _good(report)
    if not good or _alike(good):
        return []
    deleted = any(node.deleted for node in good)
    head = ("NODE", "FILES", "BYTES", "TIME", "RATE", *(("DELETED",) if deleted else ()))
    return [head, *(_table_row(node, deleted) for node in good)]


def _table_row(node: NodeReport, deleted: bool) -> tuple[str, ...]:
    return (
        node.host,
        str(node.files),
        format_bytes(node.received_bytes),
        format_duration(node.duration_s),
        format_rate(node.rate) if node.received_bytes else "",
        *((str(node.deleted),) if deleted else ()),
    )


def node_line(report: TransferReport) -> str:
    """`demo-[0-7]: 1200 files, 1.2 GiB in 34 s`; empty unless the nodes are alike."""
    good = _good(report)
    if not good or not _alike(good):
        return ""
    node = good[0]
    took = format_duration(max(other.duration_s for other in good))
    what = f"{count(node.files, 'file')}, {format_bytes(node.received_bytes)} in {took}"
    if not node.files and not node.received_bytes:
        what = f"up to date{_of_source(report)}, {format_duration(report.duration_s)}"
    if node.deleted:
        what += f", {count(node.deleted, 'file')} deleted"
    return f"{fold_hosts([other.host for other in good])}: {what}"


def _of_source(report: TransferReport) -> str:
    source = report.source
    return f" ({count(source.files, 'file')}, {format_bytes(source.bytes)})" if source else ""


def summary(report: TransferReport) -> str:
    """`9.6 GiB to 8 nodes in 34 s, 289 MiB/s; 1.04 times one copy; limited by the link`.

    One copy is what the first node of all took; log-ins count for neither.
    """
    good = [node for node in _good(report) if node.received_bytes]
    moved = sum(node.received_bytes for node in good)
    if not moved:
        return ""
    took = report.duration_s
    parts = [
        f"{format_bytes(moved)} to {count(len(good), 'node')} in {format_duration(took)}"
        + (f", {format_rate(moved / took)}" if took else "")
    ]
    if len(good) > 1 and report.one_copy_s and report.one_copy_s >= TELLING_S:
        ratio = max(node.duration_s for node in good) / report.one_copy_s
        parts.append(f"{ratio:.2f} times one copy")
    if report.limited_by and report.limited_by != "nothing":
        parts.append(f"limited by {limit_words(report.limited_by)}")
    return "; ".join(parts)


def verified_line(report: TransferReport) -> str:
    """What --verify has found where it found nothing wrong."""
    if not report.verified:
        return ""
    return f"{fold_hosts(report.verified)}: verified, the same content as SRC"


def limit_words(name: str) -> str:
    """`the link`, `CPU`."""
    return name if name == "CPU" else f"the {name}"


def failure_lines(report: TransferReport) -> list[str]:
    """One line per reason: the hosts it holds for, what happened, what to do."""
    if report.error and not report.source:
        # The nodes' failures say no more than that.
        return [*error_lines(report.error), *_missing_lines(report)]
    groups: dict[tuple[str, str], list[HostFailure]] = {}
    for node in report.failed:
        assert node.error
        message, hint = one_line(node.error.message), one_line(node.error.hint)
        key = (without_name(message, node.host), without_name(hint, node.host))
        groups.setdefault(key, []).append((node.host, message, hint))
    lines = [_failure_line(key, group) for key, group in groups.items()]
    told = report.error and all(
        node.error and report.error.message in node.error.message for node in report.failed
    )
    rest = [] if told and report.failed else error_lines(report.error)
    return [*lines, *rest, *_missing_lines(report)]


# Host, message, hint.
HostFailure = tuple[str, str, str]
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(\.\d{1,3}){3}(?![\w.]*\w)")


def without_name(text: str, host: str) -> str:
    """What hosts say alike: a message without the name and the address of its host.

    >>> without_name("demo-1 did not answer at 10.0.0.7:22", "demo-1")
    'it did not answer at its address:22'
    """
    text = _ADDRESS.sub("its address", text)
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "it", text)


def _failure_line(shared: tuple[str, str], group: Sequence[HostFailure]) -> str:
    alike = len({(message, hint) for _, message, hint in group}) == 1
    message, hint = group[0][1:] if alike else shared
    hosts = fold_hosts([host for host, _, _ in group])
    return f"{hosts}: {message}" + (f" (hint: {hint})" if hint else "")


def missing_line(missing: Sequence[str], there: int) -> str:
    """`demo-2 is missing: the cluster has 4 nodes, 3 are there`."""
    verb = "is" if len(missing) == 1 else "are"
    be = "is" if there == 1 else "are"
    return (
        f"{fold_hosts(missing)} {verb} missing: the cluster has "
        f"{count(len(missing) + there, 'node')}, {there} {be} there"
    )


def _missing_lines(report: TransferReport) -> list[str]:
    if not report.missing:
        return []
    return [
        f"{fold_hosts(report.missing)}: missing, so nothing was copied there "
        "(hint: `clusterctl up` launches what is missing; then run the same copy again)"
    ]


def error_lines(error: ClusterctlError | None) -> list[str]:
    """What kept the whole copy from being made."""
    if error is None:
        return []
    host = f"{error.host}: " if isinstance(error, HostError) else ""
    hint = [f"  hint: {one_line(error.hint)}"] if error.hint else []
    return [f"error: {host}{one_line(error.message)}", *hint]


def warning_lines(report: TransferReport) -> list[str]:
    """What the source left out, and what nodes remark, with their names folded."""
    left_out = report.source.warnings if report.source else ()
    groups: dict[str, list[str]] = {}
    for node in report.nodes:
        for warning in node.warnings:
            groups.setdefault(one_line(warning), []).append(node.host)
    remarks = [f"warning: {fold_hosts(hosts)}: {text}" for text, hosts in groups.items()]
    named = [one_line(text.removeprefix("left out ")) for text in left_out]
    return [*_some([f"left out: {text}" for text in named]), *_some(remarks)]


def move_lines(report: TransferReport) -> list[str]:
    """How nodes were relinked that have got all of it."""
    moves = [f"{node.host}: {one_line(move)}" for node in _good(report) for move in node.moves]
    return _some(moves)


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - NAMED
    return [*lines[:NAMED], *([f"... and {more} more"] if more > 0 else [])]


def _good(report: TransferReport) -> list[NodeReport]:
    return [node for node in report.nodes if node.error is None]


def _alike(nodes: Sequence[NodeReport]) -> bool:
    """Whether one line does for all: the same work, in about the same time."""
    same = {(node.files, node.received_bytes, node.deleted) for node in nodes}
    times = [node.duration_s for node in nodes]
    return len(same) == 1 and max(times) <= 1.5 * min(times) + 1
