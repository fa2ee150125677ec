"""How a copy is to go, and how long that takes. Pure: facts in, plan out.

Bytes, seconds, bytes a second; docs/copy-model.md derives the formulas. What is not known is None,
and so is what would rest on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.copy.request import CopyRequest

# One TCP flow between EC2 instances that share no cluster placement group:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-network-bandwidth.html
EC2_FLOW = 5e9 / 8
# The share of what passes a link that is data, at MTU 1500: 12 bytes of TCP timestamps and 20 each
# of the TCP and IPv4 headers are inside of it; 14 header, 4 check sequence, 8 preamble and 12 gap
# outside (IEEE 802.3, RFC 9293, RFC 7323).
PAYLOAD_SHARE = (1500 - 52) / (1500 + 38)
# What a copy costs beside its bytes: SSH log-ins and the start of the relays, done side by side;
# for each file, looking at it and sending it, and making it. Measured with 20,000 files of 4 KiB
# on an AMD EPYC core with an SSD (docs/copy-model.md).
SETUP_S = 0.5
SOURCE_FILE_S, TARGET_FILE_S = 45e-6, 140e-6

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
UNKNOWN = "How fast the disks read and write is not known: taken as fast enough."
NO_LINK = "The links' rate is not known, so neither is the time: --link-rate says it."


@dataclass(frozen=True)
class SourceSummary:
    """What the source has. `warnings`: what it left out, one line each."""

    files: int
    bytes: int
    blocks: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeFacts:
    """One node: what its link and one TCP flow on it carry, in bytes a second, headers included."""

    host: str
    zone: str = ""
    link_rate: float | None = None
    flow_rate: float | None = None


@dataclass(frozen=True)
class CopyFacts:
    """The targets in index order, and what is to move."""

    nodes: tuple[NodeFacts, ...]
    bytes: int = 0
    files: int = 0
    source_zone: str = ""


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
    streams = choose_streams(request, facts)
    plan = CopyPlan(
        chain_order(facts),
        request.block_bytes or choose_block(facts.bytes, len(facts.nodes), streams),
        streams,
        why=(WHY, *_order_reason(facts), UNKNOWN if slowest_link(request, facts) else NO_LINK),
    )
    return predict(plan, request, facts)


def predict(plan: CopyPlan, request: CopyRequest, facts: CopyFacts) -> CopyPlan:
    """The same decisions with the time for these facts: the largest gap, once it is known.

    T = max(S/B, F*w, F*r) + (N-1)*K*b/B + set-up: nodes pass on what they get, and the stage that
    all others wait for, while they work side by side, takes the time.
    """
    link, flow = slowest_link(request, facts), _slowest_flow(facts)
    if link is None:
        return plan
    rate = min(link, plan.streams * flow if flow else link) * PAYLOAD_SHARE
    stages = {
        "link": facts.bytes / rate,
        "target disk": facts.files * TARGET_FILE_S,
        "source disk": facts.files * SOURCE_FILE_S,
    }
    limit = max(stages, key=lambda stage: stages[stage])
    # Until the last node gets its first byte. A set smaller than the blocks that are under way
    # fills the chain with itself.
    filling = min(plan.streams * plan.block_bytes, facts.bytes)
    fill = max(0, len(facts.nodes) - 1) * filling / rate
    phases = {"set-up": SETUP_S, "transfer": stages[limit], "fill": fill}
    return replace(
        plan,
        predicted_s=sum(phases.values()),
        phases=phases,
        limited_by=limit if stages[limit] else "",
    )


def slowest_link(request: CopyRequest, facts: CopyFacts) -> float | None:
    """One unknown link makes the slowest link unknown."""
    links = [request.link_rate or node.link_rate for node in facts.nodes]
    return min((link or 0.0 for link in links), default=0.0) or None


def _slowest_flow(facts: CopyFacts) -> float | None:
    return min((node.flow_rate for node in facts.nodes if node.flow_rate), default=None)


def choose_streams(request: CopyRequest, facts: CopyFacts) -> int:
    """Connections per hop: as many as fill the link and one more, fewer for a small set."""
    if request.streams:
        return request.streams
    link, flow = slowest_link(request, facts), _slowest_flow(facts)
    if link and link <= SLOW_LINK:
        return SLOW_STREAMS
    streams = STREAMS
    if link:
        streams = min(MOST_STREAMS, math.ceil(link / (flow or EC2_FLOW)) + 1)
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


def _order_reason(facts: CopyFacts) -> tuple[str, ...]:
    zones = {node.zone for node in facts.nodes} | {facts.source_zone} - {""}
    if len(zones) < 2:
        return ()
    return (
        f"The nodes are in {len(zones)} zones: the chain goes zone by zone, since bytes between "
        "zones cost money.",
    )
