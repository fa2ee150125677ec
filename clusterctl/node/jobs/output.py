"""The output of a job's command lines. All of it goes to the job's log as the ranks wrote it, and
that of each rank also to a file of its own, `log-RANK`.

mpirun runs with --tag-output, which marks each line with its rank; the tags are removed here.
(`--output dir=` of Open MPI 5.0.11 loses what ranks write to stderr.) If the job has no `tag_end`,
the user has requested other output of mpirun, and no tags are requested.

A command writes to files in memory, not to pipes. mpirun's ssh processes share its outputs and make
them non-blocking, and when Open MPI 5 ends, it drops what a full pipe does not accept at once: the
last megabytes of other nodes' ranks. A file is never full. If the disk is so slow that much waits
to be written, what waits longest is lost, and the log has how much: memory stays for the training.

With torchrun, mpirun's ranks are nodes; a second mark, written by torch_rank.py, has the rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 1 << 20
# Memory of what has been read is released in pieces of this size.
FREE_BYTES = 16 << 20
PUNCH_HOLE, KEEP_SIZE = 2, 1  # of fallocate(2)
LIBC = ctypes.CDLL(None)
# A longer line is written before its end, and may be mixed with lines of the other output.
LINE_BYTES = 8 << 20
# A line that has not ended after this long is a prompt or a progress bar, and is written.
REST_AFTER_S = 0.2
POLL_S = 0.05
# Output that waits for the disk takes at most this part of the memory that was free at the start,
# for each of mpirun's two outputs, but at least so many bytes.
UNREAD_PART, LEAST_UNREAD = 8, 64 << 20
# `[1,0]<stdout>:`; Open MPI 5.0.0 adds its job's name: `[prterun-demo-0-77@1,0]<stdout>: `. CUT_TAG
# is a tag whose end has not been read yet. mpirun's own lines, as at the end of --timeout, have
# `[1,WILDCARD]`.
TAG = rb"\[(?:[^\s\[\]]{1,200}@)?\d{1,9},(?:(\d{1,6})|WILDCARD)\]<std\w{3}>"
CUT_TAG = re.compile(
    rb"\[(?:\d{0,9}|p[^\s\[\]]{0,200})(?:,(?:\d{0,6}|W[A-Z]{0,7})(?:\](?:<\w{0,6}>?:?)?)?)?\Z"
)

# The file in a job's folder that has the times of the last writes to its log, and a line of it: the
# time and the size of the log after the write. The lines are written over in turn.
TIMES, TIME_LINE, MOST_TIMES = "times", b"%16.2f %15d\n", 256
TIME_BYTES = len(TIME_LINE % (0, 0))

LOST_BYTES = b"\nclusterctl: %d bytes of output are lost: the disk was too slow\n"
# What torch_rank.py writes around each piece of a rank's output.
MARK = re.compile(rb"\x1e<rank(\d{0,6})>\x1f")
CUT_MARK = re.compile(rb"\x1e(?:<[rank]{0,4}\d{0,6}>?)?\Z")


class TaggedOutput:
    """One of mpirun's two outputs, stdout or stderr, split by rank."""

    def __init__(self, tag_end: bytes, torchrun: bool) -> None:
        self._tag = re.compile(TAG + re.escape(tag_end))
        self._torchrun = torchrun
        self._rank: bytes | None = None
        self.rest = b""
        self._skipping = False
        self._nodes: dict[bytes | None, MarkedOutput] = {}

    def feed(self, content: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        """Add `content`, and yield the complete lines with their ranks; None is mpirun itself."""
        if self._skipping:
            _, newline, content = content.partition(b"\n")
            self._skipping = not newline
        self.rest += content
        end = self.rest.rfind(b"\n") + 1
        return self.flush() if len(self.rest) - end > LINE_BYTES else self._take(end)

    def flush(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield the incomplete line so far, without a tag that is cut off."""
        cut = CUT_TAG.search(self.rest, max(0, len(self.rest) - 256))
        return self._take(cut.start() if cut else len(self.rest))

    def finish(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield the rest, at the end of the output."""
        return self._take(len(self.rest))

    def skip(self, lost: int) -> Iterator[tuple[bytes | None, bytes]]:
        """Go on after a gap of `lost` bytes, with the next line. Yield the rest and a message."""
        yield from self.finish()
        rank = self._rank
        if rank is not None and self._torchrun:
            rank = self._nodes[rank].rank
        if rank is not None:  # its line is cut off
            yield rank, b"\n"
        yield None, LOST_BYTES % lost
        self._rank, self._skipping, self._nodes = None, True, {}

    def _take(self, end: int) -> Iterator[tuple[bytes | None, bytes]]:
        content, self.rest = self.rest[:end], self.rest[end:]
        for rank, text in self._untagged(content):
            if self._torchrun:
                yield from self._nodes.setdefault(rank, MarkedOutput()).feed(text)
            else:
                yield rank, text

    def _untagged(self, content: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        # Open MPI 4 tags each piece that a rank writes, also in the middle of a line, and each line
        # in it. So an untagged piece continues the rank's line up to its end; what follows that end
        # is mpirun's own.
        first, *tagged = self._tag.split(content)
        for rank, text in zip([self._rank, *tagged[::2]], [first, *tagged[1::2]]):
            end = text.find(b"\n") + 1
            self._rank = None if end else rank
            yield rank, text[:end] if end else text
            if end and text[end:]:
                yield None, text[end:]


class PlainOutput:
    """Output without tags, of a command that has no ranks: all of it is logged as it comes."""

    def feed(self, content: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        yield None, content

    def flush(self) -> Iterator[tuple[bytes | None, bytes]]:
        return iter(())

    def finish(self) -> Iterator[tuple[bytes | None, bytes]]:
        return iter(())

    def skip(self, lost: int) -> Iterator[tuple[bytes | None, bytes]]:
        yield None, LOST_BYTES % lost


class MarkedOutput:
    """The output of one node's torchrun, split by rank."""

    def __init__(self) -> None:
        self.rank: bytes | None = None
        self._rest = b""

    def feed(self, content: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield pieces of `content` with their ranks; None is torchrun itself."""
        content = self._rest + content
        cut = CUT_MARK.search(content, max(0, len(content) - 16))
        end = cut.start() if cut else len(content)
        content, self._rest = content[:end], content[end:]
        first, *marked = MARK.split(content)
        yield self.rank, first
        for rank, text in zip(marked[::2], marked[1::2]):
            self.rank = rank or None
            yield self.rank, text


class Logs:
    """The job's log and the logs of its ranks. A full disk does not stop a job: lost bytes are
    counted, and the log has how many once there is space again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost: dict[str, int] = {}
        self._writes = 0
        self._is_amid_line = False

    @property
    def lost_bytes(self) -> int:
        """The bytes lost at the end of the log, which does not have their number."""
        return self._lost.get("log", 0)

    def begin_line(self) -> None:
        """End the log's last line, if a rank's or a command's end has left it incomplete."""
        if self._is_amid_line:
            self._append("log", b"\n")

    def add(self, pieces: Iterator[tuple[bytes | None, bytes]]) -> None:
        """Append pieces of output, each with its rank, to the logs."""
        whole: list[bytes] = []
        by_rank: dict[bytes, list[bytes]] = {}
        for rank, text in pieces:
            whole.append(text)
            if rank is not None:
                by_rank.setdefault(rank, []).append(text)
        self._append("log", b"".join(whole))
        for rank, texts in by_rank.items():
            self._append(f"log-{int(rank)}", b"".join(texts))

    def _append(self, name: str, content: bytes) -> None:
        if not content:
            return
        lost = self._lost.pop(name, 0)
        lost_line = b"\nclusterctl: %d bytes of output are lost: the disk was full\n" % lost
        left = lost_line * bool(lost) + content
        try:
            # Opened for each write: there may be more ranks than a process may have open files.
            with (self._folder / name).open("ab", buffering=0) as file:
                while left:
                    left = left[file.write(left) :]
                if name == "log":
                    self._is_amid_line = not content.endswith(b"\n")
                    self._note_time(file.tell())
        except OSError:
            # `left` may still have the message, which does not count.
            self._lost[name] = lost + min(len(left), len(content))

    def _note_time(self, size: int) -> None:
        """Record that the log has grown to `size` now. The file was created with the log."""
        with contextlib.suppress(OSError), (self._folder / TIMES).open("r+b", buffering=0) as file:
            file.seek(self._writes % MOST_TIMES * TIME_BYTES)
            file.write(TIME_LINE % (time.time(), size))
            self._writes += 1


def write_times(text: bytes) -> list[tuple[float, int]]:
    """Return the times of the writes in a TIMES file with the sizes of the log after them, in
    order. A line that is just being written is left out."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            at_s, size = line.split()
            found.append((float(at_s), int(size)))
    return sorted(found)


class GrowingFile:
    """A file in memory that another process appends to and this program reads. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)
        self.position = self._freed = self._lost = 0
        self._lock = threading.Lock()

    def read(self) -> tuple[int, bytes]:
        """Return how many bytes were dropped since the last call, and what comes after them.

        That is up to READ_BYTES of what was added.
        """
        with self._lock:
            lost, self._lost = self._lost, 0
            if os.fstat(self.fd).st_size < self.position:
                self.position = self._freed = 0  # opened as /dev/stdout it was cut to nothing
            content = os.pread(self.fd, READ_BYTES, self.position)
            self.position += len(content)
            if self.position - self._freed > FREE_BYTES:
                self._free()
            return lost, content

    def limit(self, most: int) -> None:
        """If more than `most` bytes wait to be read, drop all but the last half of `most`."""
        with self._lock:
            size = os.fstat(self.fd).st_size if self.fd >= 0 else 0
            if size - self.position > most:
                self._lost += size - most // 2 - self.position
                self.position = size - most // 2
                self._free()

    def close(self) -> None:
        with self._lock:
            os.close(self.fd)
            self.fd = -1

    def _free(self) -> None:
        size = ctypes.c_int64(self.position)
        LIBC.fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE, ctypes.c_int64(0), size)
        self._freed = self.position


def unread_limit(table: str) -> int:
    """Return how many bytes of each output may wait, from the text of /proc/meminfo."""
    free = re.search(r"MemAvailable:\s*(\d+) kB", table)
    return max(LEAST_UNREAD, (int(free[1]) << 10) // UNREAD_PART if free else 0)


class CommandOutput:
    """The output of one command: in memory until it is in the logs. `fds` are its stdout and
    stderr. Without tags both are one file, so that their lines stay in order.

    As a context manager it keeps at most a part of the memory that is free.
    """

    def __init__(
        self, logs: Logs, tag_end: str = "", torchrun: bool = False, most: int = 0
    ) -> None:
        self._logs = logs
        files = [GrowingFile("stdout")]
        if tag_end:
            files.append(GrowingFile("stderr"))
        # Each stream has its own state: a piece of one may come in the middle of a line of the
        # other.
        self._outputs = {
            file: TaggedOutput(tag_end.encode(), torchrun) if tag_end else PlainOutput()
            for file in files
        }
        self.fds = (files[0].fd, files[-1].fd)
        self._most = most or unread_limit(Path("/proc/meminfo").read_text())
        self._came_at = time.monotonic()
        self._ended = threading.Event()

    def __enter__(self) -> CommandOutput:
        # On a thread of its own: a write to a disk may take minutes.
        threading.Thread(target=self._limit, daemon=True).start()
        return self

    def _limit(self) -> None:
        while not self._ended.wait(POLL_S):
            for file in self._outputs:
                file.limit(self._most)

    def poll(self) -> bytes:
        """Log what was added since the last call, and return it."""
        contents = [(file, *file.read()) for file in self._outputs]
        for file, lost, content in contents:
            self._log(file, lost, content)
        new = b"".join(content for _, _, content in contents)
        now = time.monotonic()
        if new:
            self._came_at = now
        elif now - self._came_at > REST_AFTER_S:
            for output in self._outputs.values():
                self._logs.add(output.flush())
        return new

    def unread(self) -> int:
        """Return how many bytes were added since the last call of `poll`."""
        return sum(os.fstat(file.fd).st_size - file.position for file in self._outputs)

    def _log(self, file: GrowingFile, lost: int, content: bytes) -> None:
        if lost:
            self._logs.add(self._outputs[file].skip(lost))
        self._logs.add(self._outputs[file].feed(content))

    def __exit__(self, *error: object) -> None:
        """Log the rest. Processes that have not ended may still add to the files; that is not
        waited for."""
        for file, size in [(file, os.fstat(file.fd).st_size) for file in self._outputs]:
            while file.position < size:
                self._log(file, *file.read())
            self._logs.add(self._outputs[file].finish())
        self._ended.set()
        for file in self._outputs:
            file.close()
