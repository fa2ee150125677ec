"""fabric with our login works, and refuses unknown host keys."""

from __future__ import annotations

import io

import pytest

from clusterctl.domain.errors import HostKeyUnknown
from clusterctl.transport.fabric import VerifiedConnection
from clusterctl.transport.keys import KnownHostKeys, load_key
from clusterctl.transport.session import Identity


def connection(ssh_server, known_hosts):
    identity = Identity((load_key(ssh_server.key),))
    return VerifiedConnection(ssh_server.target(), identity, KnownHostKeys([known_hosts]))


def test_run_put_and_get(ssh_server, tmp_path):
    with connection(ssh_server, ssh_server.known_hosts) as opened:
        assert opened.run("echo $((6 * 7))", hide=True, in_stream=False).stdout == "42\n"
        opened.put(io.BytesIO(b"content"), str(tmp_path / "a file"))
        opened.get(str(tmp_path / "a file"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"content"


def test_it_opens_again_after_it_was_closed(ssh_server):
    opened = connection(ssh_server, ssh_server.known_hosts)
    for _ in range(2):
        assert opened.run("echo in", hide=True, in_stream=False).stdout == "in\n"
        opened.close()


def test_an_unknown_host_key_is_refused(ssh_server, tmp_path):
    opened = connection(ssh_server, tmp_path / "none")
    with pytest.raises(HostKeyUnknown):
        opened.run("true", hide=True, in_stream=False)
