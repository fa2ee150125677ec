"""A relay: one process on each host of a copy for as long as it lasts, controlled by JSON lines.

The hosts are nodes, and the user's machine where that has the source. Orders come in on stdin,
events go out on stdout. The data goes directly from relay to relay. Nothing is installed, and the
relay ends when stdin does. clusterctl.copy.transfer starts the roles `source` and `target`,
operations/verify.py `verify` (compare files on nodes), operations/bench_network.py `probe` (measure
the network between nodes). The relay that downloads is a program of its own (fetch.py).
"""

from __future__ import annotations

from clusterctl.node.relay.base import Relay, run_relay
from clusterctl.node.relay.probe import ProbeRelay
from clusterctl.node.relay.source import SourceRelay
from clusterctl.node.relay.target import TargetRelay
from clusterctl.node.relay.verify import VerifyRelay

ROLES: dict[str, type[Relay]] = {
    "source": SourceRelay,
    "target": TargetRelay,
    "verify": VerifyRelay,
    "probe": ProbeRelay,
}


def main() -> None:
    run_relay(lambda config: ROLES[config["role"]](config))
