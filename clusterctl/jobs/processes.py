"""Lists and ends the processes of jobs on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.facts.processes import job_processes
from clusterctl.node.facts.report import FactReport
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery, stop_processes
from clusterctl.transport.call import HostConnections, call_all
from clusterctl.transport.reports import facts_of, read_reports
from clusterctl.transport.target import Target

Processes = FanoutResult[tuple[NodeProcess, ...]]
TIMEOUT_S = 30.0
DOING = "looking at the processes"


def list_processes(
    connections: HostConnections,
    targets: Sequence[Target],
    query: ProcessQuery,
    timeout_s: float = TIMEOUT_S,
) -> Processes:
    """List the selected processes on each node."""

    def facts(target: Target) -> list[partial[tuple[NodeProcess, ...]]]:
        return [partial(job_processes, query=query.on(target.host))]

    return processes_in(read_reports(connections, targets, facts, DOING, timeout_s))


def processes_in(reports: FanoutResult[FactReport]) -> Processes:
    """Return the processes in these reports of nodes."""
    return _with_hosts(facts_of(reports, job_processes, DOING))


def end_processes(
    connections: HostConnections, targets: Sequence[Target], query: ProcessQuery
) -> Processes:
    """End the selected processes on each node, with TERM and then KILL; return what was ended."""
    return _with_hosts(
        call_all(
            connections,
            targets,
            stop_processes,
            lambda target: query.on(target.host),
            doing=DOING,
            timeout_s=TIMEOUT_S,
        )
    )


def _with_hosts(result: Processes) -> Processes:
    def named(outcome: HostOutcome[tuple[NodeProcess, ...]]) -> HostOutcome[Any]:
        found = tuple(replace(one, host=outcome.host) for one in outcome.value or ())
        return replace(outcome, value=None if outcome.error else found)

    return FanoutResult(tuple(map(named, result.outcomes)))


def all_of(result: Processes) -> tuple[NodeProcess, ...]:
    """Return the processes of all nodes that answered."""
    return tuple(process for processes in result.values for process in processes)
