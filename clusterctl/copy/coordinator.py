"""Decides what each relay of a copy does: relay events and the time come in, orders go out.

No I/O and no clock; callers pass `now`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from clusterctl.copy import failures
from clusterctl.copy.health import Health
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.topology import SOURCE, CopyTimeouts, Peer, PeerState, Topology
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.node.relay.destination import would_remove
from clusterctl.node.relay.messages import (
    UNKNOWN,
    Begin,
    Done,
    Event,
    Failed,
    Gap,
    Listed,
    Listening,
    Lost,
    Order,
    Progress,
    PullFrom,
    Stop,
    printable,
)

# If this program was suspended (Ctrl-Z, a closed laptop), a long gap between ticks does not mean
# that nodes were silent. Count a gap as this many seconds at most.
LONGEST_TICK_S = 0.5
# A node fails after so many reports of damaged blocks, one a second at most, while no block comes.
MOST_DAMAGED = 30
# Block numbers are unsigned 32-bit integers on the wire. The source may report any size.
MOST_BLOCKS = 1 << 32


class Planned(Protocol):
    """The part of a CopyPlan that the coordinator uses."""

    @property
    def order(self) -> tuple[str, ...]: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def streams(self) -> int: ...


# Makes a plan from the source's summary and the names of the targets that are ready.
Planner = Callable[[SourceSummary, Sequence[str]], Planned]


class Coordinator:
    """The state of one copy. `handle_event`, `started` and `ended` record events; `tick` returns
    orders.

    `now` is the time of one monotonic clock in seconds, in all of them.
    """

    def __init__(
        self,
        targets: Sequence[str],
        plan: Planner,
        *,
        dry_run: bool = False,
        timeouts: CopyTimeouts | None = None,
    ) -> None:
        self.net = Topology({name: Peer(name) for name in (SOURCE, *targets)})
        self.targets = tuple(self.net.peers[name] for name in targets)
        self.timeouts = timeouts or CopyTimeouts()
        self.dry_run = dry_run
        self.health = Health(self.net, self.timeouts)
        self.summary: SourceSummary | None = None
        self.planned: Planned | None = None
        self.began_at = 0.0
        self.first_complete_at: float | None = None
        self.stopped = False
        self.now = 0.0
        self._plan = plan
        self._listed = Listed()
        self._clock: float | None = None
        self._ready_at: float | None = None
        self._orders: list[tuple[str, Order]] = []
        self._take: dict[type, Callable[[Peer, Any], None]] = {
            Listening: self._listening,
            Listed: self._has_listed,
            Gap: self._has_gap,
            Progress: self._has_progressed,
            Lost: lambda peer, event: self.health.lost(peer, self.now, event),
            Done: self._has_done,
            Failed: self._has_failed,
        }

    def handle_event(self, now: float, node: str, event: Event) -> None:
        """Process an event of a node's relay. Events that do not fit its state are ignored."""
        self._advance(now)
        peer = self.net.peers[node]
        take = self._take.get(type(event))
        if peer.alive and take:
            peer.last_event_at = self.now
            take(peer, event)

    def started(self, now: float, node: str) -> None:
        """Record that the relay's command runs. The timeout for its first event begins."""
        self._advance(now)
        self.net.peers[node].last_event_at = self.now

    def ended(self, now: float, node: str, error: ClusterctlError | None = None) -> None:
        """Record that the relay has ended, with the error if the reason is known."""
        self._advance(now)
        peer = self.net.peers[node]
        if peer.alive:
            self._drop(peer, error or failures.died(node))

    def tick(self, now: float) -> list[tuple[str, Order]]:
        """Return the orders that are due, each with its node.

        Raises what the planner raises, and UsageError if --delete would remove the source.
        """
        self._advance(now)
        self._find_dead()
        if self.planned is None:
            self._begin_if_ready()
        if self.planned is not None:
            for peer in self.targets:
                if peer.state is PeerState.READY:
                    self._join(peer)
            if self.dry_run:
                self.health.relink(self.now)
            else:
                self.health.check(self.now)
            self._relink()
        self._end_without_source()
        if self.over and not self.stopped:
            self.stopped = True
            for peer in self.net.peers.values():
                if peer.alive:
                    self._order(peer, Stop())
        orders, self._orders = self._orders, []
        return orders

    @property
    def over(self) -> bool:
        """Whether every target is over: see `is_over`."""
        return all(map(self.is_over, self.targets))

    def is_over(self, peer: Peer) -> bool:
        """Return whether a target is done or has failed; in a dry run, whether it has compared."""
        return bool(peer.error or peer.done or (self.dry_run and peer.gap))

    def give_up(self, error_of: Callable[[str], ClusterctlError]) -> None:
        """Fail every target that is not over, with what `error_of` returns for its name."""
        for peer in self.targets:
            if not self.is_over(peer):
                self._fail(peer, error_of(peer.name))

    def _advance(self, now: float) -> None:
        if self._clock is not None:
            self.now += min(max(0.0, now - self._clock), LONGEST_TICK_S)
        self._clock = now

    # Events

    def _listening(self, peer: Peer, event: Listening) -> None:
        if peer.state is PeerState.CONNECTING and 0 < event.port < 65536:
            peer.at, peer.state = event, PeerState.READY

    def _has_failed(self, peer: Peer, event: Failed) -> None:
        error = failures.failure_of(peer.name, event)
        if event.kind == "busy" and peer.at.host:
            others = (one for one in self.net.peers.values() if one.name not in (SOURCE, peer.name))
            same = next((one.name for one in others if one.at.host == peer.at.host), "")
            error = failures.named_twice(peer.name, event, same) if same else error
        self._drop(peer, error)

    def _has_listed(self, peer: Peer, event: Listed) -> None:
        if peer.name == SOURCE and self.summary is None:
            self._listed = event
            peer.warn(event.warnings)
            warnings = tuple(peer.warnings)
            self.summary = SourceSummary(event.files, event.bytes, 0, warnings, event.left_out)

    def _has_gap(self, peer: Peer, event: Gap) -> None:
        if peer.gap is None and peer in self.net.order:
            peer.gap, peer.data_at = event, self.now
            peer.warn(event.warnings)
            if peer.state is PeerState.COMPARING:
                peer.state = PeerState.CHAIN
            elif peer.state is PeerState.TAIL and not peer.unreachable:
                # It went to the tail while it was comparing, not because it was slow.
                self.net.to_chain(peer, self.now, "has compared")
            self._see_complete(peer)

    def _has_progressed(self, peer: Peer, event: Progress) -> None:
        peer.take_progress(self.now, event, self.net.blocks)
        self._see_complete(peer)

    def _has_done(self, peer: Peer, event: Done) -> None:
        if peer in self.net.order and peer.done is None:
            peer.done, peer.state = event, PeerState.DONE
            peer.warn(event.warnings)
            self._see_complete(peer)
            peer.ended_at = self.now

    def _see_complete(self, peer: Peer) -> None:
        if peer.name != SOURCE and self.net.is_complete(peer):
            peer.ended_at = peer.ended_at or self.now
            # Only a node that got bytes over a link shows how long one copy takes.
            crossed = peer.bytes > 0 and not self.net.is_on_source_machine(peer)
            if crossed and self.first_complete_at is None:
                self.first_complete_at = self.now

    # Failures

    def _drop(self, peer: Peer, error: ClusterctlError) -> None:
        """Mark a relay as failed, or only as gone if it is a target that has everything."""
        if peer.name == SOURCE or not self.is_over(peer):
            peer.state, peer.error, peer.ended_at = PeerState.FAILED, error, self.now
        else:
            peer.state = PeerState.GONE

    def _fail(self, peer: Peer, error: ClusterctlError) -> None:
        if peer.alive:
            self._order(peer, Stop())
        self._drop(peer, error)

    def _find_dead(self) -> None:
        timeouts = self.timeouts
        left = [peer for peer in self.targets if not self.is_over(peer)]
        for peer in self.net.peers.values():
            limit = timeouts.dead_s if peer.progress else timeouts.start_s
            if peer.progress and left in ([], [peer]):
                limit = timeouts.last_dead_s  # the copy is only waiting for this node
            if (
                peer.alive
                and peer.last_event_at is not None
                and self.now - peer.last_event_at >= limit
            ):
                listened = peer.state is not PeerState.CONNECTING
                self._fail(peer, failures.not_responding_error(peer.name, limit, listened))
        for peer in self.net.peers.values():
            event, for_s = peer.progress, self.now - peer.moved_at
            if peer.alive and event and event.step and for_s >= timeouts.hung_s and left:
                self._fail(peer, failures.hung_error(peer.name, event.step, event.path, for_s))
        for peer in left:
            if peer.alive and peer.damaged[1] >= MOST_DAMAGED:
                self._fail(peer, failures.damaged_error(peer.name, peer.damaged[1]))
            if peer.alive and self.health.is_stuck(peer, self.now):
                self._fail(peer, failures.no_data_error(peer.name, timeouts.give_up_s, peer.cut))

    def _end_without_source(self) -> None:
        """Give up if the source is gone and no living target has every block.

        As long as one has every block, the others pull from it.
        """
        source = self.net.source
        whole = [peer for peer in self.net.order if peer.alive and self.net.is_complete(peer)]
        if not source.alive and not whole:
            self.give_up(lambda name: failures.source_died(name, source.error))

    # Start

    def _begin_if_ready(self) -> None:
        summary, source = self.summary, self.net.source
        waiting = [peer for peer in self.targets if peer.state is PeerState.CONNECTING]
        there = [peer.name for peer in self.targets if peer.state is PeerState.READY]
        if summary is None or source.state is not PeerState.READY or not there:
            return
        if self._ready_at is None:
            self._ready_at = self.now
        if not waiting or self.now - self._ready_at >= self.timeouts.gather_s:
            self._spare_source(there)
            self._begin(summary, self._plan(summary, there), there)

    def _spare_source(self, there: Sequence[str]) -> None:
        """Raise UsageError before any node deletes if one of them would remove the source.

        A node that is ready later refuses by itself.
        """
        host, endangered = self._listed.host, self._listed.endangered
        if endangered and any(self.net.peers[name].at.host == host for name in there):
            raise UsageError(*would_remove(printable(endangered)))

    def _begin(self, summary: SourceSummary, planned: Planned, there: Sequence[str]) -> None:
        net = self.net
        self.planned, self.began_at = planned, self.now
        net.block_bytes, net.streams = max(1, planned.block_bytes), planned.streams
        net.blocks = min(math.ceil(summary.bytes / net.block_bytes), MOST_BLOCKS)
        self.summary = replace(summary, blocks=net.blocks)
        # A relay that has not connected yet has `gmac` False here: it may join later, on a machine
        # without GMAC.
        net.gmac = all(peer.at.gmac for peer in net.peers.values() if peer.alive)
        self._order(net.source, self._begin_order)
        for name in dict.fromkeys((*planned.order, *there)):
            if name in there:
                self._join(net.peers[name])

    def _join(self, peer: Peer) -> None:
        self.net.order.append(peer)
        peer.state = PeerState.COMPARING
        peer.joined_at = peer.linked_at = peer.data_at = peer.moved_at = self.now
        self._order(peer, self._begin_order)

    @property
    def _begin_order(self) -> Begin:
        listed, net = self._listed, self.net
        return Begin(
            net.block_bytes,
            net.streams,
            listed.digest,
            listed.single,
            listed.left_out,
            listed.host,
            listed.roots,
            net.gmac,
        )

    # Links

    def _relink(self) -> None:
        for peer, wanted in list(self.net.wanted_links()):
            if wanted is None:
                # One that has got something waits until it may try again.
                if peer.never_reached(peer.unreachable):
                    self._fail(peer, failures.unreachable_error(peer.name, peer.unreachable))
            elif wanted != peer.upstream:
                self._link(peer, wanted)

    def _link(self, peer: Peer, name: str) -> None:
        if peer.upstream:
            peer.moved(f"from {peer.upstream} to {name or 'nobody'}")
        # Nodes with the same upstream share its link, so their rates change, too. They get a new
        # grace period before they are checked.
        for other in self.net.order:
            if other.upstream and other.upstream in (name, peer.upstream):
                other.linked_at = self.now
        peer.upstream, peer.linked_at, peer.ordered_at = name, self.now, self.now
        if peer.progress:
            # `behind` counts blocks of the previous upstream.
            peer.progress = peer.progress._replace(behind=UNKNOWN)
        at = self.net.peers[name].at if name else Listening()
        self._order(peer, PullFrom(name, at.address, at.port))

    def _order(self, peer: Peer, order: Order) -> None:
        self._orders.append((peer.name, order))
