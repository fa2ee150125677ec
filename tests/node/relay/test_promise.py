"""The promises of docs/copy.md about bytes, tested at random: files change, copies stop and resume.

Two nodes form a chain in this process, without sockets. The answer of the source or a node to BLOCK
is passed to the next node, sometimes with a wrong byte. The first node checks the sum of what it
gets, or passes it on unchecked. The second node confirms it, or not. After every step, each file
that has arrived is a version that the source had completely since the start of the copy, and
nothing outside the destination has changed. A copy without disturbances then ends with the source's
files. Only `checksum` finds files that differ in nothing but their content; half of the worlds have
no such files.

`CLUSTERCTL_STEPS=1000000 pytest tests/node/relay/test_promise.py` runs that many steps.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.node.relay.blocks import BlockSet
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import Crc32, Gmac, digests_of_files
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import Entry, decode, encode
from clusterctl.node.relay.messages import Begin, Done
from clusterctl.node.relay.scan import scan
from clusterctl.node.relay.source import Source
from clusterctl.node.relay.staging import Busy, Removed
from clusterctl.node.relay.target import PulledDestination
from clusterctl.node.relay.wire import LENGTH, PeerError, Waits
from tests.variants import usual

pytestmark = pytest.mark.slow

BLOCK = 32 << 10
NAMES = ["big", "d/big", "d/e/mid", "small", "tiny", "hole"]
SIZES = {"big": 9, "d/big": 5, "d/e/mid": 3, "small": 0.4, "tiny": 0.01, "hole": 6}
SEEDS = 8
STEPS = int(os.environ.get("CLUSTERCTL_STEPS", "5000")) // SEEDS


class Pipe:
    """A connection in memory, without a network."""

    secured = False

    def __init__(self) -> None:
        self._data = self._piped = b""
        self.confirmed: list[int] = []

    def damage(self, at: int) -> None:
        self._data = self._data[:at] + bytes([self._data[at] ^ 1]) + self._data[at + 1 :]

    def is_gone(self) -> bool:
        return False

    def pipe_bytes(self) -> int:
        return 1 << 16

    def fill_pipe(self, most) -> int:
        self._piped = self._data[: min(most, 10_000)]
        self._data = self._data[len(self._piped) :]
        if not self._piped:
            raise PeerError("it ended early")
        return len(self._piped)

    def drain_pipe(self, descriptor, at, size) -> None:
        assert os.pwrite(descriptor, self._piped, at) == size

    def send(self, data) -> None:
        self._data += bytes(data)

    def send_file(self, descriptor, offset, length) -> None:
        data = os.pread(descriptor, length, offset)
        if len(data) != length:
            raise PeerError("it became shorter")
        self.send(data)

    def read_into(self, view) -> None:
        if len(view) > len(self._data):
            raise PeerError("it ended early")
        view[:] = self._data[: len(view)]
        self._data = self._data[len(view) :]

    def read(self, size: int) -> bytes:
        data = bytearray(size)
        self.read_into(memoryview(data))
        return bytes(data)


def drop_locks(staging) -> None:
    """Drop a staging's locks as the kernel does with those of a process that was killed."""
    for folder in staging._folders:  # noqa: SLF001
        if folder.held:
            os.close(folder._lock)  # noqa: SLF001


class World:
    """A source, two nodes, a folder outside of all, and everything that the source ever had."""

    def __init__(self, folder: Path, seed: int, disk: Path | None = None) -> None:
        """`disk`: a folder on another disk, where the folder `d` of the second node is."""
        self.seed, self.random = seed, random.Random(seed)
        self.source, self.other = folder / "source", folder / "other source"
        self.nodes = [folder / "node0", folder / "node1"]
        self.outside = folder / "outside"
        for path in (self.source, self.other, self.outside, *self.nodes):
            path.mkdir()
        if disk:
            (self.nodes[1] / "d").symlink_to(disk)
        (self.outside / "kept").write_bytes(b"kept")
        self.time_ns = 1_600_000_000 * 10**9
        # All contents of each name, with the number of the step until which it had the content.
        self.had: dict[str, list[tuple[bytes, float]]] = {}
        self.step, self.harm = 0, 0.1
        # The files on the nodes, and the names that had two contents of the same size and time.
        self.seen: dict[tuple[int, str], bytes] = {}
        self.doubtful: set[str] = set()
        self.copy = None
        self.aside: dict[str, Path] = {}
        for name in NAMES:
            self.write(name)

    # Actions of the user

    def write(self, name: str, keep_time: bool = False) -> None:
        """Write a new content, sometimes with the size and time of the previous one."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat() if keep_time and path.is_file() else None
        size = int(SIZES[name] * BLOCK) + self.random.randrange(3)
        content = self.random.randbytes(before.st_size if before else size)
        if name == "hole":
            content = content[:BLOCK] + bytes(3 * BLOCK) + content[4 * BLOCK :]
        if before:
            self.doubtful.add(name)
        if self.random.random() < 0.5:
            self.note(name, content)
            path.with_name("new").write_bytes(content)
            os.replace(path.with_name("new"), path)
        else:
            # In place, in two writes: the state between them is a content as well.
            half = len(content) // 2
            old = path.read_bytes() if path.exists() else b""
            self.note(name, content[:half] + old[half:])
            self.note(name, content)
            path.write_bytes(content)
        if name == "hole":
            self.punch(path, content)
        # Whole seconds, as on some file systems. Otherwise every content has its own time.
        self.time_ns += 10**9 if self.random.random() < 0.5 else 10**8
        os.utime(path, ns=(0, before.st_mtime_ns if before else self.time_ns))

    @staticmethod
    def punch(path: Path, content: bytes) -> None:
        with path.open("r+b") as file:
            file.truncate(BLOCK)
            file.seek(4 * BLOCK)
            file.write(content[4 * BLOCK :])

    def note(self, name: str, content: bytes | None) -> None:
        versions = self.had.setdefault(name, [])
        if versions:
            versions[-1] = (versions[-1][0], self.step)
        if content is not None:
            versions.append((content, float("inf")))

    def rename_away(self, name: str) -> None:
        path = self.source / name
        if path.is_file() and name not in self.aside:
            self.aside[name] = self.source.parent / f"aside {name.replace('/', '-')}"
            os.rename(path, self.aside[name])

    def rename_back(self, name: str) -> None:
        path = self.source / name
        if name in self.aside:
            aside = self.aside.pop(name)
            if not path.exists():
                self.note(name, aside.read_bytes())
                os.rename(aside, path)

    def link_and_folder(self) -> None:
        """Copy from two sources: one has a link where the other has a folder.

        Each call uses a new name, because a node follows a link that it has (docs/copy.md).
        """
        name = f"x{self.step}"
        (self.other / name).symlink_to(self.outside)
        (self.source / name).mkdir()
        (self.source / name / "evil").write_bytes(b"evil")

    def chmod(self, name: str) -> None:
        path = self.source / name
        if path.is_file():
            path.chmod(self.random.choice([0o600, 0o644, 0o444, 0o755]))

    # Actions of the copy

    def begin(self, checksum: bool) -> None:
        """Start a copy to both nodes. The previous copy ends as if it had been killed."""
        self.kill()
        sources = [os.fsencode(self.other) + b"/", os.fsencode(self.source) + b"/"]
        found = scan(sources, None, b"/")
        entries = found.entries
        if checksum:
            digests = digests_of_files(found.places.all())
            entries = [
                e._replace(digest=d) if e.kind == "f" else e for e, d in zip(entries, digests)
            ]
        parts = list(encode(entries))
        layout = Layout(entries, BLOCK)
        stamps = [entry.changed_ns for entry in entries]
        # A copy may resume one that used the other kind of checksum.
        gmac = self.random.random() < 0.5
        kind = Gmac if gmac else Crc32
        origin = Source(entries, found.places.getter(), stamps.__getitem__, layout, Waits(), kind)
        targets = []
        for node in self.nodes:
            target = PulledDestination({"destination": str(node), "checksum": checksum}, Waits())
            try:
                target.prepare(Entries(decode(parts)), Begin(BLOCK, gmac=gmac))
            except Busy:
                raise AssertionError("the one before still holds it") from None
            targets.append(target)
        ledgers = [BlockSet(layout.blocks, b"\1" * layout.blocks), targets[0].store.ledger]
        self.copy = SimpleNamespace(
            origin=[origin, targets[0].store],
            targets=targets,
            ledgers=ledgers,
            began=self.step,
            checksum=checksum,
            done=set(),
        )

    def kill(self) -> None:
        if self.copy:
            for target in self.copy.targets:
                target.publisher.finish()  # noqa: SLF001 - its thread is this process's
                drop_locks(target.staging)
            self.check()
        self.copy = None

    def move(self) -> None:
        """Transfer some blocks to one node."""
        number = self.random.randrange(2)
        for _ in range(self.random.randrange(1, 6)):
            self.move_one(number)

    def move_one(self, number: int) -> bool:
        target, ledger = self.copy.targets[number], self.copy.ledgers[number]
        wanted = [b for b in target.store.ledger.missing() if b in ledger]
        if not wanted:
            return False
        block, pipe = self.random.choice(wanted), Pipe()
        try:
            target.store.ledger.watchers = self.random.randrange(2) if number == 0 else 0
            self.copy.origin[number].send_block(pipe, block)
            pipe.read(LENGTH.size)
            if self.random.random() < self.harm:
                pipe.damage(self.random.randrange(target.layout.length(block) + 4))
            target.store.receive(pipe, block, memoryview(bytearray(BLOCK)))
        except (PeerError, OSError):
            return False
        if number == 1 and pipe.confirmed and self.random.randrange(3):
            self.copy.targets[0].store.confirm(block)
        return True

    def finish(self, number: int) -> Done | None:
        target = self.copy.targets[number]
        if number not in self.copy.done:
            target.store.check_waiting(0)
        if target.wanted.left or number in self.copy.done:
            return None
        self.copy.done.add(number)
        return target.finish()

    def undisturbed(self) -> None:
        """Run a copy without disturbances. It ends with the source's files."""
        self.step, self.harm = self.step + 1, 0
        for checksum in (False, True):
            self.begin(checksum)
            for number in (0, 1):
                while self.move_one(number):
                    pass
            reports = [self.finish(number) for number in (0, 1)]
            assert all(reports), "blocks did not come"
            assert [report.left_out for report in reports] == [0, 0], reports
            for target in self.copy.targets:
                target.leave()
            self.check()
            self.copy = None
        self.harm = 0.1
        for name in self.had:
            source = self.source / name
            if source.is_file():
                for node in self.nodes:
                    assert (node / name).read_bytes() == source.read_bytes(), name

    # The promise

    def check(self) -> None:
        assert [path.name for path in self.outside.iterdir()] == ["kept"]
        for number, node in enumerate(self.nodes):
            for name, versions in self.had.items():
                path = node / name
                content = path.read_bytes() if path.is_file() else b""
                if content == self.seen.get((number, name), b""):
                    continue
                self.seen[number, name] = content
                if self.copy.checksum or name not in self.doubtful:
                    had = [version for version, until in versions if until >= self.copy.began]
                    assert content in had, f"{path} is no content that the source has had"


def steps(world: World):
    name = world.random.choices(NAMES, [6, 3, 2, 1, 1, 2])[0]
    yield 6, lambda: world.write(name)
    if world.seed % 2:
        yield 6, lambda: world.write(name, keep_time=True)
    yield 2, lambda: world.rename_away(name)
    yield 4, lambda: world.rename_back(name)
    yield 1, lambda: world.chmod(name)
    yield 0.1, world.link_and_folder
    yield 3, lambda: world.begin(checksum=False)
    yield 2, lambda: world.begin(checksum=True)
    yield 1, world.undisturbed
    if world.copy:
        yield 30, world.move
        yield 1, lambda: world.copy.targets[0].store.check_waiting(0)
        yield 4, lambda: world.finish(world.random.randrange(2))
        yield 1, world.kill


@pytest.mark.parametrize("seed", usual(2, range(SEEDS)))
def test_a_file_under_its_name_is_the_sources(tmp_path, seed):
    # In memory if possible, because each file is synced to disk.
    memory = Path("/dev/shm")
    base = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=base) as folder:
        # Whether that is another disk depends on the machine: a test of its own needs one.
        world = World(Path(folder), seed, tmp_path if seed % 2 else None)
        for world.step in range(1, STEPS + 1):
            weights, todo = zip(*steps(world))
            [step] = world.random.choices(todo, weights)
            step()
            world.check()
        world.undisturbed()


def test_of_a_file_that_differs_in_nothing_but_content_a_node_passes_on_its_own(tmp_path):
    """This holds for all of its data, even in a block that was sent because of another file."""
    world = World(tmp_path, 1)
    while (world.source / "big").stat().st_size % BLOCK == 0:
        world.write("big")
    world.undisturbed()
    older = (world.nodes[0] / "big").read_bytes()
    (world.nodes[1] / "big").unlink()
    world.write("big", keep_time=True)
    world.write("d/big")
    world.harm = 0
    world.begin(checksum=False)
    for number in (0, 1):
        while world.move_one(number):
            pass
        assert world.finish(number).left_out == 0
    assert (world.source / "big").read_bytes() != older
    assert [(node / "big").read_bytes() == older for node in world.nodes] == [True, True]
    world.kill()


def test_what_the_disk_did_not_take_is_not_gone_on_with(tmp_path, monkeypatch):
    """The kernel has dropped the data: it reads as zeros."""

    def broken(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        path.write_bytes(bytes(path.stat().st_size))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    world = World(tmp_path, 1)
    world.begin(checksum=False)
    publisher = world.copy.targets[0].publisher
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        while world.move_one(0):
            pass
        publisher.finish()
    assert publisher.error
    world.undisturbed()


def test_what_someone_has_removed_is_not_gone_on_with(tmp_path):
    """Earlier blocks are gone, including those that are confirmed only afterwards."""
    world = World(tmp_path, 1)
    world.harm = 0
    world.begin(checksum=False)
    store = world.copy.targets[0].store
    while len(store._waiting) < 5:  # noqa: SLF001
        world.move_one(0)
    for path in (world.nodes[0] / ".clusterctl-copy").iterdir():
        path.unlink(missing_ok=True)  # a thread may move a file that is whole to its place
    for block in list(store._waiting):  # noqa: SLF001
        store.confirm(block)
    with pytest.raises(Removed):
        while world.move_one(0):
            pass
    world.kill()
    world.undisturbed()


def test_the_last_blocks_wait_for_the_node_behind(tmp_path):
    """To read them again takes as long as to receive them."""
    world = World(tmp_path, 1)
    world.harm = 0
    world.begin(checksum=False)
    while world.move_one(0):
        pass
    store = world.copy.targets[0].store
    store.ledger.watchers = 1
    waiting = list(store._waiting)  # noqa: SLF001
    store.check_waiting(60)
    assert waiting == list(store._waiting) != []  # noqa: SLF001
    for block in waiting:
        store.confirm(block)
    assert not store.wanted.left
    world.kill()


def test_what_another_copy_goes_on_with_is_not_published(tmp_path):
    """The staging folder was removed, and another copy started."""
    world = World(tmp_path, 1)
    world.harm = 0
    world.begin(checksum=False)
    first, staging = world.copy, world.nodes[0] / ".clusterctl-copy"
    while first.targets[0].store.received < 5 * BLOCK:
        world.move_one(0)
    staging.rename(tmp_path / "removed")
    world.copy = None
    drop_locks(first.targets[1].staging)
    world.begin(checksum=False)
    world.copy, second = first, world.copy
    for path in (tmp_path / "removed").iterdir():
        if path.name != "lock":
            path.rename(staging / path.name)
    with pytest.raises(Removed):
        while first.targets[0].wanted.left:
            world.move_one(0) or first.targets[0].store.check_waiting(0)
        world.finish(0)
    assert not (world.nodes[0] / "big").exists()
    world.copy = second
    world.kill()


def test_what_turns_bad_just_now_is_not_taken_from_the_file_before(tmp_path):
    """An earlier copy left pieces of the file: their block is requested, their part deleted."""
    world = World(tmp_path, 1)
    world.undisturbed()
    world.write("big")
    world.begin(checksum=False)
    while world.copy.targets[0].store.received < 5 * BLOCK:
        world.move_one(0)
    world.begin(checksum=False)
    store = world.copy.targets[0].store
    [number] = store._resumed  # noqa: SLF001

    class Resumed(set):
        def isdisjoint(self, others):
            store._spoil([number])  # noqa: SLF001
            return super().isdisjoint(others)

    store._resumed = Resumed([number])  # noqa: SLF001
    layout = world.copy.targets[0].layout
    block = next(
        block
        for block in range(layout.blocks)
        if block in store.ledger and {one.entry for one in layout.extents(block)} == {number}
    )
    with pytest.raises(PeerError):
        store.send_block(Pipe(), block)
    world.kill()


def test_a_file_that_gets_its_mode_while_it_is_sent_is_good(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x")
    status = path.stat()

    def stamp(number):
        """Set the mode while the file is being checked, as `retouch` does."""
        while path.stat().st_ctime_ns == status.st_ctime_ns:
            path.chmod(0o600)
        return path.stat().st_ctime_ns

    entry = Entry(b"x", "f", 0o600, status.st_mtime_ns, 1)
    layout = Layout([entry], BLOCK)
    source = Source([entry], lambda number: os.fsencode(path), stamp, layout, Waits(), Crc32)
    source.send_block(Pipe(), 0)
    assert source.bad == {}
