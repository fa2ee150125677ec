"""The description of a host and of the way to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One host. `host` is the name that is shown to the user, `address` the one to connect to.

    `proxy_command` is OpenSSH's ProxyCommand, a command for the user's shell with its tokens
    replaced. With `proxy_passes_fd` the command passes a connected socket (ProxyUseFdpass) instead
    of carrying the bytes. With `jump` the connection is made from that host. `host_key_alias` is
    the name of the host in known_hosts files, if it is another one. `down` is empty, or the reason
    why there is nothing to connect to; a connection to such a host fails at once with that message.
    """

    host: str
    address: str
    user: str
    port: int = 22
    proxy_command: str = ""
    proxy_passes_fd: bool = False
    jump: Target | None = None
    host_key_alias: str = ""
    down: str = ""

    @property
    def known_hosts_name(self) -> str:
        """The name of the host in a known_hosts file."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"
