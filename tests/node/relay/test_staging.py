from __future__ import annotations

import fcntl
import os
import threading

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clusterctl.node.relay.hashing import Crc32, Gmac
from clusterctl.node.relay.manifest import Entry
from clusterctl.node.relay.staging import Busy, Staging, named

ENTRY = Entry(b"big", "f", 0o644, 1, 1 << 20)


@pytest.fixture
def staging(tmp_path):
    made = Staging(os.fsencode(tmp_path / "to"))
    made.acquire()
    yield made
    made.release(clear=True)


def filled(staging, entry=ENTRY):
    with open(staging.part(entry), "wb") as part:
        part.truncate(entry.size)


def test_many_threads_begin_the_same_journal(staging):
    for number in range(50):
        entry = ENTRY._replace(path=b"%d" % number)
        filled(staging, entry)
        start = threading.Barrier(4)

        def note(at, entry=entry, start=start):
            start.wait()
            staging.note(entry, at * 1000, 1000, 0)

        threads = [threading.Thread(target=note, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        again = Staging(staging.root)
        assert again.pieces(entry) == [(0, 4000)]


@pytest.mark.parametrize(
    ("noted", "pieces"),
    [
        ([], []),
        ([(0, 10), (10, 10), (30, 5)], [(0, 20), (30, 5)]),
        ([(30, 5), (0, 10), (5, 10)], [(0, 15), (30, 5)]),
        ([(1 << 20, 1), (0, 1)], [(0, 1)]),  # the first piece is beyond the part
    ],
)
def test_pieces(staging, noted, pieces):
    filled(staging)
    for offset, length in noted:
        staging.note(ENTRY, offset, length, 0)
    assert Staging(staging.root).pieces(ENTRY) == pieces


@pytest.mark.parametrize("size", [0, 3, 36, 40, 83])
def test_a_torn_journal(staging, size):
    filled(staging)
    staging.note(ENTRY, 0, 10, 0)
    staging.note(ENTRY, 20, 10, 0)
    os.truncate(staging.part(ENTRY) + b".journal", size)
    assert Staging(staging.root).pieces(ENTRY) == ([(0, 10)] if size > 36 + 24 else [])


def test_one_at_a_time(staging):
    with pytest.raises(Busy) as busy:
        Staging(staging.root).acquire()
    assert f"process {os.getpid()} on " in str(busy.value)
    staging.release(clear=True)
    other = Staging(staging.root)
    other.acquire()
    other.release(clear=True)
    assert not os.path.exists(other.folder)


def test_only_one_works_where_another_is_just_leaving(staging, monkeypatch):
    held, flock = [staging], fcntl.flock

    def late(lock, how):
        while held:
            held.pop().release(clear=True)
        flock(lock, how)

    monkeypatch.setattr("clusterctl.node.relay.staging.fcntl.flock", late)
    other = Staging(staging.root)
    other.acquire()
    with pytest.raises(Busy):
        Staging(staging.root).acquire()
    other.check()
    other.release(clear=True)


def test_messages_name_the_folder_and_not_its_descriptor(staging):
    path = staging.folder + b"/1 (deleted)"
    assert named(staging.main.at + b"/1 (deleted)") == path
    at = staging.main.at
    staging.release(clear=True)
    assert named(at + b"/2") == staging.folder + b"/2"
    assert named(b"/elsewhere") == b"/elsewhere"


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001])
def test_gmac_is_what_another_library_makes_it(size):
    data = bytearray(os.urandom(size))
    total = Gmac()
    for part in (bytes(data[: size // 3]), memoryview(data)[size // 3 :]):
        total.update(part)
    tag = AESGCM(bytes(16)).encrypt(bytes(12), b"", bytes(data))
    assert total.value() == int.from_bytes(tag[:7], "big")


def test_after_a_boot_pieces_are_summed_again_by_the_kind_that_made_them(staging):
    filled(staging)
    for kind, offset in ((Gmac, 0), (Crc32, 10)):
        total = kind()
        total.update(bytes(10))
        staging.note(ENTRY, offset, 10, total.value())
    with open(staging.part(ENTRY) + b".journal", "r+b") as journal:
        journal.write(b"another boot")
    assert Staging(staging.root, Gmac).pieces(ENTRY) == [(0, 10)]
    assert Staging(staging.root, Crc32).pieces(ENTRY) == [(10, 10)]
