"""Which node is in the way: told from silence, lost connections and slowness, and kept in mind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clusterctl.copy import verdicts
from clusterctl.copy.member import SOURCE, Member
from clusterctl.copy.relinks import Net

# A node is found slow only if it is so at this many looks in a row.
LOOKS = 6
BEST_FADES_S = 15.0
SOURCE_RETRIES = 3
SETTLED_S = 0.5
FORGIVEN_S = 10.0
ROTATIONS = 2
EVEN_SHARE = 0.8
NOTHING_CAME = "nothing came"


@dataclass(frozen=True)
class _Loss:
    upstream: str
    at: float
    why: str


class Judge:
    """Makes leaves of the members of a Net, and takes leaves back."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._losses: dict[str, _Loss] = {}
        self._suspect: tuple[str, int] = ("", 0)
        self._looked_at: float | None = None
        self._rotations = 0
        self._source_forgiven_until = 0.0

    def lost(self, member: Member, now: float, upstream: str, why: str) -> None:
        """A relay says that it gets nothing from there."""
        self._losses[member.name] = _Loss(upstream, now, why or "lost")

    def look(self, now: float) -> None:
        """Judge by what is known now."""
        net = self._net
        self._remember_best(now)
        self._settle_losses(now)
        for member in verdicts.silent_ones(net, now):
            self._leaf(member, now, "silent")
        for member in verdicts.comparing_ones(net, now):
            member.late = True
            member.moved("still comparing: the others go on")
        if now >= self._source_forgiven_until:
            self._judge_pace(now)
        for member in verdicts.stalled_leaves(net, now):
            self._try_another(member, now)
        for member in verdicts.grown_ones(net):
            member.young = False
        back = verdicts.returning_one(net, now)
        if back:
            back.leaf, back.may_return, back.young, back.linked_at = False, False, True, now
            back.moved("fast again")
            net.to_tail(back)

    def _remember_best(self, now: float) -> None:
        passed = now - (self._looked_at if self._looked_at is not None else now)
        self._looked_at = now
        faded = self._net.best * math.exp(-passed / BEST_FADES_S)
        crossing = [m for m in self._net.path if not self._net.beside_source(m)]
        self._net.best = max([faded, *(m.rate(now) for m in crossing)])

    def _judge_pace(self, now: float) -> None:
        net = self._net
        stalled = verdicts.stalled_one(net, now)
        slow = stalled or verdicts.slow_one(net, now)
        if slow is None:
            self._suspect = ("", 0)
            self._rotate_first(now)
            return
        name, times = self._suspect
        times = times + 1 if name == slow.name else 1
        self._suspect = (slow.name, times)
        if times >= LOOKS:
            self._suspect = ("", 0)
            self._blame(slow, now, "got nothing" if stalled else "slow")

    def _blame(self, slow: Member, now: float, what: str) -> None:
        """The first child that lags is slow itself; with a second one it is the parent's doing.

        Two slow neighbours look like that, too: who is slow with two parents is slow itself.
        """
        net, parent = self._net, slow.upstream
        others = [
            m
            for m in net.in_order
            if m.leaf and m.alive and m is not slow and m.slow_under == [parent]
        ]
        if others and not slow.slow_under:
            slow.slow_under.append(parent)
            for other in others:
                other.leaf = False
                other.moved(f"back: {parent} was slow")
            if parent == SOURCE:
                self._source_forgiven_until = now + FORGIVEN_S
            else:
                culprit = net.members[parent]
                culprit.may_return = False
                self._leaf(culprit, now, "slow to pass it on")
            return
        if parent not in slow.slow_under:
            slow.slow_under.append(parent)
        if len(slow.slow_under) > 1:
            slow.may_return = False
            for name in slow.slow_under:
                net.members[name].may_return = True
        if verdicts.holds_back(net, slow):
            self._leaf(slow, now, what)
        elif not slow.leaf and len(slow.slow_under) == 1:
            self._swap(slow, net.members[parent])

    def _swap(self, tail: Member, parent: Member) -> None:
        """Try the last two the other way round: either may be the slow one."""
        order = self._net.order
        here, there = order.index(tail.name), order.index(parent.name)
        order[here], order[there] = parent.name, tail.name
        tail.moved(f"tried before {parent.name}")

    def _leaf(self, member: Member, now: float, why: str) -> None:
        if not member.leaf:
            member.leaf, member.demoted_at = True, now
            member.moved(why)

    def _rotate_first(self, now: float) -> None:
        """Nobody is faster than the first node, so nothing shows that it is slow: try without it.

        It costs next to nothing, and is done where there is time left to be gained.
        """
        net, path = self._net, self._net.path
        if self._rotations >= ROTATIONS or net.data_at is None or len(path) < 2:
            return
        first, second = path[0], path[1]
        rate = first.rate(now)
        if (
            first.gap is None
            or second.gap is None
            or first.upstream != SOURCE
            or net.beside_source(first)
            or net.complete(first)
            or second.rate(now) < EVEN_SHARE * rate
            or now - max(net.data_at, *(m.linked_at for m in path)) < net.patience.rotate_s
        ):
            return
        left = (net.blocks - first.blocks) * net.block_bytes
        if left > rate * net.patience.worth_s:
            self._rotations += 1
            self._leaf(first, now, "tried at the end of the chain")
            net.to_tail(first)

    # Lost connections

    def _settle_losses(self, now: float) -> None:
        for name, loss in list(self._losses.items()):
            child, upstream = self._net.members[name], self._net.members[loss.upstream]
            gone = child.upstream != loss.upstream
            if gone or not child.alive or not upstream.alive:
                del self._losses[name]
            elif loss.upstream == SOURCE:
                if now - loss.at >= SETTLED_S:
                    del self._losses[name]
                    self._lost_source(child, loss)
            elif child.grew_at > loss.at + SETTLED_S:
                del self._losses[name]  # one of its connections only
            elif upstream.heard_at > loss.at + SETTLED_S:
                del self._losses[name]
                self._lost_healthy(child, upstream, loss, now)
            elif now - max(loss.at, upstream.heard_at) >= self._net.patience.silent_s:
                del self._losses[name]
                self._leaf(upstream, now, "silent")
                self._retry(child)

    def _lost_source(self, child: Member, loss: _Loss) -> None:
        child.source_losses += 1
        if child.source_losses > SOURCE_RETRIES:
            child.avoid[SOURCE] = loss.why
        self._retry(child)

    def _lost_healthy(self, child: Member, upstream: Member, loss: _Loss, now: float) -> None:
        net = self._net
        others = [m for m in net.in_order if upstream.name in m.avoid]
        if others and not upstream.leaf:
            upstream.may_return = False
            self._leaf(upstream, now, "others cannot pull from it")
            for other in others:
                del other.avoid[upstream.name]
                other.leaf = other.leaf and bool(other.avoid)
            self._retry(child)
            return
        child.avoid[upstream.name] = loss.why
        self._leaf(child, now, f"cannot pull from {upstream.name}: {loss.why}")

    def _retry(self, child: Member) -> None:
        """Have the order given again, even if it names the same upstream."""
        child.upstream = ""

    def _try_another(self, member: Member, now: float) -> None:
        forgiven = {name for name, why in member.avoid.items() if why == NOTHING_CAME}
        rest = {m.name for m in self._net.path if m is not member} | {SOURCE}
        if rest <= set(member.avoid) | {member.upstream}:
            for name in forgiven:
                del member.avoid[name]
        elif member.upstream != SOURCE:
            member.avoid[member.upstream] = NOTHING_CAME
            self._leaf(member, now, NOTHING_CAME)
        self._retry(member)
