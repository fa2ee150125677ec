"""How a copy is to go, and how long that takes. Pure: facts in, plan out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.copy import cost
from clusterctl.copy.request import CopyRequest

SMALLEST_BLOCK = 128 << 10
LARGEST_BLOCK = 8 << 20
# The blocks that are under way may add this share to the time of one copy.
FILL_SHARE = 0.02

# Where nobody knows the link: enough for 100 Gbit/s.
STREAMS = 24
MOST_STREAMS = 64
LEAST_STREAMS = 4
# Less needs few streams: the window of one grows to all of a slow link, and each adds to the fill.
SLOW_LINK = 1e9 / 8
SLOW_STREAMS = 2
# Smaller blocks, of which each stream has one under way, cost more CPU time than streams gain.
BLOCK_WORTH_A_STREAM = 1 << 20
WHY = (
    "Every node passes on what it gets, so the source sends each byte once, "
    "however many nodes there are."
)


@dataclass(frozen=True)
class NodeFacts:
    """One node: what its link, one TCP flow on it and its disk carry, in bytes a second.

    `link_rate` and `flow_rate` count link bytes, headers included. None: nobody knows.
    """

    host: str
    zone: str = ""
    link_rate: float | None = None
    flow_rate: float | None = None
    write_rate: float | None = None


@dataclass(frozen=True)
class CopyFacts:
    """The targets in index order, and what is to move. `read_rate` is the source's disk.

    `overheads` may be replaced where they have been measured.
    """

    nodes: tuple[NodeFacts, ...]
    bytes: int = 0
    files: int = 0
    read_rate: float | None = None
    source_zone: str = ""
    overheads: cost.Overheads = cost.DEFAULT_OVERHEADS


@dataclass(frozen=True)
class CopyPlan:
    """The decisions, and the time predicted. `order` is the chain's, the source's neighbour first.

    `phases` add up to `predicted_s`; it is None while a rate is not known. `limited_by` is empty
    then, and where nothing is missing. `why` are sentences for a person.
    """

    order: tuple[str, ...]
    block_bytes: int
    streams: int
    predicted_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = ""
    why: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Plain values, for `--json` and TransferReport.plan."""
        return {
            "way": "chain",
            "order": list(self.order),
            "block_bytes": self.block_bytes,
            "streams": self.streams,
            "predicted_s": None if self.predicted_s is None else round(self.predicted_s, 3),
            "phases": {name: round(seconds, 3) for name, seconds in self.phases.items()},
            "limited_by": self.limited_by,
            "why": list(self.why),
        }


def plan_copy(request: CopyRequest, facts: CopyFacts) -> CopyPlan:
    """How `request` is to be done."""
    hops = hops_of(request, facts)
    streams = choose_streams(request, facts, hops)
    block_bytes = request.block_bytes or choose_block(facts.bytes, len(facts.nodes), streams)
    estimate = estimate_of(facts, hops, streams, block_bytes)
    return CopyPlan(
        chain_order(facts),
        block_bytes,
        streams,
        estimate.seconds,
        estimate.phases,
        estimate.limited_by,
        (WHY, *_order_reason(facts), *_unknowns(hops)),
    )


def predict(plan: CopyPlan, request: CopyRequest, facts: CopyFacts) -> CopyPlan:
    """The same decisions with the time for other facts: the largest gap, once it is known."""
    hops = hops_of(request, facts)
    estimate = estimate_of(facts, hops, plan.streams, plan.block_bytes)
    return replace(
        plan,
        predicted_s=estimate.seconds,
        phases=estimate.phases,
        limited_by=estimate.limited_by,
    )


def hops_of(request: CopyRequest, facts: CopyFacts) -> cost.Hops:
    """The slowest of each kind. One unknown link makes the slowest link unknown."""
    links = [request.link_rate or node.link_rate for node in facts.nodes]
    known = [link for link in links if link]
    return cost.Hops(
        link=min(known) if known and len(known) == len(links) else None,
        flow=_least([node.flow_rate for node in facts.nodes]),
        read=facts.read_rate,
        write=_least([node.write_rate for node in facts.nodes]),
    )


def choose_streams(request: CopyRequest, facts: CopyFacts, hops: cost.Hops) -> int:
    """Connections per hop: as many as fill the link and one more, fewer for a small set."""
    if request.streams:
        return request.streams
    if hops.link and hops.link <= SLOW_LINK:
        return SLOW_STREAMS
    streams = STREAMS
    if hops.link:
        streams = min(MOST_STREAMS, math.ceil(hops.link / (hops.flow or cost.EC2_FLOW)) + 1)
    worth = int(FILL_SHARE * facts.bytes / (len(facts.nodes) * BLOCK_WORTH_A_STREAM))
    return max(LEAST_STREAMS, min(streams, worth))


def choose_block(size: int, nodes: int, streams: int) -> int:
    """The largest power of two with which filling the chain, and the first node's own pipeline of
    reading, sending and writing, costs at most FILL_SHARE."""
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and nodes * streams * block > FILL_SHARE * size:
        block //= 2
    return block


def chain_order(facts: CopyFacts) -> tuple[str, ...]:
    """Zone after zone, the source's first: as few hops as can be leave a zone, where they cost."""
    zones = list(dict.fromkeys((facts.source_zone, *(node.zone for node in facts.nodes))))
    ordered = sorted(facts.nodes, key=lambda node: zones.index(node.zone))
    return tuple(node.host for node in ordered)


def estimate_of(facts: CopyFacts, hops: cost.Hops, streams: int, block_bytes: int) -> cost.Estimate:
    """The time of the chain."""
    size, files, nodes = facts.bytes, facts.files, len(facts.nodes)
    return cost.chain(size, files, nodes, hops, streams, block_bytes, facts.overheads)


def _order_reason(facts: CopyFacts) -> tuple[str, ...]:
    zones = {node.zone for node in facts.nodes} | {facts.source_zone} - {""}
    if len(zones) < 2:
        return ()
    return (
        f"The nodes are in {len(zones)} zones: the chain goes zone by zone, since bytes between "
        "zones cost money.",
    )


def _unknowns(hops: cost.Hops) -> tuple[str, ...]:
    if hops.link is None:
        return ("The links' rate is not known, so neither is the time: --link-rate says it.",)
    missing = [name for name, rate in (("read", hops.read), ("write", hops.write)) if rate is None]
    if not missing:
        return ()
    return (f"How fast the disks {' and '.join(missing)} is not known: taken as fast enough.",)


def _least(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate]
    return min(known) if known else None
