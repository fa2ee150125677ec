"""Copy a file or folder to many hosts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clusterctl.data.rsync import CopyJob, CopyReport, copy_to_host, require_rsync
from clusterctl.domain.errors import HostUnreachable, UsageError
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.operations.access import Access
from clusterctl.operations.folder import ClusterFolder
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

# More rsyncs at once only share the same link and the same source disk.
COPY_FANOUT = 16
# Each ssh logs in to the jump host anew, and above 10 at once its sshd drops some (MaxStartups).
JUMP_FANOUT = 8


def copy_to_cluster(
    access: Access,
    targets: Sequence[Target],
    source: str,
    destination: str,
    *,
    max_workers: int = COPY_FANOUT,
    timeout_s: float | None = None,
    on_outcome: Callable[[HostOutcome[CopyReport]], None] | None = None,
) -> FanoutResult[CopyReport]:
    """SRC to these nodes of a cluster, through its generated ssh_config.

    Behind a jump host at most JUMP_FANOUT at once.
    """
    ssh = cluster_ssh(access.folder)
    jobs = [CopyJob(target.host, target.host, ssh, source, destination) for target in targets]
    if any(target.jump for target in targets):
        max_workers = min(max_workers, JUMP_FANOUT)
    by_host = {target.host: target for target in targets}

    def one(job: CopyJob) -> CopyReport:
        try:
            return copy_to_host(job, timeout_s)
        except HostUnreachable as error:
            if "host key" in error.message.lower():
                # ssh says that it is not the pinned one; our own check says why.
                access.connections.session(by_host[job.host])
            raise

    return _copy(one, jobs, max_workers, on_outcome)


def copy_to_hosts(
    hosts: Sequence[str],
    source: str,
    destination: str,
    *,
    user: str | None = None,
    key: Path | None = None,
    max_workers: int = COPY_FANOUT,
    timeout_s: float | None = None,
    on_outcome: Callable[[HostOutcome[CopyReport]], None] | None = None,
) -> FanoutResult[CopyReport]:
    """SRC to the hosts of a hosts file, through the user's own ssh set-up."""
    ssh = user_ssh(user, key)
    jobs = [CopyJob(host, host, ssh, source, destination) for host in hosts]
    return _copy(lambda job: copy_to_host(job, timeout_s), jobs, max_workers, on_outcome)


def cluster_ssh(folder: ClusterFolder) -> tuple[str, ...]:
    """ssh as rsync starts it for a named cluster."""
    return ("ssh", "-F", str(folder.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def user_ssh(user: str | None, key: Path | None) -> tuple[str, ...]:
    """ssh as rsync starts it for a hosts file. BatchMode: an unknown host key is refused."""
    login = ("-l", user) if user else ()
    identity = ("-i", str(key), "-o", "IdentitiesOnly=yes") if key else ()
    return ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *login, *identity)


def _copy(
    one: Callable[[CopyJob], CopyReport],
    jobs: Sequence[CopyJob],
    max_workers: int,
    on_outcome: Callable[[HostOutcome[CopyReport]], None] | None,
) -> FanoutResult[CopyReport]:
    require_rsync()
    for job in jobs[:1]:
        if not job.source or not Path(job.source).exists():
            raise UsageError(
                f"there is nothing at {job.source!r}", "name an existing file or folder"
            )
        if job.destination.startswith("~") and job.destination[1:2] not in ("", "/"):
            raise UsageError(
                f"only your own home folder can be meant by ~, not {job.destination!r}",
                "give the whole path",
            )
    return fan_out(one, jobs, max_workers=max_workers, on_outcome=on_outcome)
