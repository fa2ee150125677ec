"""Finds nodes that hold back others, by their heartbeats and the rates of their data.

A lost connection does not mean that the peer failed: the node opens it again. Only a node that has
had no connection at all for some time is relinked, and one that got a damaged block. The gain
from each rule was measured in simulated time (tests/copy/simulated.py; docs/copy-model.md has the
table).
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
# How many orders to connect to the source a node may get, if it never reached it.
SOURCE_RETRIES = 2


class _Loss(NamedTuple):
    """A node's report that it has no connection to its upstream, or got a damaged block from it."""

    event: Lost
    at: float

    @property
    def why(self) -> str:
        return printable(self.event.why or self.event.kind or "lost")


class Health:
    """Moves nodes that hold back others to the tail of a Topology, and back when they are fast."""

    def __init__(self, topology: Topology, timeouts: CopyTimeouts) -> None:
        self._net, self._timeouts = topology, timeouts
        self._losses: dict[str, _Loss] = {}
        # Since when each node's upstream has something that the node lacks.
        self._could_since: dict[str, float] = {}
        self._best = 0.0
        self._rotations = 0
        self.data_at: float | None = None

    def lost(self, peer: Peer, now: float, event: Lost) -> None:
        """Record a report of `peer` about its upstream. Ignored for previous upstreams."""
        if event.upstream and event.upstream == peer.upstream:
            if event.worked:
                peer.connected_to.add(event.upstream)
            self._losses[peer.name] = _Loss(event, now)

    def check(self, now: float) -> None:
        """Check all nodes by what is known at `now`, and change the topology accordingly."""
        net = self._net
        if self.data_at is None and any(peer.bytes for peer in net.order):
            self.data_at = now
        # A node on the source's machine copies from disk to disk: its rate sets no standard.
        crossing = [peer for peer in net.chain if not net.is_on_source_machine(peer)]
        self._best = max((peer.rate(now) for peer in crossing), default=0.0)
        self.relink(now)
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

    def relink(self, now: float) -> None:
        """Relink nodes that get nothing from their upstream. For a dry run, this is all."""
        for peer in self._net.order:
            peer.forgive(now)
        self._handle_losses(now)
        self._feed_starved(now)

    def is_stuck(self, peer: Peer, now: float) -> bool:
        """Return whether a node has got nothing for `give_up_s`, though its upstream has more."""
        limit_s = self._timeouts.give_up_s
        since = max(peer.data_at, peer.joined_at)
        is_cut = bool(peer.cut) and now - peer.cut_at < self._timeouts.cut_holds_s
        if not peer.upstream or is_cut:  # it has tried, and goes on trying
            return bool(peer.unreachable or is_cut) and now - since >= limit_s
        return self._is_starved(peer, since, now, limit_s, 4 * limit_s)

    def _feed_starved(self, now: float) -> None:
        """Relink nodes that get nothing over connections that seem open.

        That happens behind a tunnel or a proxy that keeps a connection whose other end is gone.
        """
        timeouts = self._timeouts
        for child in self._net.order:
            if not self._can_get_more(child):
                self._could_since.pop(child.name, None)
                continue
            self._could_since.setdefault(child.name, now)
            since = max(child.data_at, child.ordered_at)
            limits_s = (timeouts.starved_s, timeouts.give_up_s)
            if child.upstream and self._is_starved(child, since, now, *limits_s):
                if child.upstream != SOURCE:
                    why = f"nothing came from it for {now - since:.0f} s"
                    child.avoid(child.upstream, why, now + timeouts.avoid_s)
                child.upstream = ""

    def _can_get_more(self, child: Peer) -> bool:
        """Return whether a node lacks something that its upstream has."""
        net = self._net
        if not child.alive or net.is_complete(child):
            return False
        if not child.upstream:  # it is about to be relinked
            return child.name in self._could_since
        if child.gap is None:  # it waits for the manifest, or compares
            return child.upstream == SOURCE or net.peers[child.upstream].gap is not None
        return net.behind(child) > 0

    def _is_starved(
        self, child: Peer, since: float, now: float, limit_s: float, slow_limit_s: float
    ) -> bool:
        """Return whether a node got nothing for `limit_s`, and there was something for it.

        From a source that reads all the time, it is starved only if others get something, and
        after `slow_limit_s`.
        """
        could_since = self._could_since.get(child.name)
        is_busy = child.progress is not None and bool(child.progress.step)  # with its own disk
        if could_since is None or is_busy:
            return False
        if child.gap is None:  # what it does while it compares is no data, but it goes on
            since = max(since, child.moved_at)
        starved_s = now - max(since, could_since)
        if child.upstream == SOURCE and now - self._net.source.moved_at < limit_s:
            fellows = [one for one in self._net.order if one.upstream == SOURCE]
            passed_over = any(now - one.data_at < limit_s for one in fellows)
            return passed_over and starved_s >= slow_limit_s
        return starved_s >= limit_s

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
        return now - (peer.last_event_at or 0.0) >= self._timeouts.silent_s

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
        """Return whether to check a node although no other pulls from it.

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
        the upstream is slow, and the first node returns. Two slow neighbours appear the same, so a
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
            or net.is_on_source_machine(first)
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

    # No connection

    def _handle_losses(self, now: float) -> None:
        """Relink nodes that have no connection to their upstream, or got a damaged block.

        Relays repeat their reports, so one without enough detail is dropped.
        """
        net, timeouts = self._net, self._timeouts
        for name, loss in list(self._losses.items()):
            child, upstream = net.peers[name], net.peers[loss.event.upstream]
            if child.upstream != upstream.name or not (child.alive and upstream.alive):
                pass
            elif loss.event.kind == "corrupt":
                self._ask_another(child, upstream, loss, now)
            elif loss.event.for_s < timeouts.cut_s or child.data_at > loss.at:
                pass
            elif self._is_silent(upstream, now):
                pass  # its heartbeat decides: see `_pass_by_idle`
            elif now - child.ordered_at < timeouts.cut_s:
                continue
            else:
                self._cut_off(child, upstream, loss, now)
            del self._losses[name]

    def _ask_another(self, child: Peer, upstream: Peer, loss: _Loss, now: float) -> None:
        """Have a node pull from another upstream than the one that sent a damaged block.

        From the source it requests the block again by itself.
        """
        if child.report_damage() and upstream.name != SOURCE:
            child.avoid(upstream.name, loss.why, now + self._timeouts.avoid_s)
            child.upstream = ""

    def _cut_off(self, child: Peer, upstream: Peer, loss: _Loss, now: float) -> None:
        """Relink a node that has no connection to its upstream."""
        child.cut, child.cut_at = loss.why, now
        if upstream.name != SOURCE:
            self._cannot_pull(child, upstream, loss, now)
            return
        child.source_losses += 1
        if child.never_reached([SOURCE]) and child.source_losses > SOURCE_RETRIES:
            child.avoid(SOURCE, loss.why, now + self._timeouts.avoid_s)
        child.upstream = ""  # the coordinator repeats the order to pull

    def _cannot_pull(self, child: Peer, upstream: Peer, loss: _Loss, now: float) -> None:
        """Move a node that cannot pull from its upstream to the tail, or the upstream.

        If only one node cannot pull from it, the node is at fault; if two cannot, the upstream is.
        """
        net = self._net
        others = [peer for peer in net.order if upstream.name in peer.cut_off_from]
        if others and not upstream.in_tail:
            net.to_tail(upstream, now, "others cannot pull from it", PeerState.LAST)
            for other in others:
                other.forgive_one(upstream.name)
                if other.in_tail and not other.unreachable:
                    net.to_chain(other, now, f"back: {upstream.name} was cut off")
            child.upstream = ""
        else:
            child.avoid(upstream.name, loss.why, now + self._timeouts.avoid_s)
            child.cut_off_from.add(upstream.name)
            net.to_tail(child, now, f"cannot pull from {upstream.name}: {loss.why}")
