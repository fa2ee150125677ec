"""Which relay pulls from which. No I/O and no clock; callers pass `now`.

The chain is the healthy nodes in order: the first pulls from the source, each other from the node
before it. A node that holds back others goes to the tail: it pulls from the chain's last node, and
no other node waits for it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.relay.messages import UNKNOWN, Done, Gap, Listening, Progress, printable

# The name of the relay that has the data. No host can have this name.
SOURCE = "the source"
# A node's rate is an average over this many seconds.
WINDOW_S = 2.0
# Entries that are kept of each node, for the report.
MOST_MOVES = 20
MOST_WARNINGS = 100


class PeerState(Enum):
    """What one relay is doing, and its place in the topology."""

    CONNECTING = "connecting"  # has not reported yet where it listens
    READY = "ready"  # waits for the plan
    COMPARING = "comparing"  # in the chain; compares the existing files
    CHAIN = "chain"  # receives data and passes it on
    TAIL = "tail"  # in the tail until it proves fast
    LAST = "last"  # in the tail for good
    DONE = "done"  # has everything and passes it on
    GONE = "gone"  # had everything; its relay has ended
    FAILED = "failed"


_CHAIN = (PeerState.COMPARING, PeerState.CHAIN, PeerState.DONE)
_TAIL = (PeerState.TAIL, PeerState.LAST)


@dataclass
class CopyTimeouts:
    """The coordinator's timeouts in seconds."""

    gather_s: float = 1.0  # for further nodes, once the source and one node are ready
    start_s: float = 60.0  # without an event, before a relay's first Progress
    silent_s: float = 1.5  # without an event, until a node counts as silent
    dead_s: float = 15.0  # without an event, later on, until a node has failed
    last_dead_s: float = 5.0  # the same if all others are done
    idle_s: float = 1.5  # without data for a node, until its silent upstream goes to the tail
    grace_s: float = 2.0  # after a relink, before a node is checked
    return_s: float = 5.0  # in the tail, before a fast node may return
    rotate_s: float = 3.0  # without a relink, before the first node is tried at the end
    worth_s: float = 20.0  # time that must be left of the copy for such a trial
    give_up_s: float = 120.0  # without data, until a node has failed whose upstream has more
    hung_s: float = 120.0  # in one step, with nothing going on, until a relay has failed
    cut_holds_s: float = 20.0  # that a report of no connection holds: it is repeated while it is so
    cut_s: float = 2.0  # without any connection to its upstream, until a node is relinked
    starved_s: float = 15.0  # without data, until a node whose upstream has some is relinked
    avoid_s: float = 30.0  # that a node avoids an upstream from which it could not pull


@dataclass(eq=False)
class Peer:
    """The state of one relay, from its events and the orders it got.

    Times are those of the coordinator's clock. `last_event_at` is when its last event came, None
    until its command runs. `data_at` is when it last got data. `linked_at` is when it was last
    relinked, or a node with the same upstream was; `ordered_at` when it last got an order to pull.
    `moved_at` is when something last went on in it. `slow_under` are the upstreams under which it
    was slow. `unreachable` maps upstreams that it avoids to the reason, until the time in
    `avoids_until`; it has no connection to those in `cut_off_from`, and has reported one to
    those in `connected_to`. `cut` is why it had none to its upstream when that was last found, at
    `cut_at`. `damaged` has its number of blocks, and how many reports of damaged ones came since.
    """

    name: str
    state: PeerState = PeerState.CONNECTING
    error: ClusterctlError | None = None
    at: Listening = Listening()
    gap: Gap | None = None
    progress: Progress | None = None
    done: Done | None = None
    last_event_at: float | None = None
    joined_at: float = 0.0
    linked_at: float = 0.0
    ordered_at: float = 0.0
    moved_at: float = 0.0
    data_at: float = 0.0
    ended_at: float = 0.0
    upstream: str = ""
    slow_under: set[str] = field(default_factory=set)
    unreachable: dict[str, str] = field(default_factory=dict)
    avoids_until: dict[str, float] = field(default_factory=dict)
    cut_off_from: set[str] = field(default_factory=set)
    source_losses: int = 0
    damaged: tuple[int, int] = (0, 0)
    connected_to: set[str] = field(default_factory=set)
    cut: str = ""
    cut_at: float = 0.0
    moves: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _window: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))

    @property
    def alive(self) -> bool:
        return self.state not in (PeerState.FAILED, PeerState.GONE)

    @property
    def in_chain(self) -> bool:
        """Whether others may pull from it."""
        return self.state in _CHAIN

    @property
    def in_tail(self) -> bool:
        return self.state in _TAIL

    @property
    def blocks(self) -> int:
        return self.progress.blocks if self.progress else 0

    @property
    def bytes(self) -> int:
        return self.progress.bytes if self.progress else 0

    def take_progress(self, now: float, event: Progress, most_blocks: int) -> None:
        """Record a Progress. Blocks are limited to `most_blocks`; bytes never decrease."""
        event = event._replace(
            blocks=min(event.blocks, most_blocks), bytes=max(event.bytes, self.bytes)
        )
        before = self.progress or Progress()
        if (event.bytes, event.blocks, event.arrived) > (self.bytes, self.blocks, before.arrived):
            self.data_at = self.moved_at = now
            self.source_losses, self.cut = 0, ""
        if (event.step, event.path, event.moves) != (before.step, before.path, before.moves):
            self.moved_at = now
        self.progress = event
        self._window.append((now, event.bytes))

    def rate(self, now: float) -> float:
        """Return the bytes a second over the last WINDOW_S seconds."""
        while len(self._window) > 2 and self._window[1][0] <= now - WINDOW_S:
            self._window.popleft()
        if not self._window:
            return 0.0
        began, first = self._window[0]
        return (self._window[-1][1] - first) / max(now - began, WINDOW_S / 4)

    def avoid(self, upstream: str, why: str, until: float) -> None:
        """Record that it cannot pull from an upstream, until a time."""
        self.unreachable[upstream], self.avoids_until[upstream] = why, until

    def never_reached(self, upstreams: Iterable[str]) -> bool:
        """Return whether nothing ever came to it, nor could it connect to any of these."""
        return not (self.gap or self.bytes) and self.connected_to.isdisjoint(upstreams)

    def report_damage(self) -> int:
        """Count a report of a damaged block; return how many came while no block did."""
        blocks, count = self.damaged
        self.damaged = self.blocks, count + 1 if blocks == self.blocks else 1
        return self.damaged[1]

    def forgive(self, now: float) -> None:
        """Forget the upstreams that it has avoided for long enough."""
        for name in [one for one, until in self.avoids_until.items() if until <= now]:
            self.forgive_one(name)

    def forgive_one(self, upstream: str) -> None:
        """Forget that it avoids an upstream."""
        del self.unreachable[upstream], self.avoids_until[upstream]
        self.cut_off_from.discard(upstream)

    def moved(self, what: str) -> None:
        """Record a move or relink for the report."""
        if len(self.moves) < MOST_MOVES:
            self.moves.append(what)

    def warn(self, warnings: tuple[str, ...]) -> None:
        """Record warnings for the report, up to MOST_WARNINGS."""
        room = MOST_WARNINGS - len(self.warnings)
        self.warnings += [printable(warning) for warning in warnings[:room]]


@dataclass
class Topology:
    """The relays of one copy and how they are linked.

    `order` has the targets that take part. `gmac`: blocks are summed by GMAC, not CRC-32.
    """

    peers: dict[str, Peer]
    order: list[Peer] = field(default_factory=list)
    blocks: int = 0
    block_bytes: int = 1
    streams: int = 1
    gmac: bool = False

    @property
    def source(self) -> Peer:
        return self.peers[SOURCE]

    @property
    def chain(self) -> list[Peer]:
        """The nodes of the chain, the source's neighbour first."""
        return [peer for peer in self.order if peer.in_chain]

    def children(self) -> dict[str, list[Peer]]:
        """Return, by upstream, the nodes that pull from it and still lack something."""
        found: dict[str, list[Peer]] = defaultdict(list)
        for peer in self.order:
            if peer.upstream and peer.alive and not self.is_complete(peer):
                found[peer.upstream].append(peer)
        return found

    def is_on_source_machine(self, peer: Peer) -> bool:
        """Return whether a node is on the source's own machine: its data crosses no link."""
        return bool(peer.at.address) and peer.at.address == self.source.at.address

    def is_complete(self, peer: Peer) -> bool:
        """Return whether a relay has every block."""
        if peer.done is not None or peer.name == SOURCE:
            return True
        return peer.gap is not None and peer.blocks >= self.blocks

    def behind(self, peer: Peer) -> int:
        """Return how many blocks its upstream has that it lacks.

        An estimate from the counts of both where the relay has not reported it.
        """
        if not peer.upstream or self.is_complete(peer):
            return 0
        if peer.progress and peer.progress.behind != UNKNOWN:
            return peer.progress.behind
        upstream = self.peers[peer.upstream]
        has = self.blocks if self.is_complete(upstream) else upstream.blocks
        return max(0, has - peer.blocks)

    def to_tail(self, peer: Peer, now: float, why: str, state: PeerState = PeerState.TAIL) -> None:
        """Move a node to the tail, where no other node waits for it."""
        if not peer.in_tail:
            peer.moved(why)
        peer.state, peer.linked_at = state, now

    def to_chain(self, peer: Peer, now: float, why: str) -> None:
        """Move a node from the tail to the end of the chain."""
        peer.state, peer.linked_at = PeerState.CHAIN, now
        peer.moved(why)
        self.order.remove(peer)
        self.order.append(peer)

    def wanted_links(self) -> Iterator[tuple[Peer, str | None]]:
        """Yield each node that lacks something, with the upstream that it should have.

        It is a name, "" if there is none at the moment, or None if all were tried and failed.
        """
        chain = self.chain
        # The tail prefers nodes that have compared: the others cannot serve blocks yet.
        ready = [peer for peer in chain if peer.state is not PeerState.COMPARING]
        before: list[Peer] = []
        for peer in self.order:
            if peer.alive and not self.is_complete(peer):
                groups = (before,) if peer.in_chain else (ready, chain)
                yield peer, self._upstream(peer, *groups)
            if peer.in_chain:
                before.append(peer)

    def _upstream(self, peer: Peer, *groups: list[Peer]) -> str | None:
        if self.source.alive:
            roots = [self.source]
        else:  # a node that has everything takes its place
            roots = [one for one in self.order if one.alive and self.is_complete(one)]
        none_yet: str | None = ""
        for one in itertools.chain(*map(reversed, groups), roots):
            if one is not peer:
                if one.name not in peer.unreachable:
                    return one.name
                none_yet = None
        return none_yet
