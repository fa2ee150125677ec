"""Who pulls from whom. Pure.

The chain is the healthy nodes in order: the first pulls from the source, each from the one before.
Who is in the way goes to the tail: it pulls from the chain's last node, and nobody waits for it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.relay.messages import NOT_TOLD, Done, Gap, Listening, Progress, printable

# The relay that has the data. No host can be called this.
SOURCE = "the source"
# The rate of a node is that of so many seconds.
WINDOW_S = 2.0
MOST_MOVES = 20
MOST_WARNINGS = 100


class PeerState(Enum):
    """What one relay is doing, and its place."""

    CONNECTING = "connecting"  # it has not said yet where it listens
    READY = "ready"  # it waits for the plan
    COMPARING = "comparing"  # in the chain; looks at the files that are there
    CHAIN = "chain"  # it gets data, and passes it on
    TAIL = "tail"  # until it proves fast
    LAST = "last"  # in the tail for good
    DONE = "done"  # has everything, and passes it on
    GONE = "gone"  # had everything; its relay has ended
    FAILED = "failed"


_CHAIN = (PeerState.COMPARING, PeerState.CHAIN, PeerState.DONE)
_TAIL = (PeerState.TAIL, PeerState.LAST)


@dataclass
class Timeouts:
    """How long the coordinator waits for what, in seconds."""

    gather_s: float = 1.0  # for further nodes, once one and the source are there
    start_s: float = 60.0  # for a relay's first word
    silent_s: float = 1.5  # until a node that says nothing is passed by
    dead_s: float = 15.0  # until it has failed
    last_dead_s: float = 5.0  # the same where all others are done
    idle_s: float = 1.5  # for a node that still compares, while the next one waits
    grace_s: float = 2.0  # after a relink, before a node is judged
    return_s: float = 5.0  # in the tail, before a fast node may return
    rotate_s: float = 3.0  # of an even pace, before the first node is tried at the end
    worth_s: float = 20.0  # that must be left for that
    give_up_s: float = 120.0  # until a node that gets nothing, while others do, has failed


@dataclass(eq=False)
class Peer:
    """One relay, as its messages and the links given to it leave it. Times are the coordinator's.

    `heard_at` is None until its command runs. `linked_at` is when it, or who shares its upstream,
    was linked anew. `slow_under` are the upstreams it was slow with, `avoid` those it could not
    pull from, with the reason.
    """

    name: str
    state: PeerState = PeerState.CONNECTING
    error: ClusterctlError | None = None
    at: Listening = Listening()
    gap: Gap | None = None
    progress: Progress | None = None
    done: Done | None = None
    heard_at: float | None = None
    joined_at: float = 0.0
    linked_at: float = 0.0
    grew_at: float = 0.0
    ended_at: float = 0.0
    upstream: str = ""
    slow_under: set[str] = field(default_factory=set)
    avoid: dict[str, str] = field(default_factory=dict)
    source_losses: int = 0
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

    def take_progress(self, now: float, told: Progress, most_blocks: int) -> None:
        told = told._replace(
            blocks=min(told.blocks, most_blocks), bytes=max(told.bytes, self.bytes)
        )
        if told.bytes > self.bytes or told.blocks > self.blocks:
            self.grew_at = now
        self.progress = told
        self._window.append((now, told.bytes))

    def rate(self, now: float) -> float:
        """Bytes a second over the last WINDOW_S."""
        while len(self._window) > 2 and self._window[1][0] <= now - WINDOW_S:
            self._window.popleft()
        if not self._window:
            return 0.0
        began, first = self._window[0]
        return (self._window[-1][1] - first) / max(now - began, WINDOW_S / 4)

    def moved(self, what: str) -> None:
        """Remember a relink for the report."""
        if len(self.moves) < MOST_MOVES:
            self.moves.append(what)

    def warn(self, warnings: tuple[str, ...]) -> None:
        room = MOST_WARNINGS - len(self.warnings)
        self.warnings += [printable(warning) for warning in warnings[:room]]


@dataclass
class Topology:
    """The relays of one copy. `order` has the targets that take part."""

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
        """The source's neighbour first."""
        return [peer for peer in self.order if peer.in_chain]

    def children(self) -> dict[str, list[Peer]]:
        """By upstream: who pulls from it and still lacks something."""
        found: dict[str, list[Peer]] = defaultdict(list)
        for peer in self.order:
            if peer.upstream and peer.alive and not self.is_complete(peer):
                found[peer.upstream].append(peer)
        return found

    def is_beside_source(self, peer: Peer) -> bool:
        """Whether it is on the source's own machine: what it gets crosses no link."""
        return bool(peer.at.address) and peer.at.address == self.source.at.address

    def is_complete(self, peer: Peer) -> bool:
        """Whether it has every block."""
        if peer.done is not None or peer.name == SOURCE:
            return True
        return peer.gap is not None and peer.blocks >= self.blocks

    def behind(self, peer: Peer) -> int:
        """How many blocks its upstream has and it has not, as far as one can know."""
        if not peer.upstream or self.is_complete(peer):
            return 0
        if peer.progress and peer.progress.behind != NOT_TOLD:
            return peer.progress.behind
        upstream = self.peers[peer.upstream]
        has = self.blocks if self.is_complete(upstream) else upstream.blocks
        return max(0, has - peer.blocks)

    def to_tail(self, peer: Peer, now: float, why: str, state: PeerState = PeerState.TAIL) -> None:
        """Nobody waits for it from now on."""
        if not peer.in_tail:
            peer.moved(why)
        peer.state, peer.linked_at = state, now

    def to_chain(self, peer: Peer, now: float, why: str) -> None:
        """From the tail: it is the chain's last one."""
        peer.state, peer.linked_at = PeerState.CHAIN, now
        peer.moved(why)
        self.order.remove(peer)
        self.order.append(peer)

    def wanted_links(self) -> Iterator[tuple[Peer, str | None]]:
        """Whom each is to pull from who lacks something: a name, "" for nobody now, None if all
        were tried in vain.
        """
        chain = self.chain
        # Who compares has nothing to give to the tail yet.
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
        else:
            roots = [one for one in self.order if one.alive and self.is_complete(one)]
        nobody: str | None = ""
        for one in itertools.chain(*map(reversed, groups), roots):
            if one is not peer:
                if one.name not in peer.avoid:
                    return one.name
                nobody = None
        return nobody
