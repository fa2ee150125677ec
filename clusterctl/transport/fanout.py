"""Fan-out: the same work on many hosts in threads, with one outcome for each host."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.results import DEFAULT_FANOUT, FanoutResult, HostOutcome


class Hosted(Protocol):
    """Anything with the name of a host."""

    @property
    def host(self) -> str: ...


H = TypeVar("H", bound=Hosted)
T = TypeVar("T")


def fan_out(
    work: Callable[[H], T],
    items: Sequence[H],
    *,
    max_workers: int = DEFAULT_FANOUT,
    on_outcome: Callable[[HostOutcome[T]], None] | None = None,
) -> FanoutResult[T]:
    """Call `work(item)` for every item, at most `max_workers` at a time.

    The result has one outcome per item, in the order of the items. A ClusterctlError becomes the
    outcome of its host and does not stop the others. Any other exception is a bug; it is raised
    after all hosts have ended. `on_outcome` is called in the calling thread when a host ends. After
    a KeyboardInterrupt no work is started, and the exception is raised.
    """
    outcomes: list[HostOutcome[T] | None] = [None] * len(items)
    bugs: list[BaseException] = []

    def one(position: int) -> int:
        item = items[position]
        try:
            outcomes[position] = HostOutcome(item.host, value=work(item))
        except ClusterctlError as error:
            outcomes[position] = HostOutcome(item.host, error=error)
        except BaseException as error:
            bugs.append(error)
        return position

    ended = map(one, range(len(items)))
    if max_workers > 1 and len(items) > 1:
        ended = _in_threads(one, len(items), max_workers)
    for position in ended:
        outcome = outcomes[position]
        if on_outcome and outcome:
            on_outcome(outcome)
    if bugs:
        raise bugs[0]
    return FanoutResult(tuple(outcome for outcome in outcomes if outcome is not None))


def in_thread(work: Callable[[], T], timeout_s: float | None = None) -> T:
    """Run `work` in another thread, and return its value or raise its error.

    A KeyboardInterrupt, which only the main thread gets, ends the wait and not the work. So does
    the end of `timeout_s`, with a TimeoutError; None waits without a limit.
    """
    ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def worker() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=worker, daemon=True).start()
    try:
        value, error = ended.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError from None
    if error:
        raise error
    return cast("T", value)


def _in_threads(one: Callable[[int], int], count: int, max_workers: int):  # type: ignore[no-untyped-def]
    # Yield the positions in the order in which their work ends. The threads are daemon threads,
    # since an interrupted program must not wait for a host that does not answer.
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for position in range(count):
        todo.put(position)

    def worker() -> None:
        while True:
            try:
                position = todo.get_nowait()
            except queue.Empty:
                return
            ended.put(one(position))

    for _ in range(min(max_workers, count)):
        threading.Thread(target=worker, daemon=True).start()
    try:
        for _ in range(count):
            yield ended.get()
    finally:
        # After an interrupt, empty the queue so that the threads start no more work.
        while not todo.empty():
            try:
                todo.get_nowait()
            except queue.Empty:
                break
