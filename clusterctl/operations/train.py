"""Start a job on a cluster: look at the head node, plan, ship the files, start it detached."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file, parse_hosts_file
from clusterctl.domain.ranges import fold_hosts
from clusterctl.jobs.detached import start_job
from clusterctl.jobs.facts import PROBE, HeadFacts, parse_facts
from clusterctl.jobs.ids import new_job_id
from clusterctl.jobs.plan import JobPlan, JobRequest, check_ranks, plan_job
from clusterctl.jobs.shipping import ship_examples, shipped_files
from clusterctl.operations.access import Access
from clusterctl.operations.logs import refuse_while_training

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class TrainingPlan:
    """A job and the hosts file it runs with."""

    job: JobPlan
    hosts: HostsFile


@dataclass(frozen=True)
class StartedJob:
    """A job that runs. `kept`: per file that users changed on nodes, the hosts that kept theirs."""

    job: JobPlan
    runs_in: str
    kept: tuple[tuple[str, str], ...]


def plan_training(access: Access, request: JobRequest) -> TrainingPlan:
    """What would run. Raises UsageError, NotEnoughGpus, MissingTool, HostError."""
    hosts = live_hosts(access)
    more = _more_gpus(access.cluster, request.ranks)
    # Before any connection: asking for the impossible should not need one.
    check_ranks(request.ranks, hosts.slots, more)
    return TrainingPlan(plan_job(request, head_facts(access), hosts, new_job_id(), more), hosts)


def start_training(access: Access, plan: TrainingPlan, force: bool = False) -> StartedJob:
    """Put the files on every node and start the job. Raises JobRunning, HostError."""
    if not force:
        refuse_while_training(access, "two would share its GPUs")
    text = format_hosts_file(plan.hosts)
    shipped = ship_examples(access.connections, access.targets, text)
    if shipped.failures:
        first = shipped.failures[0].error
        raise ClusterctlError(
            f"not every node can be reached: {fold_hosts([f.host for f in shipped.failures])}"
            + (f" ({first.message})" if first else ""),
            f"mpirun needs all of them; see `clusterctl status {access.cluster.name}`",
        )
    kept: dict[str, list[str]] = {}
    for result in shipped.values:
        for name in shipped_files(result).kept:
            kept.setdefault(name, []).append(result.host)
    runs_in = start_job(access.connections, access.head, plan.job, access.cluster.name, force)
    folded = tuple((name, fold_hosts(hosts)) for name, hosts in kept.items())
    return StartedJob(plan.job, runs_in, folded)


def head_facts(access: Access) -> HeadFacts:
    """What the head node has. Raises HostError, ClusterctlError."""
    result = access.connections.run(access.head, PROBE, timeout_s=PROBE_TIMEOUT_S)
    if not result.ok:
        raise CommandFailed(result.host, f"cannot look at it: {result.stderr.strip()}")
    return parse_facts(result.stdout)


def live_hosts(access: Access) -> HostsFile:
    """The hosts file of the cluster as it is now, head first.

    Slots are those that `up` counted on the node where it did, else what its type promises.
    """
    counted: dict[str, int] = {}
    if access.folder.hosts.exists():
        kept = parse_hosts_file(access.folder.hosts.read_text(), str(access.folder.hosts))
        counted = {entry.host: entry.slots for entry in kept.entries}
    return HostsFile(
        tuple(
            HostSlots(node.private_ip, counted.get(node.private_ip, max(node.gpus, 1)))
            for node in access.cluster.nodes
        )
    )


def _more_gpus(cluster: Cluster, ranks: int) -> str:
    per_node = max(cluster.head.gpus, 1)
    return f"add nodes: clusterctl up {cluster.name} --nodes {-(-ranks // per_node)}"
