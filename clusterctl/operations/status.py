"""`status` and `list`: what exists, as EC2 has it now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import NoSuchCluster
from clusterctl.ec2.instances import Instance, as_cluster, find_instances
from clusterctl.operations.keep import check_site

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.folder import ClusterFolder


@dataclass(frozen=True)
class ClusterStatus:
    """A cluster, and all that costs money for it."""

    cluster: Cluster
    instances: tuple[Instance, ...] = ()

    @property
    def leaving(self) -> tuple[Node, ...]:
        """Nodes that are being replaced or removed, and cost until they are gone."""
        members = {node.instance_id for node in self.cluster.nodes}
        return tuple(
            found.node
            for found in self.instances
            if found.retired or found.node.instance_id not in members
        )

    @property
    def summary(self) -> str:
        """`4 running`, `3 running, 1 stopped, 1 missing`."""
        return states(self.cluster, len(self.cluster.missing))


def find_own(clients: Clients, folder: ClusterFolder) -> tuple[Instance, ...]:
    """The instances of a folder's cluster, in one look; none of another account's namesake.

    Raises UsageError where the cluster is elsewhere, AwsError.
    """
    instances = find_instances(clients.ec2, folder.path.name)
    check_site(folder, clients, instances)
    return instances


def cluster_status(clients: Clients, folder: ClusterFolder) -> ClusterStatus:
    """One look. Raises NoSuchCluster, UsageError, AwsError."""
    name = folder.path.name
    instances = find_own(clients, folder)
    cluster = as_cluster(clients.ec2, name, instances)
    if cluster is None:
        raise NoSuchCluster(
            f"there is no cluster {name} in {clients.ec2.meta.region_name}",
            f"see `clusterctl list`, or launch it: clusterctl up {name}",
        )
    return ClusterStatus(cluster, instances)


def states(cluster: Cluster, missing: int = 0) -> str:
    """The nodes counted by state, commonest first."""
    counts = Counter(node.state.value for node in cluster.nodes)
    parts = [f"{count} {state}" for state, count in counts.most_common()]
    return ", ".join([*parts, f"{missing} missing"] if missing else parts)
