"""Checks of what the lab needs from the machine, made before anything is started."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from clusterctl.domain.errors import LabError, MissingTool
from clusterctl.lab.faults.hosts import SLOWEST_BIT
from clusterctl.lab.hosts.daemon.host_faults import shape_of

# Program -> the Debian and Ubuntu package that contains it.
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "sudo": "sudo",
}
MOTO = "moto[server]>=5.2,<6"  # as in setup.cfg
# Where the lab's programs are searched. A user's own PATH may lack the sbin folders.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ALLOW_USER_NAMESPACES = "sudo sysctl -w user.max_user_namespaces=10000"
USER_NAMESPACES_HINT = f"allow them with: {ALLOW_USER_NAMESPACES}"

# Kernel settings with which distributions forbid user namespaces -> (the value that forbids them,
# the command that allows them).
SYSCTLS = {
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "kernel/unprivileged_userns_clone": ("0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    "user/max_user_namespaces": ("0", ALLOW_USER_NAMESPACES),
}


def check_machine(euid: int) -> None:
    """Raise MissingTool or LabError, with the command that helps, if the lab cannot run here."""
    if sys.version_info < (3, 10):
        raise MissingTool(
            "the local EC2 needs Python 3.10 or newer: moto 5.2 does",
            "install clusterctl in a virtual environment of a newer Python",
        )
    missing = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH_PATH)]
    if not Path("/usr/bin/python3").exists():
        raise MissingTool(
            "the lab's hosts need the system's own Python, /usr/bin/python3",
            "sudo apt-get install python3",
        )
    if missing:
        packages = " ".join(sorted({PROGRAMS[name] for name in missing}))
        raise MissingTool(f"the lab needs {', '.join(missing)}", f"sudo apt-get install {packages}")
    if not all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors")):
        hint = f"{sys.executable} -m pip install '{MOTO}'"
        raise MissingTool("the local EC2 needs moto's server", hint)
    files = {name: Path("/proc/sys", name) for name in SYSCTLS}
    values = {name: file.read_text().strip() for name, file in files.items() if file.exists()}
    command = refusing_sysctl(values, euid)
    if command:
        raise LabError("this machine does not let users make user namespaces", command)


@functools.cache
def check_shaping() -> None:
    """Raise MissingTool or LabError if a network link cannot be given a rate.

    A success is cached. A failure is not, because the user may install what is missing.
    """
    if not shutil.which("tc", path=SEARCH_PATH):
        raise MissingTool("shaping a link needs tc", "sudo apt-get install iproute2")
    probe = ["tc", "qdisc", "add", "dev", "lo", "root", *shape_of(SLOWEST_BIT).split()]
    # In a network namespace of its own: the machine's `lo` is not touched, and root is not needed.
    isolated = ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run(
        [*isolated, *probe], env={"PATH": SEARCH_PATH}, capture_output=True, text=True, check=False
    )
    if tried.returncode:
        reason = tried.stderr.strip() or f"exit status {tried.returncode}"
        raise LabError(f"this kernel cannot shape links: {reason}", "sudo modprobe sch_tbf")


def refusing_sysctl(values: Mapping[str, str], euid: int) -> str | None:
    """Return the command that allows user namespaces; None if no setting forbids them.

    `values` are the settings of SYSCTLS that this kernel has.
    """
    for name, (refuses, command) in SYSCTLS.items():
        for_users_only = name.startswith("kernel/")
        if values.get(name) == refuses and not (for_users_only and euid == 0):
            return command
    return None
