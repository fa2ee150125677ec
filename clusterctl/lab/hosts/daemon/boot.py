"""Boot one host: a process in namespaces of its own that becomes the host's PID 1."""

from __future__ import annotations

import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from clusterctl.lab.hosts.daemon import cgroups, mounts, network, syscalls
from clusterctl.lab.hosts.daemon.template import PATH

INIT = "/usr/lib/clusterctl-lab/init"
UBUNTU_UID = 1000

# What init (host/init) exits with; a reboot(2) in a PID namespace kills its PID 1 by signal.
EXIT_REBOOT, EXIT_POWEROFF, EXIT_BOOT_FAILED = 81, 82, 83

_OWN = (
    syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWTIME
)


@dataclass(frozen=True)
class HostSpec:
    """What the API wants of a host."""

    id: str
    hostname: str
    domain: str
    address: str
    prefix_length: int
    gateway: str
    public_address: str = ""
    reaches_storage: bool = True
    public_key: str = ""
    user_files: Sequence[tuple[str, str]] = ()  # below /var/lib/cloud: path, content as base64
    user_data_problem: str = ""
    instance_store: bool = False
    volume_bytes: int = 2**30  # of /data, and of an instance store
    gpus: int = 0
    gpu_name: str = ""
    gpu_memory_mib: int = 0
    silent: bool = False


@dataclass(frozen=True)
class Booted:
    """A host on its way: its PID 1, and a pipe that tells why it did not start, or closes."""

    pid: int
    report: int


@dataclass(frozen=True)
class Base:
    """What every host of the lab is built on: `mounts.build_root` has the meaning.

    `environment` is init's, and so that of user data; `cgroups` is from `cgroups.prepare`.
    """

    template: Path
    single_uid: bool
    alone: frozenset[str]
    environment: Mapping[str, str]
    cgroups: tuple[Path, ...]


def boot(spec: HostSpec, folder: Path, base: Base, plug: Callable[[int], None]) -> Booted:
    """Start the host's PID 1; `plug` gets its pid and puts `eth0` into its network namespace."""
    report_read, report_write = os.pipe()
    go_read, go_write = os.pipe()
    pid_read, pid_write = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(go_write)
        start = functools.partial(_start, spec, folder, base, go_read)
        _in_between(pid_write, report_write, start)
    for end in (report_write, go_read, pid_write):
        os.close(end)
    os.waitpid(between, 0)
    answer = os.read(pid_read, 32)
    os.close(pid_read)
    try:
        if not answer:
            raise OSError(os.read(report_read, 4096).decode())
        plug(int(answer))
        os.write(go_write, b"x")
    except BaseException:
        os.close(report_read)
        raise
    finally:
        os.close(go_write)
    os.set_blocking(report_read, False)
    return Booted(int(answer), report_read)


def console_of(folder: Path) -> Path:
    """Beside the folder of a host, whose disk may be full: there is always room on a console.

    The host has this file open. So its file system is the host's, with nothing else in it.
    """
    return folder.with_name(f"{folder.name}.console") / "log"


def ended_by(status: int) -> str:
    """`reboot`, `poweroff`, `failed` (never came up) or `died`, from a wait status."""
    if os.WIFEXITED(status):
        ends = {EXIT_REBOOT: "reboot", EXIT_POWEROFF: "poweroff", EXIT_BOOT_FAILED: "failed"}
        return ends.get(os.WEXITSTATUS(status), "died")
    return {1: "reboot", 2: "poweroff"}.get(os.WTERMSIG(status), "died")


def address_lines(spec: HostSpec) -> list[str]:
    """What `ip -batch` is told inside the host."""
    return [
        "link set lo up",
        f"address add {spec.address}/{spec.prefix_length} dev eth0",
        "link set eth0 up",
        f"route add default via {spec.gateway}",
        *network.own_public_lines("", spec.public_address),
    ]


def _in_between(pid_write: int, report_write: int, start: Callable[[], None]) -> NoReturn:
    """Leave for new namespaces, fork their first process, tell its pid, and go.

    The orphan falls to the daemon, which is the PID 1 here and waits for it.
    """
    try:
        syscalls.unshare(_OWN)
        uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        Path("/proc/self/timens_offsets").write_text(f"{time.CLOCK_BOOTTIME} {-uptime_s} 0\n")
        pid = os.fork()
        if pid == 0:
            _run(start, report_write)
        os.write(pid_write, str(pid).encode())
    except OSError as refused:
        os.write(report_write, str(refused).encode())
    finally:
        os._exit(0)


def _run(start: Callable[[], None], report_write: int) -> NoReturn:
    try:
        start()
    except BaseException as failure:  # noqa: BLE001 - a child must never return into its parent's code
        os.write(report_write, str(failure).encode())
    finally:
        os._exit(EXIT_BOOT_FAILED)


def _start(spec: HostSpec, folder: Path, base: Base, go: int) -> None:
    os.setsid()
    _to_console(console_of(folder))
    cgroups.enter(base.cgroups, cgroups.inside(spec.id), 0)
    socket.sethostname(spec.hostname)
    if not os.read(go, 1):
        raise OSError("the network of the host could not be made")
    network.ip_batch(address_lines(spec))
    network.be_as_images_are()
    if base.single_uid:
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    view = mounts.View(str(folder), str(base.template), base.single_uid, spec.instance_store)
    mounts.build_root(view, base.alone)
    if base.single_uid:
        _become_ubuntu()
    # The daemon's control socket would be root's way out of the host, and the dial listener, too.
    syscalls.keep_only_standard_files()
    # Python ignores SIGPIPE, and an ignored signal stays ignored over exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve("/bin/sh", ["init", INIT], {"PATH": PATH, "LANG": "C.UTF-8", **base.environment})


def _to_console(log: Path) -> None:
    console = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (console, 1), (console, 2)):
        os.dup2(source, target)


def _become_ubuntu() -> None:
    """With a single uid there is no root to run sshd as: it runs as the user it serves."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UBUNTU_UID} 0 1")
    Path("/proc/self/gid_map").write_text(f"{UBUNTU_UID} 0 1")
