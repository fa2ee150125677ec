"""The files generated from what exists: hosts, ssh_config. Losing one loses nothing."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file
from clusterctl.operations.access import needs_jump
from clusterctl.operations.folder import ClusterFolder

# ssh counts until sshd answers: the kernel of a frozen host still takes connections.
CONNECT_TIMEOUT_S = 10


def hosts_text(cluster: Cluster, gpus: Sequence[int] | None = None) -> str:
    """The hosts file: private addresses, head first. `gpus`: as counted, else as the type has.

    A node without GPU takes one rank: Horovod then runs on its CPU.
    """
    counted = gpus if gpus is not None else [node.gpus for node in cluster.nodes]
    entries = (
        HostSlots(node.private_ip, max(count, 1)) for node, count in zip(cluster.nodes, counted)
    )
    return format_hosts_file(HostsFile(tuple(entries)))


def ssh_config_text(
    cluster: Cluster, folder: ClusterFolder, proxy_command: tuple[str, ...] = ()
) -> str:
    """For `ssh -F`, or an Include line: `ssh demo-0`."""
    # By private address too: that is how the hosts file names them.
    known = [node for node in cluster.nodes if node.address]
    hosts = "".join(
        f"Host {node.name} {node.private_ip}\n    HostName {node.address}\n"
        + _way(node, cluster.head, folder, proxy_command)
        for node in known
    )
    names = " ".join(f"{node.name} {node.private_ip}" for node in known)
    return f"""\
# Written by `clusterctl up {cluster.name}`, and written anew by the next.
{hosts}Host {names}
    User {cluster.ssh_user}
    IdentityFile {_quoted(folder.key)}
    IdentitiesOnly yes
    UserKnownHostsFile {_quoted(folder.known_hosts)}
    StrictHostKeyChecking yes
    ConnectTimeout {CONNECT_TIMEOUT_S}
    ServerAliveInterval 10
    ServerAliveCountMax 3
"""


def _way(node: Node, head: Node, folder: ClusterFolder, proxy_command: tuple[str, ...]) -> str:
    if needs_jump(node, head):
        config = str(folder.ssh_config.absolute())
        if re.fullmatch(r"[\w/.+@=-]+", config):
            return f"    ProxyJump {head.name}\n"
        # ProxyJump starts another ssh with this file, whose name it does not quote.
        argv = ["ssh", "-F", config.replace("%", "%%"), "-W", "[%h]:%p", head.name]
        return f"    ProxyCommand {shlex.join(argv)}\n"
    if proxy_command:
        # %h and %p are ssh's; everything is one line for the user's shell.
        return f"    ProxyCommand {shlex.join(proxy_command)}\n    ProxyUseFdpass yes\n"
    return ""


def _quoted(path: Path) -> str:
    """A path as ssh_config takes it: spaces quoted, percent signs doubled."""
    text = str(path.absolute()).replace("%", "%%")
    if any(character in text for character in " \t\"'#\\"):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one step, readable by its owner only."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes it 0600.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException as failure:
        Path(draft).unlink(missing_ok=True)
        if isinstance(failure, OSError):
            failure.filename = str(path)  # a full disk does not say which
        raise
