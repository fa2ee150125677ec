"""What goes wrong on the way of a whole copy: slow disks, crowds, damage, cut paths, hangs."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest

from clusterctl.copy.topology import SOURCE, CopyTimeouts
from tests.copy.whole import Copy
from tests.node.relay.relays import make, tree

pytestmark = pytest.mark.slow

SLOW = """
import time
opened = sys.modules["clusterctl.node.relay.source"].Source._open
def slowly(self, number):
    time.sleep({seconds})
    return opened(self, number)
sys.modules["clusterctl.node.relay.source"].Source._open = slowly
"""
HANGS = """
import threading
module = sys.modules["clusterctl.node.relay.{module}"]
def hang(*_, **__):
    threading.Event().wait()
{change}
"""
# What hangs: the module, how it is changed, which relays, and the step that the error names.
HUNG = {
    "stat at a node": ("compare", "module._lstat = hang", "target", "comparing"),
    "fsync at a node": ("publish", "module._sync_file = hang", "target", "writing to disk"),
    "rename at a node": (
        "publish",
        "module.Publisher._rename = hang",
        "target",
        "putting in place",
    ),
    "read at the source": ("source", "module.os.preadv = hang", "source", "reading"),
    "listing the source": ("scan", "module.os.scandir = hang", "source", "listing the source"),
}


@pytest.fixture
def data(tmp_path):
    make(tmp_path / "data", {b"big": random.Random(1).randbytes(8 << 20), b"small": b"s"})
    return tmp_path / "data"


@pytest.mark.all
@pytest.mark.parametrize(
    ("streams", "size", "count", "seconds"), [(24, 110_000, 2400, 0.01), (64, 5000, 3000, 0.01)]
)
def test_a_slow_source_is_slow_and_blames_nobody(tmp_path, streams, size, count, seconds):
    """A block of small files takes longer than any peer used to be waited for."""
    content = random.Random(1).randbytes(size)
    make(tmp_path / "data", {b"%05d" % number: content for number in range(count)})
    copy = Copy(
        tmp_path / "data",
        {name: tmp_path / name for name in ("n0", "n1")},
        block_bytes=8 << 20,
        streams=streams,
        source_lines=SLOW.format(seconds=seconds),
    )
    peers = copy.run()
    assert [peer.error for peer in peers] == [None, None]
    assert copy.lost == []
    assert copy.orders == [("n0", SOURCE), ("n1", "n0")]
    assert tree(tmp_path / "n1") == tree(tmp_path / "data")


def test_64_streams_are_no_crowd(tmp_path, data):
    names = [f"n{number}" for number in range(4)]
    copy = Copy(data, {name: tmp_path / name for name in names}, block_bytes=1 << 17, streams=64)
    peers = copy.run()
    assert [peer.error for peer in peers] == [None] * 4
    assert [peer.moves for peer in peers] == [[]] * 4
    assert copy.lost == []


def test_a_block_that_was_damaged_on_a_node_comes_from_another(tmp_path, data):
    later = """
import time
prepare = sys.modules["clusterctl.node.relay.destination"].Destination.prepare
def prepared(self, entries, begin):
    while self._config["destination"].endswith("n1") and not os.path.exists(DAMAGED):
        time.sleep(0.05)
    return prepare(self, entries, begin)
sys.modules["clusterctl.node.relay.destination"].Destination.prepare = prepared
"""
    damaged = tmp_path / "damaged"

    def damage(copy):
        if copy.coordinator.net.peers["n0"].done and not damaged.exists():
            with (tmp_path / "n0/big").open("r+b") as file:
                file.seek(5 << 20)
                file.write(b"\0\0")
            damaged.touch()

    copy = Copy(
        data,
        {name: tmp_path / name for name in ("n0", "n1")},
        target_lines=f"import os\nDAMAGED = {os.fspath(damaged)!r}" + later,
    )
    peers = copy.run(damage)
    assert [peer.error for peer in peers] == [None, None]
    assert {(node, told.kind) for node, told in copy.lost} == {("n1", "corrupt")}
    assert tree(tmp_path / "n1") == tree(data)


class Tunnel:
    """Passes connections on, and from some byte on keeps them open and passes nothing."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.to = ("", 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def order(self, order):
        """Return the order with the tunnel's address."""
        self.to = order.address, order.port
        address, port = self._listener.getsockname()
        return order._replace(address=address, port=port)

    def _accept(self) -> None:
        while True:
            near, far = self._listener.accept()[0], socket.create_connection(self.to)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        while data := one.recv(1 << 16):
            self.left -= len(data)
            if self.left < 0:
                threading.Event().wait()
            other.sendall(data)


def test_connections_that_carry_nothing_any_more_are_opened_again(tmp_path, data):
    tunnels = [Tunnel(3 << 20), Tunnel(1 << 40)]
    copy = Copy(
        data,
        {"n0": tmp_path / "n0"},
        timeouts=CopyTimeouts(starved_s=1.5),
        through={"n0": lambda order: tunnels.pop(0).order(order)},
    )
    [peer] = copy.run()
    assert peer.error is None
    assert copy.orders == [("n0", SOURCE)] * 2
    assert tree(tmp_path / "n0") == tree(data)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what, marks=() if what in ("stat at a node", "read at the source") else pytest.mark.all
        )
        for what in HUNG
    ],
)
def test_what_hangs_is_named_with_its_step_and_path(tmp_path, data, what):
    module, change, side, step = HUNG[what]
    (tmp_path / "n0").mkdir()
    make(tmp_path / "n0", {b"small": b"other"})
    lines = HANGS.format(module=module, change=change)
    copy = Copy(
        data, {"n0": tmp_path / "n0"}, timeouts=CopyTimeouts(hung_s=2.0), **{f"{side}_lines": lines}
    )
    [peer] = copy.run()
    place = data if side == "source" else tmp_path / "n0"
    assert f"it hangs {step} {place}" in peer.error.message
    assert "dmesg" in peer.error.hint
