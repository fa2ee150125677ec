"""Simulated clusters, whose speeds the tests fit the scaling model to."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.bench.model import slowest_of


@dataclass(frozen=True)
class Machine:
    """A cluster, in seconds, bytes, and bytes a second. `input_s` is how long a full node takes to
    read the images of one step. `hierarchical`: each node first adds up its GPUs' gradients, then
    the nodes form a ring.
    """

    gpus_per_node: int
    compute_s: float
    gradient_bytes: float
    local_rate: float
    network_rate: float
    latency_s: float
    straggler_s: float
    input_s: float = 0.0
    hierarchical: bool = True

    def step_s(self, gpus: int) -> float:
        local, nodes = min(gpus, self.gpus_per_node), -(-gpus // self.gpus_per_node)
        rate = self.network_rate if nodes > 1 else self.local_rate
        if self.hierarchical:
            allreduce_s = self._ring_s(local, self.local_rate) + self._ring_s(nodes, rate)
            allreduce_s += 2 * (nodes - 1) * self.latency_s
        else:
            allreduce_s = self._ring_s(gpus, rate) + 2 * (gpus - 1) * self.latency_s
        computed = self.compute_s + allreduce_s + self.straggler_s * slowest_of(gpus)
        return max(local / self.gpus_per_node * self.input_s, computed)

    def _ring_s(self, members: int, rate: float) -> float:
        return 2 * (members - 1) / members * self.gradient_bytes / rate
