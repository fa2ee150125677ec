"""Who does what in a copy: events of the relays and the time in, orders for them out. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from clusterctl.copy import failures
from clusterctl.copy.hearing import Hearing
from clusterctl.copy.judge import Judge
from clusterctl.copy.member import SOURCE, Member, text
from clusterctl.copy.orders import address_of, begin_order
from clusterctl.copy.relinks import Net, Patience, wanted_upstream
from clusterctl.copy.report import NodeStage, SourceSummary
from clusterctl.copy.verdicts import is_stuck
from clusterctl.domain.errors import ClusterctlError

Order = tuple[str, dict[str, Any]]
# Time that nobody was looking is nobody's silence: the program may have been suspended.
LONGEST_TICK_S = 0.5
MOST_BLOCKS = 1 << 32


class Planned(Protocol):
    """What the coordinator needs of a CopyPlan."""

    @property
    def order(self) -> tuple[str, ...]: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def streams(self) -> int: ...


# The source's summary, and the nodes that are there.
Planner = Callable[[SourceSummary, Sequence[str]], Planned]


class Coordinator:
    """The state of one copy. `hear` and `ended` tell it what happened, `tick` says what to do."""

    def __init__(
        self,
        targets: Sequence[str],
        plan: Planner,
        *,
        dry_run: bool = False,
        patience: Patience | None = None,
    ) -> None:
        members = {name: Member(name) for name in (SOURCE, *targets)}
        self.net = Net([], members, patience or Patience())
        self.targets = tuple(members[name] for name in targets)
        self.planned: Planned | None = None
        self.began_at = 0.0
        self.stopped = False
        self.now = 0.0
        self._judge = Judge(self.net)
        self.heard = Hearing(self.net, self._judge)
        self._plan, self.dry_run = plan, dry_run
        self._clock: float | None = None
        self._ready_at: float | None = None
        self._orders: list[Order] = []

    def hear(self, now: float, node: str, event: Mapping[str, Any]) -> None:
        """Take an event of a relay."""
        self._advance(now)
        member = self.net.members[node]
        if member.alive and text(event, "event") == "failed":
            self._drop(member, failures.failure_of(node, event))
        elif member.alive:
            self.heard.take(self.now, member, event)

    def started(self, now: float, node: str) -> None:
        """The relay's command runs: from now on it may be too late with its first word."""
        self._advance(now)
        self.net.members[node].heard_at = self.now
        self.net.members[node].awaited = True

    def ended(self, now: float, node: str, error: ClusterctlError | None = None) -> None:
        """The relay's SSH channel has closed, with what is known of the reason."""
        self._advance(now)
        member = self.net.members[node]
        if member.alive:
            self._drop(member, error or failures.died(node))

    def tick(self, now: float) -> list[Order]:
        """The orders that are due. Raises what the planner raises."""
        self._advance(now)
        net = self.net
        self._find_dead()
        if self.planned is None:
            self._begin_if_ready()
        if self.planned is not None:
            self._join_late()
            if net.data_at is None and any(member.bytes for member in self.targets):
                net.data_at = self.now
            if not self.dry_run:
                self._judge.look(self.now)
            self._relink()
        self._end_without_source()
        if self.over and not self.stopped:
            self.stopped = True
            for member in net.members.values():
                if member.alive:
                    self._order(member, {"order": "stop", "keep": not self.success})
        orders, self._orders = self._orders, []
        return orders

    @property
    def over(self) -> bool:
        """Whether every target has all it gets."""
        return all(map(self.is_over, self.targets))

    @property
    def success(self) -> bool:
        return not any(member.error for member in self.targets)

    def is_over(self, member: Member) -> bool:
        """Whether this target has all it gets."""
        if member.error or member.done is not None:
            return True
        return self.dry_run and member.gap is not None

    def give_up(self, error_of: Callable[[str], ClusterctlError]) -> None:
        """Every target that is not done fails: the time is over, or the source is."""
        for member in self.targets:
            if not self.is_over(member):
                self._fail(member, error_of(member.name))

    def _advance(self, now: float) -> None:
        if self._clock is not None:
            self.now += min(max(0.0, now - self._clock), LONGEST_TICK_S)
        self._clock = now

    # Ends

    def _drop(self, member: Member, error: ClusterctlError) -> None:
        member.alive = False
        if member.name == SOURCE:
            member.error = error
        elif not self.is_over(member):
            member.error, member.stage = error, NodeStage.FAILED
            member.ended_at = self.now

    def _fail(self, member: Member, error: ClusterctlError) -> None:
        if member.alive:
            self._order(member, {"order": "stop", "keep": True})
        self._drop(member, error)

    def _find_dead(self) -> None:
        patience = self.net.patience
        for member in self.net.members.values():
            limit = patience.dead_s if member.beats else patience.start_s
            if member.beats and all(self.is_over(m) for m in self.targets if m is not member):
                limit = patience.last_dead_s  # everybody else is only waiting for it
            if member.alive and member.awaited and self.now - member.heard_at >= limit:
                begun = member.stage is not NodeStage.CONNECTING
                self._fail(member, failures.too_late(member.name, limit, begun))
        for member in self.targets:
            if not self.is_over(member) and is_stuck(self.net, member, self.now):
                self._fail(member, failures.got_nothing(member.name, patience.give_up_s))

    def _end_without_source(self) -> None:
        """Without the source the others go on where one of them has everything."""
        source = self.net.source
        if source.alive or any(m.alive and self.net.complete(m) for m in self.targets):
            return
        self.give_up(lambda name: failures.source_died(name, source.error))

    # The beginning

    def _begin_if_ready(self) -> None:
        summary = self.heard.summary
        waiting = [m for m in self.targets if m.alive and m.stage is NodeStage.CONNECTING]
        there = [m.name for m in self.targets if m.alive and m.address]
        source = self.net.source
        if summary is None or not (source.alive and source.address) or not there:
            return
        if self._ready_at is None:
            self._ready_at = self.now
        if waiting and self.now - self._ready_at < self.net.patience.gather_s:
            return
        self._begin(summary, self._plan(summary, there), there)

    def _begin(self, summary: SourceSummary, planned: Planned, there: Sequence[str]) -> None:
        net = self.net
        self.planned, self.began_at = planned, self.now
        net.block_bytes, net.streams = max(1, planned.block_bytes), planned.streams
        net.blocks = min(math.ceil(summary.bytes / net.block_bytes), MOST_BLOCKS)
        self.heard.summary = replace(summary, blocks=net.blocks)
        self._order(net.source, begin_order(self.net, self.heard.manifest))
        for name in (*planned.order, *there):
            if name in there and name not in net.order:
                self._join(net.members[name])

    def _join_late(self) -> None:
        for member in self.targets:
            if member.alive and member.address and not member.joined:
                self._join(member)
                member.young = True

    def _join(self, member: Member) -> None:
        self.net.order.append(member.name)
        member.joined = True
        member.joined_at = member.linked_at = member.grew_at = self.now
        self._order(member, begin_order(self.net, self.heard.manifest))

    # Links

    def _relink(self) -> None:
        for member in self.net.in_order:
            if not member.alive or self.net.complete(member):
                continue
            wanted = wanted_upstream(self.net, member)
            if wanted is None:
                self._fail(member, failures.no_way(member.name, member.avoid))
            elif wanted != member.upstream:
                self._link(member, wanted)

    def _link(self, member: Member, name: str) -> None:
        if member.upstream:
            member.moved(f"from {member.upstream} to {name or 'nobody'}")
        for other in self.net.in_order:
            if other.upstream in (name, member.upstream):
                other.shared_at = self.now
        member.upstream, member.linked_at, member.behind = name, self.now, None
        self._order(member, {"order": "upstream", **address_of(self.net, name)})

    def _order(self, member: Member, order: dict[str, Any]) -> None:
        self._orders.append((member.name, order))
