"""A copy as text: its progress, report, plan and dry run. Pure functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from clusterctl.cli.output import one_line
from clusterctl.copy.plan import PAYLOAD_SHARE
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, NodeStage, TransferReport
from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.units import count, format_bytes, format_duration, format_rate

Row = tuple[str, ...]
# Nodes that get a row each; more are grouped by stage, with folded names, to fit on a screen.
ROWS = 20
# Characters of a progress bar.
BAR = 10
COLUMNS = ("host", "stage", "share", "bar", "bytes", "rate", "left", "remark")
# Stages of a node that has not reported yet what it lacks.
EARLY = (NodeStage.CONNECTING, NodeStage.COMPARING)
# Seconds that a stage has to last to get a line.
LASTS_S = 2.0
# Lines of the same kind that are printed; further ones are counted.
NAMED = 20
# Seconds that one copy has to take: for less, "times one copy" means nothing.
MIN_RATIO_S = 1.0


def rows(progress: CopyProgress) -> list[Row]:
    """Return the cells of COLUMNS for each node; of more than ROWS nodes, for each stage."""
    if len(progress.nodes) <= ROWS:
        return [_row(node) for node in progress.nodes]
    return [_stage_row(nodes, len(progress.nodes)) for nodes in by_stage(progress.nodes)]


def by_stage(nodes: Sequence[NodeProgress]) -> Iterator[list[NodeProgress]]:
    """Yield the nodes of each stage that has any, in the order of NodeStage."""
    for stage in NodeStage:
        alike = [node for node in nodes if node.stage is stage]
        if alike:
            yield alike


def _row(node: NodeProgress) -> Row:
    upstream = f"from {node.upstream}" if node.upstream and is_moving(node) else ""
    note = one_line(node.note)
    return (
        node.host,
        node.stage.value,
        *_amounts([node]),
        ", ".join(filter(None, (upstream, note))),
    )


def _stage_row(nodes: Sequence[NodeProgress], of: int) -> Row:
    hosts = fold_hosts([node.host for node in nodes])
    return (hosts, nodes[0].stage.value, *_amounts(nodes), f"{len(nodes)} of {of}")


def _has(node: NodeProgress) -> int:
    """Return the node's bytes. Its last progress event may arrive after it is done."""
    done = node.stage is NodeStage.DONE
    return node.needed_bytes if done else min(node.bytes, node.needed_bytes)


def _amounts(nodes: Sequence[NodeProgress]) -> Row:
    """Return share, bar, bytes, rate and time left of all these nodes; empty if none needs any."""
    have, need = sum(map(_has, nodes)), sum(node.needed_bytes for node in nodes)
    if not need:
        return "", "", "", "", ""
    share = have / need
    # Rounded down: 100 % only when everything has arrived.
    filled = int(share * BAR)
    shown = (f"{int(share * 100):3d} %", "#" * filled + "." * (BAR - filled), format_bytes(have))
    if not any(map(is_moving, nodes)):
        return *shown, "", ""
    rate = sum(node.rate for node in nodes)
    lefts = [left_s(node) for node in nodes if is_moving(node)]
    known = [left for left in lefts if left is not None]
    left = format_duration(max(known)) if len(known) == len(lefts) else ""
    return *shown, format_rate(rate), left


def is_moving(node: NodeProgress) -> bool:
    return node.stage is NodeStage.COPYING


def are_comparing(progress: CopyProgress) -> bool:
    """Return whether a node has not reported yet what it lacks."""
    return any(node.stage in EARLY for node in progress.nodes)


def left_s(node: NodeProgress) -> float | None:
    """Return the seconds left at the node's recent rate; None while nothing arrives from it."""
    if node.silent:
        return None
    missing = max(0, node.needed_bytes - node.bytes)
    if not missing:
        return 0.0
    return missing / node.rate if node.rate > 0 else None


def total_line(progress: CopyProgress, width: int | None = None) -> str:
    """Return the whole copy in one line: bytes, rate, time left, and nodes that are not included.

    Failed nodes are not in the sum. A line wider than `width` columns is replaced by a shorter one.
    """
    excluded = (*EARLY, NodeStage.FAILED)
    nodes = [node for node in progress.nodes if node.stage not in excluded]
    need = sum(node.needed_bytes for node in nodes)
    if not need:
        stages = [f"{len(alike)} {alike[0].stage.value}" for alike in by_stage(progress.nodes)]
        return ", ".join([*stages, format_duration(progress.elapsed_s)])
    have = sum(map(_has, nodes))
    share, of = f"{have * 100 // need} %", f"{format_bytes(have)} of {format_bytes(need)}"
    long, short, shortest = _paces(progress)
    rest = (_remaining(progress), _others(progress))
    lines = [
        ", ".join(filter(None, parts))
        for parts in (
            (f"{of} to {count(len(nodes), 'node')} ({share})", long, *rest),
            (f"{of} ({share})", short, *rest),
            (f"{of} ({share})", shortest, *rest),
            (f"{share} of {format_bytes(need)}", shortest, *rest),
        )
    ]
    return next((line for line in lines if width is None or len(line) <= width), lines[-1])


def _paces(progress: CopyProgress) -> tuple[str, str, str]:
    """Return the rate in three lengths, longest first.

    The first has the sum, the mean of a node, and its share of the slowest link; the second lacks
    the sum; the third is only the mean. All are empty while nothing moves.
    """
    rates = [node.rate for node in progress.nodes if is_moving(node) and node.rate > 0]
    if not rates:
        return "", "", ""
    mean = sum(rates) / len(rates)
    each = format_rate(mean) + (" each" if len(rates) > 1 else "")
    notes = [each] if len(rates) > 1 else []
    if not progress.slowest_link:
        return format_rate(sum(rates)) + (f" ({each})" if notes else ""), each, each
    # The link's rate includes packet headers, the nodes' rates do not.
    percents = f"{mean / PAYLOAD_SHARE / progress.slowest_link * 100:.0f} % of the"
    notes.append(f"{percents} slowest link")
    return f"{format_rate(sum(rates))} ({', '.join(notes)})", f"{each} ({percents} link)", each


def _others(progress: CopyProgress) -> str:
    """Return the nodes that are not in the sum yet, and those that the time left leaves out."""
    early = [node for node in progress.nodes if node.stage in EARLY]
    silent = [node for node in progress.nodes if node.silent]
    slow = [node for node in progress.nodes if node.slow and not node.silent]
    return ", ".join(
        f"{fold_hosts([node.host for node in nodes])} {what}"
        for nodes, what in (
            (early, f"still {early[0].stage.value}" if early else ""),
            (silent, "silent"),
            (slow, "slow"),
        )
        if nodes
    )


def _remaining(progress: CopyProgress) -> str:
    if progress.left_s is None:
        return f"{format_duration(progress.elapsed_s)} so far"
    return f"{format_duration(progress.left_s)} left"


class Stages:
    """Makes one line for each stage that lasts, with the nodes in it. `failure_and_relink_lines`
    has failures."""

    def __init__(self) -> None:
        self._reported: set[NodeStage] = set()
        self._since: dict[NodeStage, tuple[frozenset[str], float]] = {}

    def lines(self, now: CopyProgress) -> list[str]:
        """Return the lines that are due: no further node has entered the stage for LASTS_S."""
        due = []
        for nodes in by_stage(now.nodes):
            stage, hosts = nodes[0].stage, frozenset(node.host for node in nodes)
            if stage in self._reported or stage in (NodeStage.CONNECTING, NodeStage.FAILED):
                continue
            known, since = self._since.get(stage, (frozenset(), 0.0))
            if not hosts <= known:
                self._since[stage] = hosts, now.elapsed_s
            elif now.elapsed_s - since >= LASTS_S:
                self._reported.add(stage)
                due.append(f"{fold_hosts([node.host for node in nodes])}: {stage.value}")
        return due


def failure_and_relink_lines(before: CopyProgress | None, now: CopyProgress) -> list[str]:
    """Return a line for nodes that have just failed, and one for each relinked node.

    A relinked node pulls from another upstream. Reasons of failures are in the report; if no node
    is left to go on, the report follows at once and the line is omitted.
    """
    known = {node.host: node for node in before.nodes} if before else {}
    failed = [
        node.host
        for node in now.nodes
        if node.stage is NodeStage.FAILED
        and (node.host not in known or known[node.host].stage is not NodeStage.FAILED)
    ]
    going_on = any(node.stage not in (NodeStage.DONE, NodeStage.FAILED) for node in now.nodes)
    relinks = [_relink(known.get(node.host), node) for node in now.nodes]
    return [
        *([f"{fold_hosts(failed)}: failed"] if failed and going_on else []),
        *filter(None, relinks),
    ]


def _relink(before: NodeProgress | None, now: NodeProgress) -> str:
    if before is None or not is_moving(now) or before.upstream == now.upstream:
        return ""
    if not before.upstream or not now.upstream:
        return ""
    why = f" ({one_line(now.note)})" if now.note else ""
    return f"{now.host}: pulls from {now.upstream} now, not from {before.upstream}{why}"


# The report


def node_table(report: TransferReport) -> list[Row]:
    """Return a header and a row per node without an error; empty if `node_line` covers all."""
    good = _good(report)
    if not good or _alike(good):
        return []
    deleted = any(node.deleted for node in good)
    head = ("NODE", "FILES", "BYTES", "TIME", "RATE", *(("DELETED",) if deleted else ()))
    rows = [
        (
            node.host,
            str(node.files),
            format_bytes(node.received_bytes),
            format_duration(node.duration_s),
            format_rate(node.rate) if node.received_bytes else "",
            *((str(node.deleted),) if deleted else ()),
        )
        for node in good
    ]
    return [head, *rows]


def node_line(report: TransferReport) -> str:
    """Return `demo-[0-7]: 1200 files, 1.2 GiB in 34 s`; empty unless the nodes are alike."""
    good = _good(report)
    if not good or not _alike(good):
        return ""
    node = good[0]
    took = format_duration(max(other.duration_s for other in good))
    links = f", {count(node.links, 'link')}" if node.links else ""
    what = f"{count(node.files, 'file')}{links}, {format_bytes(node.received_bytes)} in {took}"
    if not (node.files or node.links or node.received_bytes):
        source = report.source
        of = f" ({count(source.files, 'file')}, {format_bytes(source.bytes)})" if source else ""
        what = f"up to date{of}, {format_duration(report.duration_s)}"
    if node.deleted:
        what += f", {count(node.deleted, 'file')} deleted"
    return f"{fold_hosts([other.host for other in good])}: {what}"


def summary(report: TransferReport) -> str:
    """Return `9.6 GiB to 8 nodes in 34 s, 289 MiB/s; 1.04 times one copy; limited by the link`.

    "One copy" is the time that the first complete node took. Log-ins count for neither time. Empty
    if no bytes moved.
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
    if len(good) > 1 and report.one_copy_s and report.one_copy_s >= MIN_RATIO_S:
        ratio = max(node.duration_s for node in good) / report.one_copy_s
        parts.append(f"{ratio:.2f} times one copy")
    if report.limited_by and report.limited_by != "nothing":
        parts.append(f"limited by {limit_words(report.limited_by)}")
    return "; ".join(parts)


def verified_line(report: TransferReport) -> str:
    """Return which hosts --verify found to have equal content, and as what; empty if none."""
    if not report.verified:
        return ""
    if report.reread:
        what = "verified, the same content as SRC"
    elif len(report.verified) > 1:
        what = "verified, the same content on each of them; SRC was not read again"
    else:
        what = "all files can be read; no other node is equal, and SRC was not read again"
    return f"{fold_hosts(report.verified)}: {what}"


def limit_words(name: str) -> str:
    """Return the limit with its article: `the link`, but `CPU`."""
    return name if name == "CPU" else f"the {name}"


def failure_lines(report: TransferReport) -> list[str]:
    """Return one line per reason: its hosts, the message, the hint.

    The error of the copy as a whole and missing nodes follow.
    """
    if report.error and not report.source:
        # It failed before the source was scanned: the nodes' errors only repeat that.
        return [*error_lines(report.error), *_missing_lines(report)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for node in report.nodes:
        if node.error:
            message, hint = one_line(node.error.message), one_line(node.error.hint)
            key = (_without_name(message, node.host), _without_name(hint, node.host))
            groups.setdefault(key, []).append((node.host, message, hint))
    lines = [_failure_line(key, group) for key, group in groups.items()]
    unfinished_text = report.error and all(
        node.error and report.error.message in node.error.message for node in report.failed
    )
    rest = [] if unfinished_text and report.failed else error_lines(report.error)
    return [*lines, *rest, *_missing_lines(report)]


# An IPv4 address that is no part of a longer name or number, with the @ after a user.
_ADDRESS = re.compile(r"(@|(?<![\w.]))\d{1,3}(\.\d{1,3}){3}(?![\w.]*\w)")


def _without_name(text: str, host: str) -> str:
    """Return a message without its host's name and address, to group hosts that fail alike.

    >>> _without_name("demo-1 did not answer at 10.0.0.7:22", "demo-1")
    'it did not answer at its address:22'
    """
    text = _ADDRESS.sub(lambda found: " at its address" if found[1] else "its address", text)
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "it", text)


def _failure_line(shared: tuple[str, str], group: Sequence[Row]) -> str:
    alike = len({(message, hint) for _, message, hint in group}) == 1
    message, hint = group[0][1:] if alike else shared
    hosts = fold_hosts([host for host, _, _ in group])
    return f"{hosts}: {message}" + (f" (hint: {hint})" if hint else "")


def missing_line(missing: Sequence[str], there: int) -> str:
    """Return `demo-2 is missing: the cluster has 4 nodes, 3 are there`."""
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
    """Return the error of the copy as a whole, and its hint; empty without one."""
    if error is None:
        return []
    host = f"{error.host}: " if isinstance(error, HostError) else ""
    hint = [f"  hint: {one_line(error.hint)}"] if error.hint else []
    return [f"error: {host}{one_line(error.message)}", *hint]


def warning_lines(report: TransferReport) -> list[str]:
    """Return what the source left out, and the nodes' warnings with their hosts folded."""
    left_out = report.source.warnings if report.source else ()
    groups = grouped((one_line(text), one.host) for one in report.nodes for text in one.warnings)
    remarks = [f"warning: {fold_hosts(hosts)}: {text}" for text, hosts in groups.items()]
    named = [one_line(text.removeprefix("left out ")) for text in left_out]
    return [*_some([f"left out: {text}" for text in named]), *_some(remarks)]


def move_lines(report: TransferReport) -> list[str]:
    """Return how nodes without an error were relinked during the copy."""
    moves = [f"{node.host}: {one_line(move)}" for node in _good(report) for move in node.moves]
    return _some(moves)


def _some(lines: Sequence[str], number: int = 0) -> list[str]:
    """Return the first NAMED lines, and how many more there are.

    `number` is the total, if more exist than `lines` has.
    """
    more = max(number, len(lines)) - len(lines[:NAMED])
    return [*lines[:NAMED], *([f"... and {more} more"] if more else [])]


def _good(report: TransferReport) -> list[NodeReport]:
    return [node for node in report.nodes if node.error is None]


def _alike(nodes: Sequence[NodeReport]) -> bool:
    """Return whether one line can stand for all nodes: same work, about the same time."""
    same = {(node.files, node.links, node.received_bytes, node.deleted) for node in nodes}
    times = [node.duration_s for node in nodes]
    return len(same) == 1 and max(times) <= 1.5 * min(times) + 1


# A dry run and a plan


def gap_table(report: TransferReport) -> list[Row]:
    """Return a header and a row per group of nodes that lack the same, and have room for it or
    not; empty without any. FREE is the least of the nodes in the row."""
    groups = grouped(
        ((gap.files, gap.bytes, gap.delete, gap.fits), node)
        for node in report.nodes
        if (gap := node.gap)
    )
    head = ("NODE", "FILES", "BYTES", "DELETE", "FREE")
    rows = [
        (
            fold_hosts([node.host for node in nodes]),
            str(files),
            format_bytes(size),
            str(delete),
            format_bytes(min(node.gap.free_bytes for node in nodes if node.gap)),
        )
        for (files, size, delete, _), nodes in groups.items()
    ]
    return [head, *rows] if rows else []


def gap_lines(report: TransferReport) -> list[str]:
    """Return what would be deleted, which nodes would refuse, the sum, and the predicted time."""
    found = [(node.host, node.gap) for node in report.nodes if node.gap]
    if not found:
        return []
    deletions = grouped(((gap.delete_names, gap.delete), host) for host, gap in found if gap.delete)
    lines = []
    for (names, number), hosts in deletions.items():
        lines.append(f"{fold_hosts(hosts)}: {count(number, 'file')} would be deleted")
        named = _some([one_line(name) for name in names], number if names else 0)
        lines += [f"  {text}" for text in named]
    refused = [(node.host, node.gap) for node in report.refused if node.gap]
    for fits, why in (
        (False, "there is not enough free space"),
        (True, "DST cannot be written to"),
    ):
        hosts = [host for host, gap in refused if gap.fits is fits]
        lines += [f"{fold_hosts(hosts)}: {why}"] if hosts else []
    if all(gap.is_empty for _, gap in found):
        return [*lines, "nothing would be copied"]
    copied = [gap for _, gap in found if gap.can_be_filled and not gap.is_empty]
    size = format_bytes(sum(gap.bytes for gap in copied))
    lines.append(f"{size} would be copied to {len(copied)} of {count(len(found), 'node')}")
    if not (copied and report.plan) or report.plan.get("way") == "tool":
        return lines
    seconds = report.plan["predicted_s"]
    if seconds is None:
        return [*lines, "how long that would take is not known without --link-rate"]
    return [*lines, f"it would take about {format_duration(seconds)}"]


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """Return the plan of a copy (CopyPlan.as_data()) as lines: order, streams, reasons, time."""
    if plan["way"] == "tool":
        return [f"plan: every node pulls by itself, with {plan['tool']}"]
    block = format_bytes(plan["block_bytes"])
    lines = ["plan: a chain, each node passes on what it gets"]
    lines.append(f"  order: {_in_order(plan['order'])}")
    lines.append(f"  {count(plan['streams'], 'connection')} per hop, blocks of {block}")
    return [*lines, *(f"  {reason}" for reason in plan["reasons"]), f"  {_prediction(plan)}"]


def _prediction(plan: dict[str, Any]) -> str:
    if plan["predicted_s"] is None:
        return "predicted: not known"
    phases = ", ".join(
        f"{name} {format_duration(seconds)}" for name, seconds in plan["phases"].items() if seconds
    )
    limit = f"; limited by {limit_words(plan['limited_by'])}" if plan["limited_by"] else ""
    return f"predicted: {format_duration(plan['predicted_s'])} ({phases}){limit}"


def _in_order(order: Sequence[str]) -> str:
    """Return hosts in the given order; runs of consecutive numbers are folded.

    >>> _in_order(["demo-0", "demo-1", "demo-2", "demo-7", "demo-5"])
    'demo-[0-2], demo-7, demo-5'
    """

    def run(placed: tuple[int, str]) -> tuple[str, int]:
        place, host = placed
        stem = host.rstrip("0123456789")
        return stem, int(host[len(stem) :] or 0) - place

    runs = itertools.groupby(enumerate(order), run)
    return ", ".join(fold_hosts([host for _, host in hosts]) for _, hosts in runs)


def measured_line(report: TransferReport) -> str:
    """Return the measured time, and its difference from the predicted one if there is one."""
    took = format_duration(report.duration_s)
    predicted = report.plan.get("predicted_s")
    if not predicted:
        return f"measured: {took}"
    off = round((report.duration_s / predicted - 1) * 100)
    return f"measured: {took}, {off:+d} % against the {format_duration(predicted)} predicted"
