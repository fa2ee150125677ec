"""The diagnosis that a job's runner starts if the job makes no step for long enough
(`train --watchdog`).

It needs no other machine than the head node. `main` diagnoses as
`diagnose` does, with the head node's own SSH keys. It stores the evidence in the job's folder and
writes the verdict to the job's log.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

from clusterctl.bootstrap.head_programs import put_programs
from clusterctl.bootstrap.inspection import MPI_KEY
from clusterctl.diagnosis.bundle import save
from clusterctl.diagnosis.verdict import diagnose as conclude
from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.units import format_duration
from clusterctl.jobs.deploy import HOSTS_PATH
from clusterctl.node.diagnosis.sampler import SamplerRequest
from clusterctl.node.jobs.folder import JOBS, KNOWN_HOSTS, JobFolder, log_message
from clusterctl.node.jobs.spec import Watchdog, WatchedHost
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import collect
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import KnownHostKeys, load_key
from clusterctl.transport.session import Identity

BUNDLE = "diagnosis.gz"
LEAST_S = 1.0  # the shortest --watchdog


def prepare(access: Access, after_s: float, cancels: bool, offline: bool) -> Watchdog:
    """Put the watchdog's programs on the head node and return its settings.

    One diagnosis is made at once, to be sure that it works; it also stores py-spy on the nodes.
    `after_s` is the time without a step after which the watchdog acts. For `offline` see
    put_programs. Raise UsageError if `after_s` is too short, and ClusterctlError. A node that
    does not answer is no error here.
    """
    if after_s < LEAST_S:
        raise UsageError(
            f"--watchdog {after_s:g}s is shorter than steps may be",
            f"give it {LEAST_S:g}s or more, such as 5m",
        )
    put_programs(access.connections, access.head, HOSTS_PATH, access.folder.home, offline)
    collect(access, looking=SamplerRequest(samples=1, within_s=3.0))
    hosts = tuple(
        WatchedHost(node.index, node.name, node.private_ip, node.gpus)
        for node in access.cluster.in_service
    )
    cluster = access.cluster
    return Watchdog(cluster.name, cluster.ssh_user, after_s, cancels, hosts)


def main() -> None:
    """Diagnose the job whose ID is the first argument. The second one is for how many seconds it
    has made no step. Runs on the head node."""
    job, silent_s = JobFolder(JOBS / sys.argv[1]), float(sys.argv[2])
    watchdog = job.spec().watchdog
    if watchdog is None:
        sys.exit(f"job {job.job_id} was submitted without --watchdog")
    message = f"no step for {format_duration(silent_s)}"
    try:
        with head_access(watchdog) as access:
            evidence = collect(access, job.job_id)
            log_message(job, f"{message}: {conclude(evidence).verdict}")
            try:
                save(evidence, job.path / BUNDLE)
            except ClusterctlError as error:
                log_message(job, f"{message}; not all is kept: {error.message}")
                return
            bundle = f".clusterctl/jobs/{job.job_id}/{BUNDLE}"
            fetch = f"clusterctl ssh {watchdog.cluster} -- cat {bundle}"
            show = "clusterctl diagnose --from stuck.gz"
            log_message(job, f"all observations: {fetch} >stuck.gz && {show}")
    except ClusterctlError as error:
        log_message(job, f"{message}: {error.message}")
    except Exception as error:
        log_message(job, f"{message}: {type(error).__name__}: {error}")


def head_access(settings: Watchdog) -> Access:
    """Return access to the cluster from its own head node: by private addresses, with ~/.ssh."""
    nodes = tuple(
        Node.at_address(one.index, one.name, one.address, one.gpus)
        for one in map(with_current_address, settings.hosts)
    )
    cluster = Cluster(settings.cluster, "", settings.user, nodes)
    # What `up` has put there for mpirun.
    ssh = Path.home() / ".ssh"
    identity = Identity((load_key(ssh / MPI_KEY),))
    connections = Connections(identity, KnownHostKeys([ssh / KNOWN_HOSTS]))
    return Access(cluster, ClusterFolder(Path.home() / ".clusterctl"), connections)


def with_current_address(host: WatchedHost) -> WatchedHost:
    """Return the node with its current address. The node may have been replaced while the job was
    queued or waited for it."""
    try:
        return replace(host, address=socket.gethostbyname(host.name))
    except OSError:
        return host
