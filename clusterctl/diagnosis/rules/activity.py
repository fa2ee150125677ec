"""Rules on what ranks do: those that are elsewhere than all others, or run another script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping

from clusterctl.diagnosis.case import (
    ERROR,
    INFO,
    WARNING,
    Cause,
    RankFinding,
    Scene,
    combine,
    full_disk_finding,
    full_filesystems,
    gdb_command,
)
from clusterctl.diagnosis.frames import STARTING, WAITING, Activity, is_user
from clusterctl.diagnosis.partners import chain, wait_in_words, waits_for
from clusterctl.diagnosis.progress import LONGEST_ALONE_S
from clusterctl.diagnosis.ranks import (
    POLLING_CALLS,
    READ_BYTES,
    RESTS,
    WORKS_SHARE,
    Rank,
    asks_user,
    format_ranks,
    full_disk_of,
    is_saving,
    is_working,
    only,
    rank_lines,
    ranks_in_words,
    saves_with_progress,
    syscall_path,
    works_alone,
)
from clusterctl.diagnosis.repeats import Sign
from clusterctl.diagnosis.rules.logs import NO_ROOM, first_error, root_error
from clusterctl.diagnosis.tree import label, main_thread, others
from clusterctl.domain.findings import Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import format_duration
from clusterctl.explain.explanation import LogFinding
from clusterctl.node.diagnosis.partners import LOCKS, READS


def ended_ranks(scene: Scene) -> Iterator[Cause]:
    """Ranks whose program has ended, by an exception or by a return, while others go on."""
    ended = scene.left
    rest = [one for one in scene.ranks if one not in ended]
    if not ended or scene.advances:
        return
    if not rest:
        yield from _kept(scene)
        return
    failed = first_error(scene)
    if not failed and scene.no_rank_waits:
        return
    found = []
    for rank in ended:
        at = next((one.function for one in main_thread(rank.last)), "")
        threads = [one.thread for one in others(rank.last)][:3]
        kept = f" and is kept by its thread {threads[0]}" if threads and at == "_shutdown" else ""
        kept = "{has} left the program" + kept + ", while the others go on"
        what = f"{kept}: {failed}" if failed else kept
        words = scene.hints.cluster("clusterctl logs NAME has its last words")
        hint = scene.hints.steps(words, f"then {scene.hints.cancel}")
        check = "rank.exception" if failed else "rank.left"
        found.append(RankFinding(check, ERROR, rank, what, rank_lines(rank), hint))
    yield from combine(found)


def _kept(scene: Scene) -> Iterator[Cause]:
    """All ranks, if their main threads have returned and other threads, which rest, keep them."""
    found = []
    for rank in scene.ranks:
        keeps = [one for one in others(rank.last) if any(map(is_user, one.frames))]
        rests = not rank.moved and rank.grown("cpu_s") < RESTS * rank.span_s
        if not keeps or not rests:
            return
        at = [frame for frame in keeps[0].frames if is_user(frame)][-1]
        what = "{has} no main thread any more, and {is} kept by another"
        what += f" thread, {keeps[0].thread or 'without a name'}, in {label(at)}"
        severity = ERROR if scene.is_quiet else WARNING
        shown = (*rank_lines(rank), *inner_lines(rank))
        hint = "see what that thread waits for; one that may be cut off is a daemon thread"
        found.append(RankFinding("rank.left", severity, rank, what, shown, hint))
    yield from combine(found)


def suspects(scene: Scene) -> list[Rank]:
    """Return the ranks that are at their own work at every sample, while all others wait.

    They may be most of all ranks if the job makes no step.
    """
    out = [
        one
        for one in scene.ranks
        if one.samples and one.is_python and not one.waits and one not in scene.left
    ]
    few = len(out) * 2 < len(scene.ranks) or (len(out) == 1 and len(scene.ranks) == 2)
    if not out or scene.exchanges or not (few or scene.is_quiet):
        return []
    if not scene.others_wait(one.number for one in out):
        return []
    # A rank that was in a step at one of the samples makes progress, as does one that starts.
    is_long = scene.since_step_s >= LONGEST_ALONE_S
    held = {one.number for one in out if is_long or (scene.is_overdue and rests(one))}
    known = [one for one in out if one.number in held or not {*one.places} & {*STARTING}]
    return [one for one in known if not {*one.places} & {*WAITING}]


def odd_ranks(scene: Scene) -> Iterator[Cause]:
    """Ranks that keep the others waiting: in a file, in a loop, on a full disk."""
    if scene.advances:
        return
    found = []
    for rank in suspects(scene):
        if not (set(rank.states) <= set("RSD")):
            continue
        shown = (*rank_lines(rank), *inner_lines(rank))
        full = full_disk_of(rank) or _full_by_log(scene, rank, root_error(scene))
        call = rank.user_call
        where = f" in {label(call)}" if call else ""
        blocked = _blocked(scene, rank) if not rank.was("R") and not rank.moved else None
        if full:
            found.append(full_disk_finding(scene, rank, full, where, shown))
        elif blocked:
            what, hint = blocked
            severity = _severity(scene, any(one.state == "R" for one in rank.process.partners))
            found.append(RankFinding("rank.io", severity, rank, f"{what}{where}", shown, hint))
        elif rank.place is Activity.DATA:
            what = "{is} waiting for the next batch of data: its input is stuck, or slow"
            hint = (
                f"see what its input reads, on {rank.host.host}: its files, mounts and downloads"
                + scene.hints.cluster(" (clusterctl disk NAME; clusterctl doctor NAME)")
            )
            uses = rank.grown("cpu_s") >= RESTS * rank.span_s
            works = uses or rank.reads_ahead or any(map(is_working, rank.below))
            severity = _severity(scene, works)
            found.append(RankFinding("rank.data", severity, rank, what, shown, hint))
        elif rests(rank):
            found.append(_resting(scene, rank, where, shown))
        elif rank.moved or "R" in rank.states or rank.place is Activity.USER:
            found.append(_busy(scene, rank, where, shown))
        elif scene.is_quiet:
            found.append(_resting(scene, rank, where, shown))
    yield from combine(_with_stopped(scene, one) for one in found)


def _with_stopped(scene: Scene, found: RankFinding) -> RankFinding:
    """Return the finding with the processes of the rank that are stopped: it may wait for them."""
    rank = found.rank
    pids = [str(one.pid) for one in rank.children if {x.state for x in one.samples} == {"T"}]
    if not pids or "stopped" in found.what:
        return found
    of_it = f"its processes {', '.join(pids)} are" if pids[1:] else f"its process {pids[0]} is"
    hint = scene.hints.on(rank.host, f"kill -CONT {' '.join(pids)}")
    return found._replace(what=f"{found.what}; {of_it} stopped (state T)", hint=hint)


def held_up(scene: Scene) -> Iterator[Cause]:
    """Ranks that odd_ranks does not name, since others make steps or wait for nobody: they wait at
    all looks for a file, a named pipe or a lock, or try again on a full disk."""
    named = set() if scene.advances else {one.number for one in suspects(scene)}
    found = []
    for rank in scene.ranks if scene.is_running else ():
        if rank.number in named or len(rank.samples) < 2 or {*rank.places} & {*WAITING}:
            continue
        shown = (*rank_lines(rank), *inner_lines(rank))
        where = f" in {label(rank.user_call)}" if rank.user_call else ""
        blocked = _blocked(scene, rank) if _waits_outside(rank) and rests(rank) else None
        tried = [one for one in scene.whole_log.findings if one.signature.id in NO_ROOM]
        full = next(filter(None, (_full_by_log(scene, rank, one) for one in tried)), "")
        severity = ERROR if scene.is_quiet and scene.quiet_s is not None else WARNING
        if blocked:
            what, hint = blocked
            found.append(RankFinding("rank.io", severity, rank, f"{what}{where}", shown, hint))
        elif full and rank.user_call and not rank.gets_on:
            on_disk = full_disk_finding(scene, rank, full, where, shown)
            found.append(on_disk._replace(severity=severity))
    if len(found) == max(scene.size, len(scene.ranks)):
        # Whatever the log tells, no rank of the job goes on.
        found = [one._replace(severity=ERROR) for one in found]
    yield from combine(found)


def _severity(scene: Scene, works: bool) -> Severity:
    """Return how bad it is that the others wait for a rank. One that works, or waits for a process
    that does, may be slow, on a busy machine for example, until the job is overdue."""
    if not works:
        return ERROR if scene.is_quiet else WARNING
    if scene.is_overdue:
        return ERROR
    return WARNING if scene.is_late else INFO


def _waits_outside(rank: Rank) -> bool:
    """Return whether a rank is in a call on a file, a lock, its input, its output or a pipe that it
    writes, and got no further in it. What it reads from a pipe may be its own workers' work."""
    if rank.reads_input:
        return True
    call, path = rank.last.syscall, syscall_path(rank.last.syscall)
    if "write" in call.partition(" ")[0] and ("pipe:[" in call or "socket:[" in call):
        return not rank.grown("written_bytes")
    is_file = path and (not path.startswith("/dev/") or path.startswith("/dev/pts/"))
    return bool(is_file) or call.partition(" ")[0] in LOCKS


def rests(rank: Rank) -> bool:
    """Return whether the rank slept at all looks, and did nothing between them."""
    known = rank.last.syscall or rank.last.main_cpu_s is not None
    if saves_with_progress(rank):
        return False
    return bool(known) and rank.was("S") and not rank.moved and rank.used_s < RESTS * rank.span_s


def _resting(scene: Scene, rank: Rank, where: str, shown: tuple[str, ...]) -> RankFinding:
    """Return the finding about a rank that sleeps, or waits for something that is no rank."""
    call, found = rank.last.syscall, None
    activity = "{is} blocked"
    if "nanosleep" in call or call == "pause":
        activity = "{is} asleep"
    elif call.startswith("wait"):
        found = chain(scene, rank)
        activity = f"{{is}} {wait_in_words(call, '')}{found.words}"
    elif " tcp " in call:
        activity = f"{{is}} blocked in {call}"
    inner = rank.shared_frames[-1:]
    deep = f", {label(inner[0])}" if inner and label(inner[0]) not in where else ""
    asks = scene.prompt and any(_CONSOLE.search(one.file) for one in rank.shared_frames)
    deep += f" (the log ends with the prompt `{scene.prompt}`)" if asks else ""
    hint = f"{scene.hints.look} --tree shows its whole stack"
    if inner_lines(rank):
        hint = "the lines above show what its other threads and processes do"
    elif found and found.partners:
        hint = found.hint(scene)
    works = rank.reads_ahead or (call.startswith("wait") and any(map(is_working, rank.below)))
    severity = _severity(scene, works)
    if severity is ERROR and may_work(scene, rank):
        severity = WARNING
    return RankFinding("rank.blocked", severity, rank, f"{activity}{where}{deep}", shown, hint)


def _blocked(scene: Scene, rank: Rank) -> tuple[str, str] | None:
    """Return what a rank waits for in a system call on a file, and what helps; else None."""
    call = rank.last.syscall
    name, path = call.partition(" ")[0], syscall_path(call)
    does = wait_in_words(call, rank.last.wait_channel)
    calls = {sample.syscall for sample in rank.samples}
    if len(calls) != 1 or "S" not in rank.states or name.startswith("wait") or not does:
        return None
    asks = asks_user(call) or rank.reads_input or (name in READS and "pipe:[" in call)
    prompt = f" (the log ends with the prompt `{scene.prompt}`)" * bool(asks and scene.prompt)
    if asks_user(call):
        answer = f"attach to its terminal, {path}, and answer, or start the job with < /dev/null"
        return f"{{is}} {does}{prompt}", answer
    if rank.reads_input:
        what = "{is} waiting for its standard input (from its launcher)" + prompt
        help_it = "give it the input, or start the job with < /dev/null; mpirun: --stdin none"
        return what, help_it
    if path.startswith("/dev/pts/"):
        does = does.replace(path, "its output")
    found = chain(scene, rank)
    what = f"{{is}} {does}{found.words}{prompt}"
    if found.partners:
        return what, found.hint(scene)
    if "socket:[" in call:
        return None
    if not path or name in LOCKS:
        return what, f"{scene.hints.look} --tree shows its whole stack"
    ls = scene.hints.on(rank.host, f"ls -l {shlex.quote(path)}")
    return what, f"see what is at {path}: {ls}"


def inner_lines(rank: Rank) -> tuple[str, ...]:
    """Return lines about the rank's other threads in the user's code, and its Python processes."""
    lines = []
    for stack in others(rank.last):
        own = [frame for frame in stack.frames if is_user(frame)]
        if own:
            name = stack.thread or "without a name"
            lines.append(f"rank {rank.number}, thread {name}: {label(own[-1])}")
    for process in (one for one in rank.children if one.samples):
        last = process.last
        own = [frame for frame in main_thread(last) if is_user(frame)]
        at = f": {label(own[-1])}" if own else ""
        if own or last.state not in "SR":
            lines.append(f"rank {rank.number}, its process {process.pid} (state {last.state}){at}")
    return tuple(lines[:4])


def _busy(scene: Scene, rank: Rank, where: str, shown: tuple[str, ...]) -> RankFinding:
    """Return the finding about a rank at its own work."""
    looks = f"{len(rank.samples)} samples in {format_duration(rank.span_s)}"
    of_main = rank.last.main_cpu_s is not None and not rank.works_in_thread
    cpu = (rank.used_s if of_main else rank.grown("cpu_s")) / (rank.span_s or 1.0)
    runs = "R" in rank.states
    activity = "{is} busy" if runs else "{is}"
    seen = bool(rank.shared_frames)
    activity += f"{where or (' in its own code' if seen else '')} at all {looks}"
    if runs and rank.place is Activity.USER and not rank.moved and not saves_with_progress(rank):
        activity += " on one line: a loop in C, or of that line"
    elif saves_with_progress(rank):
        activity += ": it saves or evaluates, and its bytes move"
    elif runs:
        activity += ": a loop, or long work"
    hint = (
        f"diagnose again ({scene.hints.look}): a rank at work comes out of it; a loop has to be "
        f"fixed: {scene.hints.cancel}"
    )
    # At one line at all looks, it may evaluate in a long call, or in a loop without an end.
    is_at_work = works_alone(rank) or evaluates(scene, rank)
    # Who naps, and uses no processor, only tries something again.
    tries = rank.naps and rank.used_s < RESTS * rank.span_s and "R" not in rank.states
    severity = INFO if is_at_work else _severity(scene, works=not tries)
    may_save = saves_with_progress(rank) or may_work(scene, rank)
    if severity is ERROR and (may_save or not (seen or scene.stall)):
        severity = WARNING
    elif saves_with_progress(rank):
        severity = INFO  # steps that are late on a busy machine are no reason to name it
    cpu_of = "its main thread" if of_main else "all its threads"
    shown = (*shown, f"rank {rank.number}: {cpu:.0%} of a processor by {cpu_of}")
    return RankFinding("rank.busy", severity, rank, activity, shown, hint)


# Python's own loops that ask the user.
_CONSOLE = re.compile(r"/(?:cmd|pdb|code)\.py$")
# Calls that wait for a message, and send none.
_RECEIVES = ("recv", "Recv")


def differing(scene: Scene) -> Iterator[Cause]:
    """Ranks that wait for each other in different calls, or called from different lines."""
    if scene.advances or scene.moves or not scene.is_running:
        return
    known: tuple[Activity, ...] = (Activity.COLLECTIVE, Activity.INIT)
    if len(scene.waiting) < max(2, len(scene.ranks)):
        return
    # A compiled step may be one of a rank that works alone. After ten steps' time it is not.
    if scene.is_stuck and not any(map(is_saving, scene.ranks)):
        known = WAITING
    groups: dict[str, list[Rank]] = {}
    for rank in scene.waiting:
        if rank.place not in known:
            return
        at = f" at {label(rank.user_call)}" if rank.user_call and scene.is_quiet else ""
        groups.setdefault(f"{rank.waits_in}{at}", []).append(rank)
    kinds = {one.waits_in.rpartition(" ")[2] for one in scene.waiting}
    if scene.stands_still and scene.is_whole and kinds <= {*_RECEIVES}:
        yield Cause(
            "mpi.cycle",
            ERROR,
            f"all ranks wait to receive a message{scene.since}: "
            f"{' or '.join(sorted({one.waits_in for one in scene.waiting}))}",
            None,
            f"see what leads these ranks there: {scene.hints.look} --tree; if none has sent, half "
            "of them have to send first, or use a call that does both; if one has, compare its "
            "receiver, tag and group with what is waited for",
            tuple(sorted(scene.by_number)),
            tuple(line for one in scene.ranks[:4] for line in rank_lines(one)),
        )
        return
    if len(groups) < 2:
        if known == WAITING:
            yield from _by_another_way(scene)
        return
    yield different_calls(scene, groups)


def different_calls(scene: Scene, groups: Mapping[str, list[Rank]]) -> Cause:
    """Return the finding about ranks that wait in different calls, by what they wait in."""
    listed = sorted(groups.items(), key=lambda item: len(item[1]))
    few = listed[0][1] if len(listed[0][1]) < len(listed[1][1]) else []
    in_calls = "; ".join(f"{ranks_in_words(ranks)} in {where}" for where, ranks in listed[:4])
    return Cause(
        "ranks.differ",
        _severity(scene, any(_may_go_on(one) for ranks in groups.values() for one in ranks)),
        f"ranks wait for each other in different calls{scene.since}: {in_calls}",
        only({rank.host.host for rank in few}),
        "all ranks have to make the same calls in the same order: see what leads these ranks "
        f"there; then {scene.hints.cancel}",
        tuple(sorted(rank.number for rank in few)),
        tuple(line for _, ranks in listed for line in rank_lines(ranks[0]))[:8],
    )


def _may_go_on(rank: Rank) -> bool:
    """Return whether a rank that waits may only lack a processor, or a thread of its own."""
    starved = "R" in rank.states and rank.grown("main_cpu_s") < 0.5 * rank.span_s
    return starved or (rank.place is Activity.INIT and rank.grown("cpu_s") >= RESTS * rank.span_s)


def _by_another_way(scene: Scene) -> Iterator[Cause]:
    """Few ranks that wait at the line where all do, and came there by other calls of a library: one
    line may call several functions, and a compiled function's first call is not as its later ones.
    """
    groups: dict[tuple[str, ...], list[Rank]] = {}
    for rank in scene.waiting:
        if rank.moved or not rank.shared_frames:
            return
        groups.setdefault(tuple(one.function for one in rank.shared_frames), []).append(rank)
    few = min(groups.values(), key=len)
    if len(groups) != 2 or len(few) * 2 >= len(scene.waiting):
        return
    [most] = [ranks for ranks in groups.values() if ranks is not few]
    at = few[0].user_call
    place = f"{few[0].waits_in}{f' at {label(at)}' if at else ''}"
    yield Cause(
        "ranks.differ",
        ERROR,
        f"all ranks wait in {place}{scene.since}, and {ranks_in_words(few)} came there by other "
        "calls than the others: into another function, or into one for the first time",
        only({rank.host.host for rank in few}),
        "all ranks have to make the same calls in the same order: see which functions that line "
        f"calls; then {scene.hints.cancel}",
        tuple(sorted(rank.number for rank in few)),
        tuple(_where_it_parts(one, other) for one, other in ((few[0], most[0]), (most[0], few[0]))),
    )


def _where_it_parts(rank: Rank, other: Rank) -> str:
    """Return the calls of a rank from the last one that it shares with the other rank."""
    names = [[one.function for one in each.shared_frames] for each in (rank, other)]
    same = len(os.path.commonprefix(names))
    calls = rank.shared_frames[max(0, same - 1) : same + 3]
    return f"rank {rank.number}: … > {' > '.join(map(label, calls))}"


# Calls in which a thread sleeps until a process, a thread or a signal wakes it.
_WOKEN = ("pause", "rt_sigsuspend", "rt_sigtimedwait", "futex", "wait4", "waitid")


def at_rest(scene: Scene) -> Iterator[Cause]:
    """All ranks of a job that stands still, if each sleeps, or waits for something that is no
    rank: nobody is there for whom another one waits."""
    if not scene.stands_still or scene.moves or len({*map(signature, scene.ranks)}) != 1:
        return
    found = []
    for rank in scene.ranks:
        call = rank.last.syscall.partition(" ")[0]
        is_nap = "nanosleep" in call
        joins = any("join" in one.function for one in rank.native.frames)
        # Below a futex, a library may wait for other ranks.
        is_known = is_nap or (call in _WOKEN and (call != "futex" or rank.native.is_outside))
        # Also what a shell that it has started has started, or the thread whose end it waits for.
        working = any(map(is_working, rank.below)) or (joins and is_working(rank.process))
        uses = rank.grown("cpu_s") >= RESTS * rank.span_s or working
        if not is_known or not rests(rank) or uses or rank.waits or rank in scene.left:
            return
        if is_nap and rank.process.shared_bytes:
            return  # it sends now and then, and naps
        where = f" in {label(rank.user_call)}" if rank.user_call else ""
        read = all(one.native.where for one in scene.ranks)
        where = f" ({rank.native.where})" if read else where
        one = _resting(scene, rank, where, (*rank_lines(rank), *inner_lines(rank)))
        alone = "and none of their threads works" if joins else "and no rank waits for another"
        # Between short naps it may ask whether another rank has come.
        is_told = bool(scene.ranks[1:]) and not is_nap
        what = one.what + scene.since + f", {alone}" * is_told
        # It, or the process or thread that it waits for, may wake by itself, and a GPU may work
        # meanwhile. Nor is known what a process does of which nothing was read.
        ends = [one.call.partition(" ")[0] for one in chain(scene, rank).partners[-1:]]
        ends += [""] * (call.startswith("wait") and not ends)
        wakes = is_nap or joins or any("nanosleep" in one or one in POLLING_CALLS for one in ends)
        severity = WARNING if wakes or rank.host.gpus else ERROR
        found.append(one._replace(check="ranks.resting", severity=severity, what=what))
    yield from combine(found)


# System calls and states of a program that waits for messages by asking again and again.
POLLING, COMPUTING = "running or polling", "computing"


def apart(scene: Scene) -> Iterator[Cause]:
    """Few ranks that do something else than most, in a job of which no library's call tells who
    waits: programs in C, and Python that calls MPI."""
    if scene.advances or scene.moves or not scene.is_running or suspects(scene) or scene.left:
        return
    ranks = [one for one in scene.ranks if one.samples and not scene.works(one)]
    if len(scene.ranks) < 3 or len(ranks) < len(scene.ranks):
        return
    groups: dict[str, list[Rank]] = {}
    places = {one.number: signature(one) for one in ranks}
    places |= {one.number: COMPUTING for one in scene.computing}
    for rank in ranks:
        groups.setdefault(places[rank.number], []).append(rank)
    most = max(groups, key=lambda name: len(groups[name]))
    if POLLING in groups and not any(name.startswith("in futex") for name in groups):
        # Who polls may wait for a message. Who is in another call does not, be they most.
        most = POLLING
    few = [rank for name, several in groups.items() if name != most for rank in several]
    minority = len(few) * 2 < len(ranks) or most == POLLING
    if not few or not minority or any(one.place in STARTING for one in ranks):
        return
    if any(one.is_python and one.moved for one in groups[most]):
        return  # they were there at one look only: nobody waits
    if not scene.is_quiet and any(map(is_saving, few)):
        return
    # A program that prints no steps may have a rank that hands out work, and rests between.
    least = WORKS_SHARE if scene.has_made_steps else 0.0
    if any(_works_at_times(one, least) for one in few if places[one.number] != COMPUTING):
        return
    rest = [one.number for one in groups[most]]
    alone, others = "alone ", f": the others are {most}"
    if len(few) > len(rest):
        alone, others = "", f", and {format_ranks(rest)} {'are' if len(rest) > 1 else 'is'} {most}"
    found = []
    for rank in few:
        # Only a few ranks of a group are read. Where one of them is need not be where all are.
        read = all(one.native.where for one in groups[places[rank.number]])
        at = f" ({rank.native.where})" if read else ""
        at += waits_for(scene, rank, places[rank.number]) + _other_program(rank, groups[most])
        what = f"{{is}} {alone}{places[rank.number]}{at}{scene.since}{others}"
        hint = f"{scene.hints.look} --tree shows its calls"
        if not rank.is_python and not rank.native.frames:
            hint = f"its calls, for which it is held a moment: {gdb_command(scene, rank)}"
        if rank.last.syscall.startswith("wait"):
            hint = chain(scene, rank).hint(scene) or hint
        # Who polls, of the others, waits. Who runs in Python may not, unless its calls in C tell.
        waits = any(one.native.mpi for one in groups[most])
        unsure = (rank, *(x for x in groups[most] if x.is_python and not (x.waits or waits)))
        severity = _severity(scene, any("R" in one.states for one in unsure))
        if evaluates(scene, rank):
            severity = INFO
        if not rank.is_python and severity is INFO:
            severity = WARNING  # its calls are not known
        if may_work(scene, rank) and severity is ERROR:
            severity = WARNING
        tells = scene.quiet_s is not None and any(map(str.strip, scene.job.log))
        tells |= scene.only_tries
        if not tells and scene.repeats is not Sign.REPEATED and severity is ERROR:
            severity = WARNING
        shown = (*rank_lines(rank), *inner_lines(rank))
        found.append(RankFinding("rank.apart", severity, rank, what, shown, hint))
    yield from combine(_with_stopped(scene, one) for one in found)


def evaluates(scene: Scene, rank: Rank) -> bool:
    """Return whether a rank works in a function that saves or evaluates, by its name, and need not
    be called stuck yet."""
    return is_saving(rank) and rank.uses_processor and scene.since_step_s < LONGEST_ALONE_S


def may_work(scene: Scene, rank: Rank) -> bool:
    """Return whether a rank need not be called stuck yet, though nothing names what it does: in C
    it computes, and may evaluate; or it waits for a process at work, such as a compiler, or gets
    on in a file, as one that downloads or saves."""
    computes = "R" in rank.states and not rank.is_python and rank.native.is_unnamed
    waits = rank.last.syscall.startswith("wait")
    works = waits and any(is_working(one, READ_BYTES) for one in rank.below)
    moved = rank.grown("main_read_bytes") + rank.grown("main_written_bytes")
    works |= moved > READ_BYTES and rank.turns_in_file or rank.gets_on and not rank.is_python
    return (computes or works) and scene.since_step_s < LONGEST_ALONE_S


def _other_program(rank: Rank, others: list[Rank]) -> str:
    """Return which program a rank runs, if all others run another one: its own may have replaced
    itself (exec(3)). What has started a process may be a wrapper of the same program."""
    own, *theirs = ["".join(one.process.argv[:1]).rpartition("/")[2] for one in (rank, *others)]
    if own in theirs or len({*theirs}) != 1 or rank.is_python or rank.shell_script or rank.children:
        return ""
    return f", and runs `{' '.join(rank.process.argv)[:60]}`, where the others run {theirs[0]},"


def _works_at_times(rank: Rank, least: float) -> bool:
    """Return whether a rank used this share of a processor, and was in a system call only at some
    looks.

    It may compute and sleep in turn, as who hands out work and who does it.
    """
    calls = {sample.syscall.partition(" ")[0] or "running" for sample in rank.samples}
    return len(calls) > 1 and rank.grown("main_cpu_s") >= least * rank.span_s


def signature(rank: Rank) -> str:
    """Return in words where a rank is: in a line of the user's, or in a system call."""
    if rank.waits_in:
        return f"in {rank.waits_in}"
    if rank.user_call:
        return f"in {label(rank.user_call)}"
    calls = {sample.syscall.partition(" ")[0] for sample in rank.samples}
    if calls <= POLLING_CALLS and set(rank.states) <= {"R", "S"}:
        return POLLING
    state = "" if set(rank.states) <= {"R", "S"} else f" (state {rank.states[-1]})"
    if rank.last.syscall.startswith("wait"):
        return f"waiting for a process that it has started{state}"
    # Each rank has pipes and sockets of its own.
    call = re.sub(r"(pipe|socket):\[\d+\]", r"a \1", rank.last.syscall)
    return f"{call if call == 'running' else f'in {call}'}{state}"


def _full_by_log(scene: Scene, rank: Rank, root: LogFinding | None) -> str:
    """Return a full file system of the rank's host if the log shows that it has no space for it.

    The error in the log must not be that of another rank. Else the result is empty.
    """
    paths = [path for host, path in full_filesystems(scene) if host is rank.host]
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
            scene.hints.steps(
                scene.hints.cluster("copy it to all: clusterctl copy NAME FILE DST")
                or "copy it to all hosts",
                "then start the job again",
            ),
            tuple(sorted(rank.number for rank in odd)),
            tuple(
                f"{name} {digest} on {fold_hosts(sorted({rank.host.host for rank in ranks}))}"
                for digest, ranks in by_digest.items()
            ),
            blocks,
        )
