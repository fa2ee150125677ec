"""What `diagnose` reads after the samples: of few ranks their calls in C and where they meet, and
what the job has written meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from clusterctl.diagnosis.case import Scene
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.ranks import Rank
from clusterctl.diagnosis.selection import to_connect, to_read
from clusterctl.domain.errors import HostError
from clusterctl.node.diagnosis.job import LaterRequest, later_output
from clusterctl.node.facts.native import NativeCalls, native_calls
from clusterctl.node.facts.network import connect_attempts
from clusterctl.node.facts.report import FactReport
from clusterctl.transport.call import NodeCall, RunsCommands, call, facts_of, read_report
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

# The first ranks, then those for whom they wait, or others.
ROUNDS = 3
DOING = "reading calls in C"
MEETING = "connecting to where the ranks meet"
WRITTEN, WRITTEN_WITHIN_S = "reading the job's output", 6.0


def with_closer_reads(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence
) -> Evidence:
    """Return the evidence with both, as far as the samples leave open what they can tell."""
    evidence = with_native_frames(connections, targets, evidence)
    evidence = with_later_output(connections, targets, evidence)
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


def with_later_output(
    connections: RunsCommands, targets: Sequence[Target], evidence: Evidence
) -> Evidence:
    """Return the evidence with whether a step of the job was recorded since the samples, if calls
    in C were read since: then nobody is to be accused by these."""
    job, scene = evidence.job, Scene(evidence)
    home = scene.launcher[0].host if scene.launcher else ""
    if not job or scene.advances or not any(one.process.native for one in scene.ranks):
        return evidence
    request = LaterRequest(job.job_id or None, job.log_bytes)
    later_call = NodeCall(later_output, request, WRITTEN, WRITTEN_WITHIN_S)
    for target in (one for one in targets if one.host == home):
        with suppress(HostError):
            later = call(connections, target, later_call)
            names = ("log_added", "metrics", "metrics_silent_s")
            now = replace(job, **{name: getattr(later, name) for name in names})
            now = replace(now, log=(*job.log, *later.log_added))
            went_on = later.log_name == job.log_name and Scene(replace(evidence, job=now)).advances
            return replace(evidence, job=replace(job, went_on=bool(went_on)))
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
