"""Read the calls in C of the few ranks that tell the others apart, for `diagnose`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.diagnosis.case import Rank
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.selection import to_read
from clusterctl.node.facts.native import NativeCalls, native_calls
from clusterctl.node.facts.report import FactReport
from clusterctl.transport.call import RunsCommands
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.reports import facts_of, read_report
from clusterctl.transport.target import Target

# The first ranks, then those for whom they wait, or others of a large group.
ROUNDS = 3
DOING = "reading calls in C"


def with_native_frames(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence
) -> Evidence:
    """Return the evidence with the calls in C of some ranks, or the reasons why there are none."""
    for _ in range(ROUNDS):
        chosen = to_read(evidence)
        if not chosen:
            break
        evidence = _read(connections, targets, evidence, chosen)
    return evidence


def _read(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence, chosen: list[Rank]
) -> Evidence:
    def pids(host: str) -> tuple[int, ...]:
        return tuple(one.process.pid for one in chosen if one.host.host == host)

    def read(target: Target) -> FactReport:
        python = tuple(one.process.pid for one in chosen if one.is_python)
        fact = functools.partial(native_calls, pids=pids(target.host), python=python)
        return read_report(connections, target, [fact], DOING)

    reports = fan_out(read, [target for target in targets if pids(target.host)])
    found: dict[tuple[str, int], NativeCalls] = {}
    for outcome in facts_of(reports, native_calls, DOING).outcomes:
        why = outcome.error.message if outcome.error else ""
        calls = outcome.value or [NativeCalls(pid, error=why) for pid in pids(outcome.host)]
        found |= {(outcome.host, one.pid): one for one in calls}
    hosts = []
    for host in evidence.hosts:
        processes = (
            replace(one, native=found.get((host.host, one.pid), one.native))
            for one in host.processes
        )
        hosts.append(replace(host, processes=tuple(processes)))
    return replace(evidence, hosts=tuple(hosts))
