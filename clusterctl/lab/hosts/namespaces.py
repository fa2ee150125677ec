"""Starts the namespace daemon and sends it requests over a socket pair.

The daemon ends when this process closes its end of the pair.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import subprocess
import threading
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import LabError
from clusterctl.lab.addresses import link_name
from clusterctl.lab.hosts.daemon import cgroups
from clusterctl.lab.hosts.daemon.network import MTU
from clusterctl.lab.hosts.modes import IdMap
from clusterctl.lab.record import process_started
from clusterctl.lab.requirements import SEARCH_PATH, USER_NAMESPACES_HINT

log = logging.getLogger(__name__)

PYTHON = "/usr/bin/python3"
# Bytes for all hosts together, volumes included. An eighth of the memory stays the machine's own.
HOSTS_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 7 // 8
PROGRAM = Path(__file__).parent / "daemon" / "__main__.py"


class NetworkTaken(Exception):
    """Another lab took the network after it was found to be free."""


@dataclass(frozen=True)
class DaemonPlan:
    """How to start the daemon.

    `mode` is root, subuid or single. `public` is the network of public addresses. `dial` is the
    listening socket for dial.py, None where the hosts' addresses answer directly.
    """

    mode: str
    ids: IdMap
    network: IPv4Network
    public: IPv4Network
    dial: socket.socket | None = None


class Daemon:
    """The running daemon. It takes one request at a time, from any thread.

    `metadata`, `storage` and `resolver` are sockets inside the lab. `tcp` is the hosts' congestion
    control. `cgroups` are the folders of the control groups that limit the hosts, empty without.
    """

    def __init__(self, plan: DaemonPlan) -> None:
        self._control, theirs = socket.socketpair()
        self._answers = self._control.makefile("rb")
        self._lock = threading.Lock()
        dial = plan.dial.fileno() if plan.dial else -1
        networks = [str(plan.network), str(plan.public)]
        owner = plan.ids.uid
        self.cgroups = cgroups.prepare(owner, HOSTS_MEMORY) if plan.mode == "root" else []
        groups = json.dumps([str(folder) for folder in self.cgroups])
        argv = [PYTHON, "-I", str(PROGRAM), str(theirs.fileno()), *networks, str(dial), groups]
        with theirs:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8"},
                pass_fds=[theirs.fileno(), *([dial] if plan.dial else [])],
            )
        try:
            cgroups.enter(self.cgroups, "daemon", self.process.pid)
            self._bring_up(plan)
        except BaseException:
            self.stop()
            cgroups.remove(self.cgroups)
            raise

    def call(self, do: str, **arguments: Any) -> Any:
        """Return the daemon's answer to an operation of `loop._answer`.

        Raise LabError if the operation fails, ConnectionError if the daemon is gone.
        """
        with self._lock:
            self._control.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            answer = self._read()
        if "error" in answer:
            raise LabError(f"the lab could not {do} a host: {answer['error']}")
        return answer.get("result")

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Stop the daemon, and with it every host. It keeps the lock: later calls never return."""
        self._lock.acquire(timeout=5)
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _bring_up(self, plan: DaemonPlan) -> None:
        """Do this process's part of the daemon's start: map its ids, and link its network."""
        self._await("done")
        _map_ids(self.process.pid, plan)
        self._control.sendall(b"x")
        self._await("done")
        if plan.mode == "root":
            _link(self.process.pid, plan.network, plan.public)
        self._control.sendall(b"x")
        # The last message of the start carries the sockets of the hosts' services.
        first_line, descriptors, _, _ = socket.recv_fds(self._control, 65536, 3)
        ready = json.loads(first_line or b"{}")
        self._check("ready", ready)
        self.tcp: str = ready["tcp"]
        self.metadata, self.storage, self.resolver = (
            socket.socket(fileno=one) for one in descriptors
        )

    def _await(self, key: str) -> None:
        try:
            answer = self._read()
        except ConnectionError:
            answer = {}
        self._check(key, answer)

    def _check(self, key: str, answer: dict[str, Any]) -> None:
        see_log = "see lab.log in the lab's folder"
        if not answer:
            raise LabError("the lab's namespaces could not be set up", see_log)
        if key not in answer:
            # EBUSY: a file system is mounted below a folder that hosts need (`template.build`).
            # None: a program failed, and its words are in the log.
            hints = {errno.EBUSY: "start the lab as root", None: see_log}
            raise LabError(
                f"the kernel refused the lab's {answer['refused']}: {answer['text']}",
                hints.get(answer.get("errno"), USER_NAMESPACES_HINT),
            )

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise ConnectionError("the lab's namespace daemon is gone")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _map_ids(pid: int, plan: DaemonPlan) -> None:
    if plan.mode == "subuid":
        for program, first in (("newuidmap", plan.ids.uid), ("newgidmap", plan.ids.gid)):
            numbers = ["0", str(first), str(plan.ids.count)]
            done = subprocess.run(
                [program, str(pid), *numbers], check=False, capture_output=True, text=True
            )
            if done.returncode:
                raise LabError(f"{program} failed: {done.stderr.strip()}", "check /etc/subuid")
        return
    process = Path(f"/proc/{pid}")
    # Without this the kernel lets no user but root write a gid map.
    if os.geteuid() != 0:
        (process / "setgroups").write_text("deny")
    (process / "uid_map").write_text(f"0 {plan.ids.uid} {plan.ids.count}\n")
    (process / "gid_map").write_text(f"0 {plan.ids.gid} {plan.ids.count}\n")


def _link(pid: int, network: IPv4Network, public: IPv4Network) -> None:
    """Make a link (veth) from this machine into the lab. The kernel removes it with the lab.

    Raise NetworkTaken if another lab has a link of this name.
    """
    name = link_name(network)
    peer = ["peer", "name", "up0", "netns", str(pid)]
    command = ["ip", "link", "add", name, "type", "veth", *peer]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode and os.strerror(errno.EEXIST) in made.stderr:
        raise NetworkTaken
    if made.returncode:
        raise LabError(f"cannot make the lab's network link: {made.stderr.strip()}")
    _have_no_ipv6(name)
    lines = [
        f'link set {name} alias "{_owner(pid)}"',
        f"address add {network[2]}/{network.prefixlen} dev {name}",
        f"link set {name} mtu {MTU} up",
        f"route add {public} via {network[1]} dev {name}",
    ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def _owner(pid: int) -> str:
    """Return what no other process has, now or later: its PID namespace, its pid and its start."""
    return f"{os.stat('/proc/self/ns/pid').st_ino} {pid} {process_started(pid)}"  # noqa: PTH116


def remove_dead_links() -> None:
    """Remove the links of labs that were killed. The kernel keeps a lab's network, and the link
    into it, for minutes if a connection there has data left to send."""
    for alias in Path("/sys/class/net").glob("clab*/ifalias"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it is removed
            there = alias.read_text().split()
            now = _owner(int(there[1])).split()
            if there[0] == now[0] and there != now:
                command = ["ip", "link", "delete", alias.parent.name]
                subprocess.run(command, check=False, capture_output=True)


def _have_no_ipv6(link: str) -> None:
    """Disable IPv6 on the link.

    Otherwise root on a host could make itself this machine's IPv6 router, by announcing itself.
    """
    setting = Path("/proc/sys/net/ipv6/conf", link, "disable_ipv6")
    if setting.exists():
        try:
            setting.write_text("1")
        except OSError as refused:
            log.warning("%s, so hosts can lead this machine's IPv6 astray", refused)
