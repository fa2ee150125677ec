"""Lists and ends the processes of jobs on the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from clusterctl.domain.errors import NotFound
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.facts.processes import hidden_users, job_processes
from clusterctl.node.facts.report import FactReport
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery, stop_processes
from clusterctl.transport.call import (
    HostConnections,
    NodeCall,
    call_all,
    facts_of,
    read_fact,
    read_reports,
)
from clusterctl.transport.dial import Target

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

    def node_call(target: Target) -> NodeCall[tuple[NodeProcess, ...]]:
        return NodeCall(stop_processes, query.on(target.host), DOING, TIMEOUT_S)

    return _with_hosts(call_all(connections, targets, node_call))


def _with_hosts(result: Processes) -> Processes:
    def named(outcome: HostOutcome[tuple[NodeProcess, ...]]) -> HostOutcome[Any]:
        found = tuple(replace(one, host=outcome.host) for one in outcome.value or ())
        return replace(outcome, value=None if outcome.error else found)

    return FanoutResult(tuple(map(named, result.outcomes)))


class GroupedProcess(Protocol):
    """What shows of a process, on any host, to which job started by hand it belongs."""

    @property
    def pid(self) -> int: ...
    @property
    def parent(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def group(self) -> str: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def age_s(self) -> float: ...


# Hosts read the ages of their processes at slightly different times.
BEFORE_S = 10.0


def launchers_by_group(hosts: Iterable[Sequence[GroupedProcess]]) -> dict[str, int]:
    """Return the process ID of the launcher of each job that was started by hand, by the job's
    group, from the processes on each host.

    A launcher that knows none of its ranks has started those that have no other launcher, if it is
    the only one and older than they are.
    """
    outside = [[one for one in host if one.job_id is None] for host in hosts]
    launchers = [
        one
        for host in outside
        for one in host
        if one.role == "launcher" and not _has_launcher_above(one, host)
    ]
    found = {one.group: one.pid for one in launchers if one.group}
    idle = [one for one in launchers if not one.group]
    oldest_s = max((one.age_s for one in idle), default=0.0)
    every = [one for host in outside for one in host if one.role in ("rank", "orphan")]
    older = {one.group for one in every if one.age_s > oldest_s + BEFORE_S}
    without = {one.group for one in every} - older - found.keys()
    if len(idle) == 1 and len(without) == 1:
        found[without.pop()] = idle[0].pid
    return found


def job_names(hosts: Sequence[Sequence[GroupedProcess]]) -> Callable[[GroupedProcess], str]:
    """Return what names the job of a process on these hosts that clusterctl did not start: by the
    process ID of the job's launcher, or else by what all its ranks have in common. Launchers on two
    hosts may have one process ID: that names neither."""
    by_hand = (one for host in hosts for one in host if one.job_id is None)
    used = Counter(one.pid for one in by_hand if one.role == "launcher")
    launchers = launchers_by_group(hosts)
    names = {group: str(pid) for group, pid in launchers.items() if used[pid] == 1}

    def name(one: GroupedProcess) -> str:
        if one.group in names:
            return names[one.group]
        is_one = one.role == "launcher" and used[one.pid] == 1
        return one.group or (str(one.pid) if is_one else "")

    return name


def no_such_job(
    job: str,
    hosts: Mapping[str, Sequence[GroupedProcess]],
    hidden: Mapping[str, Sequence[str]],
    options: str,
) -> NotFound:
    """Return the error for a name that is none of a job on these hosts, with the names that are.
    `hidden` are the users on each host whose processes the login may not read, and `options` are
    those that name the hosts."""
    name = job_names([*hosts.values()])
    running: dict[str, str] = {}
    for host, found in hosts.items():
        for one in found:
            its = one.job_id or name(one)
            if one.job_id and job in (one.job_id, str(one.pid)):
                return NotFound(
                    f"{job} on {host} is of job {one.job_id}, which clusterctl has started",
                    f"with its cluster's name: clusterctl logs NAME {one.job_id} has its output, "
                    f"clusterctl cancel NAME {one.job_id} ends it",
                )
            if str(one.pid) == job and its:
                what = one.role if one.rank is None else f"rank {one.rank}"
                what = "a launcher within that" if one.role == "launcher" else what
                return NotFound(
                    f"process {job} on {host} names no job: it is {what} of job {its}",
                    f"name the job: --launcher {its}",
                )
            if its and one.role in ("launcher", "rank"):
                running.setdefault(its, host)
    listed = ", ".join(f"{its} on {host}" for its, host in running.items())
    these = f"these do: {listed}" if listed else "none runs"
    if hidden:
        return NotFound(
            f"no job {job} of this login runs on these hosts ({these}); "
            f"{hidden_users_text(hidden)}",
            f"show all users' jobs: clusterctl diagnose {options} --sudo",
        )
    return NotFound(f"no job {job} runs on these hosts", these)


def hidden_users_text(hidden: Mapping[str, Sequence[str]]) -> str:
    """Return in words the users on each host whose processes the login could not read."""
    users = sorted({user for of_host in hidden.values() for user in of_host})
    hosts = ", ".join([*hidden][:4]) + ", ..." * (len(hidden) > 4)
    whose = f"user{'s' if len(users) > 1 else ''} {', '.join(users)}"
    return f"could not be read: processes of {whose} on {hosts}, who may have a job there"


def hidden_on(connections: HostConnections, targets: Sequence[Target]) -> dict[str, Sequence[str]]:
    """Return the users on each host who may have a job there that this login may not see."""
    listed = read_fact(connections, targets, hidden_users, DOING)
    return {host: users for host, users in listed.by_host.items() if users}


def _has_launcher_above(one: GroupedProcess, host: Sequence[GroupedProcess]) -> bool:
    by_pid = {other.pid: other for other in host}
    passed = {one.pid}
    while (above := by_pid.get(one.parent)) and above.pid not in passed:
        if above.role == "launcher":
            return True
        passed.add(above.pid)
        one = above
    return False


def all_of(result: Processes) -> tuple[NodeProcess, ...]:
    """Return the processes of all nodes that answered."""
    return tuple(process for processes in result.values for process in processes)
