"""A `fabric.Connection` that checks host keys.

fabric hard-codes a policy that accepts any host key, and reads no known_hosts. This subclass opens
each connection by clusterctl's own login, which verifies the host key.
"""

from __future__ import annotations

from typing import Any

import fabric

from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys
from clusterctl.transport.session import Identity, connect


class VerifiedConnection(fabric.Connection):
    """A `fabric.Connection` to one host: run, sudo, put, get, forward_local, cd, prefix.

    The connection is opened at its first use, which raises HostUnreachable, HostKeyUnknown,
    HostKeyChanged or KeyRefused.
    """

    # fabric writes attributes that the class does not define into its configuration.
    _login: Any = None
    _session: Any = None

    def __init__(self, target: Target, identity: Identity, host_keys: KnownHostKeys) -> None:
        super().__init__(
            target.address,
            user=target.user,
            port=target.port,
            config=fabric.Config(lazy=True, overrides={"load_ssh_configs": False}),
        )
        self._login = (target, identity, host_keys)

    def open(self) -> None:
        if not self.is_connected:
            self._session = connect(*self._login)
            self.client = self._session.client
            self.transport = self.client.get_transport()

    def close(self) -> None:
        super().close()
        if self._session is not None:
            # This also closes the connection to the jump host.
            self._session.close()
