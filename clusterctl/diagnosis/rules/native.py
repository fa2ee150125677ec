"""Rules on the calls of ranks in C, C++ and Fortran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from clusterctl.diagnosis.case import ERROR, STARTING_S, WARNING, Cause, Scene
from clusterctl.diagnosis.native import MOST
from clusterctl.diagnosis.partners import waits_for
from clusterctl.diagnosis.ranks import (
    Rank,
    called,
    format_ranks,
    is_saving,
    only,
    rank_lines,
    ranks_in_words,
)
from clusterctl.diagnosis.rules.activity import (
    POLLING,
    different_calls,
    may_work,
    rests,
    signature,
)

# Calls of MPI in which all ranks of a communicator, a window or a file wait for each other.
COLLECTIVE = re.compile(
    r"(?i)MPI_(I?(neighbor_)?(barrier|bcast|(ex)?scan|alltoall[vw]?|(all)?gatherv?|scatterv?"
    r"|(all)?reduce|reduce_scatter(_block)?)|comm_(i?dup\w*|split\w*|create|spawn\w*)"
    r"|intercomm_(create|merge)|(cart|graph|dist_graph)_create\w*|win_(create\w*|allocate\w*|fence"
    r"|free)|file_(open|close|sync|set_(view|size)|(read|write)\w*_(all|ordered)\w*))_?"
)
# By which each rank begins: what is in none of MPI's calls yet may be on the way there.
STARTS = re.compile(r"(?i)MPI_Init(_thread)?_?")
# Those that a rank may leave before the others have come.
LEAVES_EARLY = re.compile(r"(?i)MPI_I?(bcast|scan|exscan|gather|scatter|reduce_?(\W|$))")
AHEAD = "one may be a call ahead: not every collective waits for all ranks"


def _waits(scene: Scene) -> dict[int, int]:
    """Return for whom ranks wait that made no other call for a second, as far as that is known.

    A rank whose bytes move is in a long exchange.
    """
    if scene.advances or scene.moves or not scene.is_running:
        return {}
    return {
        one.number: one.native.peer
        for one in scene.ranks
        if one.native.peer is not None
        and one.native.calls.same
        and one.native.peer != one.number
        and not scene.works(one)
    }


def _wait_in_words(rank: Rank) -> str:
    return f"rank {rank.number} on {called(rank.host)}"


def cycles(scene: Scene) -> Iterator[Cause]:
    """Ranks that wait for each other in a circle: none of them can go on."""
    waits, visited = _waits(scene), set[int]()
    for start in sorted(waits):
        chain = [start]
        while (after := waits.get(chain[-1])) is not None and after not in chain:
            chain.append(after)
        if after != start or start in visited:
            continue
        visited |= set(chain)
        ranks = [scene.by_number[number] for number in chain]
        if len(ranks) == 2 and len({one.native.mpi.lower().endswith("send") for one in ranks}) == 2:
            continue  # one sends what the other receives
        words = ", and ".join(
            f"{_wait_in_words(one)} waits for rank {waits[one.number]} {one.native.where}"
            for one in ranks
        )
        yield Cause(
            "mpi.cycle",
            ERROR,
            f"ranks wait for each other in a circle: {words}",
            hint="one of them has to send first, or both use MPI_Sendrecv; then "
            f"{scene.hints.cancel}",
            ranks=tuple(sorted(chain)),
            evidence=tuple(line for one in ranks for line in rank_lines(one))[:8],
        )


def awaited(scene: Scene) -> Iterator[Cause]:
    """A rank that another one waits for, and that is in no call of MPI."""
    for number, peer in _waits(scene).items():
        late = scene.by_number.get(peer)
        if not late or not late.native.is_outside:
            continue
        waiting = scene.by_number[number]
        yield Cause(
            "mpi.awaited",
            ERROR if scene.is_quiet and scene.has_made_steps else WARNING,
            f"{_wait_in_words(late)} is {late.native.where}, not in MPI, and "
            f"{_wait_in_words(waiting)} waits for it {waiting.native.where}",
            late.host.host,
            f"{scene.hints.look} --tree shows its calls",
            ranks=(peer,),
            evidence=(*rank_lines(late), *rank_lines(waiting)),
        )


def _begins(scene: Scene) -> bool:
    """Return whether a job that is no longer young has made no step."""
    ages = [one.process.age_s for one in scene.ranks]
    return scene.is_running and not scene.has_made_steps and min(ages, default=0.0) >= STARTING_S


def _read(scene: Scene) -> list[Rank]:
    """Return the ranks whose calls in C were read, if these are enough to tell what all do: else
    none. Ranks that stay at one line of Python do the same."""
    read = [one for one in scene.ranks if one.native.frames]
    lines = {signature(one) for one in read if one.user_call}
    rest = [one for one in scene.ranks if one not in read and signature(one) not in lines]
    moves = any(one.is_python and one.moved for one in scene.ranks)
    return [] if moves or (rest and len(read) < MOST) else read


def standing(scene: Scene) -> Iterator[Cause]:
    """All ranks of a job that stands still, if each waits in a call of MPI and sends nothing: what
    they wait for never comes.

    Which of them is wrong is not known.
    """
    read = _read(scene)
    if not scene.is_stuck or not scene.is_whole or not read:
        return
    if not all(one.native.mpi for one in read):
        return
    at = {signature(one): one for one in read if one.user_call}
    groups: dict[str, list[Rank]] = {}
    for one in scene.ranks:
        known = one if one.native.frames else at.get(signature(one))
        if known:
            groups.setdefault(known.native.where, []).append(one)
    is_one = any(COLLECTIVE.fullmatch(one.native.mpi) for one in read)
    sends = scene.moves or any(map(scene.works, scene.ranks))
    # Whether data move through memory, or past the kernel, may not be known.
    near = Counter(one.host.host for one in scene.ranks)
    is_dark = any(
        one.host.efa or (one.process.shared_bytes is None and near[one.host.host] > 1)
        for one in scene.ranks
    )
    if sends or is_dark or (len(groups) > 1 and is_one) or any(cycles(scene)):
        return
    listed = sorted(groups.items(), key=lambda item: len(item[1]))
    each = "; ".join(f"{ranks_in_words(ranks)} {where}" for where, ranks in listed[:4])
    known_ranks = [one.number for ranks in groups.values() for one in ranks]
    is_all = len(known_ranks) == len(scene.ranks)
    who = "all ranks" if is_all else f"{format_ranks(known_ranks)}, whose calls were read,"
    yield Cause(
        "mpi.standing",
        ERROR,
        f"{who} wait{scene.since} in calls that do not end, while no data are observed to move: "
        f"{each if listed[1:] else listed[0][0]}",
        hint="compare what these calls name: communicator, root, the other rank, tag and sizes "
        f"have to fit; then {scene.hints.cancel}",
        ranks=tuple(sorted(known_ranks)),
        evidence=tuple(line for _, ranks in listed for line in rank_lines(ranks[0]))[:8],
    )


def collectives(scene: Scene) -> Iterator[Cause]:
    """Ranks of a job that stands still: some wait in a collective, and others in another one, or in
    another call of MPI, or in none.

    Which ranks have to meet in a collective is not known: that depends on the communicator.
    """
    read = _read(scene)
    groups: dict[str, list[Rank]] = {}
    for one in read:
        if one.native.mpi:
            groups.setdefault(one.native.where.removeprefix("in "), []).append(one)
    calls = [several[0].native.mpi for several in groups.values()]
    starts = _begins(scene) and any(map(STARTS.fullmatch, calls))
    is_one = scene.stands_still and any(map(COLLECTIVE.fullmatch, calls))
    if not (starts or is_one) or scene.moves:
        return
    outside = [one for one in read if one.native.is_outside]
    if any(not one.native.mpi and one not in outside for one in read):
        return  # in a call of MPI that is not known
    if starts and not (outside and all(map(rests, outside))):
        return  # its way there may be long
    if not outside and len(groups) > 1:
        found = different_calls(scene, groups)
        ahead = any(map(LEAVES_EARLY.match, groups))
        yield replace(found, hint=f"{found.hint}; {AHEAD}") if ahead else found
    # While data between ranks go on, who computes may be in its own work for a moment.
    busy = any(map(scene.works, outside))
    if busy:
        outside = [one for one in outside if rests(one) and not scene.works(one)]
    # If a system call or the processor tells them apart, of three ranks, another rule names them.
    apart = any(signature(one) != POLLING or one in scene.computing for one in outside)
    is_named = apart and len(scene.ranks) > 2 and not (busy or starts)
    if not outside or is_named or any(map(is_saving, outside)):
        return
    where = " or ".join(sorted({one.native.where for one in outside}))
    does = (
        f"{'is' if len(outside) == 1 else 'are'} {where}{waits_for(scene, outside[0])}, not in MPI"
    )
    inside = [one for one in read if one.native.mpi]
    wait = "waits" if len(inside) == 1 else "wait"
    rest = f"{format_ranks([one.number for one in inside])} {wait} in {' and '.join(groups)}"
    no_step = f"; no step was shown{scene.since}" * bool(scene.since and not starts)
    # By the mean since the start alone, who computes may evaluate.
    sleep = all(one.was("S") for one in outside) and (scene.is_overdue or not starts)
    busy = busy or all(may_work(scene, one) for one in outside)
    yield Cause(
        "mpi.awaited",
        ERROR if (scene.is_stuck or sleep) and not busy else WARNING,
        f"{ranks_in_words(outside)} {does}: {rest}{no_step}",
        only({one.host.host for one in outside}),
        f"{scene.hints.look} --tree shows the calls",
        tuple(one.number for one in outside),
        tuple(line for one in (*outside[:2], inside[0]) for line in rank_lines(one)),
    )
