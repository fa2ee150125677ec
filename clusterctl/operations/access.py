"""SSH access to a cluster's nodes, which most operations start from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    HostError,
    HostUnreachable,
    MissingTool,
    UsageError,
)
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.ranges import check_indices
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.domain.timeouts import Timeouts
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KeyRing
from clusterctl.transport.session import Identity
from clusterctl.transport.user_config import KeySources

if TYPE_CHECKING:
    from paramiko import PKey


@dataclass(frozen=True)
class Access:
    """A cluster, its folder, and connections to its nodes.

    `why_lost(node, instance_id, notice)` returns in words why a node was lost, and that only of its
    machine of that id, or of its last one if the id is empty. `notice` is what its guard noticed
    beforehand.

    Use as a context manager: leaving it closes the connections.
    """

    cluster: Cluster
    folder: ClusterFolder
    connections: Connections
    proxy_command: tuple[str, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    why_lost: Callable[[str, str, Mapping[str, object]], str] = lambda node, instance_id, notice: ""

    def __enter__(self) -> Access:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connections.close()

    def target(self, node: Node) -> Target:
        """Return how to reach a node: directly, or through the head node."""
        return cluster_targets(self.cluster, self.proxy_command)(node)

    @property
    def head_name(self) -> str:
        """The head node's name, also if it is gone."""
        gone = 0 in self.cluster.missing
        return f"{self.cluster.name}-0" if gone else self.cluster.head.name

    @property
    def head(self) -> Target:
        """How to reach the head node. Raises HostUnreachable if it is gone."""
        if 0 in self.cluster.missing:
            why = self.why_lost(self.head_name, "", {})
            raise HostUnreachable(
                self.head_name,
                f"the head node is gone, with the jobs and logs on its disk{why and ': '}{why}",
                f"launch another in its place: clusterctl up {self.cluster.name}",
            )
        return self.target(self.cluster.head)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The nodes in service, the head node first. Commands use these where no node is named."""
        return tuple(map(self.target, self.cluster.in_service))

    @property
    def all_targets(self) -> tuple[Target, ...]:
        """All nodes, including those in quarantine."""
        return tuple(map(self.target, self.cluster.nodes))

    def select(self, indices: Sequence[int] | None = None) -> tuple[Target, ...]:
        """Return the nodes with these indices, in service or not; for None, all those in service.

        Raises UsageError naming the indices that no node has.
        """
        if indices is None:
            return self.targets
        by_index = {node.index: node for node in self.cluster.nodes}
        check_indices(self.cluster.name, by_index, indices)
        return tuple(self.target(by_index[index]) for index in indices)


def cluster_targets(
    cluster: Cluster,
    proxy_command: tuple[str, ...] = (),
    latest: Callable[[Node], Node] = lambda node: node,
) -> Callable[[Node], Target]:
    """Return a function that gives the target of any node of a cluster.

    Nodes without a public address are reached through the head node. `latest` returns the newest
    description of a node: while a cluster starts, the head node's public address may appear later
    than the rest.
    """

    def target_of(node: Node) -> Target:
        head = latest(cluster.head)
        jump = None
        if node.needs_jump(head):
            jump = node_target(head, cluster.ssh_user, proxy_command)
        return node_target(node, cluster.ssh_user, proxy_command, jump)

    return target_of


def node_target(
    node: Node, user: str, proxy_command: tuple[str, ...] = (), jump: Target | None = None
) -> Target:
    """Return the target of a node, which `jump` reaches if it is given.

    `proxy_command` is the argv of a program that passes a connected socket, with %h and %p; the
    unprivileged lab needs one.
    """
    # With a jump host, the connection is opened from there, and only the jump host needs the proxy.
    tokens = {"%h": node.address, "%p": "22"}
    argv = () if jump else (tokens.get(word, word) for word in proxy_command)
    proxy = shlex.join(argv)
    return Target(
        host=node.name,
        address=node.address,
        user=user,
        proxy_command=proxy,
        proxy_passes_fd=bool(proxy),
        jump=jump,
        down="" if node.state is NodeState.RUNNING else f"its instance is {node.state.value}",
    )


def log_in_everywhere(access: Access, within_s: float) -> FanoutResult[CommandResult]:
    """Log in to all nodes at once, and run nothing but the login shell: it may run no command.

    Each step (TCP connection, SSH banner, authentication) may take `within_s` seconds, and the
    shell twice as long. Return an error for each node where one fails.
    """
    access.connections.connect_timeout_s = within_s
    return access.connections.run_all(access.all_targets, "true", timeout_s=2 * within_s)


def cluster_key(folder: ClusterFolder) -> PKey:
    """Return the key that logs in to a cluster's nodes: of its file, or of the agent with that key.

    Raises MissingTool if there is none: the file is not there, or cannot be used.
    """
    name, agent = folder.name, os.environ.get("SSH_AUTH_SOCK", "")
    why = f"is not on this machine: {folder.key}"
    hint = "copy the folder from the machine that ran `up`"
    try:
        keys = KeyRing(folder.path).keys(KeySources((folder.key,), agent, only_files=True))
    except UsageError as error:
        keys, why = [], f"cannot be used: {error.message}"
        hint = error.hint or "copy the file from the machine that ran `up`, or a backup"
    if not keys:
        raise MissingTool(
            f"the key of cluster {name} {why}",
            f"{hint}; without it work `clusterctl stop {name} --force`, `clusterctl down {name}`",
        )
    return keys[0]


def open_access(
    cluster: Cluster,
    folder: ClusterFolder,
    proxy_command: tuple[str, ...] = (),
    explain: Callable[[Target, HostError], HostError] = lambda target, error: error,
    timeouts: Timeouts = Timeouts(),
) -> Access:
    """Return access to a cluster's nodes. Opens no connection yet.

    A node that does not run gives HostUnreachable when it is used; the others work. `explain` is
    described at Connections. Raises MissingTool as cluster_key does, ClusterctlError if no
    node runs.
    """
    states = {node.state for node in cluster.nodes}
    if NodeState.RUNNING not in states:
        start = f"start it: clusterctl start {cluster.name}"
        raise ClusterctlError(
            f"no node of {cluster.name} is running",
            start if states == {NodeState.STOPPED} else f"see `clusterctl status {cluster.name}`",
        )
    # The head node runs operations/watchdog.py, which imports this module, without clusterctl.ec2.
    # known_hosts imports that package, so it is imported only here.
    from clusterctl.operations.known_hosts import ClusterHostKeys

    identity = Identity((cluster_key(folder),))
    host_keys = ClusterHostKeys(folder.known_hosts, cluster)
    connections = Connections(identity, host_keys, explain=explain, timeouts=timeouts)
    return Access(cluster, folder, connections, proxy_command, timeouts)
