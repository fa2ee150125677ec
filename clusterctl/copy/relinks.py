"""Who pulls from whom. Pure.

The healthy nodes are a path: the first pulls from the source, each from the one before. A node
that is in the way is a leaf: it pulls from the path's last node, and nobody pulls from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.copy.member import SOURCE, Member

# So many nodes in vain, then the source itself.
MOST_IN_VAIN = 2


@dataclass(frozen=True)
class Patience:
    """How long the coordinator waits for what, in seconds."""

    gather_s: float = 1.0
    silent_s: float = 1.5
    dead_s: float = 15.0
    last_dead_s: float = 5.0
    start_s: float = 60.0
    grace_s: float = 2.0
    stall_s: float = 3.0
    leaf_stall_s: float = 6.0
    give_up_s: float = 120.0
    comparing_s: float = 1.5
    return_s: float = 5.0
    rotate_s: float = 3.0
    worth_s: float = 20.0


@dataclass
class Net:
    """The relays of one copy: `order` is the chain's, `members` has the source too."""

    order: list[str]
    members: dict[str, Member]
    patience: Patience
    blocks: int = 0
    block_bytes: int = 1
    streams: int = 1
    best: float = 0.0
    data_at: float | None = None

    @property
    def source(self) -> Member:
        return self.members[SOURCE]

    @property
    def path(self) -> list[Member]:
        """The healthy nodes, the source's neighbour first."""
        return [m for m in self.in_order if m.in_path]

    @property
    def in_order(self) -> list[Member]:
        return [self.members[name] for name in self.order]

    def beside_source(self, member: Member) -> bool:
        """Whether it is on the source's own machine: what it gets crosses no link."""
        return bool(member.address) and member.address == self.source.address

    def complete(self, member: Member) -> bool:
        """Whether it has every block."""
        if member.name == SOURCE:
            return True
        return member.done is not None or (member.gap is not None and member.blocks >= self.blocks)

    def behind(self, member: Member) -> int:
        """How many blocks its upstream has and it has not, as far as one can know."""
        if member.upstream == "" or self.complete(member):
            return 0
        if member.behind is not None:
            return member.behind
        upstream = self.members[member.upstream]
        has = self.blocks if self.complete(upstream) else upstream.blocks
        return max(0, has - member.blocks)

    def to_tail(self, member: Member) -> None:
        """Make it the last of the chain."""
        self.order.remove(member.name)
        self.order.append(member.name)

    def children(self, member: Member) -> list[Member]:
        """Who pulls from it and still lacks something."""
        return [
            child
            for child in self.in_order
            if child.upstream == member.name and child.alive and not self.complete(child)
        ]


def wanted_upstream(net: Net, member: Member) -> str | None:
    """Whom it is to pull from: a name, "" for nobody now, None if all were tried in vain."""
    candidates = _candidates(net, member)
    usable = [name for name in candidates if name not in member.avoid]
    if len(member.avoid) >= MOST_IN_VAIN and SOURCE in usable:
        return SOURCE
    if usable:
        return usable[0]
    return None if candidates and len(member.avoid) >= len(set(candidates)) else ""


def _candidates(net: Net, member: Member) -> list[str]:
    path = [m.name for m in net.path]
    if member.in_path:
        return path[: path.index(member.name)][::-1] + _roots(net, member)
    # What joined at the tail not long ago has little to give yet.
    grown = [name for name in path if not net.members[name].young]
    return [*grown[::-1], *path[::-1], *_roots(net, member)]


def _roots(net: Net, member: Member) -> list[str]:
    if net.source.alive:
        return [SOURCE]
    return [m.name for m in net.in_order if m is not member and m.alive and net.complete(m)]
