"""A host's file system: the plan of its mounts, and the steps that carry it out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.hosts.daemon import syscalls, volumes
from clusterctl.lab.hosts.daemon.syscalls import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY

COPY_ON_WRITE = ("usr", "etc", "var", "opt")
# Debian's list of installed packages, so that `dpkg-query` on a host shows the machine's programs.
PACKAGES = "var/lib/dpkg"
# Folders whose content on the machine hosts see. The rest of /var is private: mail, spools,
# databases and logs.
SHARED_FOLDERS = ("usr", "etc", "opt", PACKAGES)
# Where Deep Learning AMIs mount the instance store.
INSTANCE_STORE = "opt/dlami/nvme"
SHM_SIZE, RUN_SIZE = "2g", "64m"
DISKS = ("block", "class/block")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FOLDERS = (
    *("proc", "sys", "dev", "run", "tmp", "root", "home", "data", "mnt", "media", "srv", "old"),
    *COPY_ON_WRITE,
)
DEVICE_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
DEVICE_LINKS |= {name: f"fd/{n}" for n, name in enumerate(("stdin", "stdout", "stderr"))}


@dataclass(frozen=True)
class Mount:
    """One mount(2); `target` is relative to the host's root."""

    source: str
    target: str
    fstype: str = ""
    flags: int = 0
    data: str = ""


def folders_with_mounts_below(mountinfo: str) -> set[str]:
    """Return the folders of SHOWN below which something is mounted.

    In a user namespace the kernel refuses such a folder as the lower layer of an overlay.
    """
    points = [line.split()[4] for line in mountinfo.splitlines()]
    # A later mount over the folder itself hides what was mounted below it before.
    found = set()
    for name in SHARED_FOLDERS:
        last = max((i for i, point in enumerate(points) if point == f"/{name}"), default=-1)
        if any(point.startswith(f"/{name}/") for point in points[last + 1 :]):
            found.add(name)
    return found


def template_only_folders(mountinfo: str) -> frozenset[str]:
    """Return the copy-on-write folders of which hosts see the template's content only."""
    packages = set() if Path("/", PACKAGES).is_dir() else {PACKAGES}
    return frozenset({"var"} | packages | folders_with_mounts_below(mountinfo))


def overlay(name: str, folder: str, template: str, alone: bool) -> Mount:
    """Return the mount of a copy-on-write view of the machine's folder, with the template over it.

    `alone`: without the machine's folder. Each folder has a view of its own, because in a user
    namespace the kernel refuses `/` as a lower layer.
    """
    layers = f"lowerdir={template}/{name}" + ("" if alone else f":/{name}")
    own = name.replace("/", "-")  # an overlay's upper folder may not be inside another one's
    writable = f"upperdir={folder}/upper/{own},workdir={folder}/work/{own}"
    # In a user namespace overlayfs may not write its usual trusted.* attributes: `userxattr`.
    return Mount("overlay", name, "overlay", data=f"{layers},{writable},userxattr")


@dataclass(frozen=True)
class View:
    """What a host's view is made of: its own `folder` over the lab's `template`."""

    folder: str
    template: str
    single_uid: bool
    instance_store: bool = False


def host_mounts(view: View, bound: Iterable[str] = (), alone: Collection[str] = ()) -> list[Mount]:
    """Return the mounts of a host, in order.

    `bound` are the machine's top-level folders such as `lib` that are no links. `alone` are the
    folders of which hosts see the template's content only.
    """
    views = (*COPY_ON_WRITE, *(() if PACKAGES in alone else (PACKAGES,)))
    terminal = "newinstance,ptmxmode=0666,mode=0620"
    # With a single id there is no group 5 (tty) that could own terminals.
    terminal += "" if view.single_uid else ",gid=5"
    plain = MS_NOSUID | MS_NODEV
    folder = view.folder
    store = [Mount(f"{folder}/store", INSTANCE_STORE, flags=MS_BIND)] if view.instance_store else []
    return [
        *(Mount(f"/{name}", name, flags=MS_BIND) for name in bound),
        *(overlay(name, folder, view.template, name in alone) for name in views),
        Mount("proc", "proc", "proc", plain | MS_NOEXEC),
        Mount("sysfs", "sys", "sysfs", plain | MS_NOEXEC | MS_RDONLY),
        # The machine's disks are not the instance's.
        *(Mount("tmpfs", f"sys/{name}", "tmpfs", plain | MS_RDONLY, "mode=755") for name in DISKS),
        Mount(f"{folder}/boot_id", "proc/sys/kernel/random/boot_id", flags=MS_BIND),
        Mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=755,size=1m"),
        *(Mount(f"/dev/{name}", f"dev/{name}", flags=MS_BIND) for name in DEVICES),
        Mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminal),
        Mount("tmpfs", "dev/shm", "tmpfs", plain, f"mode=1777,size={SHM_SIZE}"),
        Mount("tmpfs", "run", "tmpfs", plain, f"mode=755,size={RUN_SIZE}"),
        Mount(f"{folder}/tmp", "tmp", flags=MS_BIND),
        Mount(f"{folder}/root-home", "root", flags=MS_BIND),
        Mount(f"{folder}/home", "home", flags=MS_BIND),
        Mount(f"{folder}/data/{volumes.SHOWN}", "data", flags=MS_BIND),
        *store,
    ]


def build_root(view: View, alone: Collection[str]) -> None:
    """Make the root of a host, and move into it. Call this in the host's own mount namespace."""
    root = Path(view.folder, "root")
    syscalls.mount("tmpfs", str(root), "tmpfs", 0, "mode=755,size=1m")
    for name in FOLDERS:
        (root / name).mkdir()
    bound = _top_level(root)
    for step in host_mounts(view, bound, alone):
        _prepare(root, step)
        syscalls.mount(step.source, f"{root}/{step.target}", step.fstype, step.flags, step.data)
    for name, target in DEVICE_LINKS.items():
        (root / "dev" / name).symlink_to(target)
    os.chdir(root)
    syscalls.pivot_root(".", "old")
    syscalls.unmount("/old")
    Path("/old").rmdir()
    os.chdir("/")


def _top_level(root: Path) -> list[str]:
    """Repeat the machine's /bin, /lib and so on. Return those that are no links, to be bound."""
    bound = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        here = Path("/", name)
        if here.is_symlink():
            (root / name).symlink_to(here.readlink())
        elif here.is_dir():
            (root / name).mkdir()
            bound.append(name)
    return bound


def _prepare(root: Path, step: Mount) -> None:
    """Make a mount's target in /dev, which is empty. Elsewhere targets exist already."""
    target = root / step.target
    if step.target.startswith("dev/"):
        if step.fstype:
            target.mkdir()
        else:
            target.touch()
