"""`clusterctl watch [NAME]`: the state of nodes and ranks, redrawn at intervals."""

from __future__ import annotations

import contextlib
import functools
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.host_options import SOURCES, host_options, one_of
from clusterctl.cli.params import Duration, job_argument, json_option
from clusterctl.diagnosis.hostchecks import card_errors_in_words
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.domain.units import count, format_duration, format_rate
from clusterctl.node.facts.network import IMPAIRED, UNRESPONSIVE
from clusterctl.node.jobs.spec import JobState

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

    from clusterctl.cli.json_types import Watched, WatchedJob
    from clusterctl.diagnosis.evidence import Evidence, JobEvidence
    from clusterctl.operations.hosts_access import HostSource
    from clusterctl.operations.watch import Watch, WatchedNode

COLUMNS = ("NODE", "RANKS", "CPU", "GPU", "MEMORY", "NET IN/OUT", "DISK IN/OUT", "FULLEST", "SEEN")
# Intervals without an answer after which a node counts as silent.
SILENT_AFTER = 3
LONGEST_ERROR = 44  # characters of a row
# Columns that a narrow terminal drops, in this order. NODE and RANKS always stay.
DROPPED_FIRST = ("DISK IN/OUT", "NET IN/OUT", "FULLEST", "MEMORY", "GPU", "CPU", "SEEN")
# Spaces between two columns.
BETWEEN = 2
# The shortest --interval, and the time between two redraws.
SHORTEST_S, REDRAWN_S = 1.0, 0.5
# Horovod's lines on a stall: `5: [TENSORS]`, in older versions `TENSOR [missing ranks: 5]`.
STALLED = re.compile(r"\d+!?: \[|\S+ \[(ready|missing) ranks: ")
# Process states of /proc that are shown as trouble.
STATES = {"T": "stopped", "t": "traced", "D": "uninterruptible", "Z": "ended"}


class LiveView:
    """The screen of a watch: lines on the job, and a row for each node."""

    def __init__(self, name: str, watch: Watch, interval_s: float) -> None:
        """`name` is the cluster's, or the options that name the hosts."""
        self.name, self.watch, self.interval_s = name, watch, interval_s
        self.finding = "none yet"

    def lines(self) -> list[str]:
        """Return the lines above the table: the job, its last stall, silent nodes."""
        job = self.watch.job
        now = time.monotonic()
        shown = [f"{self.name}: {what_job(self)}", f"last stall: {last_stall(job)}"]
        return shown + silent_lines(self.watch.nodes, now, self.interval_s)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        for line in self.lines():
            yield Text(line, no_wrap=True, overflow="ellipsis")
        yield Text()
        now = time.monotonic()
        parts = Text(f"last finding: {self.finding}").wrap(console, options.max_width)
        # Besides the rows: the lines above, an empty one, the heading, the finding, the keys.
        room = (options.height or console.size.height) - len(self.lines()) - len(parts) - 3
        room = max(1, room)
        nodes = self.watch.nodes
        rows: list[tuple[tuple[str, ...], str]] = [(COLUMNS, "bold")]
        for node in in_order(nodes, now, self.interval_s)[:room]:
            silent = is_silent(node, now, self.interval_s)
            style = "red" if silent or node_troubles(node) else ""
            rows.append((cells_of(node, now, self.interval_s), style))
        table = Table.grid(padding=(0, BETWEEN))
        shown = columns_for(options.max_width, [cells for cells, _ in rows])
        for at in shown:
            # rich narrows only columns that may wrap: only RANKS, whose text is cut, not wrapped.
            table.add_column(no_wrap=COLUMNS[at] != "RANKS")
        for cells, style in rows:
            table.add_row(
                *(Text(cells[at], style=style, no_wrap=True, overflow="ellipsis") for at in shown)
            )
        yield table
        more = f"{count(len(nodes) - room, 'more node')}; " if len(nodes) > room else ""
        yield from parts
        yield Text(f"{more}d diagnoses, q quits", style="dim")


def columns_for(width: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the columns of these rows that fit into `width`."""
    widths = [max(map(len, column)) + BETWEEN for column in zip(*rows)]
    shown = list(range(len(COLUMNS)))
    for name in DROPPED_FIRST:
        if sum(widths[at] for at in shown) > width:
            shown.remove(COLUMNS.index(name))
    return shown


def in_order(nodes: Sequence[WatchedNode], now: float, interval_s: float) -> list[WatchedNode]:
    """Return nodes with trouble first: not all rows fit on every screen."""
    troubled = lambda node: is_silent(node, now, interval_s) or bool(node_troubles(node))  # noqa: E731
    return sorted(nodes, key=lambda node: not troubled(node))


def is_silent(node: WatchedNode, now: float, interval_s: float) -> bool:
    """Return whether a node has missed SILENT_AFTER intervals, with a second to spare, or cannot be
    reached at the first poll."""
    if node.at is None and node.error:
        return True
    return now - (node.since if node.at is None else node.at) > SILENT_AFTER * interval_s + 1


def silent_lines(nodes: Sequence[WatchedNode], now: float, interval_s: float) -> list[str]:
    """Return a line on the silent nodes for each state of theirs in EC2 that is known, and for each
    reason why the program does not run on a node that was reached."""
    names: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if is_silent(node, now, interval_s):
            why = ("cannot be read", node.error) if node.is_reached else ("no answer", in_ec2(node))
            names.setdefault(why, []).append(node.host)
    return [
        f"{what}: {fold_hosts(hosts)}" + (f" ({why})" if why else "")
        for (what, why), hosts in names.items()
    ]


def in_ec2(node: WatchedNode) -> str:
    """Return EC2's state of a node that was lost: `terminated: a spot interruption`; else empty."""
    return node.error.partition("; EC2 has ")[2].partition(" as ")[2]


def node_troubles(node: WatchedNode) -> list[str]:
    """Return `5 stopped` for the ranks of each bad state, and what the node could not find out."""
    by_state: dict[str, list[int]] = {}
    for rank in node.facts.get("ranks", ()):
        if rank["state"] in STATES:
            by_state.setdefault(rank["state"], []).append(rank["rank"])
    troubles = [f"{format_indices(ranks)} {STATES[state]}" for state, ranks in by_state.items()]
    for card, grown in (node.facts.get("efa") or {}).get("cards", {}).items():
        bad = {name: grown.get(name, 0) for name in (IMPAIRED, UNRESPONSIVE)}
        events = card_errors_in_words(bad)
        troubles += [f"EFA {card}: {events}"] if events else []
    return troubles + [f"{what}: {why}" for what, why in node.facts.get("errors", {}).items()]


def cells_of(node: WatchedNode, now: float, interval_s: float) -> tuple[str, ...]:
    """Return a node's cells, one for each of COLUMNS."""
    parts = node.facts
    age = "-" if node.at is None else f"{format_duration(now - node.at)} ago"
    silent = is_silent(node, now, interval_s)
    if silent or node.at is None:
        why = in_ec2(node) or node.error or "no answer" if silent else "is being read"
        why = textwrap.shorten(why, LONGEST_ERROR, placeholder="…")
        return (node.host, why, *[""] * (len(COLUMNS) - 3), age)
    gpus = (parts.get("gpus") or {}).get("gpus", ())
    uses = [gpu["utilization_percent"] for gpu in gpus if gpu["utilization_percent"] is not None]
    watts = sum(gpu["power_w"] or 0 for gpu in gpus)
    memory = parts.get("memory", {})
    systems = parts.get("filesystems", ())
    full = max(systems, key=_share, default=None)
    return (
        node.host,
        ranks_cell(parts.get("ranks", ())) + "".join(f" {text}" for text in node_troubles(node)),
        f"{parts['cpu']:.0%}",
        f"{sum(uses) / len(uses):.0f}% {watts:.0f} W" if uses else "-",
        f"{1 - memory['MemAvailable'] / memory['MemTotal']:.0%}" if memory else "-",
        "/".join(map(format_rate, parts["net"])) + efa_cell(parts.get("efa") or {}),
        "/".join(map(format_rate, parts["disk"])),
        f"{full['path']} {_share(full):.0%}" if full else "-",
        age,
    )


def efa_cell(efa: dict[str, Any]) -> str:
    """Return ` EFA 1.1 GiB/s/1.0 GiB/s`, of all cards; empty if that is not known."""
    cards, span_s = efa.get("cards", {}).values(), efa.get("span_s") or 0.0
    ways = ("rx_bytes", "tx_bytes")
    if not cards or not span_s or not all(way in card for card in cards for way in ways):
        return ""
    rates = (sum(card[way] for card in cards) / span_s for way in ways)
    return " EFA " + "/".join(map(format_rate, rates))


def ranks_cell(ranks: Sequence[dict[str, Any]]) -> str:
    """Return `0-7 RRRRRSRR 98%`: the ranks, the state of each, and their mean CPU use."""
    if not ranks:
        return "none"
    states = "".join(rank["state"] for rank in ranks)
    busy = sum(rank["cpu"] for rank in ranks) / len(ranks)
    return f"{format_indices([rank['rank'] for rank in ranks])} {states} {busy:.0%}"


def _share(system: dict[str, Any]) -> float:
    used, free = system["used_bytes"], system["free_bytes"]
    return used / (used + free) if used + free else 0.0


def what_job(view: LiveView) -> str:
    """Return job_line, or that the head node, or no host, reports a job, and why."""
    watch = view.watch
    head = watch.head
    if watch.job:
        return job_line(watch.job, watch.nodes, watch.group)
    if head is None:
        now, within_s = time.monotonic(), view.interval_s
        read = [node for node in watch.nodes if node.at and not is_silent(node, now, within_s)]
        if not read:
            if not all(is_silent(node, now, within_s) for node in watch.nodes):
                return "whether a job runs is not known yet: the hosts are being read"
            return "whether a job runs is not known: no host can be read"
        ranks = sum(len(node.facts.get("ranks", ())) for node in read)
        found = f"{count(ranks, 'rank')}, and no mpirun" if ranks else "no job found"
        return found if len(read) == len(watch.nodes) else f"{found} on the hosts that were read"
    if is_silent(head, time.monotonic(), view.interval_s):
        why = "cannot be read" if head.is_reached else "does not answer"
        return f"its job is not known: the head node {head.host} {why}"
    if head.at is None:
        return f"its job is not known yet: the head node {head.host} is being read"
    return "no job is on record"


def job_line(job: JobEvidence, nodes: Sequence[WatchedNode], group: str = "") -> str:
    """Return `job … running for 12 min 03 s, 32 ranks; step 1200, 10234 images/s, 3 s ago`. `group`
    is what the ranks of a job that was started by hand have in common."""
    what = f"job {job.job_id} {job.state}" if job.job_id else "an mpirun typed by hand, running"
    ranks = Counter(rank.get("group") for node in nodes for rank in node.facts.get("ranks", ()))
    rest = "" if job.job_id else _others(ranks, group)
    size = job.size or (ranks[group] if rest and group in ranks else sum(ranks.values()))
    lasts = "for" if job.state in (JobState.RUNNING, JobState.QUEUED) else "after"
    text = f"{what} {lasts} {format_duration(job.age_s)}, {count(size, 'rank')}{rest}"
    trained = [row for row in job.metrics if row.get("kind") == "train"]
    if trained:
        speed, step = trained[-1].get("images_per_s"), trained[-1].get("step")
        shown = f"{speed:.1f} images/s" if isinstance(speed, (int, float)) else "no speed"
        silent = format_duration(job.metrics_silent_s or 0.0)
        return f"{text}; step {step}, {shown}, {silent} ago"
    if job.log_silent_s is not None:
        text += f"; its log grew {format_duration(job.log_silent_s)} ago"
    return text


def _others(ranks: Counter[str | None], group: str) -> str:
    """Return in words that ranks are of other jobs than that of `group`, by their number in each
    group; empty if all may be of one job."""
    known = {name: number for name, number in ranks.items() if name}
    if len(known) < 2:
        return ""
    if group not in known:
        return f" of {len(known)} jobs"
    of_others = sum(known.values()) - known.pop(group)
    return f", and {count(of_others, 'rank')} of {count(len(known), 'other job')}"


def last_stall(job: JobEvidence | None) -> str:
    """Return Horovod's last line on a stall that the end of the log has, else `none`."""
    parts = [line.strip() for line in (job.log if job else ()) if STALLED.match(line.strip())]
    return parts[-1] if parts else "none"


@cluster_command(required=False, instead=SOURCES)
@job_argument
@click.option(
    "--interval",
    "interval_s",
    type=Duration(),
    default="2s",
    show_default=True,
    help="Between two polls.",
)
@json_option("Watched", "One JSON object a line and interval.")
@host_options(ask_again=True)
def watch(
    app: AppContext,
    name: str | None,
    job_id: str | None,
    interval_s: float,
    as_json: bool,
    source: HostSource | None,
) -> int:
    """Watch the nodes and ranks of cluster NAME, and JOB, or the job that runs on them.

    \b
    clusterctl watch demo
    clusterctl watch demo --interval 10s
    clusterctl watch demo --interval 30s >>watch.log
    clusterctl watch --hosts hosts

    On a terminal the screen is drawn again and again until q is pressed; d diagnoses the job as
    `clusterctl diagnose` does, and shows the verdict. Elsewhere each interval has a line. A node
    that is frozen or gone keeps its row, with the time of its last response.
    """
    from clusterctl.config import home_folder
    from clusterctl.operations.diagnose import collect
    from clusterctl.operations.diagnose_hosts import collect_from
    from clusterctl.operations.watch import Watch, watch_cluster

    one_of(name, source)
    interval_s = max(SHORTEST_S, interval_s)
    with contextlib.ExitStack() as opened:
        if source:
            watched = Watch(source.connections, source.targets, None, interval_s)
            gather = functools.partial(collect_from, source, None, home_folder())
        else:
            access = opened.enter_context(app.open(name or ""))
            watched = watch_cluster(access, interval_s, job_id)
            gather = functools.partial(collect, access, job_id)
        view = LiveView(
            source.options if source else name or "", opened.enter_context(watched), interval_s
        )
        if not as_json and output.has_screen():
            _show_until_q(view, gather)
            return 0
        while True:
            time.sleep(interval_s)
            if as_json:
                output.event(event_of(view, is_cluster=not source))
            else:
                output.line(line_of(view))


def _show_until_q(view: LiveView, gather: Callable[[], Evidence]) -> None:
    with output.screen(view) as key:
        while (pressed := key(REDRAWN_S)) != "q":
            if pressed == "d":
                view.finding = "looking at all nodes, for some seconds"
                if key(0) == "q":  # draws that text
                    return
                view.finding = verdict_of(gather())


def verdict_of(evidence: Evidence) -> str:
    """Return `00:41:05 rank 5 on … hint: …`. Nothing is redrawn meanwhile."""
    from clusterctl.diagnosis.verdict import diagnose

    found = diagnose(evidence)
    lead = found.findings[0] if found.findings else None
    hint = f"\nhint: {output.suggested(lead.hint)}" if lead and lead.hint else ""
    return f"{datetime.now():%H:%M:%S} {found.verdict}{hint}"


def event_of(view: LiveView, is_cluster: bool = True) -> Watched:
    """Return the data of one line of --json. `stuck`: whether the job stands still, by its log and
    metrics; null if that is unknown."""
    from clusterctl.diagnosis.case import Scene
    from clusterctl.diagnosis.evidence import Evidence

    now = time.monotonic()
    job = view.watch.job
    nodes: Any = [
        {
            "host": node.host,
            "seen_s": None if node.at is None else round(now - node.at, 1),
            "error": node.error,
            **{name: value for name, value in node.facts.items() if name != "job"},
        }
        for node in view.watch.nodes
    ]
    about: WatchedJob | None = (
        None
        if job is None
        else {
            "job_id": job.job_id,
            "state": job.state,
            "size": job.size,
            "age_s": job.age_s,
            "log_silent_s": job.log_silent_s,
            "metrics": job.metrics[-1] if job.metrics else None,
        }
    )
    return {
        "cluster": view.name if is_cluster else None,
        "hosts": None if is_cluster else view.name,
        "job": about,
        "last_stall": last_stall(job),
        "stuck": Scene(Evidence(job=job)).is_stuck,
        "nodes": nodes,
    }


def line_of(view: LiveView) -> str:
    """Return `00:41:05 demo: job …; no answer: demo-2; demo-1: 5 stopped`."""
    now = time.monotonic()
    nodes = view.watch.nodes
    there = [node for node in nodes if not is_silent(node, now, view.interval_s)]
    parts = [f"{datetime.now():%H:%M:%S} {view.name}: {what_job(view)}"]
    parts += silent_lines(nodes, now, view.interval_s)
    head = view.watch.head
    unread = [node.host for node in there if node.at is None]
    if unread and not (head and head.host in unread):  # that one is named with the job
        parts.append(f"not read yet: {fold_hosts(unread)}")
    for node in there:
        parts += [f"{node.host}: {text}" for text in node_troubles(node)]
    answer = [node for node in there if node.at is not None]
    if answer:
        busy = sum(node.facts["cpu"] for node in answer) / len(answer)
        parts.append(f"{count(len(answer), 'node')} at {busy:.0%} CPU")
    return "; ".join(parts)
