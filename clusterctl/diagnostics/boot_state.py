"""What a reboot must bring back: mounts, GPUs, the end of the boot. Question and comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.units import count

# Made by the kernel, the init system or programs, for their own use.
_PSEUDO = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *("devtmpfs", "efivarfs", "fusectl", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal"),
        *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs"),
        *("squashfs", "sysfs", "tracefs"),
    )
)
_PASSING = ("/proc", "/sys", "/dev", "/run", "/snap", "/var/lib/docker", "/var/lib/containers")

_SCRIPT = """
printf 'boot-id %s\\n' "$(cat /proc/sys/kernel/random/boot_id)"
if command -v cloud-init >/dev/null 2>&1; then
    cloud-init status {wait} >/dev/null 2>&1 </dev/null
    echo "cloud-init $?"
fi
while read -r line; do echo "mount $line"; done </proc/mounts
if command -v nvidia-smi >/dev/null 2>&1; then
    timeout 20 nvidia-smi -L 2>/dev/null </dev/null | while read -r line; do echo "gpu $line"; done
fi
echo complete
"""


@dataclass(frozen=True)
class Mounted:
    source: str
    kind: str


@dataclass(frozen=True)
class BootState:
    """A node as it is in this boot. `mounts` by where; `cloud_init` is None without cloud-init."""

    boot_id: str
    mounts: Mapping[str, Mounted] = field(default_factory=dict)
    gpus: int = 0
    cloud_init: int | None = None


def boot_state_script(wait: bool) -> str:
    """For `sh -s`. `wait`: until cloud-init has ended."""
    return _SCRIPT.replace("{wait}", "--wait" if wait else "")


def parse_boot_state(host: str, stdout: str) -> BootState:
    """The script's output. Raises CommandFailed where it is not complete."""
    said: dict[str, list[str]] = {}
    for line in stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    boot_id = (said.get("boot-id") or [""])[0].strip()
    if "complete" not in said or not boot_id:
        raise CommandFailed(host, "cannot read its boot id and mounts: no plain shell")
    status = (said.get("cloud-init") or [""])[0]
    return BootState(
        boot_id=boot_id,
        mounts=_mounts(said.get("mount", [])),
        gpus=sum(1 for line in said.get("gpu", []) if re.match(r"GPU \d+:", line)),
        cloud_init=int(status) if status.isascii() and status.isdigit() else None,
    )


def _mounts(lines: list[str]) -> dict[str, Mounted]:
    found: dict[str, Mounted] = {}
    for line in lines:
        words = [_plain(word) for word in line.split(" ")]
        if len(words) < 4:
            continue
        source, where, kind = words[:3]
        passing = any(where == one or where.startswith(f"{one}/") for one in _PASSING)
        if kind not in _PSEUDO and not passing:
            # The last one mounted is the one that is seen.
            found[where] = Mounted(source, kind)
    return found


def _plain(word: str) -> str:
    """/proc/mounts writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def differences(before: BootState, after: BootState, gpus: int) -> list[str]:
    """What is not as it was, in words. `gpus` is what the node's type has; 0 if that is unknown."""
    said = [
        f"{where} ({was.source}) is not mounted again"
        for where, was in before.mounts.items()
        if where not in after.mounts
    ]
    said += [
        f"{where} is {after.mounts[where].source} now, not {was.source}"
        for where, was in before.mounts.items()
        if where in after.mounts and not _same(was, after.mounts[where])
    ]
    wanted = gpus or before.gpus
    if after.gpus < wanted:
        said.append(f"nvidia-smi sees {after.gpus} of {count(wanted, 'GPU')}")
    if after.cloud_init not in (None, 0, 2) and before.cloud_init in (None, 0, 2):
        said.append(f"cloud-init failed (exit status {after.cloud_init})")
    return said


def _same(was: Mounted, now: Mounted) -> bool:
    # The numbers of disks are not kept: what was /dev/nvme1n1 may be /dev/nvme2n1 after a boot.
    disks = was.source.startswith("/dev/") and now.source.startswith("/dev/")
    return was.kind == now.kind and (disks or was.source == now.source)
