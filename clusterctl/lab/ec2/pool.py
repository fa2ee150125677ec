"""The lab's public addresses: who may have one now."""

from __future__ import annotations

from collections import deque
from ipaddress import IPv4Network


class Pool:
    """The addresses of a network, each for one at a time. One given back comes again last."""

    def __init__(self, network: IPv4Network) -> None:
        self._free = deque(str(address) for address in network.hosts())

    def take(self) -> str:
        """Raises LookupError when there is none."""
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)
