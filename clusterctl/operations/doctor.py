"""Examine every node, compare the nodes with each other, and repair what is safe to repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from clusterctl.bootstrap.training import FOLDER
from clusterctl.diagnosis.drift import HANGS, NOT_CHECKED, Examined, NodeComparison, check, compare
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.hints import Hints
from clusterctl.domain.cluster import Node
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.findings import Finding, Severity, folded, in_order
from clusterctl.domain.results import HostOutcome, last_line
from clusterctl.domain.units import count
from clusterctl.ec2.instances import Instance
from clusterctl.jobs.head_facts import choose_environment
from clusterctl.jobs.preflight import LAUNCH_FACTS, launch_findings, notice_findings
from clusterctl.jobs.trainer import DATA_FOLDER
from clusterctl.node.facts.disks import mount
from clusterctl.node.facts.gpus import dcgm, fabric_manager, gpus, nvlink
from clusterctl.node.facts.guard import guard_silence_s
from clusterctl.node.facts.network import efa, efa_cards, interfaces, unreached
from clusterctl.node.facts.processes import active_jobs
from clusterctl.node.facts.report import Fact
from clusterctl.node.facts.software import data, mpirun_on_path, scripts, versions
from clusterctl.node.facts.system import kernel_log, limits, login, memory, system
from clusterctl.node.facts.training import session_folder_bytes
from clusterctl.node.guard.notices import notices
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.operations.access import Access
from clusterctl.operations.guards import guard_findings, needs_guard
from clusterctl.operations.hosts_access import HostSource
from clusterctl.operations.kill import kill, memory_of_none
from clusterctl.operations.logs import running_work, work_facts
from clusterctl.operations.train import head_facts, leftovers
from clusterctl.transport.call import read_reports
from clusterctl.transport.dial import Target

LOGIN_WITHIN_S = 6.0
FACTS: Sequence[Fact] = (
    *(system, memory, limits, interfaces, efa, kernel_log, gpus, nvlink, fabric_manager, mount),
    *(efa_cards, mpirun_on_path, scripts, dcgm, notices),
)
FIX_TIMEOUT_S = 30.0
DOING = "looking at it"


@dataclass(frozen=True)
class DoctorReport:
    """The nodes that answered, the outcomes of those that did not, and the findings."""

    nodes: tuple[Examined, ...]
    failures: tuple[HostOutcome[Any], ...]
    findings: tuple[Finding, ...]

    @property
    def table(self) -> NodeComparison:
        """The properties of the nodes that answered, and the usual value of each property."""
        return compare(self.nodes)

    @property
    def exit_status(self) -> int:
        """2 if a finding is an error, else 3 if something could not be checked, else 1 if one is a
        warning, else 0."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return 2
        if any(finding.check in (NOT_CHECKED, HANGS) for finding in self.findings):
            return 3
        return int(Severity.WARNING in severities)


def doctor(
    access: Access,
    instances: Sequence[Instance],
    indices: Sequence[int] | None = None,
    data_dir: str = "",
    all_to_all: bool = False,
    health: Sequence[Finding] = (),
) -> DoctorReport:
    """Examine these nodes (None: all). A node that does not answer is a finding.

    `instances` are the cluster's, from which the expected number of EFA interfaces is taken.
    `data_dir` is the folder of the training files; empty for the default. The head node always
    tries to log in to every node; with `all_to_all` each node also tries port 22 of every other.
    `health` are the findings of `health_findings`.
    """
    # Several fan-outs follow: do not wait for an unreachable node in each of them.
    access.connections.ask_again = False
    access.connections.connect_timeout_s = LOGIN_WITHIN_S
    targets = access.select(indices)
    python, mpirun = _environment(access)
    addresses = {node.name: node.private_ip for node in access.cluster.nodes}
    limits = {one.node.name: one.limits_text for one in instances}

    def facts(target: Target) -> Sequence[Fact]:
        is_head = target.host == access.head_name
        peers = tuple(ip for host, ip in addresses.items() if is_head or host != target.host)
        tested = peers if is_head or all_to_all else ()
        return (
            *FACTS,
            *work_facts(access, target),
            *LAUNCH_FACTS,
            *([guard_silence_s] if needs_guard(target.host, limits.get(target.host, "")) else []),
            partial(versions, python=python, mpirun=mpirun),
            partial(data, folder=data_dir or f"~/{DATA_FOLDER}"),
            partial(unreached, peers=tested, over_ssh=is_head),
        )

    result = read_reports(access.connections, targets, facts, DOING)
    requested_efa = {one.node.name: one.efa_interfaces for one in instances}
    nodes = {node.name: node for node in access.cluster.nodes}
    examined = tuple(
        Examined(
            nodes[one.host],
            one.without(active_jobs).without(login).without(session_folder_bytes),
            requested_efa.get(one.host, 0),
        )
        for one in result.values
    )
    found = [*health, *_unreachable(result.failures), *check(examined)]
    for one in examined:
        found += notice_findings(one.host, one.report.get(notices) or ())
        found += guard_findings(one.host, one.report, limits.get(one.host, ""))
        found += memory_of_none(one.host, one.report.get(gpus))
    for report in result.values:
        of_login = None if report.host == access.head_name else report.get(login)
        shell = of_login.shell if of_login else ""
        found += launch_findings(report.host, shell, report.get(session_folder_bytes))
    # Of a part of the nodes they would be older than those of the others: a run that has ended or
    # started meanwhile would look like leftovers.
    are_all = set(access.targets) <= set(targets)
    running = running_work(access, known=result if are_all else None).trainings
    found += leftovers(access.cluster.name, running)
    found += _of_unknown_jobs(access, running.of_unknown_jobs)
    return DoctorReport(examined, tuple(result.failures), in_order(folded(found)))


def doctor_of_hosts(
    source: HostSource, data_dir: str = "", all_to_all: bool = False
) -> DoctorReport:
    """Examine hosts of no cluster, without what needs EC2 or jobs of clusterctl. They may be
    containers, in which nvidia-smi shows no process: none is missed on a GPU's memory."""
    addresses = {target.host: _address(target) for target in source.targets}

    def facts(target: Target) -> Sequence[Fact]:
        peers = tuple(ip for host, ip in addresses.items() if all_to_all and host != target.host)
        return (
            *(fact for fact in FACTS if fact not in (scripts, notices)),
            partial(versions, python="python3", mpirun="mpirun", keeps=False),
            *([partial(data, folder=data_dir)] if data_dir else []),
            partial(unreached, peers=peers, over_ssh=False),
        )

    result = read_reports(source.connections, source.targets, facts, DOING)
    index = {target.host: number for number, target in enumerate(source.targets)}
    examined = tuple(
        Examined(Node.at_address(index[one.host], one.host, addresses[one.host]), one)
        for one in result.values
    )
    hints = Hints(Evidence(source=source.options, user=source.user, as_root=source.as_root))
    found = [
        replace(one, hint=hints.without_cluster(one.host or "", one.hint))
        for one in (*_unreachable(result.failures), *check(examined))
    ]
    return DoctorReport(examined, tuple(result.failures), in_order(folded(found)))


def _address(target: Target) -> str:
    """Return the address by which other hosts know a host: if it is named by one, it is that."""
    is_address = ":" in target.host or target.host.replace(".", "").isdigit()
    return target.host if is_address else target.address


def _environment(access: Access) -> tuple[str, str]:
    """Return the paths of the python and the mpirun that a job would use. If the head node does not
    answer or has none, return those of clusterctl's own environment."""
    try:
        chosen = choose_environment(head_facts(access), needs_horovod=False)
    except ClusterctlError:
        return f"{FOLDER}/bin/python", f"{FOLDER}/bin/mpirun"
    return chosen.python, chosen.mpirun.path


def _unreachable(failures: Sequence[HostOutcome[Any]]) -> list[Finding]:
    return [
        Finding.error("node.unreachable", one.error.message, one.error.hint, one.host)
        for one in failures
        if one.error
    ]


def _of_unknown_jobs(access: Access, processes: Sequence[NodeProcess]) -> list[Finding]:
    """Return a finding for each node with processes that may be a running job's. It advises to end
    none: only the head node knows its jobs."""
    head = access.head_name
    return [
        Finding.warning(
            NOT_CHECKED,
            f"{count(number, 'process')} of a job: whether it still runs is not known, since "
            f"{head} did not report its jobs",
            f"once {head} answers: clusterctl doctor {access.cluster.name}",
            host,
        )
        for host, number in Counter(one.host for one in processes).items()
    ]


def repair(access: Access, report: DoctorReport, notify: Callable[[str], None]) -> int:
    """Repair what is safe: end leftover ranks, and restore the hostnames of nodes that share one.

    `notify` receives a message for each repair. Return 0 if there was nothing to repair. The caller
    makes sure that no job runs. Raise HostError.
    """
    done = 0
    ids = {finding.check for finding in report.findings}
    if "job.leftovers" in ids:
        ended, kept = _end_leftovers(access)
        if ended or not kept:
            notify(f"ended {count(ended, 'process')} that an earlier job has left")
            done += 1
        for process in kept:
            notify(
                f"{process.host}: did not end process {process.pid}, which has no job's id: ending "
                f"it would end the served model, too: {process.short_command}"
            )
    if "hostname.duplicate" in ids:
        done += _rename(access, report, notify)
    return done


def _end_leftovers(access: Access) -> tuple[int, tuple[NodeProcess, ...]]:
    """End the processes that jobs have left. Return how many ended, and those left alone.

    Raise HostError.
    """
    running = running_work(access)
    queries = [ProcessQuery()]
    kept: tuple[NodeProcess, ...] = ()
    if running.served_on:
        # A query for all jobs would end the served models, too. Processes of an mpirun that was
        # typed by hand have no job's id, and stay in this case.
        left = running.trainings.leftovers
        jobs = {one.job_id for one in left if one.job_id}
        queries = [ProcessQuery(job_id) for job_id in sorted(jobs)]
        kept = tuple(one for one in left if not one.job_id)
    reports = [kill(access.connections, access.targets, query) for query in queries]
    ended = sum(bool(process.ended) for report in reports for process in report.ended)
    return ended, kept


def _rename(access: Access, report: DoctorReport, notify: Callable[[str], None]) -> int:
    """Give nodes that share a hostname the one that EC2 gave them, such as ip-10-0-0-4.

    Return how many nodes shared one. Raise CommandFailed if a hostname cannot be set, HostError.
    """
    # A node whose report lacks the hostname was too slow for this fact.
    named = [(one.node, one.hostname) for one in report.nodes]
    shared = Counter(name for _, name in named if name)
    duplicates = [(node, name) for node, name in named if shared[name] > 1]
    targets = {target.host: target for target in access.all_targets}
    for node, name in duplicates:
        own = f"ip-{node.private_ip.replace('.', '-')}"
        if name == own:
            continue
        command = f"sudo -n hostname {own} && echo {own} | sudo -n tee /etc/hostname >/dev/null"
        result = access.connections.run(targets[node.host], command, timeout_s=FIX_TIMEOUT_S)
        if not result.ok:
            raise CommandFailed(
                node.host,
                f"its hostname cannot be set: {last_line(result.stderr)}",
                f"as a user with sudo, there: sudo hostname {own}",
            )
        notify(f"{node.host}: its hostname is {own} again")
    return len(duplicates)
