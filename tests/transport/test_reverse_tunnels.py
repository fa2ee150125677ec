"""Ports on a node's loopback that lead to this machine, through a real SSH server."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from clusterctl.copy.transfer import own_address
from clusterctl.domain.errors import HostUnreachable
from clusterctl.transport.reverse_tunnels import HERE, ReverseTunnels
from tests.lab.running import wait_until
from tests.ports import free_port
from tests.transport.conftest import running_sshd


@pytest.fixture
def echo():
    """Run an echo server on this machine. Yield its port."""
    with socket.create_server((HERE, 0)) as listening:

        def answer(talk):
            with talk:
                while data := talk.recv(1 << 16):
                    talk.sendall(data)

        def serve():
            while True:
                try:
                    talk, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(talk,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def said_again(where, data: bytes) -> bytes:
    with socket.create_connection(where, 10) as talk:
        sender = threading.Thread(
            target=lambda: (talk.sendall(data), talk.shutdown(socket.SHUT_WR))
        )
        sender.start()
        found = b""
        while len(found) < len(data) and (chunk := talk.recv(1 << 16)):
            found += chunk
        sender.join()
        return found


def test_data_passes_through_the_tunnel(ssh_server, echo):
    with ssh_server.connections() as connections:
        tunnels = ReverseTunnels(connections, HERE, echo)
        where = tunnels.open(ssh_server.target(2))
        assert where[0] == HERE
        assert where[1] != echo
        assert tunnels.open(ssh_server.target(2)) == where
        large = bytes(range(256)) * 20_000
        assert said_again(where, large) == large


def test_one_connection_after_another_and_many_at_once(ssh_server, echo):
    """The SSH server reuses the numbers of closed channels."""
    with ssh_server.connections() as connections:
        tunnels = ReverseTunnels(connections, HERE, echo)
        where = tunnels.open(ssh_server.target(2))
        for number in range(40):
            word = b"word %d" % number
            assert said_again(where, word) == word
            assert connections.run(ssh_server.target(2), "echo in").stdout == "in\n"
        found = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(said_again(where, b"%d" % n * 50_000)))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted(b"%d" % n * 50_000 for n in range(8))


def test_a_tunnel_to_a_closed_port_ends_only_its_connection(ssh_server):
    with ssh_server.connections() as connections:
        where = ReverseTunnels(connections, HERE, free_port()).open(ssh_server.target(2))
        with socket.create_connection(where, 10) as talk:
            assert talk.recv(1) == b""
        assert connections.run(ssh_server.target(2), "echo in").stdout == "in\n"


def test_a_closed_tunnel_accepts_no_connection(ssh_server, echo):
    with ssh_server.connections() as connections:
        tunnels = ReverseTunnels(connections, HERE, echo)
        where = tunnels.open(ssh_server.target(2))
        tunnels.close()

        def refused():
            try:
                socket.create_connection(where, 10).close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                pass  # the tunnel is being closed
            return False

        wait_until(refused, "the port is closed")


def test_a_server_that_forwards_nothing(tmp_path):
    with running_sshd(tmp_path, "AllowTcpForwarding no") as server, server.connections() as opened:
        tunnels = ReverseTunnels(opened, HERE, 1)
        with pytest.raises(HostUnreachable, match="forwards no port") as caught:
            tunnels.open(server.target(2))
    assert "AllowTcpForwarding" in caught.value.hint


def test_the_own_address_as_nodes_see_it(ssh_server):
    with ssh_server.connections() as connections:
        assert own_address(connections, ssh_server.target(2)) == HERE
        behind = replace(ssh_server.target(3), jump=ssh_server.target(1))
        assert own_address(connections, behind) == HERE
