"""Reports of nodes: which facts to read on which nodes, and what came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.facts.report import (
    WITHIN_S,
    Fact,
    FactReport,
    collect,
    function_of,
    request_of,
)
from clusterctl.transport.call import HostConnections, RunsCommands, timed_call
from clusterctl.transport.target import Target

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
    response = timed_call(
        connections,
        target,
        collect,
        request_of(facts, within_s),
        doing=doing,
        timeout_s=timeout_s,
        # Only the modules of these facts are sent: nodes compile them at every call.
        modules=sorted({each.__module__ for each in functions}),
    )
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
