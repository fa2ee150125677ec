"""The key that a host shows before anybody trusts it: for trust on first use, if asked for."""

from __future__ import annotations

import paramiko

from clusterctl.transport.errors import translated
from clusterctl.transport.session import Session, open_socket
from clusterctl.transport.target import Target
from clusterctl.transport.wire import TunedTransport


def shown_key(target: Target, timeout_s: float, jump: Session | None = None) -> paramiko.PKey:
    """The host key that the target shows. Nobody logs in. Raises HostUnreachable."""
    try:
        transport = TunedTransport(open_socket(target, timeout_s, jump))
        transport.banner_timeout = timeout_s
        try:
            transport.prefer(())
            transport.start_client(timeout=timeout_s)
            return transport.get_remote_server_key()
        finally:
            transport.close()
    except Exception as error:
        raise translated(target, error) from error
