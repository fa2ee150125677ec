"""Rules on what PyTorch tells of its collectives: the Flight Recorder's dumps, and the watchdog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl.diagnosis.case import ERROR, WARNING, Cause, Scene
from clusterctl.diagnosis.flight import Differing, Missing, compare, in_words, of_log
from clusterctl.diagnosis.ranks import format_ranks, only
from clusterctl.node.facts.flight import Collective, FlightDump

MOST_CALLS = 4  # of one difference are shown
DUMPING_S = 120.0  # after it has dumped, a rank may still write so long


def recorded(scene: Scene) -> Iterator[Cause]:
    """Ranks that are missing from a collective, or have called another one than the others."""
    if scene.is_running and scene.advances:
        return
    dumps = [
        one
        for host in scene.evidence.hosts
        for one in host.known.flight_dumps
        if scene.job.job_id and one.job_id == scene.job.job_id
    ]
    if scene.is_running:
        # A dump that is much older than the last words of the log is of a time before them.
        silent_s = scene.job.log_silent_s or 0.0
        dumps = [one for one in dumps if one.error or one.age_s <= silent_s + DUMPING_S]
    source, found = "Flight Recorder", compare(dumps)
    if not found:
        ranks = [line for lines in scene.job.rank_logs.values() for line in lines]
        source, found = "watchdog", compare(of_log([*scene.job.log, *ranks], scene.size))
    for one in found:
        if isinstance(one, Missing):
            yield _missing(scene, one, source)
        else:
            yield _differing(scene, one, source)
    damaged = [one for one in dumps if one.error]
    if damaged:
        yield _damaged(scene, damaged)


def _missing(scene: Scene, one: Missing, source: str) -> Cause:
    has, its = ("have", "their") if len(one.ranks) > 1 else ("has", "its")
    number = one.collective.sequence
    waits = "waits" if len(one.waiting) == 1 else "wait"
    last = _calls(one.before)
    text = (
        f"{scene.on_hosts(one.ranks)} {has} not called collective {number} of process group "
        f"{one.group}, {in_words(one.collective)}, in which {format_ranks(one.waiting)} {waits}"
        + (f"; {its} last: {'; '.join(last[:MOST_CALLS])}" if last else "")
        + _unknown(one.unknown)
    )
    return _cause(scene, "torch.missing", text, one.ranks, source)


def _differing(scene: Scene, one: Differing, source: str) -> Cause:
    calls = "; ".join(
        f"{scene.on_hosts(ranks)}: {in_words(call)}" for call, ranks in one.calls[:MOST_CALLS]
    )
    more = len(one.calls) - MOST_CALLS
    text = (
        f"ranks differ in collective {one.sequence} of process group {one.group}: {calls}"
        + (f"; and {more} more" if more > 0 else "")
        + _unknown(one.unknown)
    )
    return _cause(scene, "torch.mismatch", text, one.ranks, source)


def _cause(scene: Scene, check: str, text: str, ranks: tuple[int, ...], source: str) -> Cause:
    then = f"then {scene.hints.cancel}" if scene.is_running else ""
    return Cause(
        check,
        ERROR,
        text,
        only(scene.hosts_of(ranks)),
        scene.hints.steps("all ranks have to call the same collectives", then),
        ranks,
        (f"from PyTorch's {source}",),
    )


def _calls(before: Mapping[int, Collective]) -> list[str]:
    """Return the last calls of ranks in words, each once."""
    by_text: dict[str, list[int]] = {}
    for rank, one in before.items():
        by_text.setdefault(f"{one.sequence}, {in_words(one)}", []).append(rank)
    if len(by_text) == 1:
        return list(by_text)
    return [f"{format_ranks(ranks)}: {text}" for text, ranks in by_text.items()]


def _unknown(ranks: tuple[int, ...]) -> str:
    return f"; of {format_ranks(ranks)} nothing is recorded" if ranks else ""


def _damaged(scene: Scene, dumps: list[FlightDump]) -> Cause:
    shown = tuple(f"{one.path}: {one.error}" for one in dumps[:8])
    ranks = tuple(sorted(one.rank for one in dumps))
    text = f"the Flight Recorder's dumps of {format_ranks(ranks)} cannot be read: {dumps[0].error}"
    return Cause("torch.dump", WARNING, text, None, "", ranks, shown, blocks=False)
