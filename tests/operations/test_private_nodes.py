"""Nodes that only the head node can reach: commands, logins, copies, and a node that disappears."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.copy.request import CopyRequest
from clusterctl.domain.errors import ConnectionLost, HostUnreachable
from clusterctl.domain.files import ClusterFolder, write_file
from clusterctl.domain.timeouts import Timeouts
from clusterctl.operations.access import Access
from clusterctl.operations.copy import copy_to_cluster
from clusterctl.operations.known_hosts import node_names
from clusterctl.operations.local_state import hosts_text, ssh_config_text
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import KnownHostKeys
from tests.cli.programs import call
from tests.lab.running import wait_until
from tests.pair import quiet_command_ends
from tests.programs import completed

pytestmark = pytest.mark.lab
# An address on the second node's loopback, to which only the head node has a route.
INSIDE = "10.99.0.1"


@contextlib.contextmanager
def private(pair, folder: Path, timeouts: Timeouts = Timeouts()):
    """Return the cluster as of `up --private`: the second node has only an inner address."""
    with pair.access() as given:
        head, second = given.cluster.nodes
    inside = f"sudo -n ip addr replace {INSIDE}/32 dev lo"
    pair.on(1, inside)
    pair.on(0, f"sudo -n ip route replace {INSIDE} via {second.private_ip}")
    nodes = (
        replace(head, public_ip=head.address),
        replace(second, public_ip=None, private_ip=INSIDE),
    )
    cluster = replace(given.cluster, nodes=nodes)
    own = ClusterFolder(folder)
    # The same machine as before, so its key is the one that `up` pinned.
    pins = given.folder.known_hosts.read_text()
    names = node_names(second)
    line = next(text for text in pins.splitlines() if second.instance_id in text)
    assert any(name in line for name in names)
    write_file(own.known_hosts, f"{pins}{INSIDE} {line.split(' ', 1)[1]}\n")
    write_file(own.key, given.folder.key.read_bytes())
    text = ssh_config_text(cluster, own, given.proxy_command)
    write_file(own.ssh_config, text)
    host_keys = KnownHostKeys([own.known_hosts])
    connections = Connections(given.connections.identity, host_keys, timeouts=timeouts)
    try:
        with Access(cluster, own, connections, given.proxy_command) as access:
            yield access
    finally:
        # Other tests share the cluster.
        left = "rm -rf given '/tmp/copied there'; pkill -fx 'sleep 600'"
        pair.on(1, f"sudo -n ip addr del {INSIDE}/32 dev lo; {left}; true")
        pair.on(0, f"sudo -n ip route del {INSIDE}; {left}; true")


def test_runclust_and_copyclust_on_the_hosts_file(pair, tmp_path):
    with private(pair, tmp_path) as access:
        write_file(access.folder.hosts, hosts_text(access.cluster, (1, 1)))
        ran = call("runclust", access.folder.hosts, "hostname")
        assert ran.returncode == 0, ran.stderr
        named = {
            f"{one.private_ip}: {pair.on(one.index, 'hostname')}" for one in access.cluster.nodes
        }
        assert set(ran.stdout.splitlines(keepends=True)) == named
        done = call("copyclust", access.folder.hosts, access.folder.hosts, "~/given")
        assert done.returncode == 0, done.stderr
        assert pair.on(1, "cat given") == access.folder.hosts.read_text()


def test_commands_on_both(pair, tmp_path):
    with private(pair, tmp_path) as access:
        assert [bool(target.jump) for target in access.targets] == [False, True]
        result = access.connections.run_all(access.targets, "hostname; echo $SSH_CONNECTION")
        assert not result.failures
        head, second = (value.stdout.split() for value in result.values)
        assert head[0] != second[0]
        # For the second node, the connection comes from the head node, at the inner address.
        assert second[3] == INSIDE
        alone = replace(access.targets[1], jump=None)
        access.connections.connect_timeout_s = 1.0
        with pytest.raises(HostUnreachable):
            access.connections.run(alone, "true")


def test_openssh_and_copies_go_the_same_way(pair, tmp_path):
    source = tmp_path / "some file"
    source.write_text("content")
    with private(pair, tmp_path / "of it") as access:
        argv = ["ssh", "-F", str(access.folder.ssh_config), "-o", "BatchMode=yes"]
        second = access.cluster.nodes[1].name
        done = completed([*argv, second, "echo $SSH_CONNECTION"])
        assert done.stdout.split()[2:3] == [INSIDE], done.stderr
        request = CopyRequest((str(source),), "/tmp/copied there")
        copied = copy_to_cluster(access, access.targets, request, watch=lambda progress: None)
        assert copied.ok, copied
        read = access.connections.run(access.targets[1], "cat '/tmp/copied there'")
        assert read.stdout == "content"


@pytest.mark.all
def test_a_node_that_vanishes_behind_the_head_is_noticed(pair, tmp_path):
    ended: list[object] = []
    began = threading.Event()

    with private(pair, tmp_path, Timeouts(silence_s=3)) as access:

        def run() -> None:
            try:
                access.connections.run(
                    access.targets[1], "echo begun; exec sleep 600", sink=lambda *_: began.set()
                )
            except Exception as error:
                ended.append(error)

        threading.Thread(target=run, daemon=True).start()
        assert began.wait(240)
        with pair.cut_off(1):
            wait_until(lambda: ended, "somebody to notice")
        assert isinstance(ended[0], ConnectionLost), ended
        pair.on(0, f"sudo -n ip route replace {INSIDE} via {_address(pair)}")
        # The connection to its neighbour still works.
        assert access.connections.run(access.targets[0], "true", timeout_s=240).ok


def test_a_quiet_command_is_not_taken_for_a_dead_node(pair, tmp_path):
    def opened(timeouts):
        return private(pair, tmp_path, timeouts)

    quiet_command_ends(opened, 1)


def _address(pair) -> str:
    with pair.access() as access:
        return access.cluster.nodes[1].private_ip
