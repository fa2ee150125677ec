from __future__ import annotations

import fcntl
import os
import threading

import pytest

from clusterctl.node.relay.manifest import Entry
from clusterctl.node.relay.staging import Busy, Staging

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
        ([(1 << 20, 1), (0, 1)], [(0, 1)]),  # beyond the part
    ],
)
def test_pieces(staging, noted, pieces):
    filled(staging)
    for offset, length in noted:
        staging.note(ENTRY, offset, length, 0)
    assert Staging(staging.root).pieces(ENTRY) == pieces


@pytest.mark.parametrize("size", [0, 3, 36, 40, 75])
def test_a_torn_journal(staging, size):
    filled(staging)
    staging.note(ENTRY, 0, 10, 0)
    staging.note(ENTRY, 20, 10, 0)
    os.truncate(staging.part(ENTRY) + b".log", size)
    assert Staging(staging.root).pieces(ENTRY) == ([(0, 10)] if size > 36 + 20 else [])


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
    assert other.is_held()
    other.release(clear=True)
