"""Runs a job's command line on the head node. All output of its ranks goes to the job's log as they
wrote it, and that of each rank also to a file of its own, `log-RANK`.

    FOLDER ARGV...    the job's folder and the command line. The exit status is that of the command
                      line, 128 + N after signal N

mpirun runs with --tag-output, which marks each line with its rank; the tags are removed here.
(`--output dir=` of Open MPI 5.0.11 loses what ranks write to stderr.) If spec.json has no
`tag_end`, the user has asked mpirun for other output, and no tags are requested. Private variables
are read from file descriptor 3.

mpirun writes to files in memory, not to pipes. Its ssh processes share its outputs and make them
non-blocking, and when Open MPI 5 ends, it drops what a full pipe does not accept at once: the last
megabytes of other nodes' ranks. A file is never full. If the disk is so slow that much waits to be
written, what waits longest is lost, and the log says how much: memory stays for the training.

With torchrun, mpirun's ranks are nodes; a second mark, written by torch_rank.py, has the rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from clusterctl.node.death_signal import die_with
from clusterctl.node.jobs.spec import JobSpec
from clusterctl.node.record import from_json

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
LOOK_EVERY_S = 0.05
# Output that waits for the disk takes at most this part of the memory that was free at the start,
# for each of mpirun's two outputs, but at least so many bytes.
UNREAD_PART, LEAST_UNREAD = 8, 64 << 20
# `[1,0]<stdout>:`; Open MPI 5.0.0 adds its job's name: `[prterun-demo-0-77@1,0]<stdout>: `. CUT_TAG
# is a tag whose end has not been read yet.
TAG = rb"\[(?:[^\s\[\]]{1,200}@)?\d{1,9},(\d{1,6})\]<std\w{3}>"
CUT_TAG = re.compile(rb"\[(?:\d{0,9}|p[^\s\[\]]{0,200})(?:,\d{0,6}(?:\](?:<\w{0,6}>?:?)?)?)?\Z")

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
        yield None, b"\nclusterctl: %d bytes of output are lost: the disk was too slow\n" % lost
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
    counted, and the log says how many once there is space again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost: dict[str, int] = {}

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
        said = b"\nclusterctl: %d bytes of output are lost: the disk was full\n" % lost
        left = said * bool(lost) + content
        try:
            # Opened for each write: there may be more ranks than a process may have open files.
            with (self._folder / name).open("ab", buffering=0) as file:
                while left:
                    left = left[file.write(left) :]
        except OSError:
            # `left` may still have the message, which does not count.
            self._lost[name] = lost + min(len(left), len(content))


def main() -> None:
    """Set the private variables and run the command line."""
    folder, argv = Path(sys.argv[1]), sys.argv[2:]
    spec = from_json(JobSpec, (folder / "spec.json").read_bytes())
    if None in spec.variables.values():
        os.lseek(3, 0, os.SEEK_SET)
        for name, value in json.loads(os.read(3, os.fstat(3).st_size)).items():
            os.environb[name.encode()] = value.encode("utf-8", "surrogateescape")
    if spec.tag_end:
        sys.exit(run(folder, argv, spec))
    # Python ignores these two signals, and mpirun would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(argv[0], argv)


def run(folder: Path, argv: list[str], spec: JobSpec) -> int:
    """Run the command line and log its output. Return its exit status, 128 + N after signal N."""
    asked: list[int] = []
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        asked.append(number)
        for one in processes:
            one.send_signal(number)

    # Under nohup SIGHUP is ignored, and stays so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    tagged = [argv[0], "--tag-output", *argv[1:]]
    out, err = GrowingFile("stdout"), GrowingFile("stderr")
    # If this program is killed, mpirun has to stop: nobody would read its output, and the job would
    # look ended.
    die = partial(die_with, os.getpid(), signal.SIGTERM)
    try:
        process = subprocess.Popen(
            tagged,
            stdout=out.fd,
            stderr=err.fd,
            preexec_fn=die,  # noqa: PLW1509 - two system calls, no lock
        )
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")
    processes.append(process)
    # Signals that came before there was a process.
    for one in asked:
        process.send_signal(one)
    tag_end = spec.tag_end.encode()
    # Each stream has its own state: a piece of one may come in the middle of a line of the other.
    outputs = {file: TaggedOutput(tag_end, spec.torchrun) for file in (out, err)}
    most = unread_limit(Path("/proc/meminfo").read_text())
    keep(process, outputs, Logs(folder), most)
    status = process.wait()
    return status if status >= 0 else 128 - status


class GrowingFile:
    """A file in memory that another process appends to and this program reads. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name)
        self.position = self._freed = self._lost = 0
        self._lock = threading.Lock()

    def read(self) -> tuple[int, bytes]:
        """Return how many bytes were dropped since the last call, and what comes after them.

        That is up to READ_BYTES of what was added.
        """
        with self._lock:
            lost, self._lost = self._lost, 0
            content = os.pread(self.fd, READ_BYTES, self.position)
            self.position += len(content)
            if self.position - self._freed > FREE_BYTES:
                self._free()
            return lost, content

    def limit(self, most: int) -> None:
        """If more than `most` bytes wait to be read, drop all but the last half of `most`."""
        with self._lock:
            size = os.fstat(self.fd).st_size
            if size - self.position > most:
                self._lost += size - most // 2 - self.position
                self.position = size - most // 2
                self._free()

    def _free(self) -> None:
        size = ctypes.c_int64(self.position)
        LIBC.fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE, ctypes.c_int64(0), size)
        self._freed = self.position


def unread_limit(table: str) -> int:
    """Return how many bytes of each output may wait, from the text of /proc/meminfo."""
    free = re.search(r"MemAvailable:\s*(\d+) kB", table)
    return max(LEAST_UNREAD, (int(free[1]) << 10) // UNREAD_PART if free else 0)


def keep(
    process: subprocess.Popen[bytes],
    outputs: dict[GrowingFile, TaggedOutput],
    logs: Logs,
    most: int,
) -> None:
    """Log what is added to these files until the process has ended. Processes that it left running
    may hold the files open; they are not waited for. At most `most` bytes of each file wait."""
    ended = threading.Event()

    def limit() -> None:
        # On a thread of its own: a write to a disk may take minutes.
        while not ended.wait(LOOK_EVERY_S):
            for file in outputs:
                file.limit(most)

    threading.Thread(target=limit, daemon=True).start()

    def log(file: GrowingFile, lost: int, content: bytes) -> None:
        if lost:
            logs.add(outputs[file].skip(lost))
        logs.add(outputs[file].feed(content))

    came_at = time.monotonic()
    while process.poll() is None:
        contents = [(file, *file.read()) for file in outputs]
        for one in contents:
            log(*one)
        if any(content for _, _, content in contents):
            came_at = time.monotonic()
            continue
        if time.monotonic() - came_at > REST_AFTER_S:
            for output in outputs.values():
                logs.add(output.flush())
        time.sleep(LOOK_EVERY_S)
    # All output of the process is in the files by now. Other processes may still add to them.
    for file, size in [(file, os.fstat(file.fd).st_size) for file in outputs]:
        while file.position < size:
            log(file, *file.read())
        logs.add(outputs[file].finish())
    ended.set()
