"""Who is in the way of others, by what the relays say now. Pure."""

from __future__ import annotations

from clusterctl.copy.member import SOURCE, WINDOW_S, Member
from clusterctl.copy.relinks import Net
from clusterctl.copy.report import NodeStage

SLOW_SHARE = 0.5
LAG_S = 1.0


def silent_ones(net: Net, now: float) -> list[Member]:
    """Those that say nothing while a child that speaks gets nothing."""
    found: dict[str, Member] = {}
    for child in net.in_order:
        if _starved(net, child, now, net.patience.silent_s):
            above = net.members.get(child.upstream)
            while above and above.name != SOURCE and _silent(net, above, now):
                if not above.leaf:
                    found[above.name] = above
                above = net.members.get(above.upstream)
                if above and above.name in found:
                    break
    return list(found.values())


def _silent(net: Net, member: Member, now: float) -> bool:
    return now - member.heard_at >= net.patience.silent_s


def _starved(net: Net, member: Member, now: float, for_s: float) -> bool:
    """Whether it speaks, lacks something, and has got nothing for so long."""
    return (
        member.alive
        and member.joined
        and member.stage is not NodeStage.CONNECTING
        and not net.complete(member)
        and not _silent(net, member, now)
        and now - max(member.grew_at, member.linked_at) >= for_s
    )


def comparing_ones(net: Net, now: float) -> list[Member]:
    """Those that still look at their own files while a child is ready and gets nothing."""
    found: dict[str, Member] = {}
    for child in net.path:
        if child.gap is None or not _starved(net, child, now, net.patience.comparing_s):
            continue
        above = net.members.get(child.upstream)
        while above and above.name != SOURCE and above.in_path and above.gap is None:
            if above.name in found:
                break
            found[above.name] = above
            above = net.members.get(above.upstream)
    return list(found.values())


def slow_one(net: Net, now: float) -> Member | None:
    """The first that lags behind its upstream, and holds others back or may be held back by it."""
    if net.data_at is None:
        return None
    least = max(4 * net.streams * net.block_bytes, LAG_S * net.best)
    for member in net.in_order:
        if (
            member.alive
            and member.gap is not None
            and member.upstream
            and now - max(member.linked_at, member.shared_at, net.data_at) >= net.patience.grace_s
            and net.behind(member) * net.block_bytes > least
            and member.rate(now) < SLOW_SHARE * net.best / _sharing(net, member)
            and (holds_back(net, member) or _worth_a_look(net, member, now))
        ):
            return member
    return None


def _sharing(net: Net, member: Member) -> int:
    return max(1, len(net.children(net.members[member.upstream])))


def _worth_a_look(net: Net, member: Member, now: float) -> bool:
    """Nobody waits for it, but it may be slow only because of the node that it pulls from."""
    left = (net.blocks - member.blocks) * net.block_bytes
    return (
        member.upstream != SOURCE
        and member.upstream not in member.slow_under
        and len(member.slow_under) < 2
        and left > member.rate(now) * net.patience.worth_s
    )


def stalled_one(net: Net, now: float) -> Member | None:
    """The first of the path that gets nothing though its upstream has what it lacks."""
    for member in net.path:
        if (
            member.gap is not None
            and net.behind(member) > 0
            and _starved(net, member, now, net.patience.stall_s)
            and holds_back(net, member)
        ):
            return member
    return None


def holds_back(net: Net, member: Member) -> bool:
    """Whether somebody waits for it."""
    return bool(net.children(member))


def stalled_leaves(net: Net, now: float) -> list[Member]:
    """Nodes that nobody waits for and that get nothing where they are."""
    return [
        member
        for member in net.in_order
        if member.gap is not None
        and not (member.in_path and holds_back(net, member))
        and net.behind(member) > 0
        and _starved(net, member, now, net.patience.leaf_stall_s)
    ]


def is_stuck(net: Net, member: Member, now: float) -> bool:
    """Whether it has got nothing for far too long, though its upstream has what it lacks."""
    for_s = now - max(member.grew_at, member.joined_at)
    return member.gap is not None and for_s >= net.patience.give_up_s and net.behind(member) > 0


def grown_ones(net: Net) -> list[Member]:
    """Those that joined late and have caught up, if only with the leaves."""
    slack = max(4 * net.streams, int(LAG_S * net.best / net.block_bytes))
    leaves = [m.blocks for m in net.in_order if m.alive and m.leaf and not net.complete(m)]
    return [
        member
        for member in net.in_order
        if member.young
        and member.gap is not None
        and (net.behind(member) <= slack or member.blocks + slack >= max(leaves, default=0) > 0)
    ]


def returning_one(net: Net, now: float) -> Member | None:
    """A leaf that has proved fast: it may be the path's tail."""
    for member in net.in_order:
        if (
            member.alive
            and member.leaf
            and member.may_return
            and not member.avoid
            and member.upstream
            and not net.complete(member)
            and now - max(member.demoted_at, member.linked_at) >= net.patience.return_s
            and not _silent(net, member, now)
            and now - member.grew_at < WINDOW_S
            and member.rate(now) >= SLOW_SHARE * net.best / _sharing(net, member)
        ):
            return member
    return None
