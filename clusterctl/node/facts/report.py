"""The report of a node: facts that are read at the same time, each with its own deadline.

No fact can delay or lose another. Each is read in a process of its own, since it may hang (a mount
whose server is gone, a driver that lost its GPU). A process that hangs in the kernel cannot be
killed. It is left behind, and the report names the fact.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Sequence, TypeVar, cast

from clusterctl.node.record import (
    RecordError,
    from_data,
    from_json,
    hints_of,
    name_of,
    to_data,
    to_json,
)


def output(
    argv: list[str], check: bool = True, errors: bool = False, cwd: str | None = None
) -> str | None:
    """Return what a program prints, with `errors` also on stderr; None if it is missing,
    or with `check` if it fails.

    There is no timeout: at the deadline of a fact all its processes are killed.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            cwd=cwd,
            check=False,
        )
    except OSError:
        return None
    return None if check and done.returncode else done.stdout.decode(errors="replace")


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
WITHIN_S = 5.0  # the deadline of a fact that has no other
REAPED_WITHIN_S = 0.2  # how long a killed process may take to end


def deadline(within_s: float) -> Callable[[F], F]:
    """Give a fact another deadline than WITHIN_S."""

    def mark(fact: F) -> F:
        vars(fact)["within_s"] = within_s
        return fact

    return mark


def for_each(parameter: str, values: Callable[[], Sequence[str]]) -> Callable[[F], F]:
    """Read a fact once for each of the values that the node has, each in a process of its own."""

    def mark(fact: F) -> F:
        vars(fact)["for_each"] = parameter, values
        return fact

    return mark


@dataclass(frozen=True)
class FactRequest:
    """A fact to read: its function by name (MODULE:FUNCTION), and the arguments."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportRequest:
    """Facts to read, in this order. `within_s` shortens all deadlines that are longer."""

    facts: tuple[FactRequest, ...]
    within_s: Optional[float] = None


@dataclass(frozen=True)
class FactReading:
    """The value of a fact, or the error because of which there is none.

    `label` names it in messages: `gpus`, `mount /data`. On the wire `value` is data; the caller
    converts it to the type that the function returns.
    """

    function: str
    label: str
    value: Any = None
    error: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class FactReport:
    """The facts of one node. Its own clock was `began_s` before the first and `ended_s` after the
    last, in seconds since the epoch. The caller adds `host`, and by how many seconds that clock is
    ahead of ours, with the largest error."""

    began_s: float
    ended_s: float
    readings: tuple[FactReading, ...]
    host: str = ""
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0

    def get(self, fact: Callable[..., T]) -> Optional[T]:
        """Return a fact; None if it was not requested or could not be read."""
        return next(iter(self.all(fact)), None)

    def all(self, fact: Callable[..., T]) -> Sequence[T]:
        """Return the values of a fact that is read for each of several resources."""
        found = [one for one in self.readings if one.function == name_of(fact)]
        return [cast(T, one.value) for one in found if not one.error]

    def without(self, fact: Callable[..., Any]) -> FactReport:
        """Return the report without a fact that was read; its error stays."""
        kept = (one for one in self.readings if one.error or one.function != name_of(fact))
        return replace(self, readings=tuple(kept))

    def has(self, fact: Callable[..., Any]) -> bool:
        """Return whether a fact was read. Its value may be None."""
        return bool(self.all(fact))

    def failed(self, *facts: Callable[..., Any]) -> Sequence[FactReading]:
        """Return the readings of these facts, or of all, that have an error."""
        names = [name_of(fact) for fact in facts]
        bad = [one for one in self.readings if one.error]
        return [one for one in bad if one.function in names or not names]

    def as_data(self) -> dict[str, Any]:
        """Return the facts by name, as `--json` and saved bundles have them: `filesystems` are all
        `mount`s, `errors` are by label."""
        read = [one for one in self.readings if not one.error]
        names = {one.function: one.function.rpartition(":")[2] for one in read}
        facts = {names[one.function]: to_data(one.value) for one in read}
        facts.pop("mount", None)
        return {
            **facts,
            "filesystems": [to_data(one.value) for one in read if names[one.function] == "mount"],
            "errors": {one.label: one.error for one in self.failed()},
        }

    def converted(self, facts: Sequence[Callable[..., Any]]) -> FactReport:
        """Return the report with each value as the type that its function returns. A value of
        another type becomes an error of only that fact."""
        kinds = {name_of(fact): hints_of(fact)["return"] for fact in facts}
        requested = [one for one in self.readings if one.function in kinds]
        return replace(self, readings=tuple(_converted(one, kinds) for one in requested))


# A fact to read: a function of clusterctl/node/facts, or functools.partial(function, arguments).
Fact = Callable[..., Any]


def function_of(fact: Fact) -> Fact:
    """Return the function of a fact to read."""
    return fact.func if isinstance(fact, functools.partial) else fact


def request_of(facts: Sequence[Fact], within_s: Optional[float] = None) -> ReportRequest:
    """Return the request for these facts."""
    return ReportRequest(
        tuple(
            FactRequest(name_of(function_of(one)), to_data(getattr(one, "keywords", {})))
            for one in facts
        ),
        within_s,
    )


def _converted(reading: FactReading, kinds: dict[str, Any]) -> FactReading:
    if reading.error:
        return reading
    try:
        return replace(reading, value=from_data(kinds[reading.function], reading.value))
    except RecordError as error:
        return replace(reading, value=None, error=f"unexpected value: {error}")


# What follows runs on the node.


@dataclass(frozen=True)
class Question:
    """What a process of its own reads, within `within_s` seconds. The rest is as in FactReading."""

    function: str
    label: str
    read: Callable[[], Any]
    within_s: float


@dataclass(frozen=True)
class _Result:
    """What a fact's process writes."""

    value: Any = None
    error: str = ""


@dataclass
class _Reader:
    """A process that reads a fact, and what it has written to `pipe` so far."""

    question: Question
    pid: int
    pipe: int
    began: float
    output: bytes = b""

    @property
    def left_s(self) -> float:
        return max(0.0, self.began + self.question.within_s - time.monotonic())


def collect(request: ReportRequest) -> FactReport:
    """Read all facts at the same time."""
    began_s = time.time()
    readings = read(questions_of(request))
    return FactReport(began_s, time.time(), tuple(readings))


def questions_of(request: ReportRequest) -> list[Question]:
    """Return what the processes have to read."""
    questions: list[Question] = []
    for one in request.facts:
        module, _, name = one.function.partition(":")
        fact = getattr(sys.modules[module], name)
        within_s = getattr(fact, "within_s", WITHIN_S)
        if request.within_s is not None:
            within_s = min(within_s, request.within_s)
        try:
            parts = _parts(fact, one.arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report names it
            parts, failure = [], functools.partial(_fail, error)
            questions.append(Question(one.function, name, failure, within_s))
        questions += [
            Question(one.function, label, functools.partial(_value, fact, arguments), within_s)
            for label, arguments in parts
        ]
    return questions


def _parts(fact: Any, arguments: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a label and arguments for each process that a fact takes."""
    name, (parameter, values) = fact.__name__, getattr(fact, "for_each", ("", tuple))
    if not parameter or parameter in arguments:
        return [(name, arguments)]
    return [(f"{name} {one}", {**arguments, parameter: one}) for one in values()]


def _value(fact: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    hints = hints_of(fact)
    return fact(**{name: from_data(hints[name], one) for name, one in arguments.items()})


def _fail(error: Exception) -> None:
    raise error


def read(questions: Sequence[Question]) -> list[FactReading]:
    """Read all at the same time. The values are data."""
    return _gather([_start(question) for question in questions])


def _start(question: Question) -> _Reader:
    """Fork a process that reads the fact."""
    read_end, write_end = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return _Reader(question, pid, read_end, began)
    try:
        os.setsid()
        # The process may hang for ever. It must not keep open what is read to its end: sshd reads
        # the output of this program.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in (0, 1, 2, write_end):
                with contextlib.suppress(OSError):
                    os.close(int(name))
        try:
            text = to_json({"value": question.read()})
        except Exception as error:  # noqa: BLE001 - whatever it is, the report names it
            text = to_json({"error": _described(error)})
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(text.encode())
    finally:
        os._exit(0)


def _gather(readers: Sequence[_Reader]) -> list[FactReading]:
    """Return what the processes write, in their order. Kill those that miss their deadlines."""
    waiting = {one.pipe: one for one in readers}
    late = []
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        left_s = min(one.left_s for one in waiting.values())
        ready = [fd for fd, _ in poll.poll(left_s * 1000)]
        for fd in ready:
            chunk = os.read(fd, 1 << 16)
            waiting[fd].output += chunk
            if not chunk:
                poll.unregister(fd)
                del waiting[fd]
        # If this process was suspended, its deadlines have passed, and the results are there.
        for fd in [fd for fd, one in waiting.items() if not one.left_s and fd not in ready]:
            poll.unregister(fd)
            late.append(waiting.pop(fd))
    for one in late:
        with contextlib.suppress(OSError):
            os.killpg(one.pid, signal.SIGKILL)
    for one in readers:
        os.close(one.pipe)
        _reap(one.pid, REAPED_WITHIN_S if one in late else WITHIN_S)
    return [_reading(one, one in late) for one in readers]


def _reading(reader: _Reader, is_late: bool) -> FactReading:
    question = reader.question
    named = FactReading(question.function, question.label)
    if is_late:
        return replace(named, error=f"no answer within {question.within_s:g} s", timed_out=True)
    try:
        found = from_json(_Result, reader.output)
        return replace(named, value=found.value, error=found.error)
    except RecordError:
        return replace(named, error="its process died")


def _reap(pid: int, within_s: float) -> None:
    until = time.monotonic() + within_s
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.005)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
