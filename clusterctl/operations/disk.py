"""Disks of the nodes: how full they are, larger root volumes, and remains of interrupted copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.bootstrap.inspection import STORE
from clusterctl.diagnosis.drift import CROWDED, disk_findings
from clusterctl.domain.errors import AwsError, CommandFailed, UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import (
    CommandResult,
    FanoutResult,
    json_line,
    json_lines,
    parse_outputs,
)
from clusterctl.domain.units import format_bytes, format_duration, format_rate
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances, tag
from clusterctl.ec2.volumes import enlarge, root_rate, root_volumes
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

DISK = program_of("clusterctl.node.diagnosis.disk")
TIMEOUT_S = 45.0
# APART_S: seconds between the two measurements that give a disk's growth. WALK_S: seconds for
# finding the largest folders of a nearly full disk.
APART_S, WALK_S = 2.0, 5.0
# A line of `df -P -k`: device, size, used, free, percent used, mount point.
_LINE = re.compile(r"^(.+?)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)%\s+(/.*)$")


@dataclass(frozen=True)
class DiskUsage:
    """One file system of a node. The free space is what a user who is not root may use.

    `grows` is in bytes per second. `fills` are the largest folders with their sizes in bytes, for a
    nearly full file system. `whole` is false if the time did not suffice to look at all folders.
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

    @property
    def full_in_s(self) -> float | None:
        """Seconds until it is full at the present rate; None if it does not grow."""
        return self.free_bytes / self.grows if self.grows > 0 else None


@dataclass(frozen=True)
class NodeDisks:
    """A node's file systems, and the findings about them."""

    usages: tuple[DiskUsage, ...]
    findings: tuple[Finding, ...]


def parse_disks(result: CommandResult) -> NodeDisks:
    """Parse the output of `node/diagnosis/disk.py`. Raise CommandFailed if the program failed."""
    answer = json_line(result, "looking at the disks")
    usages: list[DiskUsage] = []
    found: list[Finding] = []
    for system in answer["filesystems"]:
        # Blocks reserved for root are neither used nor free, so this is less than the size.
        used, room = system["used_bytes"], system["used_bytes"] + system["free_bytes"]
        inodes = system["inodes"]
        usages.append(
            DiskUsage(
                host=result.host,
                mount=system["path"],
                size_bytes=system["size_bytes"],
                free_bytes=system["free_bytes"],
                # Rounded up, as df does.
                used_percent=-(-100 * used // room) if room else 0,
                inodes_percent=100 * (inodes - system["inodes_free"]) // inodes if inodes else 0,
                grows=system["grows"],
                fills=tuple((path, size) for path, size in system.get("fills", ())),
                whole=system.get("whole", True),
            )
        )
        found += disk_findings(result.host, system)
    for path, why in answer["errors"].items():
        message = f"{path}: the file system: {why}"
        hint = "what touches it hangs, too: see `mount` and `dmesg` there"
        found.append(Finding("disk.hangs", Severity.ERROR, message, result.host, hint))
    return NodeDisks(tuple(usages), tuple(found))


def parse_df(result: CommandResult) -> list[DiskUsage]:
    """Parse the output of `df -P -k`; each file system appears once. Raise CommandFailed if it
    lists none."""
    seen: dict[str, DiskUsage] = {}
    for line in result.stdout.splitlines():
        match = _LINE.match(line)
        if match:
            _, size, _, free, percent, mount = match.groups()
            seen[mount] = DiskUsage(
                host=result.host,
                mount=mount,
                size_bytes=int(size) * 1024,
                free_bytes=int(free) * 1024,
                used_percent=int(percent),
            )
    if not seen:
        raise CommandFailed(result.host, f"df said nothing of use: {result.stderr.strip()!r}")
    return list(seen.values())


# A script for `sh -s MOUNT` that grows the partition and the file system to the volume's size.
# growpart exits with 1 if the partition has that size already. A file system without a device of
# its own (on a host of the lab) is left alone.
GROW = """
mount=$1 source=$(findmnt -nvo SOURCE "$1") kind=$(findmnt -nvo FSTYPE "$1")
as_root=sudo; [ "$(id -u)" != 0 ] || as_root=
fail() { echo "$*" >&2; exit 3; }
case $source in /dev/*) ;; *) echo "no device: $source"; exit 0 ;; esac
name=$(basename "$(readlink -f "$source")")
if [ -e "/sys/class/block/$name/partition" ]; then
    disk=$(basename "$(dirname "$(readlink -f "/sys/class/block/$name")")")
    number=$(cat "/sys/class/block/$name/partition")
    said=$($as_root growpart "/dev/$disk" "$number" 2>&1 </dev/null)
    [ $? -le 1 ] || fail "growpart /dev/$disk $number: $said"
fi
case $kind in
ext*) said=$($as_root resize2fs "$source" 2>&1 </dev/null) || fail "resize2fs $source: $said" ;;
xfs) said=$($as_root xfs_growfs "$mount" 2>&1 </dev/null) || fail "xfs_growfs $mount: $said" ;;
*) fail "a file system of the type $kind, which nobody here knows how to grow" ;;
esac
echo "grown: $source"
"""
GROW_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class GrownDisk:
    """The root volume of a node, grown from `before_gib` to `gib`. `said` is the output of GROW."""

    host: str
    before_gib: int
    gib: int
    said: str


def grow_disks(
    access: Access,
    client: EC2Client,
    indices: Sequence[int] | None,
    gib: int,
    agree: Callable[[int], None],
) -> FanoutResult[GrownDisk]:
    """Grow the root volumes of these nodes (None: of all) to `gib`, and the file systems on them.

    If a volume has that size already, only its file system is grown, so an interrupted call can be
    repeated. Nodes added later get the size, too. `agree` is called first with the total number of
    GiB to be added, and raises to refuse. Raise UsageError, AwsError, and what `agree` raises.
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

    agree(sum(gib - volumes[id].size_gib for id in ids))

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


PARTS = program_of("clusterctl.node.jobs.parts")
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
        return Finding(
            "copy.ebs",
            Severity.WARNING,
            f"DST is on the root volume, which takes {format_rate(self.rate)}: "
            f"{format_bytes(size)} need {format_duration(took_s)} at least",
            self.host,
            f"copy to a folder of {STORE}, the local NVMe ({format_bytes(self.free_bytes)} free); "
            "what is there is gone when the machine is stopped",
        )


def find_slow_disk(access: Access, client: EC2Client, index: int, word: str) -> SlowDisk | None:
    """Return the node's root volume if `word` lies on it while local NVMe is mounted, else None.

    `word` is a path, quoted for the node's shell. Raise HostError, AwsError.
    """
    (target,) = access.select((index,))
    # The path may not exist yet: take its nearest parent that does.
    look = (
        f'at={word}; while [ ! -d "$at" ]; do at=$(dirname -- "$at"); done; '
        f'for at in "$at" {STORE}; do LC_ALL=C df -P -k -- "$at" 2>/dev/null | tail -n 1; done'
    )
    result = access.connections.run(target, look, timeout_s=TIMEOUT_S)
    mounts = {usage.mount: usage for usage in parse_df(result)}
    if STORE not in mounts or not mounts.keys() & set(ON_ROOT):
        return None
    node = next(node for node in access.cluster.nodes if node.index == index)
    rate = root_rate(client, node.instance_id, node.instance_type)
    return SlowDisk(target.host, rate, mounts[STORE].free_bytes) if rate else None


@dataclass(frozen=True)
class CopyParts:
    """Partial files of an interrupted copy to `path`, last written `age_s` seconds ago.

    `in_use` means that a copy is using them. `failed` is the reason if they could not be examined
    or removed, else empty.
    """

    host: str
    path: str
    size_bytes: int
    age_s: float
    in_use: bool
    failed: str = ""

    def as_data(self) -> dict[str, object]:
        """For `--json`."""
        return dict(vars(self))


def copy_parts(
    access: Access, indices: Sequence[int] | None = None, discard: bool = False
) -> FanoutResult[tuple[CopyParts, ...]]:
    """Find the partial files of interrupted copies on these nodes (None: on all).

    With `discard`, remove those that no copy is using.
    """

    def parse(result: CommandResult) -> tuple[CopyParts, ...]:
        return tuple(
            CopyParts(
                result.host,
                one["path"],
                one["bytes"],
                round(one["age_s"], 1),
                one["in_use"],
                one.get("failed", ""),
            )
            for one in json_lines(result, "looking for parts of copies")
        )

    command = PARTS.command("discard" if discard else "list")
    result = access.connections.run_all(
        access.select(indices), command, stdin=PARTS.stdin(), timeout_s=PARTS_TIMEOUT_S
    )
    return parse_outputs(result, parse)


@dataclass(frozen=True)
class DiskReport:
    """Each node's file systems, the findings, and the partial files of interrupted copies."""

    nodes: FanoutResult[NodeDisks]
    findings: tuple[Finding, ...]
    copies: tuple[CopyParts, ...] = ()

    @property
    def exit_status(self) -> int:
        """255 if a node did not answer, 1 if a finding is an error, else 0."""
        if self.nodes.failures:
            return 255
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))


def disk(access: Access, indices: Sequence[int] | None = None) -> DiskReport:
    """Report on the disks of these nodes (None: of all). `nodes` has one outcome per node."""
    asked = {"apart_s": APART_S, "walk_s": WALK_S, "full": CROWDED}
    result = access.connections.run_all(
        access.select(indices),
        DISK.command(),
        stdin=DISK.stdin(asked),
        timeout_s=TIMEOUT_S,
    )
    nodes = parse_outputs(result, parse_disks)
    findings = [finding for node in nodes.values for finding in node.findings]
    copies = copy_parts(access, indices)
    answered = {outcome.host for outcome in nodes.outcomes if outcome.value}
    findings += [
        Finding("disk.copies", Severity.WARNING, one.error.message, one.host, one.error.hint)
        for one in copies.failures
        if one.error and one.host in answered
    ]
    return DiskReport(nodes, tuple(findings), tuple(one for all_ in copies.values for one in all_))
