"""Read the calls in C of the few ranks that tell the others apart, for `diagnose`."""

from __future__ import annotations

import functools
from dataclasses import replace

from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.selection import to_read
from clusterctl.node.facts.native import NativeCalls, native_calls
from clusterctl.node.facts.report import Fact
from clusterctl.operations.access import Access
from clusterctl.transport.reports import facts_of, read_reports
from clusterctl.transport.target import Target

# The first ranks, then those for whom they wait, or others of a large group.
ROUNDS = 3
DOING = "reading calls in C"


def with_native_frames(access: Access, evidence: Evidence) -> Evidence:
    """Return the evidence with the calls in C of some ranks, or the reasons why there are none."""
    for _ in range(ROUNDS):
        chosen = to_read(evidence)
        if not chosen:
            break
        pids: dict[str, tuple[int, ...]] = {}
        for one in chosen:
            pids[one.host.host] = (*pids.get(one.host.host, ()), one.process.pid)
        evidence = _read(access, evidence, pids, any(one.is_python for one in chosen))
    return evidence


def _read(
    access: Access, evidence: Evidence, pids: dict[str, tuple[int, ...]], python: bool
) -> Evidence:
    def facts(target: Target) -> list[Fact]:
        return [functools.partial(native_calls, pids=pids[target.host], python=python)]

    targets = [target for target in access.all_targets if target.host in pids]
    reports = read_reports(access.connections, targets, facts, DOING)
    found: dict[tuple[str, int], NativeCalls] = {}
    for outcome in facts_of(reports, native_calls, DOING).outcomes:
        why = outcome.error.message if outcome.error else ""
        calls = outcome.value or [NativeCalls(pid, error=why) for pid in pids[outcome.host]]
        found |= {(outcome.host, one.pid): one for one in calls}
    hosts = []
    for host in evidence.hosts:
        processes = (
            replace(one, native=found.get((host.host, one.pid), one.native))
            for one in host.processes
        )
        hosts.append(replace(host, processes=tuple(processes)))
    return replace(evidence, hosts=tuple(hosts))
