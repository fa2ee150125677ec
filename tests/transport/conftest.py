"""A real sshd on loopback, with its own keys: one server at many addresses (127.0.0.0/8)."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys, load_key
from clusterctl.transport.session import Identity
from tests.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass(frozen=True)
class SshServer:
    """The address of a server, and the keys for it."""

    folder: Path
    port: int
    user: str

    @property
    def key(self) -> Path:
        return self.folder / "user_key"

    @property
    def logins(self) -> int:
        """Return the number of logins so far."""
        return (self.folder / "log").read_text().count("Accepted publickey")

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def target(self, number: int = 1, **changes: object) -> Target:
        given = {"host": f"host{number}", "address": f"127.0.0.{number}", "user": self.user}
        return Target(**{**given, "port": self.port, **changes})

    def connections(self, **options: float) -> Connections:
        identity = Identity((load_key(self.key),))
        return Connections(identity, KnownHostKeys([self.known_hosts]), **options)


def keygen(path: Path, kind: str = "ed25519") -> None:
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True)


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@contextlib.contextmanager
def running_sshd(folder: Path, settings: str = "", user: str = "") -> Iterator[SshServer]:
    """Run a server with `settings` for its sshd_config, as `user` if one is given."""
    if not SSHD:
        pytest.skip("sshd is not installed")
    server = SshServer(folder, free_port(), user or getpass.getuser())
    keygen(server.key)
    keygen(folder / "host_key")
    shutil.copy(f"{server.key}.pub", folder / "authorized_keys")
    public = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
    names = ",".join(f"[127.0.0.{number}]:{server.port}" for number in range(1, 65))
    server.known_hosts.write_text(f"{names} {public}\n")
    config = folder / "sshd_config"
    config.write_text(
        f'Port {server.port}\nListenAddress 0.0.0.0\nHostKey "{folder}/host_key"\n'
        f'AuthorizedKeysFile "{folder}/authorized_keys"\nStrictModes no\nUsePAM no\n'
        # With SHLVL, bash does not read .bashrc, so that the caller's own file has no effect.
        "SetEnv SHLVL=2\n"
        "Subsystem sftp internal-sftp\nPidFile none\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\n{settings}\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    log = (folder / "log").open("wb")
    argv = [SSHD, "-D", "-e", "-f", str(config)]
    if user:
        shutil.chown(folder / "host_key", user)
        process = subprocess.Popen(argv, stderr=log, user=user)
    else:
        process = subprocess.Popen(argv, stderr=log)
    _wait_for(server.port, process, folder / "log")
    try:
        yield server
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"sshd did not start: {log.read_text()}")
