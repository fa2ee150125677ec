"""What makes nodes one cluster: names, keys and host keys, and the script that installs them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.bootstrap.inspection import MPI_KEY
from clusterctl.node.jobs.folder import KNOWN_HOSTS


@dataclass(frozen=True)
class NodeIdentity:
    """What the other nodes need to know of a node. `host_keys` are texts `TYPE BASE64`."""

    name: str
    private_ip: str
    public_ip: str | None
    hostname: str
    host_keys: tuple[str, ...]

    @property
    def inside_name(self) -> str:
        """The host name that EC2 gives the node inside the VPC."""
        return f"ip-{self.private_ip.replace('.', '-')}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names and addresses of the node, each once."""
        public = self.public_ip or ""
        names = (self.private_ip, self.name, self.inside_name, public, self.hostname)
        return tuple(dict.fromkeys(name for name in names if name))


def known_hosts_lines(names: Sequence[str], host_keys: Sequence[str], note: str = "") -> list[str]:
    """Return lines `NAMES TYPE BASE64 NOTE` for a known_hosts file, one per key."""
    return [" ".join((",".join(names), key, note)).rstrip() for key in host_keys]


def cluster_known_hosts(members: Sequence[NodeIdentity]) -> str:
    """Return the head node's known_hosts: all nodes, and the head node (the first) as localhost."""
    head = members[0]
    lines = known_hosts_lines((*head.names, "localhost", "127.0.0.1", "::1"), head.host_keys)
    for member in members[1:]:
        lines += known_hosts_lines(member.names, member.host_keys)
    return "".join(line + "\n" for line in lines)


def cluster_ssh_config(members: Sequence[NodeIdentity], user: str) -> str:
    """Return the block for the head node's ~/.ssh/config, by which mpirun and users reach nodes."""
    names = dict.fromkeys(name for member in members for name in member.names)
    return f"""\
Host {" ".join((*names, "localhost", "127.0.0.1"))}
    User {user}
    IdentityFile ~/.ssh/{MPI_KEY}
    IdentitiesOnly yes
    StrictHostKeyChecking yes
    UserKnownHostsFile ~/.ssh/{KNOWN_HOSTS}
    BatchMode yes
    ConnectTimeout 20
    ServerAliveInterval 10
    ServerAliveCountMax 3
Host *
"""


def etc_hosts(members: Sequence[NodeIdentity]) -> str:
    """Return the block for /etc/hosts, with which `ssh demo-1` works on every node."""
    return "".join(
        f"{member.private_ip} {member.name} {member.inside_name}\n" for member in members
    )


BEGIN = "# >>> clusterctl >>>"
END = "# <<< clusterctl <<<"

# without_block FILE: print the file without clusterctl's block. A block without an end is left in
# the file, because what follows it may be the user's.
_FUNCTIONS = f"""\
set -eu
umask 077
mkdir -p ~/.ssh
cd ~/.ssh
without_block() {{
    [ -f "$1" ] || return 0
    awk -v begin={shlex.quote(BEGIN)} -v end={shlex.quote(END)} '
        !inside && $0 == begin {{ inside = 1; kept = $0; next }}
        inside && $0 == begin {{ print kept; kept = $0; next }}
        inside {{ kept = kept "\\n" $0; if ($0 == end) inside = 0; next }}
        {{ print }}
        END {{ if (inside) print kept }}
    ' "$1"
}}
"""
# The block holds only the current head node's key: a head node that was replaced must not be able
# to log in.
_AUTHORIZE = """\
touch authorized_keys
{ without_block authorized_keys; printf '%s' "$block"; } >keys.clusterctl
mv keys.clusterctl authorized_keys
"""
# Without sudo there are no names in /etc/hosts. They are a convenience: addresses always work.
_ETC_HOSTS = """\
if names=$(without_block /etc/hosts; printf '%s' "$block") && [ -n "$names" ] &&
    [ "$names" != "$(cat /etc/hosts)" ]; then
    printf '%s\\n' "$names" | sudo -n tee /etc/hosts >/dev/null 2>&1 ||
        echo 'note /etc/hosts unchanged: no sudo'
fi
"""
_CONFIG = """\
{ printf '%s' "$block"; without_block config; } >config.clusterctl
mv config.clusterctl config
"""


def node_script(members: Sequence[NodeIdentity], mpi_public_key: str, user: str, head: bool) -> str:
    """Return the script for `sh -s` on one node. `members` are all nodes, the head node first. With
    `head` the script also configures SSH to the other nodes."""
    key_line = f"{mpi_public_key}\n"
    script = [
        _FUNCTIONS,
        f"block={shlex.quote(_block(key_line))}\n",
        _AUTHORIZE,
        f"block={shlex.quote(_block(etc_hosts(members)))}\n",
        _ETC_HOSTS,
    ]
    if head:
        script += [
            f"printf '%s' {shlex.quote(cluster_known_hosts(members))} >{KNOWN_HOSTS}.new\n",
            f"mv {KNOWN_HOSTS}.new {KNOWN_HOSTS}\n",
            f"block={shlex.quote(_block(cluster_ssh_config(members, user)))}\n",
            _CONFIG,
        ]
    return "".join([*script, "echo complete\n"])


def _block(text: str) -> str:
    return f"{BEGIN}\n{text}{END}\n"
