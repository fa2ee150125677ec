"""A pool of processes that runs one function on many tasks. No process outlives the run."""

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

LOOK_EVERY_S = 0.25  # how often progress is shown while no task ends


def each_done(
    work: Work, tasks: Sequence[Any], processes: int, progress: Progress
) -> Generator[tuple[int, Any], None, None]:
    """Call `work(task, count)` for every task. Yield index and result of each task when it ends.

    `work` must be importable, since the processes are spawned, not forked: threads and locks do not
    survive a fork. With one process or one task, the tasks run in this process. Raises what `work`
    raises, and ShardError if a process is killed.
    """
    if min(processes, len(tasks)) <= 1:
        yield from one_by_one(work, tasks, progress)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(processes, len(tasks))
    counts = context.RawArray("q", workers)  # each process writes its own slot, without a lock
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
                if not ok:  # first yield the other results that are ready
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
    """Run the tasks in this process, one after the other."""

    def count(images: int) -> None:
        progress.update(progress.done + images)

    for index, task in enumerate(tasks):
        yield index, work(task, count)


def receive(link: Connection, process: Any) -> tuple[bool, Any]:
    """Return whether the task succeeded, and its result or its error."""
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
    """Run tasks in a worker process until the other end of the link is closed."""
    parent = os.getppid()

    def count(images: int) -> None:
        counts[slot] += images
        if os.getppid() != parent:
            os._exit(1)  # the parent was killed, so nobody waits for this task

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
    """Block SIGINT for the processes that the block starts.

    The terminal sends SIGINT to every process. Worker processes inherit the blocked signal, so that
    only this process handles Ctrl-C and then stops them.
    """
    resource_tracker.ensure_running()  # starting it later would unblock SIGINT again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
