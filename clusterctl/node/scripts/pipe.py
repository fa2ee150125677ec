"""Pipe Mode: streams a channel's objects into FIFOs of a rank: NAME_0, NAME_1, ..., one per epoch.

For each channel the rank forks a feeder before it becomes the program (rank.py):

    feeder      creates the FIFOs and keeps their write ends open, so that the death of a writer
                does not read as the end of an epoch
      writer    one per epoch: fetches ahead, writes all bytes in order, and ends

A reader that closes a FIFO early gets that of the next epoch. If an epoch cannot be read in full,
the program is killed, and the FIFO stays open until then: the program never takes a short epoch for
a full one. The feeder ends with the program.

The contract has the channel's options and `objects`, [[name, bytes, etag]] sorted by name. The head
node lists them once for all ranks (`list_channel`).

    distribution     FullyReplicated; ShardedByS3Key: each of n ranks gets every n-th object
    shuffle_seed     a different order in every epoch, the same on all ranks
    compression      Gzip: objects are decompressed
    record_wrapping  RecordIO: a header before each object, padding after it
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import struct
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fcntl import F_DUPFD, F_SETFL, F_SETOWN, F_SETSIG, fcntl
from itertools import islice
from pathlib import Path
from typing import Any

from clusterctl.node.death_signal import die_with, set_death_signal
from clusterctl.node.objects import NotStreamed, ObjectReader
from clusterctl.node.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn, Union

    Bytes = Union[bytes, bytearray]
    Part = tuple[Bytes, int, str]
    Source = Union[ObjectReader, "Folder"]

PIPE, SHARDED = "Pipe", "ShardedByS3Key"
PART_BYTES, AHEAD = 8 << 20, 6  # size of a part, and how many are fetched ahead
RECORD_MAGIC, LONGEST_RECORD = 0xCED7230A, (1 << 29) - 1  # of MXNet's RecordIO
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ of fcntl(2)
FIFO_BYTES = 1 << 20  # the default of /proc/sys/fs/pipe-max-size
DONE, CLOSED_EARLY = 0, 3  # exit statuses of a writer
# Above all other descriptors of a feeder.
LAST_FD = 500


# The objects of a channel


@dataclass(frozen=True)
class Channels:
    """Channels by name, and variables for S3."""

    channels: dict[str, dict[str, Any]]
    environ: dict[str, str]


@dataclass(frozen=True)
class ListedChannels:
    """What `list_channel` returns, by the channel's name; with an error nothing."""

    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""


def list_channels(request: Channels) -> ListedChannels:
    """List channels, on the head node. `call` runs it."""
    os.environ.update(request.environ)
    listed = {}
    for name, channel in request.channels.items():
        try:
            listed[name] = list_channel(channel)
        except (NotStreamed, OSError) as error:
            return ListedChannels(error=f"channel {name}: {error}")
    return ListedChannels(listed)


def list_channel(channel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the channel's `objects` and more for its contract. Raises NotStreamed, OSError."""
    source = channel["source"]
    if source.startswith("s3://"):
        bucket = ObjectReader(channel)
        objects = bucket.list_all()
        return {"objects": objects, "region": bucket.region, "endpoint": bucket.endpoint}
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise NotStreamed(f"there is no folder {source} on this node")
    return {"objects": files_of(folder)}


def files_of(folder: Path) -> list[tuple[str, int, str]]:
    """Return the files below a folder as an S3 prefix lists objects. Links are followed. Raises
    OSError for an unreadable file or folder and for a dangling link."""
    found: list[tuple[bytes, int]] = []

    def check(place: Path, above: Sequence[tuple[int, int]]) -> None:
        status = place.stat()
        here = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            found.append((os.fsencode(place.relative_to(folder)), status.st_size))
        elif stat.S_ISDIR(status.st_mode) and here not in above:  # not a link to a folder above
            for path in place.iterdir():
                check(path, (*above, here))

    check(folder, ())
    return [(os.fsdecode(name), size, "") for name, size in sorted(found)]


class Folder:
    """Reads local files like ObjectReader. Raises NotStreamed if one has changed."""

    def __init__(self, channel: Mapping[str, Any]) -> None:
        self.top = Path(channel["source"]).expanduser()
        self.first = {name: self._version(name) for name, _, _ in channel["objects"]}
        for name, size, _ in channel["objects"]:
            if self.first[name][0] != size:
                raise NotStreamed(f"{self.top / name} has {self.first[name][0]} bytes, not {size}")

    def _version(self, name: str) -> tuple[int, int]:
        try:
            status = (self.top / name).stat()
        except OSError as error:
            raise NotStreamed(f"{self.top / name}: {error.strerror}") from None
        return status.st_size, status.st_mtime_ns

    def read(self, name: str, etag: str, begin: int, end: int) -> bytes:
        """Return bytes `begin` to `end` (not included) of a file. Raises NotStreamed."""
        data = b""
        with contextlib.suppress(OSError), (self.top / name).open("rb") as file:
            data = os.pread(file.fileno(), end - begin, begin)
        if len(data) < end - begin or self._version(name) != self.first[name]:
            raise NotStreamed(f"{self.top / name} has changed while it was read")
        return data


def source_of(channel: Mapping[str, Any]) -> Source:
    """Return the reader of a channel's objects. Raises NotStreamed."""
    return ObjectReader(channel) if channel["source"].startswith("s3://") else Folder(channel)


# One epoch


def order(channel: Mapping[str, Any], epoch: int, rank: int, ranks: int) -> list[Sequence[Any]]:
    """Return a rank's objects in one epoch, in order."""
    objects = list(channel["objects"])
    if channel.get("shuffle_seed") is not None:
        random.Random(f"{channel['shuffle_seed']}/{epoch}").shuffle(objects)  # noqa: S311
    return objects[rank::ranks] if channel.get("distribution") == SHARDED else objects


def stream(source: Source, objects: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """Return an iterator of the objects' parts, in order: data, bytes of the object after it, name.

    The call starts to fetch the first AHEAD parts. The iterator raises NotStreamed.
    """
    parts = (
        (name, etag, begin, min(begin + PART_BYTES, size), size)
        for name, size, etag in objects
        for begin in range(0, max(size, 1), PART_BYTES)  # an empty object is one empty part
    )
    pool = ThreadPoolExecutor(AHEAD)

    def get(name: str, etag: str, begin: int, end: int, size: int) -> Part:
        return source.read(name, etag, begin, end), size - end, name

    coming = deque(pool.submit(get, *part) for part in islice(parts, AHEAD))

    def given() -> Iterator[Part]:
        try:
            while coming:
                yield coming.popleft().result()
                coming.extend(pool.submit(get, *part) for part in islice(parts, 1))
        finally:
            for future in coming:
                future.cancel()
            pool.shutdown(wait=False)

    return given()


def epoch_of(channel: Mapping[str, Any], parts: Iterator[Part]) -> Iterator[Bytes]:
    """Yield the bytes that the program reads. Raises NotStreamed."""
    packed, wrapped = channel.get("compression") == "Gzip", channel.get("record_wrapping")
    if packed:
        parts = unpacked(parts, whole=wrapped == "RecordIO")
    if wrapped != "RecordIO":
        for data, _, _ in parts:
            yield data
        return
    at = 0
    for data, left, name in parts:
        if not at:
            size = len(data) + left
            if size > LONGEST_RECORD:
                raise NotStreamed(f"{name}: a RecordIO record has at most {LONGEST_RECORD} bytes")
            yield struct.pack("<II", RECORD_MAGIC, size)
        at = at + len(data) if left else 0
        yield data
        if not left:
            yield bytes(-size % 4)


def unpacked(parts: Iterator[Part], whole: bool) -> Iterator[Part]:
    """Decompress gzip. With `whole` an object is one part: RecordIO's header needs its size."""
    # 31: zlib's largest window, in gzip's format.
    opened, fed = zlib.decompressobj(31), False
    kept: list[bytes] = []
    for data, left, name in parts:
        rest = bytes(data)
        while rest:
            if opened.eof:  # gzip files may be concatenated, and padded with zeros
                rest = rest.lstrip(b"\0")
                if not rest:
                    break
                opened = zlib.decompressobj(31)
            try:
                out, fed = opened.decompress(rest, PART_BYTES), True
            except zlib.error as error:
                raise NotStreamed(f"{name} is not what gzip packs: {error}") from None
            rest = opened.unused_data if opened.eof else opened.unconsumed_tail
            if whole:
                kept.append(out)
            else:
                yield out, 1, name
        if not left:
            kept.append(opened.flush())
            if fed and not opened.eof:
                raise NotStreamed(f"{name}: what gzip packed is cut short")
            yield b"".join(kept), 0, name
            opened, fed, kept = zlib.decompressobj(31), False, []


# The processes


def feed(contract: Mapping[str, Any], folder: Path, rank: int, ranks: int) -> None:
    """Start the feeders of a rank whose FIFOs are in `folder`. Raises NotStreamed."""
    channels = {name: one for name, one in contract["channels"].items() if one["mode"] == PIPE}
    if not channels:
        return
    shutil.rmtree(folder, ignore_errors=True)  # the FIFOs of an earlier attempt
    folder.mkdir(parents=True)
    program = RankProcess(os.getpid(), folder)
    for name, channel in channels.items():
        try:
            source = source_of(channel)
        except NotStreamed as error:
            raise NotStreamed(f"channel {name}: {error}") from None
        os.mkfifo(folder / f"{name}_0")
        ended, runs = os.pipe()
        if os.fork() == 0:
            try:
                os.close(ended)
                # When a process dies, the kernel closes the highest descriptor first: this one,
                # which kills the program, before a FIFO, whose end the program would see.
                fcntl(runs, F_DUPFD, LAST_FD)
                os.close(runs)
                Feeder(name, channel, source, folder, program, (rank, ranks)).run()
            except BaseException as error:  # noqa: BLE001 - nothing of this process may return
                program.fail(f"channel {name}: {error!r}")
        os.close(runs)
        kill_at_the_end_of(ended)


def kill_at_the_end_of(pipe: int) -> None:
    """Have the kernel kill this process when all copies of the pipe's other end are closed.

    If a feeder and its writer are killed together, neither can report it.
    """
    pid = os.getpid()
    # The whole process group, if this process leads one.
    fcntl(pipe, F_SETOWN, -pid if os.getpgrp() == pid else pid)
    fcntl(pipe, F_SETSIG, signal.SIGKILL)
    fcntl(pipe, F_SETFL, os.O_ASYNC)
    os.set_inheritable(pipe, True)  # stays open when this process becomes the program


class RankProcess:
    """The process of the rank. Its start time separates it from a later process of the same ID."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.folder = pid, folder
        self.start = self._stat()[1]

    def _stat(self) -> tuple[str, str]:
        """Return its state and start time (proc(5)); "X" if it is gone."""
        try:
            fields = read_stat(f"/proc/{self.pid}")[1]
        except OSError:
            return "X", ""
        return fields[0], fields[19]

    def runs(self) -> bool:
        """Return whether the process exists and is no zombie."""
        state, start = self._stat()
        return state not in "ZX" and start == self.start

    def fail(self, why: str) -> NoReturn:
        """Print the reason, kill the program with its descendants, and exit. The FIFO is open until
        the program is gone, so that it does not see an end of the epoch."""
        if self.runs():
            line = f"clusterctl: {socket.gethostname()}: {why}; the program is killed\n"
            with contextlib.suppress(OSError):
                os.write(2, line.encode(errors="replace"))
            with contextlib.suppress(OSError):
                (self.folder.parents[2] / "output" / "failure").write_text(line)
            with contextlib.suppress(OSError):
                if os.getpgid(self.pid) == self.pid:  # true under mpirun and torchrun
                    os.killpg(self.pid, signal.SIGKILL)
                os.kill(self.pid, signal.SIGKILL)
            while self.runs():
                signal.sigtimedwait((), 0.01)
        os._exit(1)


class Feeder:
    """The process that feeds one channel. `place` is (rank, ranks)."""

    def __init__(
        self,
        name: str,
        channel: Mapping[str, Any],
        source: Source,
        folder: Path,
        program: RankProcess,
        place: tuple[int, int],
    ) -> None:
        self.name, self.channel, self.source = name, channel, source
        self.folder, self.program, self.place = folder, program, place

    def run(self) -> NoReturn:
        """Write epoch after epoch until the program ends."""
        os.setsid()
        die_with(self.program.pid)
        epoch = 0
        while True:
            receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            writer = os.fork()
            if writer == 0:
                sending.close()
                self.write(epoch, receiving)
            receiving.close()
            path = self.folder / f"{self.name}_{epoch}"
            # The next FIFO exists before the program can open it.
            os.mkfifo(self.folder / f"{self.name}_{epoch + 1}")
            # The writer fetches ahead meanwhile.
            held = os.open(path, os.O_WRONLY)  # waits for the reader
            with contextlib.suppress(OSError):
                fcntl(held, SET_PIPE_SIZE, FIFO_BYTES)
            # The writer was forked before the FIFO was open: send it the descriptor.
            with contextlib.suppress(OSError):  # the writer is dead: see its status below
                fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", held))]
                sending.sendmsg([b"."], fds)
            _, status = os.waitpid(writer, 0)
            if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (DONE, CLOSED_EARLY):
                how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else str(status)
                self.program.fail(f"channel {self.name}: its writer died ({how})")
            sending.close()
            path.unlink()
            os.close(held)
            epoch += 1

    def write(self, epoch: int, reader: socket.socket) -> NoReturn:
        """Write one epoch, in a process of its own. If the feeder dies, kill the program."""

        def orphaned(*_: object) -> None:
            self.program.fail(f"channel {self.name}: its feeder was killed")

        signal.signal(signal.SIGTERM, orphaned)
        set_death_signal(signal.SIGTERM)
        if not self.program.runs():
            os._exit(0)
        try:
            parts = stream(self.source, order(self.channel, epoch, *self.place))
            _, passed, _, _ = reader.recvmsg(1, socket.CMSG_LEN(4))
            [fifo] = struct.unpack("i", passed[0][2])
            for data in epoch_of(self.channel, parts):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fifo, rest) :]
        except BrokenPipeError:
            os._exit(CLOSED_EARLY)
        except NotStreamed as error:
            self.program.fail(f"channel {self.name}, epoch {epoch}: {error}")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the epoch is not whole
            self.program.fail(f"channel {self.name}, epoch {epoch}: {error!r}")
        os._exit(DONE)
