"""Has a cluster's files follow nodes that were stopped and started without clusterctl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, NodeState
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import write_file

if TYPE_CHECKING:
    from clusterctl.operations.folder import ClusterFolder


def follow_addresses(
    cluster: Cluster, folder: ClusterFolder, proxy_command: tuple[str, ...] = ()
) -> bool:
    """Write ssh_config and known_hosts again if a running node has another address than there.

    EC2 gives an instance a new public address at each start. The host keys that are known for the
    same instance id stay valid. Returns whether the files were written: not if another command
    has the folder's lock, which may be about to write them, or if the folder cannot be written.
    """
    if not folder.ssh_config.exists():
        return False
    known = folder.node_addresses()
    running = [node for node in cluster.nodes if node.state is NodeState.RUNNING]
    if all(known.get(node.name, node.address) == node.address for node in running):
        return False
    # Imported here because they import ten other modules, and only this rare case needs them.
    from clusterctl.operations.known_hosts import LearntHostKeys
    from clusterctl.operations.local_state import locked, ssh_config_text

    try:
        with locked(folder):
            host_keys = LearntHostKeys(folder.known_hosts)
            write_file(folder.known_hosts, host_keys.text(cluster.nodes))
            write_file(folder.ssh_config, ssh_config_text(cluster, folder, proxy_command))
    except (ClusterctlError, OSError):
        return False
    return True
