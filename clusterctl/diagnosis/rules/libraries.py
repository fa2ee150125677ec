"""Rules on what the libraries report about ranks: Horovod's stall lines and NCCL's RAS."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.diagnosis import nccl
from clusterctl.diagnosis.case import ERROR, WARNING, Cause, Scene
from clusterctl.diagnosis.frames import Activity
from clusterctl.diagnosis.ranks import Rank, called, format_ranks, only, ranks_in_words
from clusterctl.diagnosis.tree import label
from clusterctl.domain.ranges import fold_hosts


def stalled(scene: Scene) -> Iterator[Cause]:
    """Ranks that, by Horovod's stall report, are missing from tensors that others submitted."""
    stall = scene.stall
    if stall is None or not scene.is_running:
        return
    absent = stall.absent(scene.size)
    lines = scene.job.log[stall.at : stall.last + 1]
    shown = tuple(line.strip()[-200:] for line in lines if len(lines) == 1 or "[" in line[:40])[-8:]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, tensors in absent.items():
        groups.setdefault(tensors, []).append(rank)
    if not groups:
        return
    hint = (
        "all ranks have to run the same code on as many batches: compare the scripts and the data "
        f"of these nodes; then {scene.hints.cancel}"
    )
    if len(groups) == 1:
        [(tensors, ranks)] = groups.items()
        yield _missed(scene, ranks, tensors, hint, shown)
        return
    # Several groups of ranks are missing from different tensors: they wait for each other.
    listed = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    fewest, few = listed[0]
    odd = len(few) * 2 < scene.size and len(few) < len(listed[1][1])
    versions = "; ".join(
        f"{format_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'} not submitted "
        f"{_tensors(tensors)}"
        for tensors, ranks in listed[:4]
    )
    s = "" if len(few) > 1 else "s"
    probably = f": probably {format_ranks(few)} skip{s} `{fewest[0]}`, or submit{s} it later"
    yield Cause(
        "rank.skipped" if odd else "ranks.order",
        ERROR,
        "ranks wait for each other, since they do not submit the same tensors in the same order: "
        f"{versions}{probably if odd else ''}",
        only(scene.hosts_of(few)) if odd else None,
        hint,
        tuple(few) if odd else (),
        shown,
    )


def _missed(
    scene: Scene, ranks: list[int], tensors: tuple[str, ...], hint: str, shown: tuple[str, ...]
) -> Cause:
    """Return the cause that ranks are missing from what all others have submitted."""
    hosts = scene.hosts_of(ranks)
    where = f" on {fold_hosts(hosts)}" if hosts else ""
    if len(hosts) == 1:
        where = f" on {called(scene.host_of[ranks[0]])}"
    here = [scene.by_number[rank] for rank in ranks if rank in scene.by_number]
    rest = [one for one in scene.ranks if one.number not in ranks]
    if rest and len(rest) < len(here) == len(ranks) and all(one.waits for one in here):
        return _apart(scene, rest, here, tensors, hint, shown)
    do = "; ".join(sorted({_doing(one) for one in here} - {""}))
    has, is_at = ("have", "they are") if len(ranks) > 1 else ("has", "it is")
    return Cause(
        "rank.missed" if len(ranks) > 1 else "rank.skipped",
        ERROR,
        f"{format_ranks(ranks)}{where} {has} not entered {scene.waited_for(ranks)}{scene.since}"
        + (f": {is_at} {do}" if do else ""),
        only(hosts),
        hint,
        tuple(ranks),
        shown,
    )


def _apart(
    scene: Scene,
    few: list[Rank],
    missing: list[Rank],
    tensors: tuple[str, ...],
    hint: str,
    shown: tuple[str, ...],
) -> Cause:
    """Return the cause that few ranks submitted tensors that all others have not, which wait
    elsewhere: each of the two waits for the other."""
    has = "have" if len(few) > 1 else "has"
    where = sorted({one.waits_in or one.place.value for one in missing})
    return Cause(
        "ranks.order",
        ERROR,
        f"ranks wait for each other: {ranks_in_words(few)} {has} submitted {_tensors(tensors)}, "
        f"which the other {len(missing)} ranks have not; they wait in {' and '.join(where)}"
        + scene.since,
        only({one.host.host for one in few}),
        hint,
        tuple(sorted(one.number for one in few)),
        shown,
    )


def _tensors(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _doing(rank: Rank) -> str:
    call = rank.user_call
    if rank.place is Activity.UNKNOWN:
        return f"in {label(call)}" if call else ""
    return f"{rank.place.value}" + (f", {label(call)}" if call else "")


def ras(scene: Scene) -> Iterator[Cause]:
    """Ranks that, by NCCL's RAS, lag in a communicator or do not answer, in a job without steps."""
    if scene.advances or not scene.is_running:
        return
    handled: set[str] = set()
    for host in scene.evidence.hosts:
        for one in nccl.read_ras(host.ras):
            if one.name in handled:
                continue
            handled.add(one.name)
            lost = (*one.dead, *one.silent)
            if lost:
                word = "considers dead" if one.dead else "gets no answer from"
                yield _of_ras(scene, "nccl.silent", lost, f"NCCL {word} {{who}}")
            elif one.behind and len(one.behind) * 2 < one.size:
                most = max(one.counts.values())
                least = min(one.counts.values())
                yield _of_ras(
                    scene,
                    "nccl.behind",
                    one.behind,
                    f"{{who}} lag{'' if len(one.behind) > 1 else 's'} in NCCL: {least} collectives "
                    f"launched, the others {most}",
                )


def _of_ras(scene: Scene, check: str, ranks: tuple[int, ...], message: str) -> Cause:
    return Cause(
        check,
        ERROR if scene.is_quiet else WARNING,
        message.format(who=scene.on_hosts(ranks)),
        only(scene.hosts_of(ranks)),
        f"{scene.hints.look} --tree shows where they are",
        ranks,
    )
