"""A home and a hosts file for runclust and copyclust, which reach a real sshd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transport.conftest import ssh_server

__all__ = ["ssh_server"]


@pytest.fixture
def home(ssh_server, tmp_path, monkeypatch):
    """Return a home whose ~/.ssh reaches the test server at each of its addresses."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "config").write_text(
        f"Host *\n Port {ssh_server.port}\n IdentityFile {ssh_server.key}\n"
        f" UserKnownHostsFile {ssh_server.known_hosts}\n IdentitiesOnly yes\n"
    )
    # OpenSSH finds the home folder in the password file and ignores HOME.
    ssh_program = tmp_path / "home" / "bin" / "ssh"
    ssh_program.parent.mkdir()
    ssh_program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {ssh}/config "$@"\n')
    ssh_program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh_program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / "home"


@pytest.fixture
def hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("".join(f"127.0.0.{number} slots=8\n" for number in range(1, 5)))
    return path


@pytest.fixture
def runtime(monkeypatch) -> Iterator[Path]:
    """Yield the folder for sockets of --persist's keepers. The keepers end with the test."""
    # The path of a Unix socket has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="persist-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    for pid in keepers(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


def keepers(runtime: Path) -> list[int]:
    """Return the processes that listen on sockets in the folder."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    inodes = {f"socket:[{line.split()[6]}]" for line in lines if f" {runtime}/" in line}
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):  # it was closed
                    if str(link.readlink()) in inodes:
                        found.add(int(folder.name))
    return sorted(found)
