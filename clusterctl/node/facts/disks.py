"""Facts about file systems: where they are, how full they are, what fills them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, NamedTuple

from clusterctl.node.facts.report import deadline, for_each

# Where a job's data, logs, checkpoints and sockets are. /opt/dlami/nvme has the striped local disks
# on the Deep Learning AMI.
PATHS = ("/", "/data", "/opt/dlami/nvme", "~", "/tmp", "/dev/shm")  # noqa: S108
MOUNTS = "/proc/self/mounts"
MOUNTINFO = "/proc/self/mountinfo"
# Types of remote file systems.
REMOTE = re.compile(r"nfs|cifs|smb|lustre|ceph|glusterfs|fuse|beegfs|9p|virtiofs")
# Types of file systems that hold no user's data: made by the kernel, the init system or programs
# for their own use.
PSEUDO = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *("devtmpfs", "efivarfs", "fusectl", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal"),
        *("fuse.snapfuse", "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc", "pstore", "ramfs"),
        *("rpc_pipefs", "securityfs", "squashfs", "sysfs", "tracefs"),
    )
)
# Types of file systems that cannot be written to.
IMAGES = ("cramfs", "erofs", "iso9660", "squashfs", "udf")
# Folders of the system, in which mounts hold nothing of jobs.
SYSTEM = (
    *("/boot", "/dev", "/etc", "/opt", "/proc", "/root", "/run", "/snap", "/sys", "/usr", "/var"),
)
MOST_FOLDERS = 5
# A subfolder with at least this share of its folder is named in place of the folder.
MOST_OF_IT = 0.8


@dataclass(frozen=True)
class Mounted:
    """What is mounted at a path: the device or other source, and the type of the file system."""

    path: str
    source: str
    kind: str


def mounted() -> tuple[Mounted, ...]:
    """Return all mounts. Of several at one path, the last one hides the others."""
    found = {path: Mounted(path, source, kind) for source, path, kind, *_ in _rows(MOUNTS)}
    return tuple(found.values())


def _rows(table: str) -> list[list[str]]:
    """Return the words of each line of a table of the kernel. A name may have any bytes."""
    lines = os.fsdecode(Path(table).read_bytes()).split("\n")
    return [[unescaped(word) for word in line.split(" ")] for line in lines if line]


def unescaped(word: str) -> str:
    """Return a word of the kernel's tables, which have a space in a path as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def is_remote(kind: str) -> bool:
    """Return whether a type of file system is a remote one."""
    return bool(REMOTE.search(kind)) and kind not in PSEUDO


def mount_points() -> list[str]:
    """Return the mount points of the file systems that a job may use, each file system once. A path
    that is no mount point counts as the one above it."""
    table = _mounts()
    paths = [os.path.expanduser(path) for path in PATHS]  # noqa: PTH111
    paths += [path for path, one in table.items() if is_remote(one.kind) or _holds(path, one.kind)]
    found: dict[tuple[str, bool], str] = {}
    for path in paths:
        point = _mount_point(path, table)
        if point in table:
            found.setdefault((table[point].device, table[point].readonly), point)
    return list(found.values())


def _holds(path: str, kind: str) -> bool:
    """Return whether a mounted file system may hold files of jobs, wherever it is mounted."""
    system = any(f"{path}/".startswith(f"{top}/") for top in SYSTEM)
    return not (system or kind in PSEUDO or kind in IMAGES)


class _MountPoint(NamedTuple):
    """`lost`: the kernel has made the file system read-only: it is so itself, and was mounted to be
    written to."""

    device: str
    kind: str
    readonly: bool
    lost: bool


def _mounts() -> dict[str, _MountPoint]:
    """Return what is mounted at each mount point. /proc is read without waiting for a server."""
    table = {}
    for words in _rows(MOUNTINFO):
        kind, _, options = words[words.index("-", 6) + 1 :][:3]
        readonly = "ro" in words[5].split(",")
        lost = "ro" in options.split(",") and not readonly
        table[words[4]] = _MountPoint(words[2], kind, readonly, lost)
    return table


def _mount_point(path: str, table: Mapping[str, object]) -> str:
    while path not in table and path != "/":
        path = os.path.dirname(path)  # noqa: PTH120
    return path


@dataclass(frozen=True)
class MountedFileSystem:
    """Sizes in bytes. What is reserved for root is neither free nor used, as in df. `source` and
    `kind` as in Mounted; empty if nothing is mounted there. `readonly` may be on purpose, unless it
    is so `by_kernel`. `needed` are the home folder (~) and /tmp if they are on it and it is
    `readonly`: every job and clusterctl itself write there."""

    path: str
    size_bytes: int
    free_bytes: int
    used_bytes: int
    inodes: int
    inodes_free: int
    readonly: bool
    source: str = ""
    kind: str = ""
    by_kernel: bool = False
    needed: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether it is of this machine, and no image, which nobody can write to."""
        return not is_remote(self.kind) and self.kind not in IMAGES

    @property
    def lost_writes(self) -> bool:
        """Whether the kernel has made it read-only, as it does when its disk fails. Images and
        remote ones may be so without that."""
        return self.by_kernel and self.is_local

    @property
    def is_refusing(self) -> bool:
        """Whether nothing can be written to a local file system on which something must be."""
        return self.readonly and self.is_local and bool(self.needed)

    @property
    def used_share(self) -> float:
        """The used share of the space that a user has, as df shows it."""
        room = self.used_bytes + self.free_bytes
        return self.used_bytes / room if room else 0.0

    @property
    def inodes_share(self) -> float:
        return (self.inodes - self.inodes_free) / self.inodes if self.inodes else 0.0

    @property
    def used_percent(self) -> int:
        """Rounded down: 100 only if nothing is free. (df rounds up.)"""
        return int(self.used_share * 100)

    @property
    def inodes_percent(self) -> int:
        """Rounded down, too."""
        return int(self.inodes_share * 100)


@for_each("path", mount_points)
def mount(path: str) -> MountedFileSystem:
    """Return the state of one file system."""
    state, table = os.statvfs(path), _mounts()
    readonly = bool(state.f_flag & os.ST_RDONLY)
    # A server with the home folder may be silent, and no other file system shall wait for it.
    needed = ("~", "/tmp") if readonly else ()  # noqa: S108
    there = {one.path: one for one in mounted()}.get(path, Mounted(path, "", ""))
    return MountedFileSystem(
        path,
        size_bytes=state.f_blocks * state.f_frsize,
        free_bytes=state.f_bavail * state.f_frsize,
        used_bytes=(state.f_blocks - state.f_bfree) * state.f_frsize,
        inodes=state.f_files,
        inodes_free=state.f_favail,
        readonly=readonly,
        source=there.source,
        kind=there.kind,
        by_kernel=path in table and table[path].lost,
        needed=tuple(one for one in needed if _mount_point(_real(one), table) == path),
    )


def mount_of(path: str) -> MountedFileSystem:
    """Return the state of the file system on which `path` is, or would be. It may begin with ~."""
    return mount(_mount_point(_real(path), _mounts()))


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111, PTH114


@dataclass(frozen=True)
class Growth:
    """By how many bytes a second a file system grows."""

    path: str
    bytes_per_s: float


@for_each("path", mount_points)
@deadline(10.0)
def growth(path: str, during_s: float) -> Growth:
    """Measure a file system twice, `during_s` seconds apart."""
    before, began = mount(path), time.monotonic()
    time.sleep(during_s)
    used = mount(path).used_bytes - before.used_bytes
    return Growth(path, used / (time.monotonic() - began))


@dataclass(frozen=True)
class LargestFolders:
    """The largest folders and files of a file system with their bytes, the largest first; `/*` are
    smaller files next to them. `complete` is false if the time did not suffice to read all."""

    path: str
    folders: tuple[tuple[str, int], ...] = ()
    complete: bool = True


@for_each("path", mount_points)
@deadline(15.0)
def largest_folders(path: str, used_share: float, walk_s: float) -> LargestFolders:
    """Find what fills a file system within `walk_s` seconds; nothing for one that is less full than
    `used_share`."""
    found = mount(path)
    if found.used_share < used_share:
        return LargestFolders(path)
    until = time.monotonic() + walk_s
    device = os.lstat(path).st_dev
    sizes: dict[str, int] = {}
    todo = [path]
    while todo and time.monotonic() < until:
        folder = todo.pop()
        own = 0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if time.monotonic() >= until:
                        todo.append(folder)
                        break
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        state = entry.stat(follow_symlinks=False)
                        if entry.is_dir(follow_symlinks=False):
                            if state.st_dev == device:
                                todo.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            size = state.st_blocks * 512
                            own += size
                            if size * 100 > found.used_bytes:
                                sizes[entry.path] = size
        except OSError:
            pass  # what was read of it counts
        # Its bytes also count in all folders above, up to `path`.
        while own:
            sizes[folder] = sizes.get(folder, 0) + own
            if folder == path:
                break
            folder = os.path.dirname(folder)  # noqa: PTH120
    inside = [sizes[one] for one in sizes if one != path and os.path.dirname(one) == path]  # noqa: PTH120
    rest = sizes.get(path, 0) - sum(inside)
    if inside and rest * 100 > found.used_bytes:
        sizes[os.path.join(path, "*")] = rest  # noqa: PTH118
    return LargestFolders(path, tuple(_worth_naming(sizes, path)), not todo)


def _worth_naming(sizes: dict[str, int], top: str) -> list[tuple[str, int]]:
    """Return the largest folders and files. A folder that one within it nearly fills is replaced by
    those within it, and so is `top`."""
    found: list[tuple[str, int]] = []
    below: dict[str, list[str]] = {}
    for path in sizes:
        if path != top:
            below.setdefault(os.path.dirname(path), []).append(path)  # noqa: PTH120
    todo = [top] if top in sizes else []
    while todo and len(found) < MOST_FOLDERS:
        todo.sort(key=lambda path: sizes[path])
        path = todo.pop()
        inside = below.get(path, ())
        largest = max((sizes[one] for one in inside), default=0)
        if largest >= MOST_OF_IT * sizes[path] or (path == top and inside):
            todo += inside
        else:
            found.append((path, sizes[path]))
    return found
