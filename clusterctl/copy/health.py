"""Which node is in the way: told from silence, slowness and lost connections.

What each rule is worth was measured (tests/copy/simulated.py; docs/copy-model.md has the table).
"""

from __future__ import annotations

from typing import NamedTuple

from clusterctl.copy.topology import SOURCE, WINDOW_S, Peer, PeerState, Timeouts, Topology
from clusterctl.node.relay.messages import Lost, printable

# Slower than this share of the fastest, and so many seconds of its data behind its upstream.
SLOW_SHARE = 0.5
LAG_S = 1.0
# The first node and the second are as fast as each other.
EVEN_SHARE = 0.8
ROTATIONS = 2
SOURCE_RETRIES = 3
# One connection of several may be lost: what comes after that over the others shows it.
SETTLED_S = 0.5


class _Loss(NamedTuple):
    upstream: str
    at: float
    why: str


class Health:
    """Sends nodes that are in the way to the tail of a Topology, and takes them back."""

    def __init__(self, topology: Topology, timeouts: Timeouts) -> None:
        self._net, self._timeouts = topology, timeouts
        self._losses: dict[str, _Loss] = {}
        self._best = 0.0
        self._rotations = 0
        self.data_at: float | None = None

    def lost(self, peer: Peer, now: float, told: Lost) -> None:
        """It says that it gets nothing from its upstream."""
        if told.upstream and told.upstream == peer.upstream:
            why = printable(told.why or told.kind or "lost")
            self._losses[peer.name] = _Loss(told.upstream, now, why)

    def look(self, now: float) -> None:
        """Judge by what is known now."""
        net = self._net
        if self.data_at is None and any(peer.bytes for peer in net.order):
            self.data_at = now
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
        """Whether it has got nothing for far too long, though its upstream has what it lacks."""
        for_s = now - max(peer.grew_at, peer.joined_at)
        return (
            peer.gap is not None
            and for_s >= self._timeouts.give_up_s
            and self._net.behind(peer) > 0
        )

    # Silent, or still comparing

    def _pass_by_idle(self, now: float) -> None:
        """Those above a node that waits for data and gets none, as far as they give no sign."""
        timeouts, net = self._timeouts, self._net
        for child in net.order:
            starved_s = now - max(child.grew_at, child.linked_at)
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
        """The first that lags behind its upstream, which may be that one's doing."""
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
        """The rate from which on it is not slow: an upstream may have to serve several."""
        return SLOW_SHARE * self._best / max(1, len(children[peer.upstream]))

    def _may_accuse(self, peer: Peer, now: float) -> bool:
        """Nobody waits for it, but it may be slow only because of the node that it pulls from."""
        left = (self._net.blocks - peer.blocks) * self._net.block_bytes
        return (
            peer.upstream != SOURCE
            and peer.upstream not in peer.slow_under
            and len(peer.slow_under) < 2
            and left > peer.rate(now) * self._timeouts.worth_s
        )

    def _blame(self, slow: Peer, now: float, holds_back: bool) -> None:
        """Who lags is slow itself; where a second one lags behind the same node, that is.

        Two slow neighbours look like that, too: who is slow under two nodes is slow itself.
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
        """Nobody is faster than the first node, so nothing shows that it is slow: try without it.

        It costs next to nothing, and is done where there is time left to be gained.
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
        """Whether it has proved fast: it may be the chain's last one."""
        return (
            peer.state is PeerState.TAIL
            and bool(peer.upstream)
            and not peer.avoid
            and not self._net.is_complete(peer)
            and now - peer.linked_at >= self._timeouts.return_s
            and now - peer.grew_at < WINDOW_S
            and not self._is_silent(peer, now)
            and peer.rate(now) >= self._enough(peer, children)
        )

    # Lost connections

    def _settle_losses(self, now: float) -> None:
        net = self._net
        for name, loss in list(self._losses.items()):
            child, upstream = net.peers[name], net.peers[loss.upstream]
            settled_at = loss.at + SETTLED_S
            silent_at = max(loss.at, upstream.heard_at or 0.0) + self._timeouts.silent_s
            if child.upstream != loss.upstream or not (child.alive and upstream.alive):
                pass
            elif now < settled_at:
                continue
            elif child.grew_at > settled_at:
                pass
            elif upstream.name == SOURCE:
                child.source_losses += 1
                if child.source_losses > SOURCE_RETRIES:
                    child.avoid[SOURCE] = loss.why
                child.upstream = ""  # the order is to be given again
            elif (upstream.heard_at or 0.0) > settled_at:
                self._cannot_pull(child, upstream, loss, now)
            elif now >= silent_at:
                net.to_tail(upstream, now, "silent")
                child.upstream = ""
            else:
                continue
            del self._losses[name]

    def _cannot_pull(self, child: Peer, upstream: Peer, loss: _Loss, now: float) -> None:
        """One alone cannot reach it: that is its own fault. For two it is the other's."""
        net = self._net
        others = [peer for peer in net.order if upstream.name in peer.avoid]
        if others and not upstream.in_tail:
            net.to_tail(upstream, now, "others cannot pull from it", PeerState.LAST)
            for other in others:
                del other.avoid[upstream.name]
                if other.in_tail and not other.avoid:
                    net.to_chain(other, now, f"back: {upstream.name} was cut off")
            child.upstream = ""
        else:
            child.avoid[upstream.name] = loss.why
            net.to_tail(child, now, f"cannot pull from {upstream.name}: {loss.why}")
