"""A copy under way as text: rows of a table, a line in total, a line per change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterctl.copy.cost import payload_share
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeStage
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration, format_rate

# More than fit on a screen are shown by stage, folded.
ROWS = 20
BAR = 10
EARLY = (NodeStage.CONNECTING, NodeStage.COMPARING)
Row = tuple[str, ...]
# A stage that passes sooner is not worth a line.
LASTS_S = 2.0
COLUMNS = ("host", "stage", "share", "bar", "bytes", "rate", "left", "remark")


def one_line(text: str) -> str:
    """Text from elsewhere, such as a file's name, without what would move the cursor."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    )


def rows(progress: CopyProgress) -> list[Row]:
    """The columns of COLUMNS for each node, or for each stage where nodes are many."""
    if len(progress.nodes) <= ROWS:
        return [_row(node) for node in progress.nodes]
    return [_stage_row(nodes, len(progress.nodes)) for nodes in by_stage(progress.nodes)]


def by_stage(nodes: Sequence[NodeProgress]) -> Iterator[list[NodeProgress]]:
    """The nodes of each stage that has some, in the order that stages have."""
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
    """Its last bytes may be told after its end."""
    done = node.stage is NodeStage.DONE
    return node.needed_bytes if done else min(node.bytes, node.needed_bytes)


def _amounts(nodes: Sequence[NodeProgress]) -> Row:
    """Share, bar, bytes, rate, time left."""
    have, need = sum(map(_has, nodes)), sum(node.needed_bytes for node in nodes)
    if not need:
        return "", "", "", "", ""
    share = have / need
    amount = format_bytes(have)
    if not any(map(is_moving, nodes)):
        return percent(share), bar(share), amount, "", ""
    rate = sum(node.rate for node in nodes)
    lefts = [left_s(node) for node in nodes if is_moving(node)]
    known = [left for left in lefts if left is not None]
    left = format_duration(max(known)) if len(known) == len(lefts) else ""
    return percent(share), bar(share), amount, format_rate(rate), left


def percent(share: float) -> str:
    """` 25 %`; 100 when all is there, and not before."""
    return f"{int(share * 100):3d} %"


def bar(share: float) -> str:
    """`##........`."""
    filled = int(share * BAR)
    return "#" * filled + "." * (BAR - filled)


def is_moving(node: NodeProgress) -> bool:
    return node.stage is NodeStage.COPYING


def are_comparing(progress: CopyProgress) -> bool:
    """Whether a node has not said yet what it lacks."""
    return any(node.stage in EARLY for node in progress.nodes)


def left_s(node: NodeProgress) -> float | None:
    """Seconds at its rate of late; None while nothing comes, or nobody knows."""
    if node.silent:
        return None
    missing = max(0, node.needed_bytes - node.bytes)
    if not missing:
        return 0.0
    return missing / node.rate if node.rate > 0 else None


def total_line(progress: CopyProgress, width: int | None = None) -> str:
    """The whole copy in one line: bytes, rate, time left, and who is still to come.

    Those that failed are not in the sum. Where it is wider than `width` columns, it says less.
    """
    beside = (*EARLY, NodeStage.FAILED)
    nodes = [node for node in progress.nodes if node.stage not in beside]
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
    """The rate: in sum, each, and of the slowest link; without the sum; each alone."""
    rates = [node.rate for node in progress.nodes if is_moving(node) and node.rate > 0]
    if not rates:
        return "", "", ""
    mean = sum(rates) / len(rates)
    each = format_rate(mean) + (" each" if len(rates) > 1 else "")
    notes = [each] if len(rates) > 1 else []
    if not progress.slowest_link:
        return format_rate(sum(rates)) + (f" ({each})" if notes else ""), each, each
    percents = f"{mean / payload_share() / progress.slowest_link * 100:.0f} % of the"
    notes.append(f"{percents} slowest link")
    return f"{format_rate(sum(rates))} ({', '.join(notes)})", f"{each} ({percents} link)", each


def _others(progress: CopyProgress) -> str:
    """Those that are not in the sum yet, and those that the time left says nothing of."""
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
    """One line for each stage that lasts, of the nodes that are in it, but failures."""

    def __init__(self) -> None:
        self._told: set[NodeStage] = set()
        self._since: dict[NodeStage, tuple[frozenset[str], float]] = {}

    def lines(self, now: CopyProgress) -> list[str]:
        """Those that are due: no node has come to the stage for LASTS_S."""
        due = []
        for nodes in by_stage(now.nodes):
            stage, hosts = nodes[0].stage, frozenset(node.host for node in nodes)
            if stage in self._told or stage in (NodeStage.CONNECTING, NodeStage.FAILED):
                continue
            known, since = self._since.get(stage, (frozenset(), 0.0))
            if not hosts <= known:
                self._since[stage] = hosts, now.elapsed_s
            elif now.elapsed_s - since >= LASTS_S:
                self._told.add(stage)
                due.append(f"{fold_hosts([node.host for node in nodes])}: {stage.value}")
        return due


def troubles(before: CopyProgress | None, now: CopyProgress) -> list[str]:
    """Who has failed while others go on (the report says why), and a line for each relink."""
    known = {node.host: node for node in before.nodes} if before else {}
    failed = [node.host for node in _newly(before, now.nodes) if node.stage is NodeStage.FAILED]
    going_on = any(node.stage not in (NodeStage.DONE, NodeStage.FAILED) for node in now.nodes)
    relinks = [_relink(known.get(node.host), node) for node in now.nodes]
    return [
        *([f"{fold_hosts(failed)}: failed"] if failed and going_on else []),
        *filter(None, relinks),
    ]


def _newly(before: CopyProgress | None, nodes: Sequence[NodeProgress]) -> list[NodeProgress]:
    """Those that had another stage."""
    known = {node.host: node.stage for node in before.nodes} if before else {}
    return [node for node in nodes if known.get(node.host) is not node.stage]


def _relink(before: NodeProgress | None, now: NodeProgress) -> str:
    if before is None or not is_moving(now) or before.upstream == now.upstream:
        return ""
    if not before.upstream or not now.upstream:
        return ""
    why = f" ({one_line(now.note)})" if now.note else ""
    return f"{now.host}: pulls from {now.upstream} now, not from {before.upstream}{why}"
