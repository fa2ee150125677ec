"""fabric's Connection on our own login.

fabric hard-codes a policy that accepts any host key and reads no known_hosts. Here it gets a
connection that was verified, each time it opens one.
"""

from __future__ import annotations

from typing import Any

import fabric

from clusterctl.transport.keys import PinnedHostKeys
from clusterctl.transport.session import Identity, connect
from clusterctl.transport.target import Target


class VerifiedConnection(fabric.Connection):
    """A `fabric.Connection` to one host: run, sudo, put, get, forward_local, cd, prefix.

    Opens when it is first used. Raises HostUnreachable, HostKeyUnknown, HostKeyChanged, KeyRefused.
    """

    # fabric keeps attributes that the class does not name in its configuration.
    _login: Any = None
    _session: Any = None

    def __init__(self, target: Target, identity: Identity, host_keys: PinnedHostKeys) -> None:
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
            # The jump host's connection too.
            self._session.close()
