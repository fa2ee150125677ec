"""`call`: run a function of `clusterctl.node` on a node, and return what it returns.

The function takes one record and returns another one (node/record.py). Here it is only named, there
it runs: mypy checks request and response on both sides. It travels on stdin and leaves nothing on
the node. It is one of the three ways to a node; the others are programs that stream, and jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from clusterctl.domain.errors import CommandNotRun, CommandTimeout
from clusterctl.domain.results import CommandResult, FanoutResult, program_failure
from clusterctl.node import agent
from clusterctl.node.packer import program_of
from clusterctl.node.record import RecordError, from_json, hints_of, to_json
from clusterctl.transport.stdin import Stdin
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.transport.execute import Sink

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

    def run(
        self,
        target: Target,
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Sink | None = None,
    ) -> CommandResult: ...

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


def call(
    connections: RunsCommands,
    target: Target,
    function: Callable[..., R],
    request: Any,
    *,
    doing: str,
    timeout_s: float,
    attachment: bytes = b"",
) -> R:
    """Return `function(request)`, run on a node. Raise HostError.

    `doing` names the operation in messages: "reading the disks". `attachment` is for a function
    that has a parameter of this name.
    """
    where = (connections, target, function, request)
    return timed_call(*where, doing=doing, timeout_s=timeout_s, attachment=attachment).value


def timed_call(
    connections: RunsCommands,
    target: Target,
    function: Callable[..., R],
    request: Any,
    *,
    doing: str,
    timeout_s: float,
    attachment: bytes = b"",
    modules: Sequence[str] = (),
) -> TimedResponse[R]:
    """Do the same as `call`, and return the times as well: they show how far two clocks differ.

    `modules` are sent, too, for a function that finds others by name.
    """
    program = program_of(*modules, function.__module__, "clusterctl.node.agent")
    command = program.command(agent.name_of(function))
    stdin = program.stdin(f"{to_json(request)}\n".encode() + attachment)
    try:
        result = connections.run(target, command, stdin=stdin, timeout_s=timeout_s)
    except CommandTimeout as late:
        # A process that hangs in the kernel can keep the command from ending, though the function
        # has returned and its response is here.
        if not late.stdout.endswith("\n"):
            late.message = late.message.replace(command, doing)
            raise
        result = CommandResult(target.host, command, 0, late.stdout, late.stderr, timeout_s)
    received_s = time.time()
    value = record_in(hints_of(function)["return"], result, doing)
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
    function: Callable[..., R],
    request: Any,
    *,
    doing: str,
    timeout_s: float,
) -> FanoutResult[R]:
    """Call the function on every node; return one outcome for each, in the order of `targets`.

    `request` may be a function of the target. The other parameters are those of `call`.
    """

    def one(target: Target) -> R:
        sent = request(target) if callable(request) else request
        return call(connections, target, function, sent, doing=doing, timeout_s=timeout_s)

    return connections.each(targets, one)
