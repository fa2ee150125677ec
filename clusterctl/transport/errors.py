"""Translation of paramiko's errors and socket errors into clusterctl's own errors."""

from __future__ import annotations

import errno
import socket

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from clusterctl.domain.errors import (
    PROXY_ENDED,
    UNKNOWN_NAME,
    ClusterctlError,
    HostError,
    HostKeyChanged,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.transport.dial import Target

_BY_ERRNO = {
    errno.ECONNREFUSED: "refused the connection",
    errno.EHOSTUNREACH: "there is no route to it",
    errno.ENETUNREACH: "there is no route to its network",
    errno.ETIMEDOUT: "did not answer in time",
    errno.ECONNRESET: "closed the connection",
}

_HINT_BY_ERRNO = {
    errno.ECONNREFUSED: "the host is up but no SSH server listens there (still booting?)"
}


def as_host_error(target: Target, error: Exception) -> ClusterctlError:
    """Return the HostError for an `error` that occurred while connecting to `target`.

    A ClusterctlError is returned as it is. An error of another kind is a bug and is raised again.
    """
    if isinstance(error, ClusterctlError):
        return error
    through = f" through {target.jump.host}" if target.jump else ""
    where = target.known_hosts_name + through
    if isinstance(error, paramiko.AuthenticationException):
        return KeyRefused(target.host, f"refused every key for user {target.user} at {where}")
    if isinstance(error, NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if isinstance(error, socket.gaierror):
        return HostUnreachable(target.host, f"{UNKNOWN_NAME}: {where}", "check its spelling")
    if isinstance(error, TimeoutError):
        return HostUnreachable(target.host, f"did not answer in time at {where}")
    if isinstance(error, PermissionError) and target.jump:
        return HostUnreachable(
            target.host,
            f"{target.jump.host} lets no connection through to {target.address}",
            "its sshd_config must not have AllowTcpForwarding no",
        )
    if isinstance(error, OSError):
        reason = _BY_ERRNO.get(error.errno or 0, error.strerror or str(error))
        return HostUnreachable(
            target.host, f"{reason} at {where}", _HINT_BY_ERRNO.get(error.errno or 0, "")
        )
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer) and "host key" in str(error):
        # The client offers only key types that are known (KnownHostKeys.algorithms), so the host
        # has other keys than the known ones.
        return HostKeyChanged(
            target.host,
            f"shows no host key of a type that is known for {target.known_hosts_name}",
            "its keys are new, or another machine answers: do not trust it unchecked",
        )
    if isinstance(error, (paramiko.SSHException, EOFError)):
        # After these words paramiko gives the reason, if it has one.
        text = str(error).strip()
        reason = text.removeprefix("Error reading SSH protocol banner") or text
        reason = reason or "the connection was closed"
        if reason.startswith(PROXY_ENDED):
            return HostUnreachable(target.host, reason)
        what = f"no SSH session with {where}: {reason}"
        if _is_banner_timeout(error):
            what = f"takes connections and answers none in time at {where}: frozen or too busy"
        return HostUnreachable(target.host, what)
    raise error


def jump_failed(target: Target, jump: Target, error: HostError) -> HostError:
    """Return the error for a host whose jump host failed with `error`.

    If the jump host's key is unknown, it is HostUnreachable: HostKeyUnknown would be about the key
    of the host itself.
    """
    kind = type(error) if isinstance(error, (HostKeyChanged, KeyRefused)) else HostUnreachable
    why = f"cannot be reached through {jump.host}: {error.message}"
    return kind(target.host, why, error.hint)


def _is_banner_timeout(error: Exception) -> bool:
    """Return whether the error is a timeout while paramiko waited for the server's first messages.

    The kernel accepts connections even for a server that is frozen. In this phase two timers of
    paramiko have the same timeout. Either may expire first, so there are two forms of the error.
    """
    return isinstance(error, paramiko.SSHException) and (
        str(error) == "No existing session" or isinstance(error.__context__, socket.timeout)
    )


def worth_retrying(error: Exception) -> bool:
    """Return whether another login attempt may succeed.

    sshd closes connections above MaxStartups (default 10:30:100) before it sends its banner.
    """
    if isinstance(error, (HostError, paramiko.AuthenticationException)) or _is_banner_timeout(
        error
    ):
        return False
    if isinstance(error, (ConnectionResetError, EOFError)):
        return True
    return isinstance(error, paramiko.SSHException) and "banner" in str(error)
