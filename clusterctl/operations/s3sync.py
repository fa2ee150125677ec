"""A synchronization from S3: a detached copy whose sources are in S3, and how far each node is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from clusterctl.copy.failures import with_unquoted_home
from clusterctl.copy.report import NodeStage
from clusterctl.copy.request import is_s3
from clusterctl.domain.errors import NotFound
from clusterctl.domain.results import worst
from clusterctl.jobs.detached import find_job
from clusterctl.node.jobs.spec import CopyNode, JobRecord, JobState
from clusterctl.operations.access import Access
from clusterctl.operations.logs import jobs_of

POLL_S = 0.5
# How long the start of a synchronization waits until all nodes have listed the source: most
# failures come before that.
LISTED_WITHIN_S = 10.0


@dataclass(frozen=True)
class SyncNode:
    """A synchronization on one node. `copied` has its counts. `state` is that of the job, unless it
    was over on the node before."""

    job: JobRecord
    copied: CopyNode
    state: JobState
    exit_status: Optional[int] = None
    message: str = ""
    hint: str = ""
    json_names = (
        *("host", "job_id", "state", "is_incomplete", "duration_s", "exit_status", "copied"),
        *("message", "hint"),
    )

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def host(self) -> str:
        return self.copied.host

    @property
    def duration_s(self) -> float:
        """How long it has run on the node, as of its last report."""
        return self.copied.duration_s

    @property
    def is_incomplete(self) -> bool:
        """Whether it left something out, as an archived object or a key that cannot be a name."""
        return self.state is JobState.SUCCEEDED and self.copied.left_out > 0

    @property
    def is_failed(self) -> bool:
        """Whether the node has no result: it failed there, or what became of it is not known."""
        return self.state in (JobState.FAILED, JobState.LOST)

    @property
    def shown_state(self) -> str:
        """The state in words for the user."""
        return f"done, {self.copied.left_out} left out" if self.is_incomplete else self.state.value

    @property
    def rate(self) -> float | None:
        """Bytes a second over the whole synchronization; None until it is known what is missing."""
        return None if self.copied.bytes is None else self.copied.bytes / max(self.duration_s, 1e-3)


def find_sync(access: Access, job_id: str | None = None) -> JobRecord:
    """Return the synchronization `job_id`, or the latest. Raise NotFound if there is none,
    HostError."""
    name = access.cluster.name
    found = [job for job in jobs_of(access) if any(map(is_s3, job.spec.sources))]
    if job_id:
        found = [job for job in found if job.job_id == job_id]
    if not found and job_id:
        raise NotFound(
            f"no sync {job_id} has run on {name}", f"the latest: clusterctl s3sync {name} --status"
        )
    if not found:
        raise NotFound(
            f"no sync has run on {name}", f"start one: clusterctl s3sync {name} s3://BUCKET DST"
        )
    return find_job(access.connections, access.head, found[-1].job_id)


def wait_until_listed(access: Access, job_id: str) -> JobRecord:
    """Wait until each node has listed the source or has failed, or LISTED_WITHIN_S seconds have
    passed. Return the job's record."""
    clock = access.timeouts.clock
    until = clock.monotonic() + LISTED_WITHIN_S
    early = (NodeStage.CONNECTING.value, NodeStage.COMPARING.value)
    while True:
        job = find_job(access.connections, access.head, job_id)
        is_listed = job.copied and not any(node.stage in early for node in job.copied)
        if is_listed or not job.is_active or clock.monotonic() > until:
            return job
        clock.sleep(POLL_S)


def nodes_of(job: JobRecord, cluster: str) -> list[SyncNode]:
    """Return the synchronization on each node. Pure.

    A node that was done before the job's end keeps its result. What became of the others is what
    became of the job.
    """
    return [_node_of(job, copied, cluster) for copied in job.copied]


def _node_of(job: JobRecord, copied: CopyNode, cluster: str) -> SyncNode:
    if copied.stage == NodeStage.FAILED.value:
        hint = with_unquoted_home(copied.hint, copied.message, [job.spec.destination])
        return SyncNode(job, copied, JobState.FAILED, copied.exit_status, copied.message, hint)
    if copied.stage == NodeStage.DONE.value or job.state is JobState.SUCCEEDED:
        if not copied.left_out:
            return SyncNode(job, copied, JobState.SUCCEEDED, 0)
        message = f"{copied.left_out} {'file was' if copied.left_out == 1 else 'files were'}"
        hint = f"the log shows which, and why: clusterctl logs {cluster} {job.job_id}"
        return SyncNode(job, copied, JobState.SUCCEEDED, 1, f"{message} left out", hint)
    if job.is_active:
        return SyncNode(job, copied, JobState.RUNNING)
    if job.state is JobState.CANCELLED:
        return SyncNode(job, copied, job.state, 130)
    if job.state is JobState.LOST:
        return SyncNode(job, copied, job.state, None, job.status.reason, "start it again")
    hint = f"its log: clusterctl logs {cluster} {job.job_id}"
    return SyncNode(job, copied, job.state, job.exit_status or 1, job.status.reason, hint)


def status_of_sync(nodes: list[SyncNode]) -> int:
    """Return 255 if a node could not be reached, 1 if one has not got all, else 0. Pure."""
    return worst(node.exit_status for node in nodes if node.state is not JobState.RUNNING)
