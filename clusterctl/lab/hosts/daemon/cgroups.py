"""Limits of the hosts where the machine has control groups that root may use, version 2 or 1.

For each hierarchy (of version 1 pids' and memory's, of version 2 the one) there is a folder of the
lab with `daemon`, where the daemon is, and `hosts`, which holds one group per host. The daemon is
no part of `hosts`: when these run out of memory, the kernel ends processes of theirs. A host's
processes are one level below its limits: root there can mount the group that it is in, and change
what is written there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

PREFIX = "clusterctl-lab-"
# More than eight ranks with threads for each of 192 CPUs have; a fork bomb ends here.
MOST_PROCESSES = 16384
MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")


def places(mountinfo: str, own: str) -> list[Path]:
    """In which groups the lab's are to be made, from this process's own (/proc/self/cgroup).

    Limits that hold for this process go on holding: in version 1 below its group, in version 2
    beside it, for there a group with processes has no groups below it.
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
    """The lab's folders, in which `owner` may make groups. None where the machine does not let us.

    All hosts together have so much memory.
    """
    folders = []
    try:
        mounted, own = (Path("/proc/self", name).read_text() for name in ("mountinfo", "cgroup"))
        for top in places(mounted, own):
            _remove_dead(top)
            folder = top / f"{PREFIX}{os.getpid()}"
            _pass_on(top)
            folder.mkdir()
            folders.append(folder)
            folder.chmod(0o755)  # whatever the umask: the owner passes it
            _pass_on(folder)
            for name in ("daemon", "hosts"):
                (folder / name).mkdir()
            _pass_on(folder / "hosts")
            for name in MEMORY_FILES:
                if (folder / "hosts" / name).exists():
                    (folder / "hosts" / name).write_text(str(memory_bytes))
            # A process is moved by who may write to both groups and to what they have in common.
            for path in (folder / "hosts", folder / "cgroup.procs", folder / "hosts/cgroup.procs"):
                os.chown(path, owner, owner)
    except OSError:
        remove(folders)
        return []
    return folders


def enter(folders: Iterable[Path], name: str, pid: int) -> None:
    """Put a process into a group of the lab; 0: this process."""
    for folder in folders:
        (folder / name / "cgroup.procs").write_text(str(pid))


def inside(id: str) -> str:
    """The group in which a host's processes begin."""
    return f"hosts/{id}/inside"


def make_host(folders: Iterable[Path], id: str) -> None:
    for folder in folders:
        group = folder / "hosts" / id
        (folder / inside(id)).mkdir(parents=True)
        if (group / "pids.max").exists():
            (group / "pids.max").write_text(str(MOST_PROCESSES))


def remove_host(folders: Iterable[Path], id: str) -> None:
    remove([folder / "hosts" / id for folder in folders])


def remove(folders: Sequence[Path]) -> None:
    """The groups of a lab or a host whose processes are gone."""
    groups = list(folders)
    for group in groups:  # which grows: root on a host can nest more of them than Python recurses
        with contextlib.suppress(OSError):
            groups += [path for path in group.iterdir() if path.is_dir()]
    for group in reversed(groups):
        with contextlib.suppress(OSError):  # its last process is just ending
            group.rmdir()


def _remove_dead(top: Path) -> None:
    """What labs left that were killed."""
    for folder in top.glob(f"{PREFIX}*"):
        if not Path("/proc", folder.name[len(PREFIX) :]).exists():
            remove([folder])


def _pass_on(group: Path) -> None:
    """Have the groups below one be limited; in version 1 they are anyway."""
    file = group / "cgroup.subtree_control"
    if file.exists():
        file.write_text("+pids +memory")
