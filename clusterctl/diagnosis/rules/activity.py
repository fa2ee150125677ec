"""Rules on what ranks do: those that are elsewhere than all others, or run another script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from clusterctl.diagnosis.case import (
    ERROR,
    WARNING,
    Cause,
    Rank,
    RankFinding,
    Scene,
    combine,
    full_disk_finding,
    full_disk_of,
    full_filesystems,
    rank_lines,
    ranks_in_words,
    run_command,
    saves_with_progress,
    syscall_path,
)
from clusterctl.diagnosis.rules.logs import NO_ROOM, first_error, root_error
from clusterctl.diagnosis.tree import Activity, label, main_thread, others
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import format_duration


def ended_ranks(scene: Scene) -> Iterator[Cause]:
    """Ranks whose program has ended, by an exception or by a return, while others go on."""
    ended = [one for one in scene.ranks if one.place is Activity.ENDED]
    rest = [one for one in scene.ranks if one.place is not Activity.ENDED]
    if not ended or not rest or scene.advances:
        return
    failed = first_error(scene)
    found = []
    for rank in ended:
        at = main_thread(rank.last)[0].function
        threads = [one.thread for one in others(rank.last)][:3]
        kept = f" and is kept by its thread {threads[0]}" if threads and at == "_shutdown" else ""
        kept = "{has} left the program" + kept + ", while the others go on"
        what = f"{kept}: {failed}" if failed else kept
        hint = (
            f"clusterctl logs {scene.cluster} has its last words; then clusterctl cancel "
            f"{scene.cluster}"
        )
        check = "rank.exception" if failed else "rank.left"
        found.append(RankFinding(check, ERROR, rank, what, rank_lines(rank), hint))
    yield from combine(found)


def suspects(scene: Scene) -> list[Rank]:
    """Return the few ranks that are at their own work at every sample, while all others wait."""
    out = [
        one
        for one in scene.ranks
        if one.samples and not one.waits and one.place not in (Activity.IMPORT, Activity.ENDED)
    ]
    few = len(out) * 2 < len(scene.ranks) or (len(out) == 1 and len(scene.ranks) == 2)
    if not out or not few or not scene.others_wait(one.number for one in out):
        return []
    # A rank that was in a step at one of the samples makes progress.
    return [one for one in out if not any(place in _STEPS for place in one.places)]


_STEPS = (Activity.COLLECTIVE, Activity.GRAPH, Activity.INIT)


def odd_ranks(scene: Scene) -> Iterator[Cause]:
    """Ranks that keep the others waiting: in a file, in a loop, on a full disk."""
    if scene.advances:
        return
    found = []
    for rank in suspects(scene):
        if not (set(rank.states) <= set("RSD")):
            continue
        shown = rank_lines(rank)
        full = full_disk_of(rank) or _full_by_log(scene, rank)
        path = syscall_path(rank.last.syscall) if _same_call(rank) else ""
        call = rank.user_call
        where = f" in {label(call)}" if call else ""
        if full:
            found.append(full_disk_finding(scene, rank, full, where, shown))
        elif path and not rank.was("R") and "S" in rank.states and not rank.moved:
            kind = "opening" if rank.last.syscall.startswith("open") else "reading"
            kind = "writing" if rank.last.syscall.startswith(("write", "pwrite")) else kind
            channel = rank.last.wait_channel
            pipe = " (a pipe: nobody is at its other end)" if _is_pipe(channel) else ""
            what = f"{{is}} blocked {kind} {path}{pipe}{where}"
            ls = run_command(scene, rank.host, f"ls -l {shlex.quote(path)}")
            hint = f"see what is at {path}: {ls}"
            found.append(RankFinding("rank.io", ERROR, rank, what, shown, hint))
        elif rank.place is Activity.DATA:
            what = "{is} waiting for the next batch of data: its input is stuck, or slow"
            hint = f"clusterctl diagnose {scene.cluster} --tree shows its threads"
            severity = ERROR if scene.is_quiet else WARNING
            found.append(RankFinding("rank.data", severity, rank, what, shown, hint))
        elif rank.moved or "R" in rank.states or rank.place is Activity.USER:
            found.append(_busy(scene, rank, where, shown))
        elif scene.is_quiet:
            inner = rank.shared_frames[-1:]
            deep = f", {label(inner[0])}" if inner else ""
            what = f"{{is}} blocked{where}{deep}"
            hint = f"clusterctl diagnose {scene.cluster} --tree shows its whole stack"
            found.append(RankFinding("rank.blocked", ERROR, rank, what, shown, hint))
    yield from combine(found)


def _busy(scene: Scene, rank: Rank, where: str, shown: tuple[str, ...]) -> RankFinding:
    """Return the finding about a rank at its own work."""
    looks = f"{len(rank.samples)} looks in {format_duration(rank.span_s)}"
    cpu = rank.grown("cpu_s") / rank.span_s if rank.span_s else 0.0
    runs = "R" in rank.states
    deed = "{is} busy" if runs else "{is}"
    seen = bool(rank.shared_frames)
    deed += f"{where or (' in its own code' if seen else '')} at all {looks}"
    if runs and rank.place is Activity.USER and not rank.moved and not saves_with_progress(rank):
        deed += " on one line: a loop in C, or of that line"
    elif saves_with_progress(rank):
        deed += ": it saves or evaluates, and its bytes move"
    elif runs:
        deed += ": a loop, or long work"
    hint = (
        f"look again (clusterctl diagnose {scene.cluster}): a rank at work comes out of it; a loop "
        f"has to be mended, after clusterctl cancel {scene.cluster}"
    )
    stuck = scene.is_quiet and (seen or scene.stall) and not saves_with_progress(rank)
    severity = ERROR if stuck else WARNING
    shown = (*shown, f"rank {rank.number}: {cpu:.0%} of a processor")
    return RankFinding("rank.busy", severity, rank, deed, shown, hint)


def _same_call(rank: Rank) -> bool:
    return len({sample.syscall for sample in rank.samples}) == 1


def _is_pipe(channel: str) -> bool:
    return bool(re.search(r"wait_for_partner|fifo|pipe", channel))


def _full_by_log(scene: Scene, rank: Rank) -> str:
    """Return a full file system of the rank's host if the log shows that it has no space for it.

    The error in the log must not be that of another rank. Else the result is empty.
    """
    paths = [path for host, path in full_filesystems(scene) if host is rank.host]
    root = root_error(scene)
    if not root or root.signature.id not in NO_ROOM or root.ranks - {rank.number}:
        return ""
    named = re.search(r"\brank (\d+)\b", root.text)
    if named and int(named[1]) != rank.number:
        return ""
    return next((path for path in paths if path != "/dev/shm"), "")  # noqa: S108


def scripts(scene: Scene) -> Iterator[Cause]:
    """Ranks whose script, or a module beside it, differs from that of the other ranks."""
    names = {name for rank in scene.ranks for name in rank.process.sources}
    for name in sorted(names):
        by_digest: dict[str, list[Rank]] = {}
        for rank in scene.ranks:
            if name in rank.process.sources:
                by_digest.setdefault(rank.process.sources[name], []).append(rank)
        if len(by_digest) < 2:
            continue
        usual = max(by_digest, key=lambda digest: len(by_digest[digest]))
        odd = [rank for digest, ranks in by_digest.items() if digest != usual for rank in ranks]
        hosts = list(dict.fromkeys(rank.host.host for rank in odd))
        blocks = bool(scene.stall) and not scene.advances
        yield Cause(
            "script.differs",
            ERROR if blocks else WARNING,
            f"{ranks_in_words(odd)} run{'' if len(odd) > 1 else 's'} another {name} "
            "than the other ranks",
            hosts[0] if len(hosts) == 1 else None,
            f"copy it to all: clusterctl copy {scene.cluster} FILE DST; then start the job again",
            tuple(sorted(rank.number for rank in odd)),
            tuple(
                f"{name} {digest} on {fold_hosts(sorted({rank.host.host for rank in ranks}))}"
                for digest, ranks in by_digest.items()
            ),
            blocks,
        )
