"""A relay: one process on each host of a copy for as long as it lasts, controlled by JSON lines.

The hosts are nodes, and the user's machine where that has the source. Orders come in on stdin,
events go out on stdout. The data goes directly from relay to relay. Nothing is installed, and the
relay ends when stdin does. clusterctl.copy.transfer starts the roles `source` and `target`,
operations/verify.py `verify` (compare files on nodes), operations/bench_network.py `probe` (measure
the network between nodes).
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any, Dict

from clusterctl.node.record import from_json
from clusterctl.node.relay.base import Relay, Stopped, failure_of
from clusterctl.node.relay.messages import Failed, encode
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
    """Run a relay. Usually the process ends in `Relay.end`."""
    # The process is too short-lived for cycles to matter, and a data set has many objects to visit.
    gc.disable()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _stop)
    relay = None
    try:
        config = from_json(Dict[str, Any], sys.stdin.buffer.readline())
        relay = ROLES[config["role"]](config)
        if not config.get("later"):
            relay.listen(config.get("bind", ""))
        relay.run()
    except Stopped:
        if relay:
            relay.end(code=1)
    except BaseException as error:  # noqa: BLE001
        if relay:
            relay.fail(error)
        failure = failure_of(error)
        print(encode(Failed(str(failure), failure.hint, failure.kind)).decode(), end="", flush=True)
    sys.exit(1)


def _stop(*_: object) -> None:
    raise Stopped
