"""The hosts of any hosts file, reached the way the user's own `ssh` would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import UsageError
from clusterctl.domain.hostsfile import HostsFile, parse_hosts_file
from clusterctl.transport.connections import Connections
from clusterctl.transport.hostkeys import PinnedHostKeys
from clusterctl.transport.keys import default_keys, load_key
from clusterctl.transport.session import Identity
from clusterctl.transport.target import Target
from clusterctl.transport.user_config import UserConfig, read_user_config


@dataclass(frozen=True)
class HostsAccess:
    """The targets of a hosts file and the connections to them. Use as a context manager."""

    targets: tuple[Target, ...]
    connections: Connections

    def __enter__(self) -> HostsAccess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connections.close()


def read_hosts_file(path: Path) -> HostsFile:
    """Raises UsageError if the file cannot be read or understood."""
    try:
        return parse_hosts_file(path.read_bytes().decode(), str(path))
    except FileNotFoundError:
        raise UsageError(
            f"there is no hosts file {path}", "write one ADDRESS slots=N per line"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the hosts file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None


def open_hosts(
    path: Path,
    *,
    user: str | None = None,
    key: Path | None = None,
    connect_timeout_s: float = 10.0,
    ssh_folder: Path | None = None,
) -> HostsAccess:
    """Access to every host of the file at `path`. Raises UsageError.

    Without `key`: the IdentityFile entries of ~/.ssh/config, the agent's keys, then the default
    keys of ~/.ssh. Host keys come from known_hosts and are never accepted unseen.
    """
    hosts = read_hosts_file(path).hosts
    config = read_user_config(ssh_folder or Path.home() / ".ssh")
    connections = Connections(
        Identity(_keys(config, hosts, key)),
        PinnedHostKeys(config.known_hosts_files(hosts)),
        connect_timeout_s,
    )
    return HostsAccess(tuple(config.target(host, user) for host in hosts), connections)


def _keys(config: UserConfig, hosts: Sequence[str], key: Path | None):  # type: ignore[no-untyped-def]
    if key:
        return (load_key(key),)
    named = [load_key(path) for path in config.identity_files(list(hosts)) if path.exists()]
    return (*named, *default_keys(config.folder))
