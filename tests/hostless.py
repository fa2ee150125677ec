"""The lab's API with hosts that are there in name only: its rules and states, and nothing boots."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from ipaddress import IPv4Network
from typing import Any

NETWORK = IPv4Network("10.99.0.0/16")
# No test gives back what it still has when the next one begins.
PUBLIC = IPv4Network("198.18.96.0/19")


class NamedHosts:
    """In the place of the namespace daemon: every host is up as soon as it is asked for."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[str, Any]] = {}

    def alive(self) -> bool:
        return True

    def call(self, order: str, **arguments: Any) -> Any:
        if order == "list":
            return list(self._hosts.values())
        if order == "console":
            return ""
        getattr(self, f"_{order}", self._nothing)(**arguments)
        return None

    def _create(self, id: str, public_address: str = "", **_: Any) -> None:
        self._hosts[id] = defaultdict(
            bool, id=id, state="up", why="", ssh=True, boots=1, public_address=public_address
        )

    def _boot(self, id: str, **_: Any) -> None:
        self._hosts[id].update(state="up", why="", ssh=True)

    def _power_off(self, id: str) -> None:
        self._hosts[id].update(state="off", why="off", ssh=False)

    def _remove(self, id: str) -> None:
        self._hosts.pop(id, None)

    def _set_storage(self, id: str, reached: bool) -> None:
        self._hosts[id]["reaches_storage"] = reached

    def _set_public(self, id: str, address: str) -> None:
        self._hosts[id]["public_address"] = address

    def _nothing(self, **_: Any) -> None:
        pass


@functools.lru_cache
def complete_moto() -> None:
    """Once per process: all of the lab's completions, and a supervisor of hosts in name."""
    from clusterctl.lab.complete import complete_moto as complete
    from clusterctl.lab.faults.kinds import Lag
    from clusterctl.lab.faults.store import FAULTS
    from clusterctl.lab.hosts import supervisor

    complete(NETWORK, PUBLIC, lambda id: "")
    FAULTS.add(Lag(visible_s=0.0, console_s=0.0))
    supervisor.BUSY_S = 0.01
    hosts: Any = NamedHosts()

    class Supervisor(supervisor.Supervisor):
        def _step(self) -> bool:
            try:
                return super()._step()
            except (AttributeError, KeyError, RuntimeError):
                # A test begins: all that there was is being forgotten just now.
                return True

    threading.Thread(target=Supervisor(hosts, NETWORK).run, daemon=True).start()
