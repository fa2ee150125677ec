"""`call`: run a function of `clusterctl.node` on a node, and return what it returns. And reports of
nodes: which facts to read on which nodes, and what came back.

The function takes one record and returns another one (node/record.py). Here it is only named, there
it runs: mypy checks request and response on both sides. It travels on stdin and leaves nothing on
the node. It is one of the three ways to a node; the others are programs that stream, and jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from clusterctl.domain.errors import CommandFailed, CommandNotRun, CommandTimeout
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, program_failure
from clusterctl.node.facts.report import (
    WITHIN_S,
    Fact,
    FactReport,
    collect,
    function_of,
    request_of,
)
from clusterctl.node.packer import program_of
from clusterctl.node.record import RecordError, from_json, hints_of, name_of, to_json
from clusterctl.transport.dial import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterctl.transport.execute import CommandOptions

R = TypeVar("R")


class RunsCommands(Protocol):
    """What runs commands on nodes: HostConnections, or what makes a new connection for each."""

    def run(
        self, target: Target, command: str, *, timeout_s: float | None, stdin: bytes
    ) -> CommandResult: ...


class HostLogin(Protocol):
    """A login on a host. Its round trip is None if that is not known."""

    @property
    def round_trip_s(self) -> float | None: ...


class HostConnections(RunsCommands, Protocol):
    """Connections, or what takes their place: this machine, or connections that use sudo."""

    def session(self, target: Target) -> HostLogin: ...

    def run(self, target: Target, command: str, **how: Unpack[CommandOptions]) -> CommandResult: ...

    def each(self, targets: Sequence[Target], work: Callable[[Target], R]) -> FanoutResult[R]: ...

    def interrupt(self, for_good: bool = False) -> dict[str, str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TimedResponse(Generic[R]):
    """What the function returned, and this machine's times of the request and of the response, in
    seconds since the epoch. They exclude the login."""

    value: R
    sent_s: float
    received_s: float


@dataclass(frozen=True)
class NodeCall(Generic[R]):
    """A function of `clusterctl.node`, the record that it takes, and how it is called.

    `doing` names the operation in messages: "reading the disks". `attachment` is for a function
    that has a parameter of this name. `modules` are sent, too, for one that finds others by name.
    """

    function: Callable[..., R]
    request: Any
    doing: str
    timeout_s: float
    attachment: bytes = b""
    modules: Sequence[str] = ()


def call(connections: RunsCommands, target: Target, this: NodeCall[R]) -> R:
    """Return what the function returns on a node. Raise HostError."""
    return timed_call(connections, target, this).value


def timed_call(connections: RunsCommands, target: Target, this: NodeCall[R]) -> TimedResponse[R]:
    """Do the same as `call`, and return the times as well: they show how far two clocks differ."""
    program = program_of(*this.modules, this.function.__module__, "clusterctl.node.agent")
    command = program.command(name_of(this.function))
    stdin = program.stdin(f"{to_json(this.request)}\n".encode() + this.attachment)
    try:
        result = connections.run(target, command, stdin=stdin, timeout_s=this.timeout_s)
    except CommandTimeout as late:
        # A process that hangs in the kernel can keep the command from ending, though the function
        # has returned and its response is here.
        if not late.stdout.endswith("\n"):
            late.message = late.message.replace(command, this.doing)
            raise
        result = CommandResult(target.host, command, 0, late.stdout, late.stderr, this.timeout_s)
    received_s = time.time()
    value = record_in(hints_of(this.function)["return"], result, this.doing)
    return TimedResponse(value, received_s - result.duration_s, received_s)


def record_in(kind: type[R], result: CommandResult, doing: str) -> R:
    """Return the record that a program on a node printed. Raise HostError."""
    if result.exit_status:
        raise program_failure(result, doing)
    try:
        return from_json(kind, result.stdout)
    except RecordError as problem:
        what = f"{doing} failed: unexpected response: {problem}"
        raise CommandNotRun(result.host, what) from problem


def call_all(
    connections: HostConnections,
    targets: Sequence[Target],
    this: NodeCall[R] | Callable[[Target], NodeCall[R]],
) -> FanoutResult[R]:
    """Call the function on every node; return one outcome for each, in the order of `targets`.

    `this` may be a function of the target.
    """

    def one(target: Target) -> R:
        return call(connections, target, this(target) if callable(this) else this)

    return connections.each(targets, one)


T = TypeVar("T")
# Seconds beyond the last deadline of the facts: a busy node starts the program slowly.
START_S = 25.0


def read_reports(
    connections: HostConnections,
    targets: Sequence[Target],
    facts: Callable[[Target], Sequence[Fact]] | Sequence[Fact],
    doing: str,
    timeout_s: float | None = None,
) -> FanoutResult[FactReport]:
    """Read these facts on every node; return one outcome for each, in the order of `targets`.

    `facts` may be a function of the target. A fact that cannot be read is an error in its node's
    report; a node that gives no report is an error of the outcome. `doing` names the operation in
    messages: "reading the disks". `timeout_s` is for the whole report of a node, and shortens the
    deadlines of facts that would lose all others with it; None: START_S more than the longest
    deadline.
    """

    def one(target: Target) -> FactReport:
        requested = facts(target) if callable(facts) else facts
        return read_report(connections, target, requested, doing, timeout_s)

    return connections.each(targets, one)


def read_report(
    connections: RunsCommands,
    target: Target,
    facts: Sequence[Fact],
    doing: str,
    timeout_s: float | None = None,
) -> FactReport:
    """Read these facts on one node, as read_reports does. Raise HostError."""
    functions = list(dict.fromkeys(map(function_of, facts)))
    if timeout_s is None:
        within_s = max((getattr(each, "within_s", WITHIN_S) for each in functions), default=0.0)
        timeout_s = within_s + START_S
    else:
        within_s = max(timeout_s - START_S, timeout_s / 2)
    # Only the modules of these facts are sent: nodes compile them at every call.
    modules = sorted({each.__module__ for each in functions})
    request = request_of(facts, within_s)
    node_call = NodeCall(collect, request, doing, timeout_s, modules=modules)
    response = timed_call(connections, target, node_call)
    report = replace(response.value.converted(functions), host=target.host)
    return with_clock(report, response.sent_s, response.received_s)


def read_fact(
    connections: HostConnections, targets: Sequence[Target], fact: Callable[..., T], doing: str
) -> FanoutResult[T]:
    """Read one fact on every node. If it cannot be read, that is the error of its node. The value
    of an outcome is None, too, if that is the fact."""
    return facts_of(read_reports(connections, targets, [fact], doing), fact, doing)


def facts_of(
    reports: FanoutResult[FactReport], fact: Callable[..., T], doing: str
) -> FanoutResult[T]:
    """Return one fact of every report, as read_fact does."""
    function = function_of(fact)

    def of(outcome: HostOutcome[FactReport]) -> HostOutcome[T]:
        report, error = outcome.value, outcome.error
        for reading in report.failed(function) if report else ():
            error = CommandFailed(outcome.host, f"{doing} failed: {reading.error}")
        return HostOutcome(outcome.host, report.get(function) if report else None, error)

    return FanoutResult(tuple(map(of, reports.outcomes)))


def with_clock(report: FactReport, sent_s: float, received_s: float) -> FactReport:
    """Return the report with the node's clock minus ours, by our times of request and response.

    The error is at most half of the time on the way (RFC 5905).
    """
    way_s = (received_s - sent_s) - (report.ended_s - report.began_s)
    ahead_s = (report.began_s - sent_s) + (report.ended_s - received_s)
    return replace(report, clock_offset_s=ahead_s / 2, clock_error_s=max(0.0, way_s) / 2)
