"""Limits of the hosts' processes and memory, with control groups of version 2 or 1.

The lab has them if root started it and the machine has control groups that root may use.

The lab has a folder in each hierarchy: version 1 has one hierarchy for pids and one for memory,
version 2 a single one. In the folder are the groups `daemon`, for the daemon, and `hosts`, with one
group per host. The daemon is not in `hosts`, so that the kernel kills only hosts' processes when
these run out of memory. A host's processes are one level below the group with the host's limits:
root on a host can mount the group that it is in, and change the limits there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

PREFIX = "clusterctl-lab-"
# Per host, threads included. Eight ranks with a thread for each of 192 CPUs have fewer. It stops a
# fork bomb.
MOST_PROCESSES = 16384
MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")


def parent_groups(mountinfo: str, own: str) -> list[Path]:
    """Return the groups in which the lab's folders are to be made.

    `own` is /proc/self/cgroup. The limits of this process's group go on holding where they can: the
    folders are below this group in version 1, but next to it in version 2, which does not allow a
    group with processes to have limited groups below it.
    """
    groups = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        groups.update({name: path.lstrip("/") for name in names.split(",")})
    old, new = [], []
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        point, (fstype, _, options) = Path(mount.split()[4]), kind.split()[:3]
        ours = {"pids", "memory"} & set(options.split(",")) & set(groups)
        if fstype == "cgroup" and ours:
            old.append(point / groups[ours.pop()])
        elif fstype == "cgroup2" and "" in groups:
            new.append(point / groups[""] if not groups[""] else (point / groups[""]).parent)
    return old or new[:1]


def prepare(owner: int, memory_bytes: int) -> list[Path]:
    """Make the lab's folders, and return them. `owner` may make groups in `hosts` of each.

    All hosts together get `memory_bytes`. Return an empty list if the machine does not allow this.
    """
    folders = []
    try:
        mounted, own = (Path("/proc/self", name).read_text() for name in ("mountinfo", "cgroup"))
        for top in parent_groups(mounted, own):
            remove_killed(top)
            folder = top / f"{PREFIX}{os.getpid()}"
            _enable_controllers(top)
            folder.mkdir()
            folders.append(folder)
            folder.chmod(0o755)  # the owner has to pass it, even with a strict umask
            _enable_controllers(folder)
            for name in ("daemon", "hosts"):
                (folder / name).mkdir()
            _enable_controllers(folder / "hosts")
            for name in MEMORY_FILES:
                if (folder / "hosts" / name).exists():
                    (folder / "hosts" / name).write_text(str(memory_bytes))
            # To move a process, the kernel wants the right to write to the new group's cgroup.procs
            # and to that of the group which the old and the new one have in common.
            for path in (folder / "hosts", folder / "cgroup.procs", folder / "hosts/cgroup.procs"):
                os.chown(path, owner, owner)
    except OSError:
        remove(folders)
        return []
    return folders


def remove_killed(top: Path) -> None:
    """Remove the folders in `top` of labs that were killed.

    A running lab of another PID namespace is not in /proc here: but its `daemon` has a process, so
    it cannot be removed. Its empty groups could be, such as `hosts`.
    """
    for folder in top.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name[len(PREFIX) :]).exists():
            remove([folder / "daemon"])
            if not (folder / "daemon").exists():
                remove([folder])


def enter(folders: Iterable[Path], name: str, pid: int) -> None:
    """Put a process into a group of the lab. The pid 0 means this process."""
    for folder in folders:
        (folder / name / "cgroup.procs").write_text(str(pid))


def inside(id: str) -> str:
    """Return the group in which a host's processes start."""
    return f"hosts/{id}/inside"


def make_host(folders: Iterable[Path], id: str) -> None:
    """Make the groups of a host, with its limit of processes."""
    for folder in folders:
        group = folder / "hosts" / id
        (folder / inside(id)).mkdir(parents=True)
        if (group / "pids.max").exists():
            (group / "pids.max").write_text(str(MOST_PROCESSES))


def remove(folders: Sequence[Path]) -> None:
    """Remove the groups of a lab or a host whose processes are gone."""
    groups = list(folders)
    # The list grows in the loop. Recursion could be too deep, since root on a host can nest groups.
    for group in groups:
        with contextlib.suppress(OSError):
            groups += [path for path in group.iterdir() if path.is_dir()]
    for group in reversed(groups):
        with contextlib.suppress(OSError):  # its last process may still be ending
            group.rmdir()


def _enable_controllers(group: Path) -> None:
    """Allow limits in the groups below this one. In version 1 they are always allowed."""
    file = group / "cgroup.subtree_control"
    if file.exists():
        file.write_text("+pids +memory")
