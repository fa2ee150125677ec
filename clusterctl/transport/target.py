"""Whom to talk to, and how to get there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One host. `host` is the name shown to the user; `address` is what is dialled.

    `proxy_command` is an argv with %h and %p, OpenSSH's ProxyCommand; with `proxy_passes_fd` it
    hands over a connected socket (ProxyUseFdpass) instead of carrying the bytes. With `jump` the
    address is dialled from that host. `down` says why there is nothing to dial; the host then
    fails at once and by itself.
    """

    host: str
    address: str
    user: str
    port: int = 22
    proxy_command: tuple[str, ...] = ()
    proxy_passes_fd: bool = False
    jump: Target | None = None
    down: str = ""

    @property
    def known_hosts_name(self) -> str:
        """The name its key has in a known_hosts file."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"
