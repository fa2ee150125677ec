"""Plans a copy and predicts its time. Pure: facts come in, a plan goes out.

Units are bytes, seconds and bytes a second. docs/copy-model.md derives the formulas. A figure that
is not known is None, and so is every figure that depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.copy.request import MOST_STREAMS, CopyRequest
from clusterctl.node.record import to_data

# The rate of one TCP connection between EC2 instances outside of a cluster placement group:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-network-bandwidth.html
EC2_FLOW = 5e9 / 8
# The share of a link's bytes that is data, at MTU 1500. Of the 1500 bytes, 20 are the IPv4 header,
# 20 the TCP header and 12 TCP timestamps. Around them are a header of 14 bytes, a check sequence of
# 4, a preamble of 8 and a gap of 12 (IEEE 802.3, RFC 9293, RFC 7323).
PAYLOAD_SHARE = (1500 - 52) / (1500 + 38)
# Time that a copy takes besides its bytes: for SSH logins and the start of the relays, in parallel;
# for each file, to list and send it at the source, and to make it at a target. Measured with 20,000
# files of 4 KiB on an AMD EPYC core with an SSD (docs/copy-model.md).
SETUP_S = 0.5
SOURCE_FILE_S, TARGET_FILE_S = 45e-6, 140e-6

# Limits of the block size that `choose_block` returns.
SMALLEST_BLOCK = 128 << 10
LARGEST_BLOCK = 8 << 20
# Filling the chain with blocks may add this share to the time of one copy.
FILL_SHARE = 0.02

# Connections per hop where the link's rate is not known: enough for 100 Gbit/s.
STREAMS = 24
LEAST_STREAMS = 4
# A link up to this rate needs few connections: one connection's window grows to fill a slow link,
# and each further connection adds to the time to fill the chain.
SLOW_LINK = 1e9 / 8
SLOW_STREAMS = 2
# Each connection has one block under way. With blocks smaller than this, further connections cost
# more CPU time than they gain.
BLOCK_WORTH_A_STREAM = 1 << 20
# Sentences of `CopyPlan.reasons`.
WHY = (
    "Every node passes on what it gets, so the source sends each byte once, "
    "however many nodes there are."
)
UNKNOWN = "How fast the disks read and write is not known: taken as fast enough."
NO_LINK = "The links' rate is not known, so neither is the time: give it with --link-rate."


@dataclass(frozen=True)
class SourceSummary:
    """The size of the source. It left `left_out` things out; `warnings` has a line for each of the
    first.

    `blocks` is 0 until the block size is chosen.
    """

    files: int
    bytes: int
    blocks: int
    warnings: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class NodeFacts:
    """One node: the rates of its link and of one TCP connection, headers included."""

    host: str
    zone: str = ""
    link_rate: float | None = None
    flow_rate: float | None = None


@dataclass(frozen=True)
class CopyFacts:
    """The targets in index order, and the bytes and files to copy."""

    nodes: tuple[NodeFacts, ...]
    bytes: int = 0
    files: int = 0
    source_zone: str = ""


@dataclass(frozen=True)
class CopyPlan:
    """The decisions for a copy, and its predicted time.

    `order` is the chain, the source's neighbour first. `phases` maps names to seconds that add up
    to `predicted_s`, which is None while a rate is not known. `limited_by` is empty in that case,
    and if nothing is missing. `reasons` has sentences for the user.
    """

    order: tuple[str, ...]
    block_bytes: int
    streams: int
    predicted_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = ""
    reasons: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return plain values, for `--json` and TransferReport.plan."""
        predicted_s = None if self.predicted_s is None else round(self.predicted_s, 3)
        phases = {name: round(seconds, 3) for name, seconds in self.phases.items()}
        return {"way": "chain", **to_data(replace(self, predicted_s=predicted_s, phases=phases))}


def plan_copy(request: CopyRequest, facts: CopyFacts) -> CopyPlan:
    """Return the plan for `request`."""
    streams = choose_streams(request, facts)
    plan = CopyPlan(
        chain_order(facts),
        request.block_bytes or choose_block(facts.bytes, len(facts.nodes), streams),
        streams,
        reasons=(WHY, *_order_reason(facts), UNKNOWN if slowest_link(request, facts) else NO_LINK),
    )
    return predict(plan, request, facts)


def predict(plan: CopyPlan, request: CopyRequest, facts: CopyFacts) -> CopyPlan:
    """Return the plan with the time predicted for these facts; unchanged if a link is not known.

    Once nodes have reported what they lack, the facts are those of the largest gap.
    T = max(S/B, F*w, F*r) + (N-1)*K*b/B + set-up, with the symbols of docs/copy-model.md: the
    stages work in parallel, so the slowest one takes the time.
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
    # `fill` is the time until the last node gets its first byte. The blocks under way on a hop are
    # not more than the whole data set.
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
    """Return the rate of the slowest link; None if the rate of any link is not known."""
    links = [request.link_rate or node.link_rate for node in facts.nodes]
    return min((link or 0.0 for link in links), default=0.0) or None


def _slowest_flow(facts: CopyFacts) -> float | None:
    return min((node.flow_rate for node in facts.nodes if node.flow_rate), default=None)


def choose_streams(request: CopyRequest, facts: CopyFacts) -> int:
    """Return the connections per hop: one more than fill the link, fewer for a small data set."""
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
    """Return the block size in bytes for a data set of `size` bytes.

    It is the largest power of two with which filling the chain, and the first node's own pipeline
    of reading, sending and writing, adds at most FILL_SHARE to the time.
    """
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and nodes * streams * block > FILL_SHARE * size:
        block //= 2
    return block


def chain_order(facts: CopyFacts) -> tuple[str, ...]:
    """Return the hosts zone by zone, the source's first: traffic between zones costs money."""
    zones = list(dict.fromkeys((facts.source_zone, *(node.zone for node in facts.nodes))))
    ordered = sorted(facts.nodes, key=lambda node: zones.index(node.zone))
    return tuple(node.host for node in ordered)


def _order_reason(facts: CopyFacts) -> tuple[str, ...]:
    zones = {facts.source_zone, *(node.zone for node in facts.nodes)} - {""}
    if len(zones) < 2:
        return ()
    return (
        f"The nodes are in {len(zones)} zones: the chain goes zone by zone, since bytes between "
        "zones cost money.",
    )
