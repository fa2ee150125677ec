"""How long a copy takes, as formulas (docs/copy-model.md derives them).

Bytes, seconds, bytes a second. What is not known is None, and so is what would rest on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# TCP payload of a full frame, and what the frame takes on the wire: 12 bytes of TCP timestamps,
# 20 each of the TCP and IPv4 headers are inside the MTU; 14 header, 4 check sequence, 8 preamble
# and 12 gap outside it (IEEE 802.3, RFC 9293, RFC 7323).
FRAME_BYTES = 38
HEADER_BYTES = 52
MTU = 1500

# One TCP flow between EC2 instances that share no cluster placement group:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-network-bandwidth.html
EC2_FLOW = 5e9 / 8


@dataclass(frozen=True)
class Hops:
    """What bytes pass on their way: `link` of the slowest node, one TCP `flow`, the disks.

    `link` and `flow` count link bytes. `read` is the source's disk, `write` the slowest target's;
    None where nobody knows.
    """

    link: float | None = None
    flow: float | None = None
    read: float | None = None
    write: float | None = None
    mtu: int = MTU


@dataclass(frozen=True)
class Overheads:
    """What a copy costs beside its bytes, in seconds.

    `setup_s`: SSH log-ins and the start of the relays, done side by side. `source_file_s`,
    `target_file_s`: for each file, looking at it and sending it, and making it. Measured with
    20,000 files of 4 KiB on an AMD EPYC core with an SSD (docs/copy-model.md).
    """

    setup_s: float = 0.5
    source_file_s: float = 45e-6
    target_file_s: float = 140e-6


DEFAULT_OVERHEADS = Overheads()


@dataclass(frozen=True)
class Estimate:
    """A predicted time. `phases` add up to `seconds`; None with `limited_by` "" is not known."""

    seconds: float | None
    phases: Mapping[str, float] = field(default_factory=dict)
    limited_by: str = ""


UNKNOWN = Estimate(None)


def payload_share(mtu: int = MTU) -> float:
    """The share of what passes a link that is data: 1448/1538 at MTU 1500, 8949/9039 at 9001."""
    return (mtu - HEADER_BYTES) / (mtu + FRAME_BYTES)


def hop_rate(hops: Hops, streams: int) -> float | None:
    """Payload from one node to the next: min(B, K * flow), less the headers."""
    if hops.link is None:
        return None
    rate = hops.link if hops.flow is None else min(hops.link, streams * hops.flow)
    return rate * payload_share(hops.mtu)


def fill_s(nodes: int, streams: int, block_bytes: int, rate: float, size: int) -> float:
    """Until the last node gets its first byte: (N-1) * K * b / B, K blocks being under way at once.

    A set smaller than that fills the chain with itself.
    """
    return max(0, nodes - 1) * min(streams * block_bytes, size) / rate


def chain(
    size: int,
    files: int,
    nodes: int,
    hops: Hops,
    streams: int,
    block_bytes: int,
    overheads: Overheads = DEFAULT_OVERHEADS,
) -> Estimate:
    """T = max(S/B, S/W + F*w, S/R + F*r) + (N-1)*K*b/B + set-up: nodes pass on what they get."""
    rate = hop_rate(hops, streams)
    if rate is None:
        return UNKNOWN
    slowest_s, limited_by = _slowest(size / rate, size, files, hops, overheads)
    fill = fill_s(nodes, streams, block_bytes, rate, size)
    return _estimate(limited_by, setup=overheads.setup_s, transfer=slowest_s, fill=fill)


def _slowest(
    network_s: float, size: int, files: int, hops: Hops, overheads: Overheads
) -> tuple[float, str]:
    """The stage that all others wait for, while they work side by side, and its name."""
    stages = {
        "link": network_s,
        "target disk": _disk_s(size, files, hops.write, overheads.target_file_s),
        "source disk": _disk_s(size, files, hops.read, overheads.source_file_s),
    }
    name = max(stages, key=lambda stage: stages[stage])
    return stages[name], name if stages[name] else ""


def _disk_s(size: int, files: int, rate: float | None, file_s: float) -> float:
    return (size / rate if rate else 0.0) + files * file_s


def _estimate(limited_by: str, **phases: float) -> Estimate:
    named = {"set-up" if name == "setup" else name: took for name, took in phases.items()}
    return Estimate(sum(named.values()), named, limited_by)
