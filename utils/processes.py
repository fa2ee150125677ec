"""One function over many tasks in several processes; none of them outlives the run."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

from progress import Progress
from shards import ShardError

Count = Callable[[int], None]
Work = Callable[[Any, Count], Any]

LOOK_EVERY_S = 0.25


def each_done(
    work: Work, tasks: Sequence[Any], processes: int, progress: Progress
) -> Generator[tuple[int, Any], None, None]:
    """`work(task, count)` for every task: yields each task's index and result as they come.

    `work` must be importable, for processes start afresh (threads and locks do not survive a
    fork). One process, or one task, is a plain loop. Raises what `work` raises, and ShardError
    when a process is killed.
    """
    if min(processes, len(tasks)) <= 1:
        yield from one_by_one(work, tasks, progress)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(tasks))
    counts = context.RawArray("q", workers)  # a slot per process: nobody waits for a lock
    waiting = iter(enumerate(tasks))
    busy: dict[Any, int] = {}
    links: dict[Any, Any] = {}
    try:
        for slot in range(workers):
            ours, theirs = context.Pipe()
            with interrupts_held():
                process = context.Process(
                    target=serve, args=(work, theirs, counts, slot), daemon=True
                )
                process.start()
            theirs.close()
            links[ours] = process
            index, task = next(waiting)
            busy[ours] = index
            ours.send(task)
        while busy:
            failed: BaseException | None = None
            for link in wait(list(busy), LOOK_EVERY_S):
                index = busy.pop(link)
                ok, result = receive(link, links[link])
                if not ok:  # the others that are ready are not lost for it
                    failed = failed or result
                    continue
                for next_index, task in waiting:
                    busy[link] = next_index
                    link.send(task)
                    break
                progress.update(sum(counts))
                yield index, result
            if failed:
                raise failed
            progress.update(sum(counts))
    finally:
        for link, process in links.items():
            process.terminate()
            process.join()
            link.close()


def one_by_one(
    work: Work, tasks: Sequence[Any], progress: Progress
) -> Generator[tuple[int, Any], None, None]:
    def count(images: int) -> None:
        progress.update(progress.done + images)

    for index, task in enumerate(tasks):
        yield index, work(task, count)


def receive(link: Connection, process: Any) -> tuple[bool, Any]:
    """Whether the work was done, and its result or else the error."""
    try:
        return link.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        code = process.exitcode
        how = f"killed by signal {-code}" if code < 0 else f"ended with {code}"
        return False, ShardError(
            f"a process was {how}: out of memory? Fewer processes need less of it"
        )


def serve(work: Work, link: Connection, counts: Any, slot: int) -> None:
    """What a process does: task after task, until the other end of the link is closed."""
    parent = os.getppid()

    def count(images: int) -> None:
        counts[slot] += images
        if os.getppid() != parent:
            os._exit(1)  # the run was killed: nobody waits for this shard

    with contextlib.suppress(EOFError, OSError):
        while True:
            task = link.recv()
            try:
                answer = True, work(task, count)
            except Exception as error:
                answer = False, error
            link.send(answer)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: those started here inherit that it waits, so
    that only the first one acts on it and ends the others."""
    resource_tracker.ensure_running()  # its own start, in the first process', would undo this
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
