"""The daemon's main loop: answers the launcher's requests, and reaps child processes.

Requests and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from clusterctl.lab.hosts.daemon import dialer, mounts, network, syscalls
from clusterctl.lab.hosts.daemon.boot import HostBase
from clusterctl.lab.hosts.daemon.hosts import Hosts

FOLDER = Path("/run/lab")


@dataclass(frozen=True)
class Setup:
    """What the daemon is started with.

    `control` is the socket to the launcher. `files` are the package's files for hosts, by name.
    `dial` is the descriptor of a listening socket, or -1. `cgroups` are the lab's folders of
    control groups.
    """

    control: socket.socket
    network: ipaddress.IPv4Network
    public: ipaddress.IPv4Network
    files: Mapping[str, bytes]
    single_uid: bool
    dial: int
    cgroups: tuple[Path, ...]


def run(setup: Setup) -> NoReturn:
    """Set the lab up, and serve until the launcher is gone. Then exit, which ends the lab."""
    status = 1
    try:
        _make_private()
        network.build(setup.network, setup.public)
        gateway = f"{setup.network[1]}/{setup.network.prefixlen}"
        # The variables through which programs on hosts find AWS: its own, and s5cmd's.
        names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL")
        environment = dict.fromkeys(names, network.storage_url(setup.network))
        alone = mounts.template_only_folders(Path("/proc/self/mountinfo").read_text())
        template = FOLDER / "template"
        base = HostBase(template, setup.single_uid, alone, environment, setup.cgroups)
        hosts = Hosts(FOLDER, base, setup.files, gateway)
        dialled = (setup.network, setup.public)
        dial_pid = dialer.start(setup.dial, dialled, setup.control) if setup.dial >= 0 else 0
        _hand_over(setup)
        _serve(setup.control, hosts, dial_pid)
        status = 0
    except (OSError, subprocess.CalledProcessError) as refused:
        number = getattr(refused, "errno", None)
        refusal = {"refused": "set-up", "errno": number, "text": str(refused)}
        setup.control.sendall(json.dumps(refusal).encode() + b"\n")
    finally:
        os._exit(status)


def _make_private() -> None:
    """Keep mounts in this namespace from showing outside, and mount /proc and an empty /run."""
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE, "")
    plain = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("proc", "/proc", "proc", plain | syscalls.MS_NOEXEC, "")
    # Without `nosuid`, because the hosts' copy of sudo is here.
    syscalls.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
    FOLDER.mkdir()
    os.umask(0o022)


def _hand_over(setup: Setup) -> None:
    """Report to the launcher that all is ready, and pass it the sockets that listen in here."""
    with contextlib.ExitStack() as stack:
        sockets = network.service_sockets(setup.network)
        descriptors = [stack.enter_context(one).fileno() for one in sockets]
        ready_line = json.dumps({"ready": True, "tcp": network.tcp_of_hosts()})
        socket.send_fds(setup.control, [f"{ready_line}\n".encode()], descriptors)


def _serve(control: socket.socket, hosts: Hosts, dial_pid: int) -> None:
    requests = control.makefile("rwb")
    # Python writes to this pipe at every SIGCHLD, so that `select` returns then.
    ended, wakeup = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(ended, selectors.EVENT_READ)
    selector.register(control, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if ended in ready:
            os.read(ended, 4096)
            if not _reap(hosts, dial_pid):
                return
        if control in ready:
            # The launcher sends one request at a time, so no second one waits in the buffer, where
            # `select` would not see it.
            line = requests.readline()
            if not line:
                return
            requests.write(json.dumps(_answer(hosts, json.loads(line))).encode() + b"\n")
            requests.flush()


def _reap(hosts: Hosts, dial_pid: int) -> bool:
    """Reap all children that have ended. Return False if the dialer was one of them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return True
        if pid == dial_pid:
            return False
        hosts.ended(pid, status)


def _answer(hosts: Hosts, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out an operation, and return its `result` or `error`."""
    operations: dict[str, Callable[..., Any]] = {
        "create": hosts.create,
        "boot": hosts.boot,
        "power_off": hosts.power_off,
        "apply_fault": hosts.apply_fault,
        "remove": hosts.remove,
        "set_public": hosts.set_public,
        "set_storage": hosts.set_storage,
        "list": hosts.list,
        "console": hosts.console,
    }
    try:
        return {"result": operations[request.pop("do")](**request)}
    except Exception as failure:  # noqa: BLE001 - one host's error must not end the others
        return {"error": f"{type(failure).__name__}: {failure}"}
