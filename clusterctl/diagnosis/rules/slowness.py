"""Rules on jobs that make steps, but slow ones: stragglers, slow links, a falling speed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.diagnosis.case import WARNING, Cause, RankFinding, Scene, combine, gdb_command
from clusterctl.diagnosis.evidence import HostEvidence
from clusterctl.diagnosis.frames import WAITING, Activity
from clusterctl.diagnosis.hostchecks import card_errors_in_words, idle_among
from clusterctl.diagnosis.progress import FEW_TIMES, number_in
from clusterctl.diagnosis.ranks import Rank, called, is_saving, rank_lines, syscall_path
from clusterctl.diagnosis.repeats import NUMBERED
from clusterctl.diagnosis.tree import label
from clusterctl.domain.units import format_bytes, format_duration
from clusterctl.node.facts.network import IMPAIRED, RETRANSMITTED, SENT, UNRESPONSIVE

# A link is slow if at least MOVED_BYTES were sent over it, for SENDING_SHARE of the time, if its
# round trip is ROUND_TRIP_S or more, and if both speed and round trip are TIMES_SLOWER times worse
# than on another link. Shorter round trips prove nothing: Linux delays acknowledgements by 40 ms.
MOVED_BYTES, SENDING_SHARE, ROUND_TRIP_S, TIMES_SLOWER = 64 << 10, 0.25, 0.05, 8
# A host's EFA cards retransmit too much if it is RETRANSMITTED_SHARE of at least MANY_PACKETS. Of
# several hosts in trouble, one is worse than the rest if it counts TIMES_WORSE as much.
RETRANSMITTED_SHARE, MANY_PACKETS, TIMES_WORSE = 0.01, 100_000, 2
# A card stands idle if it moves nothing while this host's cards move so much each, in the median.
CARD_MOVED_BYTES = 64 << 20
# With at least GLANCES glances: a straggler works in WORKS_SHARE of them, the other ranks on
# average in RESTS_SHARE at most.
GLANCES, WORKS_SHARE, RESTS_SHARE = 15, 0.6, 0.3
# One that sleeps all the time takes fewer glances.
FEW_GLANCES, SLEEPS_SHARE = 6, 0.9
# The same for samples: a straggler is at its own work in BUSY_SHARE of them, and the other ranks
# wait in WAIT_SHARE of theirs.
BUSY_SHARE, WAIT_SHARE = 0.75, 0.5
# A cgroup that was throttled for this share of the time.
THROTTLED_SHARE = 0.3
SLOWED = 1.5  # how many times slower the last steps of a job have to be
# The same for the times of rows, among which may be those of an evaluation.
SLOWED_ROWS = 4.0


def stragglers(scene: Scene) -> Iterator[Cause]:
    """Slow ranks in a job that makes steps: they are at their own work while the others wait."""
    goes_on = scene.exchanges or (scene.advances and not scene.doubt)
    if not goes_on or len(scene.ranks) < 2:
        return
    own = {one.number: _own_share(one) for one in scene.ranks if len(one.samples) > 1}
    # In C, who runs may be asking for a message.
    glanced = [one for one in scene.ranks if len(one.process.glances) >= GLANCES]
    works = {
        one.number: _share(one.process.glances, "RD" if one.is_python else "D") for one in glanced
    }
    numbers = _apart(own, BUSY_SHARE, 1 - WAIT_SHARE)
    # Three samples may meet a rank at its own work by chance. Then the others work as often.
    asleep = [_share(one.process.glances, "zSDT") for one in glanced if one.number not in numbers]
    if asleep and statistics.mean(asleep) > RESTS_SHARE:
        numbers = set()
    numbers = numbers or _apart(works, WORKS_SHARE, RESTS_SHARE)
    # Others may wait for a process of their own, or have ended, and these for a message in mpi4py.
    rest = [one for one in scene.ranks if one.is_python and one.number not in numbers]
    if 2 * sum(bool({*one.places} & {*WAITING}) for one in rest) < len(rest):
        numbers = set()
    # Who naps need not wait for a message: it may be in MPI_Finalize, and have done its part.
    if not any(one.naps for one in scene.ranks if one not in scene.computing):
        numbers |= {one.number for one in scene.computing}
    # A rank that saves or evaluates keeps the others waiting only for a while.
    slow = [one for one in scene.ranks if one.number in numbers and not is_saving(one)]
    found = []
    for rank in slow:
        what = f"{{is}} slower than the others, which wait for it: it is {_slow_at(rank)}"
        hint = f"{scene.hints.look} --tree shows where it spends its time"
        found.append(RankFinding("rank.straggler", WARNING, rank, what, rank_lines(rank), hint))
    yield from combine([*found, *([] if found else _sleepers(scene))])


def _sleepers(scene: Scene) -> Iterator[RankFinding]:
    """Ranks in C that sleep most of the time in a job that makes steps, while the others do not:
    these may ask for a message all the time."""
    shares = {
        one.number: _share(one.process.glances, "z")
        for one in scene.ranks
        if len(one.process.glances) >= FEW_GLANCES and not one.is_python
    }
    slow = _apart(shares, SLEEPS_SHARE, RESTS_SHARE) if len(shares) == len(scene.ranks) else set()
    for rank in (one for one in scene.ranks if one.number in slow):
        what = "{is} asleep for most of the time, and the others are not: they may wait for it"
        hint = f"see what it waits for: {gdb_command(scene, rank)}"
        yield RankFinding("rank.straggler", WARNING, rank, what, rank_lines(rank), hint)


def _share(glances: str, letters: str) -> float:
    return sum(one in letters for one in glances) / len(glances)


def _apart(shares: dict[int, float], most: float, least: float) -> set[int]:
    """Return the ranks with a share of `most` or more, if they are few and stand out.

    They are at most half of all, and the mean share of the others is `least` or less. Otherwise the
    result is empty.
    """
    slow = {number for number, share in shares.items() if share >= most}
    rest = [share for number, share in shares.items() if number not in slow]
    few = rest and len(slow) * 2 <= len(shares)
    return slow if few and sum(rest) / len(rest) <= least else set()


def _own_share(rank: Rank) -> float:
    """Return the share of a rank's samples in which it was at its own work."""
    work = (Activity.USER, Activity.LIBRARY, Activity.DATA)
    own = [
        place in work or sample.state in "DT" for place, sample in zip(rank.places, rank.samples)
    ]
    return sum(own) / len(own) if own else 0.0


def _slow_at(rank: Rank) -> str:
    """Return, in words, what a slow rank spends its time on."""
    span = rank.span_s or 1.0
    call = rank.user_call
    if rank.grown("run_wait_s") / span > 1.0:
        at = f"in {label(call)}, and " if call else ""
        return f"{at}waiting for a processor: too much else runs on that host"
    if rank.place is Activity.DATA or all(one is Activity.DATA for one in rank.places):
        return "waiting for its data"
    path = syscall_path(rank.last.syscall)
    if path:
        return f"in {rank.last.syscall}"
    return f"in {label(call)}" if call else "at work of its own"


def throttled(scene: Scene) -> Iterator[Cause]:
    """Ranks whose cgroup has used up its share of the processors for much of the time."""
    found = []
    for rank in scene.ranks:
        share = rank.grown("throttled_s") / rank.span_s if rank.span_s else 0.0
        if share >= THROTTLED_SHARE:
            what = (
                f"{{is}} slowed down by a cgroup, which may use no more of the processors: it was "
                f"throttled for {min(share, 1.0):.0%} of the time"
            )
            show = f"cat /proc/{rank.process.pid}/cgroup; cat /sys/fs/cgroup/*/cpu.max"
            hint = f"see its limit (cpu.max): {scene.hints.on(rank.host, show)}"
            found.append(RankFinding("rank.throttled", WARNING, rank, what, rank_lines(rank), hint))
    yield from combine(found)


@dataclass(frozen=True)
class SentData:
    """What a rank sent to another host between its first and its last sample.

    It was sending for `share` of the time, at `bytes_s` during that time. `rtt_s` is the mean round
    trip.
    """

    share: float
    bytes_s: float
    rtt_s: float

    @property
    def text(self) -> str:
        return (
            f"{format_bytes(int(self.bytes_s))}/s for {self.share:.0%} of the time, round trip "
            f"{format_duration(self.rtt_s)}"
        )


def _traffic(scene: Scene) -> dict[tuple[str, str], SentData]:
    """Return the busiest connection between each two hosts, by (sender, receiver)."""
    found: dict[tuple[str, str], SentData] = {}
    for rank in scene.ranks:
        looks = [{(one.local, one.peer): one for one in look.sockets} for look in rank.samples]
        for ends, last in looks[-1].items() if looks and rank.span_s else ():
            first, peer = looks[0].get(ends), scene.host_at.get(last.peer.rpartition(":")[0])
            moved = last.acked_bytes - first.acked_bytes if first else 0
            if not first or not peer or moved < MOVED_BYTES or peer.host == rank.host.host:
                continue
            sending_s = max(last.sending_s - first.sending_s, 1e-3)
            rtts = [look[ends].rtt_s for look in looks if ends in look]
            one = SentData(sending_s / rank.span_s, moved / sending_s, sum(rtts) / len(rtts))
            pair = (rank.host.host, peer.host)
            found[pair] = max(one, found.get(pair, one), key=lambda traffic: traffic.share)
    return found


def slow_links(scene: Scene) -> Iterator[Cause]:
    """Hosts whose links are much slower than those between others: over TCP, or over EFA."""
    yield from _slow_sockets(scene)
    yield from _slow_cards(scene)


def _slow_sockets(scene: Scene) -> Iterator[Cause]:
    """Hosts whose TCP connections are slow.

    A slow link between two hosts is assigned to the one that has more slow links. If that does not
    decide, both hosts are named.
    """
    traffic = _traffic(scene) if scene.is_running else {}
    quickest = max((one.bytes_s for one in traffic.values()), default=0.0)
    nearest_s = min((one.rtt_s for one in traffic.values()), default=0.0)
    pairs = {frozenset(ends) for ends in traffic}
    slow = {
        frozenset(ends): one
        for ends, one in traffic.items()
        if one.share >= SENDING_SHARE and one.rtt_s >= ROUND_TRIP_S
        # With only one pair of hosts there is no other link to compare with.
        if len(pairs) == 1
        or (one.bytes_s * TIMES_SLOWER <= quickest and one.rtt_s >= TIMES_SLOWER * nearest_s)
    }
    well = {end for pair in pairs - slow.keys() for end in pair}
    crawling = sorted(slow, key=sorted)
    hosts = {host.host: host for host in scene.evidence.hosts}
    while crawling:
        every = Counter(end for pair in crawling for end in sorted(pair))
        counted = Counter({end: n for end, n in every.items() if end not in well}) or every
        most = max(counted.values())
        ends = [hosts[end] for end in counted if counted[end] == most]
        named = ends[0] if len(ends) == 1 or len(crawling) > 1 else None
        of = [pair for pair in crawling if not named or named.host in pair]
        crawling = [pair for pair in crawling if pair not in of]
        shown = tuple(f"{' - '.join(sorted(pair))}: {slow[pair].text}" for pair in of[:4])
        if pairs - slow.keys():
            shown += (f"the quickest other: {format_bytes(int(quickest))}/s",)
        host = named or ends[-1]
        yield Cause(
            "link.slow",
            WARNING,
            f"the link of {called(host)} is slow: data crawl between it and other hosts"
            if named
            else f"the link between {' and '.join(map(called, ends))} is slow: data crawl over it",
            named.host if named else None,
            scene.hints.cluster(
                "compare its traffic with the others': clusterctl watch NAME; or replace it: "
                f"clusterctl replace NAME {host.index}"
            ),
            evidence=(*shown, *((f"SSH: {host.error}",) if host.error else ())),
        )


@dataclass(frozen=True)
class CardTrouble:
    """What the EFA cards of a host have counted during the look, all together."""

    host: HostEvidence
    grown: Counter[str]

    @property
    def events(self) -> int:
        """Connections whose other end gave no answer, or whose speed was limited for that."""
        return self.grown[IMPAIRED] + self.grown[UNRESPONSIVE]

    @property
    def share(self) -> float:
        """The part of the packets that was sent again; 0 if that is not known, or few were sent."""
        sent = self.grown[SENT]
        return self.grown[RETRANSMITTED] / sent if sent >= MANY_PACKETS else 0.0

    @property
    def is_slow(self) -> bool:
        return bool(self.events) or self.share >= RETRANSMITTED_SHARE

    def is_worse_than(self, other: CardTrouble) -> bool:
        if self.events or other.events:
            return self.events >= TIMES_WORSE * other.events
        return self.share >= TIMES_WORSE * other.share

    @property
    def text(self) -> str:
        span_s = max(card.span_s for card in self.host.efa)
        return f"EFA of {self.host.host}, in {span_s:.1f} s: {card_errors_in_words(self.grown)}"


def _slow_cards(scene: Scene) -> Iterator[Cause]:
    """Hosts whose EFA cards report trouble with others. The counters do not say with whom: a host
    with a bad link has trouble with all, and each of the others with it alone."""
    counted = []
    for host in scene.evidence.hosts if scene.is_running else ():
        grown: Counter[str] = Counter()
        for card in host.efa:
            grown.update(card.grown)
        counted.append(CardTrouble(host, grown))
    slow = [one for one in counted if one.is_slow]
    if not slow:
        return
    worst = max(slow, key=lambda one: (one.events, one.share))
    # Of two hosts it is not known whose link it is.
    is_alone = len(counted) > 2 and all(worst.is_worse_than(one) for one in slow if one != worst)
    shown = counted if len(counted) == 2 else slow
    names = ", ".join(called(one.host) for one in shown[:4]) + ("…" if len(shown) > 4 else "")
    where = called(worst.host) if is_alone else names
    yield Cause(
        "link.slow",
        WARNING,
        f"the EFA connections of {where} are in trouble: {_in_words(worst)}",
        worst.host.host if is_alone else None,
        scene.hints.cluster(
            "see each card: clusterctl watch NAME --json; if it goes on, replace the host: "
            f"clusterctl replace NAME {worst.host.index}"
        ),
        evidence=tuple(one.text for one in slow[:4]),
    )


def _in_words(worst: CardTrouble) -> str:
    if worst.grown[UNRESPONSIVE]:
        return "the hosts at their other ends give no answer"
    if worst.grown[IMPAIRED]:
        return "their speed was limited, since packets got lost"
    return f"{worst.share:.1%} of the packets had to be sent again"


def idle_cards(scene: Scene) -> Iterator[Cause]:
    """EFA cards that move nothing while the others of their host move much.

    Only where the job uses all GPUs of the host: each GPU has cards of its own.
    """
    for host in scene.evidence.hosts if scene.is_running else ():
        ranks = [rank for rank in scene.ranks if rank.host.host == host.host]
        used = sum(len(rank.process.gpus) or 1 for rank in ranks)
        idle, usual = idle_among(
            {card.name: card.moved_bytes for card in host.efa}, CARD_MOVED_BYTES
        )
        if idle and 0 < host.slots <= used:
            span_s = max(card.span_s for card in host.efa)
            which = f"EFA card {idle[0]}" if len(idle) == 1 else f"{len(idle)} EFA cards"
            yield Cause(
                "link.idle",
                WARNING,
                f"{which} of {called(host)} moved nothing in {span_s:.1f} s, and the others "
                f"{format_bytes(usual)} each",
                host.host,
                scene.hints.cluster(
                    "see its driver's state: clusterctl doctor NAME; or replace the host: "
                    f"clusterctl replace NAME {host.index}"
                ),
                evidence=(f"idle: {', '.join(idle[:8])}{'…' if len(idle) > 8 else ''}",),
            )


WATCH = "clusterctl watch NAME shows processors, disks and links as they are"


def _steps_fell(scene: Scene) -> Cause | None:
    """Return the finding about a job whose numbered steps have become four times slower.

    The usual speed is that of most steps lately, or else that since the job's start, so that it is
    rather too low. That of now is from the lines that came during the samples.
    """
    numbers = [int(one[1]) for one in map(NUMBERED.search, scene.job.log) if one]
    added = [int(one[1]) for one in map(NUMBERED.search, scene.job.log_added) if one]
    span_s = max((one.span_s for one in scene.ranks), default=0.0)
    if not added or len(numbers) <= len(added) or numbers != sorted(numbers) or not span_s:
        return None
    now = (numbers[-1] - numbers[-len(added) - 1]) / span_s
    if len(added) < 2:
        # One line need not come in the middle: it is at most twice as fast. And it may be a pause.
        now *= 2
        if not any(one.naps for one in scene.ranks):
            return None
    before = numbers[-len(added) - 1] / max(scene.job.age_s - span_s, span_s)
    speeds = _past_speeds(scene, span_s)
    if len(speeds) >= FEW_TIMES:
        # A hang that has passed makes the mean too low, and a job that is slow for long the median.
        before = max(before, statistics.median(speeds))
    if not now or now * SLOWED_ROWS > before:
        return None  # lines of one step, or with a number that counts no steps, show no speed
    return Cause(
        "job.slower",
        WARNING,
        f"the job makes {now:.2g} steps/s now, and made {before:.2g} before",
        hint=scene.hints.cluster(WATCH),
        evidence=(f"steps {numbers[-len(added) - 1]} to {numbers[-1]} in {span_s:.1f} s",),
    )


def _past_speeds(scene: Scene, span_s: float) -> list[float]:
    """Return the steps per second between lines about steps that came before the samples."""
    numbered = [(at_s, NUMBERED.search(line)) for at_s, line in scene.step_times if at_s > span_s]
    known = [(at_s, int(one[1])) for at_s, one in numbered if one]
    return [(b[1] - a[1]) / (a[0] - b[0]) for a, b in zip(known, known[1:]) if a[0] > b[0]]


def slowed_down(scene: Scene) -> Iterator[Cause]:
    """A training whose last steps make far fewer images/s than those before, or take longer."""
    if not scene.advances:
        return
    fell = _steps_fell(scene)
    if fell and not scene.rows:
        yield fell
        return
    of_training = (row for row in scene.rows if row.get("kind") == "train")
    speeds = [*filter(None, (number_in(row, "images_per_s") for row in of_training))]
    unit = "images/s"
    if not speeds:
        speeds, unit = [1 / gap_s for gap_s in scene.gaps_s], "rows/s"
    # The first rows include the start-up.
    past, now = sorted(speeds[2:-3]), sorted(speeds[-3:])
    if len(past) < 5:
        return
    usual, last = past[len(past) // 2], now[1]
    if usual > (SLOWED if unit == "images/s" else SLOWED_ROWS) * last:
        yield Cause(
            "job.slower",
            WARNING,
            f"the last steps made {last:.3g} {unit}, those before {usual:.3g}",
            hint=scene.hints.cluster(WATCH),
            evidence=(f"{unit} of the last rows: " + ", ".join(f"{x:.3g}" for x in speeds[-5:]),),
        )
