"""The diagnosis as one self-contained HTML page: findings, hosts and ranks, tree, evidence."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from clusterctl.diagnosis.case import Scene
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.ranks import Rank, called
from clusterctl.diagnosis.tree import STATES, Branch, label, main_thread, merge
from clusterctl.diagnosis.verdict import Diagnosis
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count, format_bytes, format_duration

# Number of ranks in findings whose whole evidence is shown.
MOST_DETAILS = 64
_CSS = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2430; --dim: #5d6878; --line: #d8dee6;
  --soft: #f3f5f8; --error: #b3261e; --warning: #8a5a00; --ok: #1b6e3c; --wait: #9fb4cc;
  --own: #e0a43a; --away: #c9d1da }
@media (prefers-color-scheme: dark) { :root { --back: #14181e; --text: #e4e8ee; --dim: #9aa6b5;
  --line: #333c48; --soft: #1d232b; --error: #ff8a80; --warning: #f2bd5c; --ok: #6fcf97;
  --wait: #3f5670; --own: #b47a14; --away: #2c343f } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.35rem; line-height: 1.35; margin: .3rem 0 .6rem; font-weight: 600 }
h2 { font-size: 1.05rem; margin: 2rem 0 .6rem }
p { margin: .3rem 0 } .dim { color: var(--dim) } code, .tree, pre { font-family: ui-monospace,
  SFMono-Regular, Menlo, monospace; font-size: 13px }
.lead { border-left: 4px solid var(--ok); padding-left: .9rem }
.lead.error { border-color: var(--error) } .lead.warning { border-color: var(--warning) }
.finding { border-top: 1px solid var(--line); padding: .55rem 0 }
.badge { font-size: 12px; font-weight: 600; margin-right: .4rem }
.badge.error { color: var(--error) }
.badge.warning { color: var(--warning) } .badge.info { color: var(--dim) }
pre { background: var(--soft); padding: .5rem .7rem; margin: .4rem 0; white-space: pre-wrap;
  border-radius: 4px }
.grid { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .25rem .8rem }
.host { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; max-width: 16rem }
.cells { display: flex; flex-wrap: wrap; gap: 3px }
.cell { min-width: 2.1em; padding: 0 .3em; text-align: center; border-radius: 3px; font-size: 12px;
  line-height: 1.6; background: var(--wait); color: var(--text) }
.cell.own { background: var(--own) } .cell.away { background: var(--away); color: var(--dim) }
.cell.bad { background: var(--error); color: var(--back); font-weight: 700 }
.key { display: flex; flex-wrap: wrap; gap: 1rem; margin: .5rem 0 }
.tree ul { list-style: none; margin: 0; padding-left: 1.1rem; border-left: 1px solid var(--line) }
.tree > ul { padding-left: 0; border: 0 } .tree li { padding: .05rem 0 }
.tree .ranks { color: var(--dim) } .tree .odd > .ranks { color: var(--error); font-weight: 700 }
details > summary { cursor: pointer } details { margin: .25rem 0 }
"""


def page(evidence: Evidence, found: Diagnosis) -> str:
    """Return a whole HTML document. All text from hosts, logs and stacks is escaped."""
    scene = Scene(evidence)
    bad = {rank for one in found.findings if one.severity.value != "info" for rank in one.ranks}
    title = f"{evidence.cluster}: {found.check}"
    job = f"job {scene.job.job_id}, " if scene.job.job_id else ""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_CSS}</style></head><body>",
        f'<p class="dim">{_text(evidence.cluster)}, {_text(job)}{_text(evidence.taken_at)}, '
        f"observed for {evidence.took_s:.1f} s</p>",
        f'<div class="lead {found.severity.value}"><h1>{_text(found.verdict)}</h1></div>',
        *_findings(found),
        *_grid(scene, bad),
        *_tree(scene, bad),
        *_details(scene, bad),
        *_log(scene),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: object) -> str:
    """Escape text for HTML, and show characters that cannot be printed as numbers."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in str(text))
    return escape(shown)


def _findings(found: Diagnosis) -> Iterable[str]:
    if found.findings:
        yield "<h2>Findings</h2>"
    for one in found.findings:
        severity = one.severity.value
        yield f'<div class="finding"><span class="badge {severity}">{severity}</span>'
        yield f"{_text(one.message)} <code class=dim>{_text(one.check)}</code>"
        if one.evidence:
            lines = "\n".join(one.evidence)
            yield f"<pre>{_text(lines)}</pre>"
        if one.hint:
            yield f"<p><span class=dim>next:</span> {_text(one.hint)}</p>"
        yield "</div>"
    if found.clean:
        yield f'<h2>Without findings</h2><p class="dim">{_text("; ".join(found.clean))}</p>'


def _grid(scene: Scene, bad: set[int]) -> Iterable[str]:
    """Show all hosts and their ranks, as cells. A rank that was not seen has a cell, too."""
    if not scene.host_of and not scene.evidence.hosts:
        return
    yield "<h2>Hosts and ranks</h2>"
    yield (
        '<div class="key dim"><span><span class="cell">3</span> waits for others</span>'
        '<span><span class="cell own">3</span> at its own work</span>'
        '<span><span class="cell away">3</span> not observed</span>'
        '<span><span class="cell bad">3</span> in a finding</span></div><div class="grid">'
    )
    for host in scene.evidence.hosts:
        numbers = sorted(rank for rank, at in scene.host_of.items() if at.host == host.host)
        cells = "".join(_cell(scene, number, number in bad) for number in numbers)
        why = f' <span class="dim">{_text(host.error[:80])}</span>' if host.error else ""
        name = _text(called(host))
        yield f'<div class="host" title="{name}">{name}</div><div class="cells">{cells}{why}</div>'
    yield "</div>"


def _cell(scene: Scene, number: int, is_bad: bool) -> str:
    rank = scene.by_number.get(number)
    kind, words = "away", "not observed"
    if rank:
        kind = "" if rank.waits else "own"
        words = STATES.get(rank.last.state) or rank.place.value
    kind = "bad" if is_bad else kind
    return f'<span class="cell {kind}" title="rank {number}: {_text(words)}">{number}</span>'


def _tree(scene: Scene, bad: set[int]) -> Iterable[str]:
    root = merge(rank.process for rank in scene.ranks)
    if root.ranks:
        yield "<h2>Stacks of all ranks</h2>"
        yield '<p class="dim">Ranks that did the same in all samples share a branch.</p>'
        yield f'<div class="tree"><ul>{_branches(root, root.ranks, bad)}</ul></div>'


def _branches(branch: Branch, above: set[int], bad: set[int]) -> str:
    """Return the list items below a branch. Consecutive calls with the same ranks are one item."""
    items = []
    for child in branch.ordered():
        chain = [child]
        while len(chain[-1].children) == 1 and not chain[-1].ends:
            (only,) = chain[-1].children.values()
            if only.ranks != child.ranks:
                break
            chain.append(only)
        calls = "<br>".join(_text(one.label) for one in chain)
        if len(chain) > 8:
            calls = (
                f"<details><summary>{_text(chain[0].label)} … {_text(chain[-1].label)} "
                f'<span class="dim">({len(chain)} calls)</span></summary>{calls}</details>'
            )
        head = ""
        if child.ranks != above:
            moved = f"; moved: {format_indices(child.moved)}" if child.moved else ""
            head = f'<span class="ranks">ranks {format_indices(child.ranks)}{moved}</span><br>'
        odd = ' class="odd"' if child.ranks <= bad else ""
        inner = _branches(chain[-1], child.ranks, bad)
        items.append(f"<li{odd}>{head}{calls}{f'<ul>{inner}</ul>' if inner else ''}</li>")
    return "".join(items)


def _details(scene: Scene, bad: set[int]) -> Iterable[str]:
    """Show the evidence of the ranks in findings, and of one other rank for comparison."""
    listed = [rank for rank in scene.ranks if rank.number in bad][:MOST_DETAILS]
    rest = [rank for rank in scene.ranks if rank.number not in bad][:1]
    if not listed and not rest:
        return
    yield "<h2>Evidence</h2>"
    for rank in [*listed, *rest]:
        more = "" if rank.number in bad else ", for comparison"
        lines = "\n".join(_rank_lines(rank))
        yield f"<details><summary>rank {rank.number} on {_text(called(rank.host))}{more}</summary>"
        yield f"<pre>{_text(lines)}</pre></details>"
    for host in scene.evidence.hosts:
        if host.unseen:
            lines = "\n".join(host.unseen)
            yield f"<details><summary>not observed on {_text(host.host)}</summary><pre>"
            yield f"{_text(lines)}</pre></details>"


def _rank_lines(rank: Rank) -> Iterable[str]:
    process = rank.process
    gpus = f", GPUs {format_indices(rank.gpus)}" if rank.gpus else ""
    yield f"pid {process.pid}, {format_duration(process.age_s)} old{gpus}"
    yield f"{' '.join(process.argv)}"
    for sample in rank.samples:
        yield (
            f"at {sample.at_s:.1f} s: state {sample.state}, {sample.syscall or '-'}, "
            f"{sample.wait_channel or '-'}, {format_duration(sample.cpu_s)} of processor, "
            f"{format_bytes(sample.rss_bytes)}, {sample.threads} threads"
        )
    yield from (f"  {label(frame)}" for frame in main_thread(rank.last))
    yield from (f"open: {one.path} at {one.position}" for one in rank.last.files[:20])
    for one in rank.last.sockets[:20]:
        queued = f"{one.send_queue_bytes}/{one.receive_queue_bytes} bytes queued"
        timer = f", timer {one.timer}, {one.retransmits} retransmits" if one.timer else ""
        yield f"{one.local} - {one.peer} {one.state} {queued}{timer}"


def _log(scene: Scene) -> Iterable[str]:
    if scene.job.log:
        lines = "\n".join(scene.job.log[-60:])
        yield "<h2>The log's last lines</h2>"
        yield f"<details open><summary>{count(len(scene.job.log[-60:]), 'line')}</summary>"
        yield f"<pre>{_text(lines)}</pre></details>"
