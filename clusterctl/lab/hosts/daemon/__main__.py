"""The lab's namespace daemon. It is PID 1 of its namespace, so everything in there ends with it.

`clusterctl.lab.hosts.namespaces` starts it as `python3 -I __main__.py CONTROL_FD NETWORK PUBLIC
DIAL_FD CGROUPS`, where CONTROL_FD is one end of a socket pair. It ends when the other end closes.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4]))

from clusterctl.lab.hosts.daemon import loop, mounts, syscalls  # noqa: E402 - the path comes first
from clusterctl.lab.hosts.daemon.loop import Setup  # noqa: E402


def main() -> None:
    """Enter the lab's namespaces, fork the daemon proper, and wait for it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    network, public = (ipaddress.IPv4Network(argument) for argument in sys.argv[2:4])
    dial, groups = int(sys.argv[4]), tuple(map(Path, json.loads(sys.argv[5])))
    # Read the files before entering the user namespace: there this folder may be unreadable.
    folder = Path(__file__).resolve().parents[1] / "files"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    if os.geteuid() == 0:
        _show_folders_bare()
    _enter(control)
    single_uid = _mapped_uids() == 1
    daemon = os.fork()
    if daemon == 0:
        syscalls.die_with_parent()
        loop.run(Setup(control, network, public, files, single_uid, dial, groups))
    control.close()
    _, status = os.waitpid(daemon, 0)
    sys.exit(0 if status == 0 else 1)


def _show_folders_bare() -> None:
    """Mount the copy-on-write folders over themselves, without the file systems mounted below them.

    With those the kernel refuses them as lower layers (`mounts.folders_with_mounts_below`). Only
    root can do this.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE, "")
    for name in mounts.COPY_ON_WRITE:
        syscalls.mount(f"/{name}", f"/{name}", "", syscalls.MS_BIND, "")


def _enter(control: socket.socket) -> None:
    """Enter a new user namespace, become its root, and enter the other namespaces.

    The launcher maps the ids in between.
    """
    _step(control, "user namespace", lambda: syscalls.unshare(syscalls.CLONE_NEWUSER))
    if _mapped_uids() > 1:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # After the change of ids, because that undoes both.
    syscalls.own_proc_files()
    syscalls.die_with_parent()
    _step(control, "namespaces", lambda: syscalls.unshare(syscalls.ALL_NAMESPACES))


def _step(control: socket.socket, what: str, act: Callable[[], None]) -> None:
    """Do one step of the start, report it to the launcher, and wait until it has done its part."""
    try:
        act()
    except OSError as refused:
        _send(control, {"refused": what, "errno": refused.errno, "text": str(refused)})
        sys.exit(1)
    _send(control, {"done": what})
    if not control.recv(1):
        sys.exit(1)


def _send(control: socket.socket, message: dict[str, object]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _mapped_uids() -> int:
    """Return the number of uids in this user namespace; 1 in the mode `single`."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines)


if __name__ == "__main__":
    main()
