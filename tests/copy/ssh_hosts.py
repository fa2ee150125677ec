"""Several hosts, served by one real sshd on loopback. Each address has its own home."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.operations.hosts_access import HostsAccess
from tests.transport.conftest import SshServer, running_sshd

MOST = 8


@dataclass(frozen=True)
class SshHosts:
    """The hosts host1, host2, .... `home(2)` is the home folder of host2."""

    server: SshServer
    folder: Path

    def home(self, number: int) -> Path:
        return self.folder / f"home{number}"

    @contextlib.contextmanager
    def access(self, count: int = 3, **changes: object) -> Iterator[HostsAccess]:
        targets = tuple(self.server.target(number + 1, **changes) for number in range(count))
        with self.server.connections() as connections:
            yield HostsAccess(targets, connections)


@contextlib.contextmanager
def ssh_hosts(folder: Path, settings: str = "") -> Iterator[SshHosts]:
    """Run up to MOST hosts, with `settings` for their sshd_config."""
    matches = []
    for number in range(1, MOST + 1):
        (folder / f"home{number}").mkdir()
        matches.append(
            f'Match LocalAddress 127.0.0.{number}\n  SetEnv "HOME={folder}/home{number}"'
        )
    (folder / "sshd").mkdir()
    with running_sshd(folder / "sshd", "\n".join([settings, *matches])) as server:
        yield SshHosts(server, folder)


def tree(folder: Path) -> dict[bytes, object]:
    """Return {path below a folder: bytes of a file, target of a link, or None for a folder}."""
    found: dict[bytes, object] = {}
    for path in sorted(folder.rglob("*")):
        name = bytes(path.relative_to(folder))
        if path.is_symlink():
            found[name] = path.readlink()
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found
