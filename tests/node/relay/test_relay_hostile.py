"""Unknown clients, peers that lie, and faults during a transfer."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter

import pytest

from clusterctl.copy.transfer import ephemeral_pem
from clusterctl.node.relay.manifest import digest_of
from clusterctl.node.relay.serve import Server
from clusterctl.node.relay.wire import (
    BLOCK,
    LENGTH,
    MAGIC,
    MANIFEST,
    MISSING,
    RANGE,
    REQUEST,
    TRAILER,
    WATCH,
    Link,
    PeerError,
    _splice,
    admit,
    dial,
    tls_contexts,
)
from tests.lab.running import wait_until
from tests.node.relay.relays import SECRET, make, tree
from tests.variants import usual

pytestmark = pytest.mark.slow

MIB = 1 << 20
GOOD = bytes.fromhex(SECRET)


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    make(root, {b"big": random.Random(1).randbytes(8 * MIB), b"small": b"s"})
    return root


def serving(relays, data):
    source = relays.source(f"{data}/")
    relays.begin(source, gmac=False)
    return source


def test_only_the_secret_opens(relays, data):
    source = serving(relays, data)
    dial(source.address, source.port, GOOD, None).close()
    with pytest.raises(PeerError) as refused:
        dial(source.address, source.port, b"x" * 32, None)
    assert refused.value.kind == "denied"


def test_a_relay_out_of_descriptors_accepts_again(monkeypatch):
    true_accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]

    def accept(listening):
        if errors:
            raise errors.pop()
        return true_accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    address, port = Server(GOOD, None).listen("127.0.0.1", 0)
    dial(address, port, GOOD, None).close()
    assert not errors


def test_a_relay_does_not_trust_what_answers(relays):
    listening = socket.create_server(("127.0.0.1", 0))

    def impostor():
        with contextlib.suppress(OSError, PeerError):
            link = Link(listening.accept()[0])
            link.send(MAGIC + bytes(32))
            link.read(len(MAGIC) + 64)
            link.send(bytes(32))

    threading.Thread(target=impostor, daemon=True).start()
    with pytest.raises(PeerError) as refused:
        dial("127.0.0.1", listening.getsockname()[1], GOOD, None)
    assert refused.value.kind == "denied"
    listening.close()


@pytest.mark.parametrize("seed", range(3))
def test_noise_from_strangers_does_not_harm(relays, data, tmp_path, seed):
    """The noise comes before and after the handshake, complete and truncated."""
    noise = random.Random(seed)
    source = serving(relays, data)
    for _ in range(20):
        with contextlib.suppress(OSError, PeerError):
            if noise.random() < 0.5:
                link = dial(source.address, source.port, GOOD, None)
            else:
                link = Link(socket.create_connection((source.address, source.port)))
            link.send(noise.randbytes(noise.choice([0, 1, 4, 5, 17, 5000, 100_000])))
            link.set_timeout(0.02)
            with contextlib.suppress(PeerError):
                link.read(noise.choice([1, 50, 100_000]))
            link.close()
    target = relays.target(tmp_path / "to")
    # The source still works, and its memory does not depend on what unknown clients send.
    target.tell("begin", **begun(source))
    target.pull_from(source)
    target.expect("done")
    assert tree(tmp_path / "to") == tree(data)
    with open(f"/proc/{source.process.pid}/status") as status:
        [peak] = [line.split()[1] for line in status if line.startswith("VmHWM")]
    assert int(peak) < 80_000  # KiB


def manifest_of(source):
    """Return the head of its manifest, and the parts."""
    link = dial(source.address, source.port, GOOD, None)
    link.send(REQUEST.pack(MANIFEST, 0))
    blobs = [link.read(LENGTH.unpack(link.read(LENGTH.size))[0])]
    for _ in range(len(blobs[0]) // 32):
        blobs.append(link.read(LENGTH.unpack(link.read(LENGTH.size))[0]))
    link.close()
    return blobs


def begun(source):
    digest = digest_of(manifest_of(source)[0])
    return {"block_bytes": 1 << 16, "streams": 3, "digest": digest, "single": False}


def test_a_crowd_from_one_address_keeps_no_other_out(relays, data):
    source = serving(relays, data)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            crowd = socket.create_connection(
                (source.address, source.port), 5, source_address=("127.0.0.9", 0)
            )
            stack.enter_context(crowd)
        dial(source.address, source.port, GOOD, None).close()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("says", [b"x", b""])
def test_who_takes_for_ever_to_say_who_it_is_is_let_go(encrypted, says):
    ours, theirs = _tcp_pair()
    ended = threading.Event()
    tls = tls_contexts(ephemeral_pem())[0] if encrypted else None

    def drip():
        # The head of a TLS record announces more than ever comes.
        with contextlib.suppress(OSError):
            if encrypted and says:
                theirs.send(b"\x16\x03\x01\x02\x00")
            while not ended.wait(0.05):
                theirs.send(says)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(PeerError, match="too long"):
            admit(Link(ours), GOOD, tls, handshake_s=0.2)
    finally:
        ended.set()
        thread.join()
        theirs.close()
        ours.close()


def _tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return ours, theirs


class Liar:
    """An upstream with the secret and a manifest. It answers BLOCK as the test says."""

    def __init__(self, blobs, answer, blocks, closes=True):
        self.blobs, self.answer, self.blocks, self.closes = blobs, answer, blocks, closes
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address, self.port = self.listening.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                link = Link(self.listening.accept()[0])
                threading.Thread(target=self.serve, args=(link,), daemon=True).start()

    def serve(self, link):
        with contextlib.suppress(OSError, PeerError):
            admit(link, GOOD, None)
            while True:
                what, block = REQUEST.unpack(link.read(REQUEST.size))
                if what == MANIFEST:
                    for blob in self.blobs[block:]:
                        link.send(LENGTH.pack(len(blob)) + blob)
                elif what == WATCH:
                    link.send(RANGE.pack(0, self.blocks))
                elif what == BLOCK:
                    link.send(self.answer(block))
                    if self.closes:
                        link.close()


def block_of(data, block):
    return ((data / "big").read_bytes() + b"s")[block << 16 : (block + 1) << 16]


LIES = {
    "a wrong checksum": lambda c: LENGTH.pack(len(c)) + c + TRAILER.pack(zlib.crc32(c) ^ 1, 0),
    "not there": lambda c: LENGTH.pack(MISSING),
    "flipped bits": lambda c: LENGTH.pack(len(c)) + b"\0" + c[1:] + TRAILER.pack(zlib.crc32(c), 0),
    "a wrong length": lambda c: LENGTH.pack(len(c) + 1) + c,
    "a huge length": lambda c: LENGTH.pack(MISSING - 1),
    "cut short": lambda c: LENGTH.pack(len(c)) + c[: len(c) // 2],
    "bad files there are not": lambda c: (
        LENGTH.pack(len(c)) + c + TRAILER.pack(zlib.crc32(c), 1) + struct.pack(">I", 77)
    ),
    "too many bad files": lambda c: LENGTH.pack(len(c)) + c + TRAILER.pack(zlib.crc32(c), 1 << 30),
}


@pytest.mark.parametrize("lie", usual(4, LIES))
def test_what_a_liar_sends_is_not_taken_and_another_is_asked(relays, data, tmp_path, lie):
    source, false = serving(relays, data), LIES[lie]
    liar = Liar(manifest_of(source), lambda block: false(block_of(data, block)), 129)
    target = relays.target(tmp_path / "to")
    target.tell("begin", **begun(source))
    target.pull_from(liar, "liar")
    lost = target.expect("lost")
    assert lost["upstream"] == "liar"
    assert lost["kind"] in ("corrupt", "closed")
    target.pull_from(source)
    target.expect("done")
    assert tree(tmp_path / "to") == tree(data)


def test_splice_where_python_has_none(tmp_path):
    """Nodes may have Python 3.8 or 3.9."""
    ours, theirs = _tcp_pair()
    with ours, theirs, open(tmp_path / "file", "wb") as file:
        receiving, writing = os.pipe()
        theirs.sendall(b"data")
        assert _splice(ours.fileno(), writing, 10) == 4
        assert _splice(receiving, file.fileno(), 4, offset_dst=3) == 4
        with pytest.raises(OSError, match="Bad file descriptor"):
            _splice(-1, writing, 4)
        os.close(receiving)
        os.close(writing)
    assert (tmp_path / "file").read_bytes() == b"\0\0\0data"


def test_a_file_system_that_knows_neither_splice_nor_sendfile(tmp_path, monkeypatch):
    """ext4 supports both; for other file systems, the kernel returns EINVAL."""

    def cannot(*arguments, offset_dst=None, **options):
        if arguments[0] != ours.fileno() or arguments[1] == files[1].fileno():
            raise OSError(errno.EINVAL, "Invalid argument")
        return _splice(*arguments, offset_dst, **options)

    sent = random.Random(2).randbytes(50_000)
    (tmp_path / "sent").write_bytes(sent)
    ours, theirs = _tcp_pair()
    with open(tmp_path / "sent", "rb") as one, open(tmp_path / "file", "wb") as other:
        files = (one, other)
        monkeypatch.setattr("clusterctl.node.relay.wire.splice", cannot)
        monkeypatch.setattr(os, "sendfile", cannot)
        Link(theirs).send_file(one.fileno(), 0, len(sent))
        link, at = Link(ours), 0
        assert link.pipe_bytes()
        while at < len(sent):
            size = link.fill_pipe(len(sent) - at)
            link.drain_pipe(other.fileno(), at, size)
            at += size
        link.close()
        theirs.close()
    assert (tmp_path / "file").read_bytes() == sent


def test_damage_that_a_node_has_passed_on_unseen_is_mended_on_both(relays, data, tmp_path):
    source = serving(relays, data)
    asked = Counter()

    def answer(block):
        """Answer slowly, so that a downstream node is connected. The first answer is damaged."""
        time.sleep(0.02)
        asked[block] += 1
        content = block_of(data, block)
        if block % 16 == 0 and asked[block] == 1:
            return LIES["flipped bits"](content)
        return LENGTH.pack(len(content)) + content + TRAILER.pack(zlib.crc32(content), 0)

    liar = Liar(manifest_of(source), answer, 129, closes=False)
    middle, last = relays.target(tmp_path / "middle"), relays.target(tmp_path / "last")
    for target in (middle, last):
        target.tell("begin", **begun(source))
    last.pull_from(middle, "middle")
    middle.pull_from(liar, "liar")
    for target, folder in ((middle, "middle"), (last, "last")):
        target.expect("done")
        assert tree(tmp_path / folder) == tree(data)
    # Timing decides whether the downstream node or the middle node itself finds the damage.
    assert {block for block, times in asked.items() if times > 1} == set(range(0, 129, 16))


@pytest.mark.parametrize(
    "blob", [b"", b"garbage", zlib.compress(b"[]\n"), zlib.compress(b'["../x","f",420,1,1]\n')]
)
@pytest.mark.parametrize("number", usual(1, [0, 1]))
def test_a_manifest_that_is_not_the_one(relays, data, tmp_path, blob, number):
    source = serving(relays, data)
    target = relays.target(tmp_path / "to")
    target.tell("begin", **begun(source))
    target.pull_from(Liar([*manifest_of(source)[:number], blob], bytes, 1), "liar")
    lost = target.expect("lost")
    assert (lost["kind"], lost["why"]) == ("corrupt", "its manifest is not this transfer's")
    assert not (tmp_path / "to").exists()
    target.pull_from(source)
    target.expect("done")


class Cutter(Liar):
    """It cuts the connection in the middle of a part, and then goes on to do so."""

    def __init__(self, blobs, number):
        self.number, self.requests = number, []
        super().__init__(blobs, bytes, 1)

    def serve(self, link):
        with contextlib.suppress(OSError, PeerError):
            admit(link, GOOD, None)
            _, first = REQUEST.unpack(link.read(REQUEST.size))
            self.requests.append(first)
            for blob in self.blobs[first : self.number]:
                link.send(LENGTH.pack(len(blob)) + blob)
            half = self.blobs[self.number]
            link.send(LENGTH.pack(len(half)) + half[: len(half) // 2])
            link.close()


def test_a_manifest_that_is_cut_goes_on_with_the_part_that_was_cut(relays, tmp_path):
    root = tmp_path / "data"
    make(root, {b"%d/%s" % (n, b"x" * 200): b"" for n in range(1500)})
    source = serving(relays, root)
    blobs = manifest_of(source)
    assert len(blobs) > 3
    target = relays.target(tmp_path / "to")
    target.tell("begin", **begun(source))
    cutter = Cutter(blobs, 2)
    target.pull_from(cutter, "cutter")
    # A cut alone says nothing about the upstream: the connection is opened again.
    wait_until(lambda: len(cutter.requests) >= 3, "the third connection")
    assert (cutter.requests[0], {*cutter.requests[1:]}) == (0, {2})  # what has come is kept
    assert not (tmp_path / "to").exists()
    target.pull_from(source)
    target.expect("done")
    assert tree(tmp_path / "to") == tree(root)


@pytest.mark.parametrize("length", [MISSING - 1, (8 << 20) + 1])
def test_a_part_of_a_manifest_that_takes_too_much_memory(relays, data, tmp_path, length):
    source = serving(relays, data)
    head = manifest_of(source)[0]

    class Huge(Liar):
        def serve(self, link):
            with contextlib.suppress(OSError, PeerError):
                admit(link, GOOD, None)
                link.send(LENGTH.pack(len(head)) + head + LENGTH.pack(length))

    target = relays.target(tmp_path / "to")
    target.tell("begin", **begun(source))
    target.pull_from(Huge([], bytes, 1), "liar")
    assert target.expect("lost")["why"] == "a part of its manifest is too large"


def test_another_upstream_half_way(relays, data, tmp_path):
    source = relays.source(f"{data}/")
    one, two = relays.target(tmp_path / "one"), relays.target(tmp_path / "two")
    relays.begin(source, one, two, block_bytes=1 << 12)
    one.pull_from(source)
    two.pull_from(one)
    while two.expect("progress")["blocks"] < 100:
        pass
    one.process.kill()
    assert two.expect("lost")["upstream"] == "upstream"
    two.pull_from(source)
    two.expect("done")
    assert tree(tmp_path / "two") == tree(data)


def test_from_nobody_for_a_while(relays, data, tmp_path):
    source = relays.source(f"{data}/")
    target = relays.target(tmp_path / "to")
    relays.begin(source, target, block_bytes=1 << 12)
    for _ in range(20):
        target.pull_from(source)
        target.tell("upstream", name="")
    target.pull_from(source)
    target.expect("done")
    assert tree(tmp_path / "to") == tree(data)


def test_files_that_change_or_vanish_are_not_published(relays, tmp_path):
    data, to = tmp_path / "data", tmp_path / "to"
    files = {b"%03d" % n: b"%d" % n * 100 for n in range(100)}
    make(data, {**files, b"big": bytes(3 * MIB)})
    source = relays.source(f"{data}/")
    chain = [relays.target(to / "1"), relays.target(to / "2")]
    manifest = relays.begin(source, *chain)
    assert manifest["files"] == 101
    (data / "007").unlink()
    (data / "008").write_bytes(b"other")
    (data / "009").write_bytes(b"")
    with (data / "big").open("ab") as file:
        file.write(b"more")
    for upstream, target in zip((source, *chain), chain):
        target.pull_from(upstream)
    for n, target in enumerate(chain, 1):
        done = target.expect("done")
        assert done["left_out"] == 4
        assert len(done["warnings"]) == 4
        there = {name: content for name, (_, _, content) in tree(to / str(n)).items()}
        left_out = (b"007", b"008", b"009")
        assert there == {name: files[name] for name in files if name not in left_out}
        assert "lost" not in [event["event"] for event in list(target.events.queue)]
    assert [target.stop()["clean"] for target in chain] == [True, True]


def test_a_folder_in_the_place_of_a_file(relays, tmp_path):
    make(tmp_path / "data", {b"x": b"file", b"y": b"file", b"z/in": b"folder"})
    make(tmp_path / "to", {b"x/something": b"in it", b"z": b"file"})
    (tmp_path / "to" / "y").mkdir()
    make(tmp_path / "to", {b"extra": b"x"})
    told = []
    for dry in (True, False):
        source = relays.source(f"{tmp_path}/data/")
        target = relays.target(tmp_path / "to", delete=True, dry_run=dry)
        relays.begin(source, target)
        target.pull_from(source)
        gap = target.expect("gap")
        assert (gap["delete"], gap["blocked"]) == (0, 1)
        told.append(gap["warnings"] if dry else target.expect("done"))
    dry_warnings, done = told
    assert (done["left_out"], done["deleted"]) == (1, 0)
    for first, second, *_ in (dry_warnings, done["warnings"]):
        assert "x: a folder with something in it is there: remove or rename it" in first
        assert second.startswith("nothing w") and "deleted" in second
    assert (tmp_path / "to" / "extra").exists()
    assert (tmp_path / "to" / "y").read_bytes() == b"file"
    assert (tmp_path / "to" / "z" / "in").read_bytes() == b"folder"


def test_encrypted(relays, data, tmp_path):
    tls = {"pem": ephemeral_pem()}
    source = relays.source(f"{data}/", tls=tls)
    chain = [relays.target(tmp_path / "1", tls=tls), relays.target(tmp_path / "2", tls=tls)]
    relays.copy(source, *chain)
    assert tree(tmp_path / "2") == tree(data)
    with pytest.raises(PeerError):
        dial(source.address, source.port, GOOD, None, handshake_s=2.0)
    stranger = relays.target(tmp_path / "3", tls={"pem": ephemeral_pem()})
    stranger.tell("begin", block_bytes=1 << 16, streams=1, digest="", single=False)
    stranger.pull_from(source)
    assert stranger.expect("lost")["kind"] == "denied"


def test_no_folder_can_be_there(relays, tmp_path):
    make(tmp_path / "data", {b"x": b"x"})
    source, target = relays.source(f"{tmp_path}/data/"), relays.target(tmp_path / "data/x/to")
    relays.begin(source, target)
    target.pull_from(source)
    said = target.events.get(timeout=240)
    while said["event"] != "failed":
        said = target.events.get(timeout=240)
    assert (said["kind"], said["hint"]) == ("usage", "a part of the path is no folder")
    assert said["why"] == f"{tmp_path}/data/x/to: Not a directory"
    assert target.process.wait(20) == 1
