"""What `diagnose` reads after the samples, of few ranks: their calls in C, and where they meet."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.ranks import Rank
from clusterctl.diagnosis.selection import to_connect, to_read
from clusterctl.node.facts.native import NativeCalls, native_calls
from clusterctl.node.facts.network import connect_attempts
from clusterctl.node.facts.report import FactReport
from clusterctl.transport.call import RunsCommands, facts_of, read_report
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

# The first ranks, then those for whom they wait, or others.
ROUNDS = 3
DOING = "reading calls in C"
MEETING = "connecting to where the ranks meet"


def with_closer_reads(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence
) -> Evidence:
    """Return the evidence with both, as far as the samples leave open what they can tell."""
    evidence = with_native_frames(connections, targets, evidence)
    return with_rendezvous(connections, targets, evidence)


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


def with_rendezvous(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence
) -> Evidence:
    """Return the evidence with what came of connecting to where the ranks of a job meet, from hosts
    with a rank that waits for that."""
    chosen = to_connect(evidence)

    def connect(target: Target) -> FactReport:
        fact = functools.partial(connect_attempts, endpoints=(chosen[target.host][1],))
        return read_report(connections, target, [fact], MEETING)

    reports = fan_out(connect, [target for target in targets if target.host in chosen])
    found = {
        (outcome.host, chosen[outcome.host][0].process.pid): outcome.value[0]
        for outcome in facts_of(reports, connect_attempts, MEETING).outcomes
        if outcome.value
    }
    return _with(evidence, "rendezvous", found)


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
    return _with(evidence, "native", found)


def _with(evidence: Evidence, field: str, found: Mapping[tuple[str, int], Any]) -> Evidence:
    """Return the evidence with this field of processes, by host and process ID."""
    hosts = [
        replace(
            host,
            processes=tuple(
                replace(one, **{field: found[host.host, one.pid]})
                if (host.host, one.pid) in found
                else one
                for one in host.processes
            ),
        )
        for host in evidence.hosts
    ]
    return replace(evidence, hosts=tuple(hosts))
