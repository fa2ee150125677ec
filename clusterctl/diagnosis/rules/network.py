"""Rules on connections between hosts that carry nothing, or that do not come about.

The kernel's own counters are the evidence: what is unsent, how often it was sent again, and what
has arrived at the other end (struct tcp_info of linux/tcp.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clusterctl.diagnosis.case import ERROR, STARTING_S, WARNING, Cause, Scene
from clusterctl.diagnosis.evidence import HostEvidence, ProcessEvidence, Socket
from clusterctl.diagnosis.frames import Activity
from clusterctl.diagnosis.progress import is_step
from clusterctl.diagnosis.ranks import called, format_ranks, rank_lines
from clusterctl.domain.units import count, format_bytes
from clusterctl.node.facts.network import REFUSED

# A connection that stands: nothing was acknowledged between the first and the last sample, and the
# kernel has sent its data again so often. Two are 0.6 s after the first, on a link of 1 ms.
RETRANSMITS = 2
# After so long it is sent again first; each next time takes twice as long.
AGAIN_S = 0.2
# The timer of a connection whose other end has closed its window, or whose packets are dropped by a
# rule or a route of its own host.
PERSIST = "persist"
# From so many unsent bytes on, packets may be dropped for their size (MTU).
BIG = 1000


@dataclass
class _Pair:
    """What stands from one host to another. `loses`: packets in this direction are lost, for sure,
    since the other host's data arrive and their acknowledgements do not."""

    sender: HostEvidence
    receiver: HostEvidence
    sockets: list[Socket] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    their_ranks: set[int] = field(default_factory=set)
    daemons: set[str] = field(default_factory=set)
    loses: bool = False


def broken_links(scene: Scene) -> Iterator[Cause]:
    """Pairs of hosts between which data do not get through, in a job that makes no step.

    Its last step may be so recent that none is overdue. One may even have come after the first
    sample, but several need no such data.
    """
    if sum(map(is_step, scene.job.log_added)) > 1 or not scene.is_running:
        return
    pairs = _standing(scene)
    reported: set[frozenset[str]] = set()
    for (start, end), pair in sorted(pairs.items(), key=lambda item: not item[1].loses):
        ends = frozenset((start, end))
        if ends in reported:
            continue
        reported.add(ends)
        back = pairs.get((end, start))
        yield _broken(scene, pair, back)


def unreached(scene: Scene) -> Iterator[Cause]:
    """Ranks that cannot connect to where the ranks of their job meet at its start."""
    first = scene.by_number.get(0)
    for rank in scene.ranks:
        tried = rank.process.rendezvous
        if not tried or not tried.error or rank.process.age_s < STARTING_S:
            continue
        if tried.error == REFUSED and first and first.place is not Activity.INIT:
            continue  # rank 0, which listens there, has not come so far
        names = {tried.endpoint.rpartition(":")[0], *tried.addresses}
        there = next((host for host in scene.evidence.hosts if host.names & names), None)
        there = there or next(filter(None, map(scene.host_at.get, sorted(names))), None)
        what = tried.endpoint + (f" on {called(there)}" if there else "")
        at = there or rank.host
        ping = scene.hints.on(rank.host, f"ping -c 3 {tried.endpoint.rpartition(':')[0]}")
        why = "see whether it is a firewall, a security group or a wrong address"
        yield Cause(
            "rendezvous.unreached",
            ERROR,
            f"{format_ranks([rank.number])} on {called(rank.host)} cannot connect to {what}, where "
            f"the job's ranks meet at its start: {tried.error}",
            at.host,
            "see whether rank 0 runs there, and whether its port is the job's"
            if tried.error == REFUSED
            else f"{why}: {ping}",
            (rank.number,),
            (*rank_lines(rank), f"tried from {rank.host.host}: {tried.endpoint}: {tried.error}"),
        )


def unanswered(scene: Scene) -> Iterator[Cause]:
    """Ranks that all wait at their start for an answer on the port at which they are to meet, which
    no process of their job has: another program may have it."""
    waiting = [one for one in scene.ranks if one.place is Activity.INIT and not one.moved]
    ports = {one.process.meets_at.rpartition(":")[2] for one in waiting} - {""}
    of_job = {
        one.local
        for host in scene.evidence.hosts
        for process in host.processes
        for one in process.last.sockets
    }
    found: dict[str, dict[int, Socket]] = {}
    for rank in waiting:
        for one in rank.last.sockets:
            is_silent = one.state == "ESTAB" and one.acked_bytes and not one.received_bytes
            if is_silent and one.peer not in of_job and one.peer.rpartition(":")[2] in ports:
                found.setdefault(one.peer, {})[rank.number] = one
    for peer, sockets in found.items():
        there = scene.host_at.get(peer.rpartition(":")[0])
        if len(sockets) < max(2, len(waiting)) or (there and there.error):
            continue
        sent = max(one.acked_bytes for one in sockets.values())
        on = f" on {called(there)}" if there else ""
        listens = f"sudo ss -tlnp sport = {peer.rpartition(':')[2]}"
        see = scene.hints.on(there, listens) if there else f"{listens}, on that host"
        yield Cause(
            "rendezvous.unreached",
            ERROR if scene.is_quiet else WARNING,
            f"{format_ranks(sockets)} wait in {waiting[0].waits_in} for an answer of {peer}{on}, "
            f"which has taken {format_bytes(sent)} of each and sent nothing{scene.since}: no "
            "observed process of the job listens there",
            there.host if there else None,
            f"see which program has that port: {see}",
            tuple(sockets),
            rank_lines(waiting[0]),
        )


def _standing(scene: Scene) -> dict[tuple[str, str], _Pair]:
    """Return what stands, by the names of the sending and the receiving host."""
    every = [(host, process) for host in scene.hosts for process in host.processes]
    stuck = [(host, process, one) for host, process in every for one in _stuck_sockets(process)]
    ends = {(one.peer, one.local) for _, _, one in stuck}
    far_ends = {
        (one.local, one.peer): (process, one)
        for _, process in (every if stuck else ())
        for one in process.last.sockets
        if (one.local, one.peer) in ends
    }
    found: dict[tuple[str, str], _Pair] = {}
    for host, process, one in stuck:
        receiver = scene.host_at.get(one.peer.rpartition(":")[0])
        far = far_ends.get((one.peer, one.local))
        # A job that has made a step since does not need it.
        if scene.advances and AGAIN_S * (2**one.retransmits - 1) > scene.since_step_s + AGAIN_S * 9:
            continue
        # What does not reach a host that is silent is told with that host.
        if receiver is None or receiver.host == host.host or receiver.error:
            continue
        # Who takes nothing has data that wait there: its window is closed.
        if one.timer == PERSIST and (not far or far[1].receive_queue_bytes):
            continue
        pair = found.setdefault((host.host, receiver.host), _Pair(host, receiver))
        pair.sockets.append(one)
        if process.role == "rank" and process.rank is not None:
            pair.ranks.add(process.rank)
        elif process.role in ("daemon", "launcher"):
            pair.daemons.add(process.role)
        if far and far[0].rank is not None:
            pair.their_ranks.add(far[0].rank)
        # The other end's data are here, and it does not know: what goes there is lost.
        if far and far[1].acked_bytes < one.received_bytes:
            pair.loses = True
    return found


def _stuck_sockets(process: ProcessEvidence) -> Iterator[Socket]:
    """Yield the connections of a process, at its last sample, that carry nothing."""
    if len(process.samples) < 2:
        return
    before = {(one.local, one.peer): one for one in process.samples[0].sockets}
    for one in process.last.sockets:
        first = before.get((one.local, one.peer))
        if first is None or one.timer not in ("on", PERSIST):
            continue
        waits = one.state == "ESTAB" and one.send_queue_bytes and first.send_queue_bytes
        stands = waits and one.acked_bytes == first.acked_bytes and one.retransmits >= RETRANSMITS
        if stands or (one.state == "SYN-SENT" and first.state == "SYN-SENT"):
            yield one


def _broken(scene: Scene, pair: _Pair, back: _Pair | None) -> Cause:
    sockets = [*pair.sockets, *(back.sockets if back else ())]
    connecting = all(one.state == "SYN-SENT" for one in sockets)
    again = max(one.retransmits for one in sockets)
    unsent = sum(one.send_queue_bytes for one in sockets if one.state == "ESTAB")
    is_one_way = pair.loses and not (back and back.loses)
    start, end = called(pair.sender), called(pair.receiver)
    ports = sorted({one.peer.rpartition(":")[2] for one in pair.sockets})
    port = f" (port{'s' if len(ports) > 1 else ''} {', '.join(ports[:3])})"
    if connecting:
        who = "mpirun's daemon" if pair.daemons and not pair.ranks else ""
        who = who or (format_ranks(sorted(pair.ranks)) if pair.ranks else "a process of the job")
        what = (
            f"{who} on {start} cannot connect to {end}{port}: no answer to its packets, sent "
            f"{count(again + 1, 'time')}"
        )
        check = "link.connect"
    else:
        between = f"{start} → {end}" if is_one_way else f"between {start} and {end}"
        what = (
            f"packets are lost {between}{port}: {format_bytes(unsent)} unsent, sent again "
            f"{count(again, 'time')} without success"
        )
        if pair.ranks and pair.their_ranks and is_one_way:
            waiting, source = sorted(pair.their_ranks), sorted(pair.ranks)
            s = "" if len(waiting) > 1 else "s"
            what = f"{format_ranks(waiting)} wait{s} for data of {format_ranks(source)}: {what}"
        check = "link.lost"
    big = max((one.send_queue_bytes for one in pair.sockets), default=0) >= BIG and not connecting
    sizes = " -M do -s 1472" if big else ""
    ping = scene.hints.on(
        pair.sender, f"ping -c 3{sizes} {pair.sockets[0].peer.rpartition(':')[0]}"
    )
    why = "a security group, a firewall or a network ACL"
    if any(one.timer == PERSIST for one in pair.sockets):
        why = f"a firewall, a rule or a route of {pair.sender.host} itself"
    why += ", or a path that drops large packets (MTU)" if big else ""
    ranks = tuple(sorted(pair.ranks | (back.ranks if back else set())))
    shown = [
        f"{one.local} - {one.peer} {one.state}, {one.send_queue_bytes} bytes unsent, timer "
        f"{one.timer}, {one.retransmits} retransmissions"
        for one in sockets[:6]
    ]
    return Cause(
        check,
        ERROR if scene.is_quiet else WARNING,
        what + scene.since,
        pair.sender.host,
        f"see whether it is {why}: {ping}",
        ranks,
        tuple(shown),
    )
