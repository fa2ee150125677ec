"""Disk space: `df` on a node, its parser, and what is worth a word."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import CommandResult
from clusterctl.domain.units import format_bytes

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
