"""Which ranks are stopped for a moment, so that their calls in C can be read.

As in LLNL's STAT, ranks that do the same form a group. One of each is read, then those for whom
these wait, or if that is not known, others; the outliers first, and never many.
"""

from __future__ import annotations

from clusterctl.diagnosis.case import Scene
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.frames import Activity
from clusterctl.diagnosis.native import MOST
from clusterctl.diagnosis.ranks import Rank
from clusterctl.diagnosis.rules.activity import signature
from clusterctl.diagnosis.verdict import UNKNOWN, diagnose

# Verdicts that calls in C may explain. Others name the cause already.
OPEN = (UNKNOWN, "rank.apart", "rank.busy", "rank.unstarted", "ranks.resting")


def to_read(evidence: Evidence) -> list[Rank]:
    """Return the ranks whose calls in C should be read next; none if the evidence is enough."""
    scene = Scene(evidence)
    read = [one for one in scene.ranks if one.process.native]
    left = [one for one in scene.ranks if not one.process.native and _ends_outside_python(one)]
    if not left or len(read) >= MOST or diagnose(evidence).check not in OPEN:
        return []
    if read:
        peers = {one.native.peer for one in read}
        chosen = [one for one in left if one.number in peers]
        if not chosen:
            # Some that were read wait for all: any other may not, or wait in another collective.
            # A Python is held for longer: one at a time, and never more than half of them.
            few = left[-1:] if 2 * len(read) < len(scene.ranks) else []
            chosen = [one for one in left if not one.is_python] or few
            chosen = chosen if any(one.native.frames for one in read) else []
        return chosen[: MOST - len(read)]
    groups: dict[str, list[Rank]] = {}
    for one in left:
        kind = "computing" if one in scene.computing else signature(one)
        groups.setdefault(kind, []).append(one)
    return [several[0] for several in sorted(groups.values(), key=len)][:MOST]


def to_connect(evidence: Evidence) -> dict[str, tuple[Rank, str]]:
    """Return, by host, a rank that waits at the start of its communication, and where the job's
    ranks meet: whether that can be reached from there is worth a try."""
    scene = Scene(evidence)
    found: dict[str, tuple[Rank, str]] = {}
    for one in scene.ranks if not scene.has_made_steps else ():
        if one.process.meets_at and one.place is Activity.INIT:
            found.setdefault(one.host.host, (one, one.process.meets_at))
    return dict([*found.items()][:MOST])


def _ends_outside_python(rank: Rank) -> bool:
    """Return whether a rank runs its program, and its calls in Python do not say what it is
    doing."""
    if rank.shell_script or not rank.states or set(rank.states) - {"R", "S"}:
        return False
    if not rank.is_python:
        return True
    loops = rank.place is Activity.USER and rank.was("R") and not rank.moved
    return loops or rank.waits_in.startswith("mpi4py")
