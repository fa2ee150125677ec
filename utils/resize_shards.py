"""Resizing whole shards: the work of one process, and the plan of a run.

A part of tensorflow_image_resizer.py.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from image_record import CorruptImage
from records import RecordError, count_records, decode_example, read_records, write_record
from resize_record import Settings, resize_record, shrinking
from shard_jobs import Job, Made, finished, read_journal
from shards import ShardError, fingerprint, shard_name

MAKER = "resized 1"  # raise the number when the same settings give other bytes
MOST_INTER_THREADS = 4  # encoding a JPEG holds Python's lock, so more threads would only wait


@dataclass(frozen=True)
class Threads:
    """Numbers of processes and threads. Each process works on one shard.

    A process works on `inter` images at a time, and scales each one in `intra` threads.
    """

    processes: int
    inter: int = 1
    intra: int = 1


@dataclass(frozen=True)
class Task:
    """A shard to resize."""

    source: str
    settings: Settings
    threads: Threads


@dataclass(frozen=True)
class Corrupt:
    """A record that is left out. `name` is its image's file name in brackets, or empty."""

    name: str
    why: str


def choose_threads(processes: int, inter: int, intra: int, shards: int, cpus: int) -> Threads:
    """Return the numbers of threads, with defaults for zeros.

    The default is one process per CPU, and several images at a time if CPUs would be idle.
    """
    wanted = min(processes or cpus, shards)
    return Threads(wanted, inter or max(1, min(MOST_INTER_THREADS, cpus // wanted)), intra or 1)


def plan(
    sources: Sequence[Path], output: Path, subset: str, settings: Settings, threads: Threads
) -> list[Job]:
    """Return a job for each source. The results are numbered from 0.

    Only the first and the last shard's images are counted, and all others are taken to have as many
    as the first. Counting all would seek through all data, and only the progress line uses it.
    Raises ShardError if one of the two is cut short.
    """
    count = len(sources)
    try:
        usual, last = count_records(sources[0]), count_records(sources[-1])
    except RecordError as error:
        raise ShardError(str(error)) from None
    made_with = fingerprint(MAKER, asdict(settings))
    return [
        Job(
            shard=output / shard_name(subset, index, count),
            images=last if index == count - 1 else usual,
            made_with=made_with,
            made_from=state_of(source),
            task=Task(str(source), settings, threads),
        )
        for index, source in enumerate(sources)
    ]


def unlike(jobs: Sequence[Job]) -> list[str]:
    """Return a message for each shard that these jobs would make anew, by the journal."""
    if not jobs:
        return []
    lines = read_journal(jobs[0].shard.parent)
    return [
        f"{job.shard} is not of this input and these settings: verify with those of the run that "
        "made it, or run without --verify"
        for job in jobs
        if job.shard.exists() and not finished(job, lines.get(job.shard.name))
    ]


def state_of(source: Path) -> str:
    """Return a fingerprint of a file's size and time, independent of its name."""
    stat = source.stat()
    return fingerprint(stat.st_size, stat.st_mtime_ns)


def resize_shard(task: Task, path: Path, count: Callable[[int], None]) -> Made:
    """Write the resized records of a shard to `path`, in order.

    Records that cannot be used are left out. A shard whose record lengths or CRCs are damaged is
    not kept, since the records after the damage are lost, nor is one without a usable record.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")  # warnings about metadata, which is not used
    source = Path(task.source)
    left_out: list[tuple[str, str]] = []
    written = 0
    with shrinking(task.threads.intra) as shrink, path.open("wb", buffering=1 << 20) as file:

        def resized(record: bytes) -> bytes | Corrupt:
            try:
                return resize_record(record, task.settings, shrink)
            except CorruptImage as error:
                return Corrupt(name_in(record), str(error))

        results = in_order(resized, read_records(source), task.threads.inter)
        try:
            for number, result in enumerate(results):
                if isinstance(result, Corrupt):
                    left_out.append((f"{source.name}, record {number}{result.name}", result.why))
                else:
                    write_record(file, result)
                    written += 1
                count(1)
        except RecordError as error:
            return Made(0, ((source.name, str(error)),), keep=False)
    if not written:
        why = (
            f"none of its images can be used: {left_out[0][1]}" if left_out else "it has no images"
        )
        return Made(0, ((source.name, why),), keep=False)
    return Made(written, tuple(left_out))


def name_in(record: bytes) -> str:
    """Return the image's file name in brackets, or "" for a record without one."""
    try:
        names = decode_example(record).get("image/filename")
    except RecordError:
        return ""
    if not names or not isinstance(names[0], bytes):
        return ""
    name = names[0].decode(errors="replace")
    return f" ({''.join(sign if sign.isprintable() else '?' for sign in name)})"


def in_order(
    work: Callable[[bytes], bytes | Corrupt], items: Iterator[bytes], threads: int
) -> Iterator[bytes | Corrupt]:
    """Yield `work(item)` for the items in their order, computed by several threads.

    At most 2 * `threads` + 1 items are under way, so that memory stays small.
    """
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[bytes | Corrupt]] = deque()
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
