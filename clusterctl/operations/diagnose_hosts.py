"""Collect the evidence for `diagnose` on hosts that no cluster of clusterctl has.

The hosts are read as the nodes of a cluster. No head node has a record of the job:
what runs is found from the processes, and a job is named by the process ID of its launcher.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import clusterctl
from clusterctl.diagnosis.case import numbered
from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence
from clusterctl.diagnosis.ranks import says_nothing
from clusterctl.diagnosis.rules.liveness import ENDED_NOTHING
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.units import format_bytes
from clusterctl.jobs.processes import (
    hidden_on,
    hidden_users_text,
    job_names,
    list_processes,
    no_such_job,
)
from clusterctl.node.diagnosis.job import JobOnHead, LogRequest, job_logs
from clusterctl.node.diagnosis.sampler import SamplerRequest
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations.diagnose import PySpies, ask, job_of, silent
from clusterctl.operations.hosts_access import HostSource
from clusterctl.operations.native_frames import with_closer_reads
from clusterctl.transport.call import NodeCall, call_all
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

LOG_TIMEOUT_S = 30.0


def collect_from(source: HostSource, job_name: str | None, cache: Path) -> Evidence:
    """Collect the evidence of these hosts, on the job that `job_name` names, or on the one with
    most ranks. `cache` keeps py-spy for other architectures.

    A host that does not answer is in the evidence. Raise UsageError for a job that does not run.
    """
    began, taken_at = time.monotonic(), datetime.now(timezone.utc)
    spies = PySpies(cache)
    request = SamplerRequest(job=job_name, head=True, keeps_py_spy=False)

    def one(target: Target) -> tuple[HostEvidence, JobOnHead | None]:
        return ask(source.connections, target, request, spies)

    hosts: list[HostEvidence] = []
    records: dict[str, JobOnHead] = {}
    for number, outcome in enumerate(fan_out(one, source.targets).outcomes, start=1):
        host, record = outcome.value or (silent(outcome.error), None)
        address = source.targets[number - 1].address
        # No host has the index 0, the head node's: none has the job's record.
        hosts.append(replace(host, index=number, host=outcome.host, address=address))
        if record:
            records[outcome.host] = record
    read = of_slurm_job(hosts, source.slurm_job)
    job, hosts = _job(read, records, job_name, source.options), named(read)
    if job_name and job and len(_ranks(hosts, job)) == job.size:
        # All of the requested job was read: other users' processes do not matter.
        hosts = [replace(host, hidden=()) for host in hosts]
    evidence = Evidence(
        source=source.options,
        user=source.user,
        as_root=source.as_root,
        taken_at=taken_at.isoformat(timespec="seconds"),
        version=clusterctl.__version__,
        job=job,
        hosts=tuple(hosts),
    )
    evidence = with_closer_reads(source.connections, source.targets, numbered(evidence))
    return replace(evidence, took_s=round(time.monotonic() - began, 2))


@dataclass(frozen=True)
class HostLogs:
    """The logs of the jobs by hand on hosts: each text by its name, and what was not read, with
    the reason."""

    texts: dict[str, str]
    unread: dict[str, str]


def logs_of(source: HostSource, job: str) -> HostLogs:
    """Return the logs of the jobs by hand on these hosts; with the name of a `job` only of that.

    Raise ClusterctlError if there is none, and the error of a host that did not answer.
    """
    node_call = NodeCall(job_logs, LogRequest(job), "reading the job's log", LOG_TIMEOUT_S)
    found = call_all(source.connections, source.targets, node_call)
    texts: dict[str, str] = {}
    unread = {one.host: f"gave no log ({one.error.message})" for one in found.failures if one.error}
    for host, logs in found.by_host.items():
        for one in logs:
            name = f"{host}:{one.path}" if one.path else f"job {one.job} on {host}"
            if not one.path:
                unread[name] = "writes its output to no file"
            elif one.error:
                unread[name] = f"cannot be read ({one.error})"
            else:
                texts[name] = one.text
            if one.last:
                texts[f"{name} (its end)"] = one.last
                sizes = f"{format_bytes(one.left_out)} of {format_bytes(one.size)}"
                unread[name] = f"is long: {sizes}, in its middle, were not read"
    if texts:
        return HostLogs(texts, unread)
    for outcome in found.failures:
        if outcome.error:
            raise outcome.error
    if unread:
        raise ClusterctlError(
            "; ".join(f"{name} {why}" for name, why in unread.items()),
            "send its output to a file that this login may read: COMMAND > FILE",
        )
    hidden = hidden_on(source.connections, source.targets)
    if job:
        every = ProcessQuery(any_launcher=True)
        listed = list_processes(source.connections, source.targets, every)
        raise no_such_job(job, listed.by_host, hidden, source.options)
    own = "no job that was started by hand runs on these hosts"
    if hidden:
        raise ClusterctlError(
            f"{own} as this login; {hidden_users_text(hidden)}",
            f"show all users' jobs: clusterctl explain {source.options} --sudo",
        )
    raise ClusterctlError(own, "name its log: clusterctl explain FILE")


def _ranks(hosts: Sequence[HostEvidence], job: JobEvidence) -> set[int | None]:
    return {one.rank for host in hosts for one in host.ranks if one.job_id == job.job_id}


def of_slurm_job(hosts: Sequence[HostEvidence], job_id: str) -> list[HostEvidence]:
    """Keep only the processes of a job of Slurm; all without a job."""
    if not job_id:
        return [*hosts]
    return [
        replace(host, processes=tuple(one for one in host.processes if one.slurm_job == job_id))
        for host in hosts
    ]


def named(hosts: Sequence[HostEvidence]) -> list[HostEvidence]:
    """Return the hosts with a job ID for each process of a job that clusterctl did not start.

    It is the process ID of the job's launcher, or else what all its ranks have in common. Launchers
    on two hosts may have one process ID: that names neither.
    """
    name = job_names([host.processes for host in hosts])
    return [
        replace(
            host,
            processes=tuple(
                one if one.job_id is not None else replace(one, job_id=name(one))
                for one in host.processes
            ),
        )
        for host in hosts
    ]


def _job(
    read: list[HostEvidence], records: dict[str, JobOnHead], job_name: str | None, options: str = ""
) -> JobEvidence | None:
    """Return the evidence on one job: the named one, or the one with most ranks."""
    hosts = named(read)
    counts = Counter(rank.job_id or "" for host in hosts for rank in host.ranks)
    roles = ("launcher", "rank")
    every = dict.fromkeys(
        one.job_id or "" for host in hosts for one in host.processes if one.role in roles
    )
    if job_name is not None and job_name not in every:
        for host in hosts:
            why = host.error or next(filter(says_nothing, host.problems), "")
            if why:
                raise ClusterctlError(
                    f"job {job_name} was not found, and not all processes could be read: "
                    f"{host.host}: {why}",
                    f"see whether you can log in there: ssh {host.host}"
                    if host.error and ENDED_NOTHING not in host.error
                    else "run it again; on a busy host it may take several tries",
                )
        processes = {host.host: host.processes for host in read}
        hidden = {host.host: host.hidden for host in hosts if host.hidden}
        raise no_such_job(job_name, processes, hidden, options)
    if not every:
        return None
    chosen = job_name or (counts.most_common(1)[0][0] if counts else next(iter(every)))
    on_head = next(
        (
            records[host.host]
            for host in hosts
            if host.host in records
            for one in host.processes
            if one.pid == records[host.host].launcher and one.job_id == chosen
        ),
        JobOnHead(),
    )
    ours = [
        replace(host, processes=tuple(one for one in host.processes if one.job_id == chosen))
        for host in hosts
    ]
    found = job_of(replace(on_head, found=None), ours, chosen)
    # Ranks whose launcher has ended have no name.
    others = tuple(one for one in every if one not in ("", chosen))
    found = found or JobEvidence(state=JobState.RUNNING)
    return replace(found, job_id=chosen, others=others, is_chosen=job_name is not None)
