"""A home and a hosts file for runclust and copyclust, which reach a real sshd."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.cli.running import clusterctl
from tests.moto_ec2 import client, moto_client, moto_url
from tests.transport.conftest import ssh_server

__all__ = ["client", "clusterctl", "moto_client", "moto_url", "ssh_server"]


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
