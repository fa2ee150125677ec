"""How much memory the list of files takes, on the machine that has them and on the others."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import digest_of, encode, head_of
from clusterctl.node.relay.messages import Begin
from clusterctl.node.relay.parts import Incoming, Parts
from clusterctl.node.relay.scan import Found, _Gathering
from clusterctl.node.relay.target import PulledDestination
from clusterctl.node.relay.wire import Waits

BLOCK = 8 << 20


def scanned(count: int) -> Found:
    """Return what a scan of ImageNet's folders finds, with this many files of 110 KB."""
    gathering = _Gathering()
    for number in range(count):
        name = b"train/n%08d/n%08d_%05d.JPEG" % (number // 1300, number // 1300, number % 1300)
        status = SimpleNamespace(
            st_mode=0o100644,
            st_size=110_432 + number * 31 % 50_000,
            st_blocks=1000,
            st_mtime_ns=1_700_000_123_456_789_000 + number * 7919,
            st_ctime_ns=1_700_000_987_654_321_000 + number * 104_729,
        )
        gathering.add(name, b"/data/imagenet/" + name, status)
    return gathering.found()


class Source:
    """What the relay at the source holds of its files."""

    def __init__(self, count: int) -> None:
        self.found = scanned(count)
        self.parts = list(encode(self.found.entries))
        self.layout = Layout(self.found.entries, BLOCK)


class Node:
    """What the relay at a node holds that lacks all of the files, before the first has come."""

    def __init__(self, blobs: list[bytes], to: str) -> None:
        self.manifest = Incoming(digest_of(blobs[0]), Parts())
        for number, blob in enumerate(blobs):
            self.manifest.take(number, blob)
        # In a dry run everything is made ready in memory, and nothing on the disk.
        config = {"destination": to, "delete": True, "dry_run": True}
        self.target = PulledDestination(config, Waits())
        gap = self.target.prepare(self.manifest.entries, Begin(BLOCK, 24))
        assert gap.files == len(self.manifest.entries)


def blobs_of(entries: Entries) -> list[bytes]:
    parts = list(encode(entries))
    return [head_of(parts), *parts]


def bytes_of(make, *arguments) -> int:
    """Return the most bytes that are in use at once while `make` works."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = make(*arguments)
        peak = tracemalloc.get_traced_memory()[1]
        del kept
    finally:
        tracemalloc.stop()
    return peak


def test_what_a_file_takes_on_each_side(tmp_path):
    """5 million files fit in 1 GiB: that is 214 bytes for each. Before, it was 650 and 800."""
    few, many = 2_000, 6_000  # more than a part, which is in memory as text for a moment
    more = bytes_of(Source, many) - bytes_of(Source, few)
    assert more / (many - few) < 150
    blobs = [blobs_of(scanned(count).entries) for count in (few, many)]
    sizes = [bytes_of(Node, one, str(tmp_path / "to")) for one in blobs]
    assert (sizes[1] - sizes[0]) / (many - few) < 200


@pytest.mark.all
def test_the_most_memory_of_each_side_with_a_million_files(tmp_path, capsys):
    """Shown with `pytest -s`; CLUSTERCTL_FILES is another number of files."""
    count = int(os.environ.get("CLUSTERCTL_FILES", "1000000"))
    for side in ("source", "node"):
        argv = [sys.executable, "-m", "tests.node.relay.test_memory", side, str(count), tmp_path]
        told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
        with capsys.disabled():
            print(f"\n{count} files, {side}: {told.strip()}")
        assert int(told.split()[0]) < 60 + 220 * count / (1 << 20)


if __name__ == "__main__":
    side, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    held = os.path.join(folder, "blobs")
    if side == "source":
        source = Source(count)
        blobs = [head_of(source.parts), *source.parts]
        with open(held, "wb") as file:
            for blob in blobs:
                file.write(len(blob).to_bytes(4, "big") + blob)
    else:
        blobs = []
        with open(held, "rb") as file:
            while size := file.read(4):
                blobs.append(file.read(int.from_bytes(size, "big")))
        node = Node(blobs, os.path.join(folder, "to"))
    with open("/proc/self/status") as status:
        [peak] = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    encoded = sum(map(len, blobs))
    print(f"{peak >> 10} MiB at most, of which {encoded >> 20} MiB are the encoded list")
