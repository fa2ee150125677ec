"""Rules on the calls of ranks in C, C++ and Fortran."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.diagnosis.case import ERROR, WARNING, Cause, Scene
from clusterctl.diagnosis.ranks import Rank, called, rank_lines


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


def _said(rank: Rank) -> str:
    return f"rank {rank.number} on {called(rank.host)}"


def cycles(scene: Scene) -> Iterator[Cause]:
    """Ranks that wait for each other in a circle: none of them can go on."""
    waits, seen = _waits(scene), set[int]()
    for start in sorted(waits):
        chain = [start]
        while (after := waits.get(chain[-1])) is not None and after not in chain:
            chain.append(after)
        if after != start or start in seen:
            continue
        seen |= set(chain)
        ranks = [scene.by_number[number] for number in chain]
        if len(ranks) == 2 and len({one.native.mpi.lower().endswith("send") for one in ranks}) == 2:
            continue  # one sends what the other receives
        words = ", and ".join(
            f"{_said(one)} waits for rank {waits[one.number]} {one.native.where}" for one in ranks
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
        if not late or not late.native.frames or late.native.mpi:
            continue
        waiting = scene.by_number[number]
        yield Cause(
            "mpi.awaited",
            ERROR if scene.is_quiet and scene.has_made_steps else WARNING,
            f"{_said(late)} is {late.native.where}, not in MPI, and {_said(waiting)} waits for it "
            f"{waiting.native.where}",
            late.host.host,
            f"{scene.hints.look} --tree shows its calls",
            ranks=(peer,),
            evidence=(*rank_lines(late), *rank_lines(waiting)),
        )
