"""Simulated clusters, whose speeds the tests fit the scaling model to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from clusterctl.bench.model import slowest_of


@dataclass(frozen=True)
class Machine:
    """A cluster, in seconds, bytes, and bytes a second. `input_s` is how long a full node takes to
    read the images of one step, and `shared_input_s` how long a storage that all nodes share takes
    for those of one full node. `hierarchical`: each node first adds up its GPUs' gradients, then
    the nodes form a ring. `overlap_s` of the allreduce hides behind the backward pass. From
    `slow_from` nodes on, one of them computes longer by the part `slower`, and from
    `reads_slowly_from` on one reads longer by it. `soft` is the part of
    the compute time over which a maximum is rounded, since steps vary.
    """

    gpus_per_node: int
    compute_s: float
    gradient_bytes: float
    local_rate: float
    network_rate: float
    latency_s: float
    straggler_s: float
    input_s: float = 0.0
    shared_input_s: float = 0.0
    hierarchical: bool = True
    tree: bool = False
    overlap_s: float = 0.0
    slow_from: int = 0
    reads_slowly_from: int = 0
    slower: float = 0.0
    soft: float = 0.0

    def step_s(self, gpus: int) -> float:
        local, nodes = min(gpus, self.gpus_per_node), -(-gpus // self.gpus_per_node)
        slow = 1 + self.slower * bool(self.slow_from and nodes >= self.slow_from)
        exposed = self._larger(0.0, self.allreduce_s(gpus) - self.overlap_s)
        computed = self.compute_s * slow + exposed + self.straggler_s * slowest_of(gpus)
        if self.reads_slowly_from and nodes >= self.reads_slowly_from:
            local *= 1 + self.slower
        read = max(local * self.input_s, gpus * self.shared_input_s) / self.gpus_per_node
        return self._larger(read, computed)

    def allreduce_s(self, gpus: int) -> float:
        local, nodes = min(gpus, self.gpus_per_node), -(-gpus // self.gpus_per_node)
        rate = self.network_rate if nodes > 1 else self.local_rate
        if self.tree:
            inner, hops = self._ring_s(local, self.local_rate), 2 * math.log2(nodes)
            return inner + 2 * (nodes > 1) * self.gradient_bytes / rate + hops * self.latency_s
        if self.hierarchical:
            took = self._ring_s(local, self.local_rate) + self._ring_s(nodes, rate)
            return took + 2 * (nodes - 1) * self.latency_s
        return self._ring_s(gpus, rate) + 2 * (gpus - 1) * self.latency_s

    def _ring_s(self, members: int, rate: float) -> float:
        return 2 * (members - 1) / members * self.gradient_bytes / rate

    def _larger(self, one: float, other: float) -> float:
        width = self.soft * self.compute_s
        apart = abs(one - other)
        return max(one, other) + (width * math.log1p(math.exp(-apart / width)) if width else 0.0)
