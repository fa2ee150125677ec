"""End leftover processes of jobs on the nodes, or a job with all its processes, and then verify
that no process and no GPU memory of it is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.findings import Finding
from clusterctl.domain.results import FanoutResult, HostOutcome, status_of
from clusterctl.jobs.detached import end_job, find_job
from clusterctl.jobs.processes import (
    Processes,
    all_of,
    end_processes,
    hidden_on,
    job_names,
    list_processes,
    no_such_job,
)
from clusterctl.node.facts.gpus import GpusOfNode, gpus
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.operations.access import Access
from clusterctl.operations.hosts_access import HostSource
from clusterctl.operations.logs import running_jobs
from clusterctl.transport.call import HostConnections, read_fact
from clusterctl.transport.dial import Target

# A node that does not answer must not hold up the end of a job.
FIRST_LIST_TIMEOUT_S = 10.0
# How long a GPU driver may take to free the memory of ended processes.
FREED_WITHIN_S = 5.0
# The most rounds of ending processes and listing them again: a process that was just being started
# on another node may appear after the first round.
ROUNDS = 2
# Less memory in use counts as free: the driver itself keeps some hundred MiB of each GPU.
FREE_BELOW_MIB = 1024


@dataclass(frozen=True)
class HeldMemory:
    """Memory of a GPU that is still in use, in MiB; None if that is not known. `pids` are the
    processes that use it; there may be none, if the driver has not freed the memory of ended
    ones."""

    host: str
    gpu: int
    mib: Optional[int]
    pids: tuple[int, ...]


def held_memory(host: str, found: GpusOfNode | None) -> list[HeldMemory]:
    """Return the GPUs of a host whose memory is not known to be free."""
    return [
        HeldMemory(
            host,
            index,
            None if gpu.memory_used_mib is None else int(gpu.memory_used_mib),
            tuple(int(one.pid) for one in gpu.processes if one.pid is not None),
        )
        for index, gpu in enumerate(found.gpus if found else ())
        if gpu.memory_used_mib is None or gpu.memory_used_mib >= FREE_BELOW_MIB
    ]


def memory_of_none(host: str, found: GpusOfNode | None) -> list[Finding]:
    """Return a warning for each GPU of a host that has memory in use, and no process on it."""
    cluster, _, index = host.rpartition("-")
    return [
        Finding.warning(
            "gpu.memory",
            f"GPU {one.gpu} has {one.mib} MiB in use, by no process that nvidia-smi shows",
            f"if that lasts, and no program uses it: clusterctl reboot {cluster} {index}",
            host,
        )
        for one in held_memory(host, found)
        if found and one.mib is not None and not found.gpus[one.gpu].processes
    ]


@dataclass(frozen=True)
class KillReport:
    """The processes that were found, those that were ended, and those still there at the end.

    `answered` are the nodes that answered each time; the others are in `failures`. `held` is the
    GPU memory not known to be free on nodes where processes were ended. It is None if nothing was
    ended, or none of these nodes has a GPU.
    """

    found: tuple[NodeProcess, ...]
    ended: tuple[NodeProcess, ...]
    left: tuple[NodeProcess, ...]
    answered: tuple[str, ...]
    failures: tuple[HostOutcome[Any], ...]
    held: tuple[HeldMemory, ...] | None = None

    @property
    def exit_status(self) -> int:
        """255 if a host did not answer, 1 if a process or GPU memory is left, else 0."""
        has_left = bool(self.left) or any(one.mib is not None for one in self.held or ())
        return status_of(self.failures, has_left)

    def merged_with(self, other: KillReport) -> KillReport:
        """Return this report joined with the part of `other` about nodes where it found processes.

        The other nodes of `other` are dropped, their failures too.
        """
        hosts = {process.host for process in other.found}
        held = None if self.held is None and other.held is None else ()
        return replace(
            self,
            found=self.found + other.found,
            ended=self.ended + other.ended,
            left=self.left + other.left,
            answered=self.answered + tuple(host for host in other.answered if host in hosts),
            failures=self.failures + tuple(one for one in other.failures if one.host in hosts),
            held=held if held is None else (self.held or ()) + (other.held or ()),
        )

    def with_failures(self, failures: Sequence[HostOutcome[Any]]) -> KillReport:
        """Return this report with these failures first, in place of others of the same hosts."""
        hosts = {one.host for one in failures}
        return replace(
            self,
            answered=tuple(host for host in self.answered if host not in hosts),
            failures=(*failures, *(one for one in self.failures if one.host not in hosts)),
        )


def kill(
    connections: HostConnections,
    targets: Sequence[Target],
    query: ProcessQuery,
    dry_run: bool = False,
    on_found: Callable[[Processes], None] = lambda found: None,
) -> KillReport:
    """End the processes that `query` selects on these nodes.

    With `dry_run`, only find them. `on_found` receives the processes before they are ended. A node
    that does not answer is in the report's `failures`.
    """
    listed = list_processes(connections, targets, query)
    on_found(listed)
    found = all_of(listed)
    query = query.after(found)
    failures = {outcome.host: outcome for outcome in listed.failures}
    ended: dict[tuple[str, int], NodeProcess] = {}
    left: tuple[NodeProcess, ...] = ()
    new = () if dry_run else found
    for _ in range(ROUNDS):
        if not new:
            break
        busy = {process.host for process in new}
        result = end_processes(connections, [t for t in targets if t.host in busy], query)
        ended.update({(process.host, process.pid): process for process in all_of(result)})
        # Verify by listing the processes again, instead of relying on the signals that were sent.
        reached = [target for target in targets if target.host not in failures]
        listed = list_processes(connections, reached, query)
        left = all_of(listed)
        query = query.after(left)
        new = tuple(process for process in left if (process.host, process.pid) not in ended)
        for outcome in (*listed.failures, *result.failures):
            failures.setdefault(outcome.host, outcome)
    answered = tuple(target.host for target in targets if target.host not in failures)
    held = None
    if ended:
        busy = {process.host for process in ended.values()}
        held = _held(
            connections, [t for t in targets if t.host in busy - failures.keys()], failures
        )
    return KillReport(found, tuple(ended.values()), left, answered, tuple(failures.values()), held)


def query_for(source: HostSource, job: str) -> ProcessQuery:
    """Return the query for the job of this name on hosts of no cluster: the process ID of its
    launcher, or as `diagnose` names it. Raise ClusterctlError if none of them has it, and HostError
    if a host does not answer."""
    every = ProcessQuery(any_launcher=True)
    listed = list_processes(source.connections, source.targets, every)
    if any(one.job_id == job for one in all_of(listed)):
        return replace(every, job_id=job)
    name = job_names(listed.values)
    ours = [
        one
        for one in all_of(listed)
        if one.job_id is None
        and (name(one) == job or (one.role == "launcher" and str(one.pid) == job))
    ]
    found = {one.group for one in ours}
    if not found - {""} and listed.failures and (error := listed.failures[0].error):
        raise error
    if not found:
        hidden = hidden_on(source.connections, source.targets)
        raise no_such_job(job, listed.by_host, hidden, source.options)
    groups = found - {""}
    # Two hosts may have a launcher with this process ID each.
    if len(groups) != 1 or sum(one.role == "launcher" and str(one.pid) == job for one in ours) > 1:
        end = f"end it where it runs: kill {job}" if job.isdecimal() else "end it where it runs"
        raise ClusterctlError(f"what job {job} has started is not known apart from other jobs", end)
    launcher = next((one.pid for one in ours if one.role == "launcher"), 0)
    return replace(every, group=groups.pop(), launcher=launcher)


def _held(
    connections: HostConnections, targets: Sequence[Target], failures: dict[str, HostOutcome[Any]]
) -> tuple[HeldMemory, ...] | None:
    """Return the GPU memory not known to be free on these nodes after up to FREED_WITHIN_S seconds,
    or None if none of them has a GPU. Add nodes that fail to `failures`.

    A driver frees the memory of a process a moment after its end.
    """
    deadline = time.monotonic() + FREED_WITHIN_S
    while True:
        listed = read_fact(connections, targets, gpus, "reading the GPUs' memory")
        found = listed.by_host
        held = tuple(one for host, value in found.items() for one in held_memory(host, value))
        if all(one.mib is None for one in held) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for outcome in listed.failures:
        failures.setdefault(outcome.host, outcome)
    return held if found else None


@dataclass(frozen=True)
class CancelReport:
    """Each job's record before and after it was ended, and the report of `kill` on all else, with
    what the jobs' records say is left. `silent` are nodes that answered neither the jobs' clean-up
    nor `kill`: of those out of service that is no failure."""

    jobs: tuple[tuple[JobRecord, JobRecord], ...]
    others: KillReport
    silent: tuple[str, ...] = ()


def _left_by(host: str, job: JobRecord) -> list[NodeProcess]:
    """Return the processes on the head node that a job's runner could not end. Nothing else may
    tell that they are the job's: they may be another user's by now."""
    pids = job.status.cleanup.get("left", ())
    return [
        NodeProcess(host, int(pid), None, "job", job.job_id, job.duration_s, ()) for pid in pids
    ]


def _not_listed(outcome: HostOutcome[Any]) -> HostOutcome[Any]:
    """Return the failure of a node whose processes could not be listed before their job ended."""
    why = outcome.error.message if outcome.error else ""
    error = HostError(
        outcome.host,
        f"its processes were not listed before the job was ended: {why}",
        "a program there that hides its environment may still run; nvidia-smi and ps show it",
    )
    return HostOutcome(outcome.host, error=error)


def cancel(access: Access, job_id: str | None = None) -> CancelReport:
    """End the job `job_id`. With None: all jobs, runs started by hand, and leftover processes.

    It is no error if nothing runs. Raise NotFound for an unknown job, and HostError if the head
    node is lost meanwhile. If the head node does not answer from the start, and no `job_id` is
    given, it is a failure in the report.
    """
    lost: HostError | None = None
    jobs: list[JobRecord] = []
    if job_id:
        jobs = [find_job(access.connections, access.head, job_id, access.cluster.name)]
    else:
        try:
            jobs = running_jobs(access)
        except HostError as error:
            # Processes on the other nodes can be ended without the head node.
            lost = error
    query = ProcessQuery(job_id=job_id)
    quarantined = [
        node.index for node in access.cluster.nodes if node not in access.cluster.in_service
    ]
    aside = access.select(quarantined) if quarantined else ()
    before: Processes = FanoutResult(())
    # Before anything ends: a process that has written over its environment is found by its parents.
    if any(job.is_active for job in jobs):
        probed = (*access.targets, *aside)
        before = list_processes(access.connections, probed, query, FIRST_LIST_TIMEOUT_S)
    found = all_of(before)
    # End the queue from its back: if the running job ended first, the next one would start.
    for job in reversed(jobs):
        if job.is_active:
            end_job(access.connections, access.head, job.job_id)
    hosts = {target.host for target in access.targets}
    unlisted = [_not_listed(one) for one in before.failures if one.host in hosts]
    others = kill(access.connections, access.targets, query.after(found)).with_failures(unlisted)
    checked = {*others.answered}
    # End these jobs' processes on nodes in quarantine, too. A quarantined node that does not answer
    # is no failure.
    for job in jobs if quarantined else ():
        own = ProcessQuery(job.job_id).after(one for one in found if one.job_id == job.job_id)
        there = kill(access.connections, aside, own)
        others, checked = others.merged_with(there), checked | {*there.answered}
    if lost:
        others = others.with_failures([HostOutcome(lost.host, error=lost)])
    now = [find_job(access.connections, access.head, job.job_id) for job in jobs]
    return report_of(access.head.host, tuple(zip(jobs, now)), others, checked)


def report_of(
    head: str,
    jobs: tuple[tuple[JobRecord, JobRecord], ...],
    others: KillReport,
    checked: Collection[str],
) -> CancelReport:
    """Return the report on jobs by their records before and after, and on all else. `checked` are
    the nodes that answered after the jobs' end. Pure."""
    ended = [after for before, after in jobs if before.is_active]
    known = {(one.host, one.pid) for one in others.left}
    left = [one for job in ended for one in _left_by(head, job) if (head, one.pid) not in known]
    others = replace(others, left=(*others.left, *left))
    late = ", ".join(after.job_id for _, after in jobs if after.is_active)
    if late:
        error = HostError(head, f"job {late} has not ended in time", "run it again: it goes on")
        others = others.with_failures([HostOutcome(head, error=error)])
    silent = dict.fromkeys(host for job in ended for host in job.status.cleanup.get("silent", ()))
    answered_hosts = {*checked, *(one.host for one in others.failures)}
    return CancelReport(jobs, others, tuple(host for host in silent if host not in answered_hosts))
