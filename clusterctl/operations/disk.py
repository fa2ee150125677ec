"""Disks of the nodes: how full they are, larger root volumes, and the removal of what trainings and
interrupted copies left there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.diagnosis.drift import disk_findings, hanging_finding
from clusterctl.diagnosis.hostchecks import CROWDED
from clusterctl.domain.errors import AwsError, CommandFailed, HostError, UsageError
from clusterctl.domain.findings import Finding, errors
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import FanoutResult, HostOutcome, status_of
from clusterctl.domain.units import format_bytes, format_duration, format_rate
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances, tag
from clusterctl.ec2.volumes import enlarge, root_rate, root_volumes
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER
from clusterctl.node.facts.disks import LargestFolders, growth, largest_folders, mount, mount_of
from clusterctl.node.facts.parts import CopyParts, copy_parts, remove_parts
from clusterctl.node.facts.report import FactReport
from clusterctl.node.guard.activity import STORE
from clusterctl.node.jobs.clean import Cleaning, NodeLogs, clean
from clusterctl.node.jobs.spec import LOG_NAME, JobRecord
from clusterctl.node.paths import EXAMPLES_FOLDER, LOG_FOLDER
from clusterctl.node.record import pick, to_json
from clusterctl.operations.access import Access
from clusterctl.operations.logs import job_running, jobs_of, refuse_while_running, running_work
from clusterctl.transport.call import NodeCall, call_all, read_report, read_reports
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class DiskUsage:
    """One file system of a node. The free space is what a user who is not root may use.

    `grows` is in bytes per second. `fills` are the largest folders with their sizes in bytes, for a
    nearly full file system. `whole` is false if the time did not suffice to read all folders.
    """

    host: str
    mount: str
    size_bytes: int
    free_bytes: int
    used_percent: int
    inodes_percent: int = 0
    grows: float = 0.0
    fills: tuple[tuple[str, int], ...] = ()
    whole: bool = True
    json_names = (
        *("host", "mount", "size_bytes", "free_bytes", "used_percent", "inodes_percent", "grows"),
        *("fills", "whole", "full_in_s"),
    )

    @property
    def full_in_s(self) -> Optional[float]:
        """Seconds until it is full at the present rate; None if it does not grow."""
        return self.free_bytes / self.grows if self.grows > 0 else None


def usages(report: FactReport) -> Iterator[DiskUsage]:
    """Yield the use of each file system of a node."""
    rates = {one.path: one.bytes_per_s for one in report.all(growth)}
    largest = {one.path: one for one in report.all(largest_folders)}
    for one in report.all(mount):
        folders = largest.get(one.path, LargestFolders(one.path))
        yield pick(
            *(DiskUsage, one, report),
            mount=one.path,
            grows=rates.get(one.path, 0.0),
            fills=folders.folders,
            whole=folders.complete,
        )


# What each fact about a file system measures, in words.
MEASURED = {"mount": "space", "growth": "growth", "largest_folders": "largest folders"}


def findings_of(report: FactReport) -> Iterator[Finding]:
    """Yield the findings about the file systems of a node."""
    measured = {one.path for one in report.all(largest_folders)}
    for one in report.all(mount):
        knows_fills = one.path in measured and one.used_share >= CROWDED
        yield from disk_findings(report.host, one, knows_fills)
    read = {one.path for one in report.all(mount)}
    for reading in report.failed(mount, growth, largest_folders):
        kind, _, path = reading.label.partition(" ")
        if kind == mount.__name__ and reading.timed_out:
            yield hanging_finding(report.host, path, reading.error)
        elif kind == mount.__name__ or path in read:
            what = f"{path}: its {MEASURED[kind]}" if path else "the file systems"
            message = f"{what} could not be measured: {reading.error}"
            yield Finding.warning("disk.unknown", message, host=report.host)
    for reading in report.failed(copy_parts):
        message = f"the parts of interrupted copies could not be listed: {reading.error}"
        yield Finding.warning("disk.copies", message, host=report.host)


# A script for `sh -s MOUNT` that grows the partition and the file system to the volume's size.
# growpart exits with 1 if the partition has that size already. A file system without a device of
# its own (on a host of the lab) is left as it is.
GROW = """
mount=$1 source=$(findmnt -nvo SOURCE "$1") kind=$(findmnt -nvo FSTYPE "$1")
as_root=sudo; [ "$(id -u)" != 0 ] || as_root=
fail() { echo "$*" >&2; exit 3; }
case $source in /dev/*) ;; *) echo "no device: $source"; exit 0 ;; esac
name=$(basename "$(readlink -f "$source")")
if [ -e "/sys/class/block/$name/partition" ]; then
    disk=$(basename "$(dirname "$(readlink -f "/sys/class/block/$name")")")
    number=$(cat "/sys/class/block/$name/partition")
    shown=$($as_root growpart "/dev/$disk" "$number" 2>&1 </dev/null)
    [ $? -le 1 ] || fail "growpart /dev/$disk $number: $shown"
fi
case $kind in
ext*) shown=$($as_root resize2fs "$source" 2>&1 </dev/null) || fail "resize2fs $source: $shown" ;;
xfs) shown=$($as_root xfs_growfs "$mount" 2>&1 </dev/null) || fail "xfs_growfs $mount: $shown" ;;
*) fail "a file system of the type $kind, which clusterctl cannot grow" ;;
esac
echo "grown: $source"
"""
GROW_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class GrownDisk:
    """The root volume of a node, grown from `before_gib` to `gib`. `message` is the output of
    GROW."""

    host: str
    before_gib: int
    gib: int
    message: str


def grow_disks(
    access: Access,
    client: EC2Client,
    indices: Sequence[int] | None,
    gib: int,
    approve: Callable[[int], None],
) -> FanoutResult[GrownDisk]:
    """Grow the root volumes of these nodes (None: of all) to `gib`, and the file systems on them.

    If a volume has that size already, only its file system is grown, so an interrupted call can be
    repeated. Nodes added later get the size, too. `approve` is called first with the total number
    of GiB to be added, and raises to refuse. Raise UsageError, AwsError, and what `approve` raises.
    """
    nodes = {node.name: node for node in access.cluster.nodes}
    targets = access.select(indices)
    ids = [nodes[target.host].instance_id for target in targets]
    volumes = root_volumes(client, ids)
    disks = {
        found.node.instance_id: found.disk for found in find_instances(client, access.cluster.name)
    }
    large = [t.host for t in targets if volumes[nodes[t.host].instance_id].size_gib > gib]
    if large:
        raise UsageError(
            f"{fold_hosts(large)}: larger than {gib} GiB, and no volume can be made smaller",
            f"see `clusterctl disk {access.cluster.name}`",
        )

    approve(sum(gib - volumes[id].size_gib for id in ids))

    def one(target: Target) -> GrownDisk:
        id = nodes[target.host].instance_id
        volume = volumes[id]
        try:
            enlarge(client, volume, gib, access.timeouts)
        except AwsError as refused:
            text = f"its volume {volume.id} was not made larger: {refused.message}"
            raise CommandFailed(target.host, text, refused.hint) from refused
        # `up` reads the size for new nodes from this tag.
        tag(client, [id], {tags.DISK: tags.disk_text(replace(disks[id], size_gib=gib))})
        result = access.connections.run(
            target, "sh -s /", stdin=GROW.encode(), timeout_s=GROW_TIMEOUT_S
        )
        if not result.ok:
            raise CommandFailed(
                target.host,
                f"its volume has {gib} GiB, and its file system could not be grown: "
                f"{result.stderr.strip()}",
                "the same command tries again",
            )
        return GrownDisk(target.host, volume.size_gib, gib, result.stdout.strip())

    return fan_out(one, targets)


PARTS_TIMEOUT_S = 300.0
# A copy that takes less than this many seconds gets no warning about a slow disk.
TELLING_S = 60.0
# Mount points of the root volume. A host of the lab has a separate mount for home folders.
ON_ROOT = ("/", "/home")


@dataclass(frozen=True)
class SlowDisk:
    """The root volume of a node that also has local NVMe disks.

    `rate` is the root volume's, in bytes per second; `free_bytes` is the free space on the NVMe.
    """

    host: str
    rate: float
    free_bytes: int

    def finding(self, size: int) -> Finding | None:
        """Return a warning about copying `size` bytes to the root volume, or None if it takes less
        than TELLING_S."""
        took_s = size / self.rate
        if took_s < TELLING_S:
            return None
        return Finding.warning(
            "copy.ebs",
            f"DST is on the root volume, which takes {format_rate(self.rate)}: "
            f"{format_bytes(size)} need {format_duration(took_s)} at least",
            f"copy to a folder of {STORE}, the local NVMe ({format_bytes(self.free_bytes)} free); "
            "what is there is gone when the machine is stopped",
            self.host,
        )


def find_slow_disk(access: Access, client: EC2Client, index: int, path: str) -> SlowDisk | None:
    """Return the node's root volume if `path` lies on it while local NVMe is mounted, else None.

    Raise HostError, AwsError.
    """
    (target,) = access.select((index,))
    facts = [partial(mount_of, path=one) for one in (path, STORE)]
    report = read_report(access.connections, target, facts, "reading the disks")
    mounts = {one.path: one for one in report.all(mount_of)}
    if STORE not in mounts or not mounts.keys() & set(ON_ROOT):
        return None
    node = next(node for node in access.cluster.nodes if node.index == index)
    rate = root_rate(client, node.instance_id, node.instance_type)
    return SlowDisk(target.host, rate, mounts[STORE].free_bytes) if rate else None


@dataclass(frozen=True)
class PartsOnHost(CopyParts):
    """Partial files of an interrupted copy, and the node that has them."""

    host: str = ""


def discard_copies(access: Access, dry_run: bool = False) -> FanoutResult[tuple[CopyParts, ...]]:
    """Remove the partial files of interrupted copies on the nodes in service, except those that a
    copy is using. Return what was removed, or with `dry_run` would be."""
    node_call = NodeCall(remove_parts, not dry_run, "looking for parts of copies", PARTS_TIMEOUT_S)
    return call_all(access.connections, access.targets, node_call)


@dataclass(frozen=True)
class DiskReport:
    """All file systems, the findings, the partial files of interrupted copies, and the outcomes of
    nodes that gave no report."""

    disks: tuple[DiskUsage, ...]
    findings: tuple[Finding, ...]
    copies: tuple[PartsOnHost, ...]
    failures: Sequence[HostOutcome[Any]] = ()

    @property
    def exit_status(self) -> int:
        """255 if a node did not answer, 1 if a node failed or a finding is an error, else 0."""
        return status_of(self.failures, bool(errors(self.findings)))


# Seconds between the two measurements of a disk's growth, and for finding the largest folders.
GROWTH_S, WALK_S = 2.0, 5.0
FACTS = (
    mount,
    partial(growth, during_s=GROWTH_S),
    partial(largest_folders, used_share=CROWDED, walk_s=WALK_S),
    copy_parts,
)


def disk(access: Access, indices: Sequence[int] | None = None) -> DiskReport:
    """Report on the disks of these nodes (None: of all)."""
    result = read_reports(access.connections, access.select(indices), FACTS, "reading the disks")
    return DiskReport(
        disks=tuple(one for report in result.values for one in usages(report)),
        findings=tuple(one for report in result.values for one in findings_of(report)),
        copies=tuple(
            PartsOnHost(**vars(one), host=report.host)
            for report in result.values
            for parts in report.all(copy_parts)
            for one in parts
        ),
        failures=result.failures,
    )


TIMEOUT_S = 600.0
BECAUSE = "logs are being written"
# The log folders of runs that were started by hand: in the home folder, as in the tutorial, and
# next to the shipped scripts, for real and for synthetic data.
USUAL = (
    f"~/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{LOG_FOLDER}",
    f"~/{EXAMPLES_FOLDER}/{SYNTHETIC_LOG_FOLDER}",
)


def find_logs(
    access: Access,
    jobs: bool = False,
    force: bool = False,
    dry_run: bool = False,
    keep_last: int = 0,
) -> tuple[Cleaning, FanoutResult[NodeLogs]]:
    """Find what can be removed on each node, without removing it.

    Return the request for `clean_logs` and what each node would remove. Raise JobRunning while a
    job runs, unless `force` or `dry_run`, and HostError of the head node.
    """
    # Several fan-outs follow: do not wait for an unreachable node in each of them.
    access.connections.ask_again = False
    running = running_work(access)
    if not (force or dry_run):
        refuse_while_running(access, running, BECAUSE)
    records: list[JobRecord] = []
    # If the head node does not answer, it is among the failures of the fan-out below.
    with contextlib.suppress(HostError):
        records = jobs_of(access)
    keep = [job.spec.log_dir for job in running.jobs if job.spec.log_dir]
    by_hand = any(process.job_id is None for process in running.launchers)
    if by_hand or any(not job.spec.log_dir for job in running.jobs):
        # The log folder of a user's own program or of train.sh is not known. It is likely to be
        # one of the usual ones, so none of these is touched.
        keep += USUAL
    folders = [(folder, LOG_NAME) for folder in USUAL]
    folders += [(job.spec.log_dir, job.spec.log_name) for job in records if job.spec.log_dir]
    # A running job may read an earlier one's folder: a model that is served from it, a checkpoint.
    used = "".join(to_json(job.spec) for job in running.jobs)
    cleaning = Cleaning(
        tuple(dict.fromkeys(folders)),
        tuple(keep),
        jobs,
        keep_last,
        force=force,
        running=tuple(one.job_id for one in (*running.jobs, *records) if one.job_id in used),
        recorded=tuple(job.job_id for job in records),
    )
    return cleaning, _on(access, access.targets, replace(cleaning, dry_run=True))


def clean_logs(access: Access, cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    """Remove the files on each node. Raise JobRunning if a job has started since `find_logs`,
    unless `cleaning.force`."""
    # Clean the head node first. Only it has the records of jobs, and refuses while one runs; then
    # nothing is removed on the other nodes; nor if it is silent by now.
    head = _on(access, [access.head], cleaning)
    if head.failures and not cleaning.force:
        return head
    for node in head.values:
        if node.busy:
            raise job_running(access.cluster.name, node.busy, BECAUSE)
    others = [target for target in access.targets if target != access.head]
    return FanoutResult((*head.outcomes, *_on(access, others, cleaning).outcomes))


def _on(access: Access, targets: Sequence[Target], cleaning: Cleaning) -> FanoutResult[NodeLogs]:
    node_call = NodeCall(clean, cleaning, "removing the logs", TIMEOUT_S)
    return call_all(access.connections, targets, node_call)
