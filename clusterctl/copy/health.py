"""Finds nodes that hold back others, from silence, slowness and lost connections.

The gain from each rule was measured in simulated time (tests/copy/simulated.py; docs/copy-model.md
has the table).
"""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.copy.topology import SOURCE, WINDOW_S, CopyTimeouts, Peer, PeerState, Topology
from clusterctl.node.relay.messages import Lost, printable

# A node is slow if its rate is below this share of the fastest rate, and if it is behind its
# upstream by more than what arrives in this many seconds at the fastest rate.
SLOW_SHARE = 0.5
LAG_S = 1.0
# The second node counts as equally fast if its rate is at least this share of the first node's.
EVEN_SHARE = 0.8
# How often the first node may be tried at the end of the chain.
ROTATIONS = 2
# How many lost connections to the source a node may report before it has to avoid the source.
SOURCE_RETRIES = 3
# A loss is judged this many seconds after its report. Of several connections perhaps only one is
# lost: data that arrives in the meantime shows that the others work.
SETTLED_S = 0.5


class _Loss(NamedTuple):
    """A node's report that it gets nothing from its upstream."""

    upstream: str
    at: float
    why: str


class Health:
    """Moves nodes that hold back others to the tail of a Topology, and back when they are fast."""

    def __init__(self, topology: Topology, timeouts: CopyTimeouts) -> None:
        self._net, self._timeouts = topology, timeouts
        self._losses: dict[str, _Loss] = {}
        self._best = 0.0
        self._rotations = 0
        self.data_at: float | None = None

    def lost(self, peer: Peer, now: float, told: Lost) -> None:
        """Record that `peer` gets nothing from its upstream. Ignored for previous upstreams."""
        if told.upstream and told.upstream == peer.upstream:
            why = printable(told.why or told.kind or "lost")
            self._losses[peer.name] = _Loss(told.upstream, now, why)

    def look(self, now: float) -> None:
        """Judge all nodes by what is known at `now`, and change the topology accordingly."""
        net = self._net
        if self.data_at is None and any(peer.bytes for peer in net.order):
            self.data_at = now
        # A node on the source's machine copies from disk to disk: its rate sets no standard.
        crossing = [peer for peer in net.chain if not net.is_beside_source(peer)]
        self._best = max((peer.rate(now) for peer in crossing), default=0.0)
        self._settle_losses(now)
        children = net.children()
        self._pass_by_idle(now)
        slow = self._slow(now, children)
        if slow:
            self._blame(slow, now, bool(children[slow.name]))
        else:
            self._try_without_first(now)
        back = next((peer for peer in net.order if self._may_return(peer, now, children)), None)
        if back:
            net.to_chain(back, now, "fast again")

    def is_stuck(self, peer: Peer, now: float) -> bool:
        """Return whether a node has got nothing for `give_up_s`, though its upstream has more."""
        for_s = now - max(peer.data_at, peer.joined_at)
        return (
            peer.gap is not None
            and for_s >= self._timeouts.give_up_s
            and self._net.behind(peer) > 0
        )

    # Silent, or still comparing

    def _pass_by_idle(self, now: float) -> None:
        """Move silent and comparing upstreams of nodes that wait for data to the tail.

        Goes up the chain from each waiting node, until an upstream is neither silent nor comparing.
        """
        timeouts, net = self._timeouts, self._net
        for child in net.order:
            starved_s = now - max(child.data_at, child.linked_at)
            if starved_s < timeouts.idle_s or not child.upstream or self._is_silent(child, now):
                continue
            if not child.alive or net.is_complete(child):
                continue
            above = net.peers[child.upstream]
            while above.name != SOURCE and above.in_chain:
                silent = self._is_silent(above, now)
                comparing = above.gap is None and child.gap is not None and child.in_chain
                if not silent and not comparing:
                    break
                net.to_tail(above, now, "silent" if silent else "still comparing")
                above = net.peers.get(above.upstream, net.source)

    def _is_silent(self, peer: Peer, now: float) -> bool:
        return now - (peer.heard_at or 0.0) >= self._timeouts.silent_s

    # Slow

    def _slow(self, now: float, children: dict[str, list[Peer]]) -> Peer | None:
        """Return the first node that lags behind its upstream, if any. `_blame` decides why."""
        if self.data_at is None:
            return None
        net = self._net
        least = max(4 * net.streams * net.block_bytes, LAG_S * self._best)
        for peer in net.order:
            if (
                peer.alive
                and peer.gap is not None
                and peer.upstream
                and now - max(peer.linked_at, self.data_at) >= self._timeouts.grace_s
                and net.behind(peer) * net.block_bytes > least
                and peer.rate(now) < self._enough(peer, children)
                and (children[peer.name] or self._may_accuse(peer, now))
            ):
                return peer
        return None

    def _enough(self, peer: Peer, children: dict[str, list[Peer]]) -> float:
        """Return the rate from which on a node is not slow.

        Nodes with the same upstream share its link.
        """
        return SLOW_SHARE * self._best / max(1, len(children[peer.upstream]))

    def _may_accuse(self, peer: Peer, now: float) -> bool:
        """Return whether to judge a node although no other pulls from it.

        It may be slow only because its upstream is. It is tried with two upstreams at most, and
        only where enough time is left to be gained.
        """
        left = (self._net.blocks - peer.blocks) * self._net.block_bytes
        return (
            peer.upstream != SOURCE
            and peer.upstream not in peer.slow_under
            and len(peer.slow_under) < 2
            and left > peer.rate(now) * self._timeouts.worth_s
        )

    def _blame(self, slow: Peer, now: float, holds_back: bool) -> None:
        """Decide whether a lagging node or its upstream is slow, and move that one to the tail.

        At first the node itself counts as slow. When a second node lags under the same upstream,
        the upstream is slow, and the first node returns. Two slow neighbours look the same, so a
        node that lags under two upstreams is slow itself, and those two may return.
        """
        net, parent = self._net, self._net.peers[slow.upstream]
        fellows = [
            peer
            for peer in net.order
            if peer is not slow and peer.in_tail and peer.slow_under == {parent.name}
        ]
        slow.slow_under.add(parent.name)
        if fellows and len(slow.slow_under) == 1:
            for fellow in fellows:
                net.to_chain(fellow, now, f"back: {parent.name} was slow")
            if parent.name != SOURCE:
                net.to_tail(parent, now, "slow to pass it on", PeerState.LAST)
            return
        if len(slow.slow_under) > 1:
            for name in slow.slow_under:
                if net.peers[name].state is PeerState.LAST:
                    net.peers[name].state = PeerState.TAIL
        if holds_back:
            last = len(slow.slow_under) > 1
            net.to_tail(slow, now, "slow", PeerState.LAST if last else PeerState.TAIL)

    def _try_without_first(self, now: float) -> None:
        """Move the first node to the tail as a trial.

        No node can be faster than the first one, so nothing else would show that it is slow. The
        trial costs little (docs/copy-model.md), and is made only where enough time is left.
        """
        net, chain = self._net, self._net.chain
        if self._rotations >= ROTATIONS or self.data_at is None or len(chain) < 2:
            return
        first, second = chain[0], chain[1]
        rate = first.rate(now)
        if (
            first.gap is None
            or second.gap is None
            or first.upstream != SOURCE
            or net.is_beside_source(first)
            or net.is_complete(first)
            or second.rate(now) < EVEN_SHARE * rate
            or now - max(self.data_at, *(peer.linked_at for peer in chain))
            < self._timeouts.rotate_s
        ):
            return
        if (net.blocks - first.blocks) * net.block_bytes > rate * self._timeouts.worth_s:
            self._rotations += 1
            net.to_tail(first, now, "tried at the end of the chain")

    # Back

    def _may_return(self, peer: Peer, now: float, children: dict[str, list[Peer]]) -> bool:
        """Return whether a node of the tail has proved fast enough for the end of the chain."""
        return (
            peer.state is PeerState.TAIL
            and bool(peer.upstream)
            and not peer.unreachable
            and not self._net.is_complete(peer)
            and now - peer.linked_at >= self._timeouts.return_s
            and now - peer.data_at < WINDOW_S
            and not self._is_silent(peer, now)
            and peer.rate(now) >= self._enough(peer, children)
        )

    # Lost connections

    def _settle_losses(self, now: float) -> None:
        """Act on reported losses as soon as it is clear what was lost."""
        net = self._net
        for name, loss in list(self._losses.items()):
            child, upstream = net.peers[name], net.peers[loss.upstream]
            settled_at = loss.at + SETTLED_S
            silent_at = max(loss.at, upstream.heard_at or 0.0) + self._timeouts.silent_s
            if child.upstream != loss.upstream or not (child.alive and upstream.alive):
                pass
            elif now < settled_at:
                continue
            elif child.data_at > settled_at:
                pass  # the other connections work
            elif upstream.name == SOURCE:
                child.source_losses += 1
                if child.source_losses > SOURCE_RETRIES:
                    child.unreachable[SOURCE] = loss.why
                child.upstream = ""  # the coordinator repeats the order to pull
            elif (upstream.heard_at or 0.0) > settled_at:
                self._cannot_pull(child, upstream, loss, now)
            elif now >= silent_at:
                net.to_tail(upstream, now, "silent")
                child.upstream = ""
            else:
                continue
            del self._losses[name]

    def _cannot_pull(self, child: Peer, upstream: Peer, loss: _Loss, now: float) -> None:
        """Move a node that cannot pull from its upstream to the tail, or the upstream.

        If only one node cannot pull from it, the node is at fault; if two cannot, the upstream is.
        """
        net = self._net
        others = [peer for peer in net.order if upstream.name in peer.unreachable]
        if others and not upstream.in_tail:
            net.to_tail(upstream, now, "others cannot pull from it", PeerState.LAST)
            for other in others:
                del other.unreachable[upstream.name]
                if other.in_tail and not other.unreachable:
                    net.to_chain(other, now, f"back: {upstream.name} was cut off")
            child.upstream = ""
        else:
            child.unreachable[upstream.name] = loss.why
            net.to_tail(child, now, f"cannot pull from {upstream.name}: {loss.why}")
