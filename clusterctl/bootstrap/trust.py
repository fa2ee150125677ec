"""Who knows whom inside a cluster: the texts of known_hosts, ssh_config and /etc/hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.bootstrap.inspection import MPI_KEY

KNOWN_HOSTS = "clusterctl_known_hosts"


@dataclass(frozen=True)
class NodeIdentity:
    """A node as the others know it. `host_keys` are `TYPE BASE64`."""

    name: str
    private_ip: str
    public_ip: str | None
    hostname: str
    host_keys: tuple[str, ...]

    @property
    def inside_name(self) -> str:
        """The name EC2 gives it inside the VPC."""
        return f"ip-{self.private_ip.replace('.', '-')}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it goes by, each once."""
        public = self.public_ip or ""
        names = (self.private_ip, self.name, self.inside_name, public, self.hostname)
        return tuple(dict.fromkeys(name for name in names if name))


def known_hosts_lines(names: Sequence[str], host_keys: Sequence[str], note: str = "") -> list[str]:
    """`NAMES TYPE BASE64 NOTE`, one per key."""
    return [" ".join((",".join(names), key, note)).rstrip() for key in host_keys]


def cluster_known_hosts(members: Sequence[NodeIdentity]) -> str:
    """For the head node, the first member: all nodes, and itself as localhost."""
    head = members[0]
    lines = known_hosts_lines((*head.names, "localhost", "127.0.0.1", "::1"), head.host_keys)
    for member in members[1:]:
        lines += known_hosts_lines(member.names, member.host_keys)
    return "".join(line + "\n" for line in lines)


def cluster_ssh_config(members: Sequence[NodeIdentity], user: str) -> str:
    """For the head node's ~/.ssh/config: how mpirun and people get from node to node."""
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
    """For /etc/hosts, so that `ssh demo-1` works on every node."""
    return "".join(
        f"{member.private_ip} {member.name} {member.inside_name}\n" for member in members
    )
