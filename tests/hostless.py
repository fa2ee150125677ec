"""The lab's API with its rules and states, but without hosts: nothing boots."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from ipaddress import IPv4Network
from typing import Any

NETWORK = IPv4Network("10.99.0.0/16")
# Large, because tests do not release their addresses before the next one starts.
PUBLIC = IPv4Network("198.18.96.0/19")


class NamedHosts:
    """Replaces the namespace daemon: every host is up as soon as it is requested."""

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
    """Add the lab's completions to moto, with NamedHosts. Once per process."""
    from clusterctl.lab.complete import complete_moto as complete
    from clusterctl.lab.hosts import supervisor

    complete(NETWORK, PUBLIC, lambda id: "")
    clear_faults()
    supervisor.BUSY_S = 0.01
    hosts: Any = NamedHosts()

    class Supervisor(supervisor.Supervisor):
        def _step(self) -> bool:
            try:
                return super()._step()
            except (AttributeError, KeyError, RuntimeError):
                # A test starts, and moto is being reset.
                return True

    threading.Thread(target=Supervisor(hosts, NETWORK).run, daemon=True).start()


def clear_faults() -> None:
    """Clear all faults. What is made is shown at once."""
    from clusterctl.lab.faults.kinds import Lag
    from clusterctl.lab.faults.store import FAULTS

    FAULTS.clear()
    FAULTS.add(Lag(visible_s=0.0, console_s=0.0))
