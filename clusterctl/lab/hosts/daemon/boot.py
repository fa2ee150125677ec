"""Boots a host: starts a process in namespaces of its own that becomes the host's PID 1."""

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

# Exit statuses of init (hosts/files/init) and of a boot that failed.
EXIT_REBOOT, EXIT_POWEROFF, EXIT_BOOT_FAILED = 81, 82, 83


@dataclass(frozen=True)
class HostSpec:
    """How a host is to be, as the API wants it. Sizes of volumes are in bytes."""

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
class HostBase:
    """What all hosts of the lab have in common.

    `template` is the folder that `template.build` writes. Of the folders in `alone`, hosts see the
    template's content only. `environment` is init's, and so also that of user data. `cgroups` are
    the folders from `cgroups.prepare`.
    """

    template: Path
    single_uid: bool
    alone: frozenset[str]
    environment: Mapping[str, str]
    cgroups: tuple[Path, ...]


def boot(
    spec: HostSpec, folder: Path, base: HostBase, plug: Callable[[int], None]
) -> tuple[int, int]:
    """Start the host's PID 1, and return its pid as the daemon sees it, and a pipe.

    The pipe carries the reason if the host cannot start, and closes when init runs. `plug` gets
    the pid and puts `eth0` into its network namespace.

    Raise OSError if the host's namespaces cannot be made, and what `plug` raises.
    """
    # A process in between forks the PID 1, which waits for `go` until its eth0 is there.
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
    return int(answer), report_read


def console_of(folder: Path) -> Path:
    """Return the file of a host's console.

    It is outside of the host's folder, so that the host can still print when its disk is full. It
    has a file system of its own, because the host has the file open and could fill that.
    """
    return folder.with_name(f"{folder.name}.console") / "log"


def ended_by(status: int) -> str:
    """Return why a host went off, from the wait status of its PID 1.

    That is `reboot`, `poweroff`, `failed` (it did not come up) or `died`.
    """
    if os.WIFEXITED(status):
        ends = {EXIT_REBOOT: "reboot", EXIT_POWEROFF: "poweroff", EXIT_BOOT_FAILED: "failed"}
        return ends.get(os.WEXITSTATUS(status), "died")
    # reboot(2) in a PID namespace kills its PID 1: with SIGHUP for a restart, SIGINT for power-off.
    return {1: "reboot", 2: "poweroff"}.get(os.WTERMSIG(status), "died")


def address_lines(spec: HostSpec) -> list[str]:
    """Return the lines for `ip -batch` inside the host."""
    return [
        "link set lo up",
        f"address add {spec.address}/{spec.prefix_length} dev eth0",
        "link set eth0 up",
        f"route add default via {spec.gateway}",
        *network.own_public_lines("", spec.public_address),
    ]


def _in_between(pid_write: int, report_write: int, start: Callable[[], None]) -> NoReturn:
    """Make new namespaces, fork their first process, report its pid, and exit.

    The daemon then becomes that process's parent and waits for it, since it is PID 1 here.
    """
    try:
        syscalls.unshare(syscalls.ALL_NAMESPACES | syscalls.CLONE_NEWTIME)
        # In the host the clock since boot begins at 0.
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
    """Run `start`, which ends in exec. Report the error if it fails."""
    try:
        start()
    except BaseException as failure:  # noqa: BLE001 - a child must never return into its parent's code
        os.write(report_write, str(failure).encode())
    finally:
        os._exit(EXIT_BOOT_FAILED)


def _start(spec: HostSpec, folder: Path, base: HostBase, go: int) -> None:
    """Turn this process into the host's PID 1: console, limits, network, root, init."""
    os.setsid()
    _to_console(console_of(folder))
    cgroups.enter(base.cgroups, cgroups.inside(spec.id), 0)
    socket.sethostname(spec.hostname)
    if not os.read(go, 1):
        raise OSError("the network of the host could not be made")
    network.ip_batch(address_lines(spec))
    network.set_congestion_control()
    if base.single_uid:
        # sshd runs as `ubuntu`, and has to listen on port 22.
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    view = mounts.View(str(folder), str(base.template), base.single_uid, spec.instance_store)
    mounts.build_root(view, base.alone)
    if base.single_uid:
        _become_ubuntu()
    # Through the daemon's control socket or the dial listener, root on the host could leave it.
    syscalls.keep_only_standard_files()
    # Python ignores SIGPIPE, and an ignored signal stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve("/bin/sh", ["init", INIT], {"PATH": PATH, "LANG": "C.UTF-8", **base.environment})


def _to_console(log: Path) -> None:
    console = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (console, 1), (console, 2)):
        os.dup2(source, target)


def _become_ubuntu() -> None:
    """Map the single uid to ubuntu's. sshd then runs as this user, since there is no root."""
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UBUNTU_UID} 0 1")
    Path("/proc/self/gid_map").write_text(f"{UBUNTU_UID} 0 1")
