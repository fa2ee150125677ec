"""How full the nodes' disks are, and how slow the one that a copy goes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.bootstrap.inspection import STORE
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import CommandResult, FanoutResult, json_lines, read_each
from clusterctl.domain.units import format_bytes, format_duration, format_rate
from clusterctl.ec2.launch.request import root_rate
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# The root volume, the data volume, the Deep Learning AMI's striped local disks, and the home
# folder, where it is a volume of its own. What a node does not have is left out.
MOUNTS = ("/", "/data", "/opt/dlami/nvme", '"$HOME"')
COMMAND = (
    f"for path in {' '.join(MOUNTS)}; do"
    ' [ -d "$path" ] && LC_ALL=C df -P -k -- "$path" | tail -n 1; done; :'
)
TIMEOUT_S = 30.0
CROWDED_PERCENT = 90
FULL_PERCENT = 98
_LINE = re.compile(r"^(.+?)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)%\s+(/.*)$")


@dataclass(frozen=True)
class DiskUsage:
    """One file system of a node, as a user who is not root may fill it."""

    host: str
    mount: str
    size_bytes: int
    free_bytes: int
    used_percent: int


def parse_df(result: CommandResult) -> list[DiskUsage]:
    """The file systems that COMMAND printed, each once. Raises CommandFailed when there is none."""
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


def disk_findings(usage: DiskUsage, cluster: str) -> list[Finding]:
    """An error from 98 % on, a warning above 90 %."""
    if usage.used_percent <= CROWDED_PERCENT:
        return []
    full = usage.used_percent >= FULL_PERCENT
    return [
        Finding(
            check_id="disk.full" if full else "disk.crowded",
            severity=Severity.ERROR if full else Severity.WARNING,
            host=usage.host,
            message=f"{usage.mount} is {usage.used_percent} % full, "
            f"{format_bytes(usage.free_bytes)} free",
            hint=f"remove old logs and checkpoints: clusterctl clean-logs {cluster} --jobs; "
            "or enlarge the volume",
        )
    ]


PARTS = program_of("clusterctl.node.jobs.parts")
PARTS_TIMEOUT_S = 300.0
# Shorter waits are not worth a word.
TELLING_S = 60.0
# Where the root volume is seen: a host of the lab has a mount of its own for home folders.
ON_ROOT = ("/", "/home")


@dataclass(frozen=True)
class SlowDisk:
    """The root volume of a node that has local NVMe, too, with `free_bytes`. `rate` is in bytes a
    second."""

    host: str
    rate: float
    free_bytes: int

    def finding(self, size: int) -> Finding | None:
        """What it costs to bring so many bytes there, where that is worth a word."""
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
    """Where `word`, a path for the node's shell, is on the root volume and NVMe is mounted.

    Raises HostError, AwsError.
    """
    (target,) = access.select((index,))
    look = (
        f'at={word}; while [ ! -d "$at" ]; do at=$(dirname -- "$at"); done; '
        f'for at in "$at" {STORE}; do LC_ALL=C df -P -k -- "$at" 2>/dev/null | tail -n 1; done'
    )
    result = access.connections.run(target, look, timeout_s=TIMEOUT_S)
    mounts = {usage.mount: usage for usage in parse_df(result)}
    if STORE not in mounts or not mounts.keys() & set(ON_ROOT):
        return None
    node = next(node for node in access.cluster.nodes if node.index == index)
    rate = root_rate(client, node.instance_id)
    return SlowDisk(target.host, rate, mounts[STORE].free_bytes) if rate else None


@dataclass(frozen=True)
class CopyParts:
    """What an interrupted copy has left in `path`, last written `age_s` seconds ago.

    `in_use`: a copy goes on there. `failed` says why it could not be looked at or removed.
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
    """The parts that interrupted copies have left on these nodes, or on all.

    `discard` removes those that no copy uses.
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
    return read_each(result, parse)


@dataclass(frozen=True)
class DiskReport:
    """Each node's file systems, what interrupted copies left there, and what is worth a word."""

    nodes: FanoutResult[list[DiskUsage]]
    findings: tuple[Finding, ...]
    copies: tuple[CopyParts, ...] = ()

    @property
    def exit_status(self) -> int:
        """255 if a node could not be asked, 1 if a finding is an error, else 0."""
        if self.nodes.failures:
            return 255
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))


def disk(access: Access, indices: Sequence[int] | None = None) -> DiskReport:
    """Ask these nodes, or all. One outcome per node."""
    result = access.connections.run_all(access.select(indices), COMMAND, timeout_s=TIMEOUT_S)
    nodes = read_each(result, parse_df)
    findings = [
        finding
        for usages in nodes.values
        for usage in usages
        for finding in disk_findings(usage, access.cluster.name)
    ]
    copies = copy_parts(access, indices)
    return DiskReport(nodes, tuple(findings), tuple(one for all_ in copies.values for one in all_))
