"""Has a cluster's files follow what was done to its nodes elsewhere.

That is in AWS's console, or by another machine.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, NodeState
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import write_file
from clusterctl.domain.hostsfile import parse_hosts_file
from clusterctl.node.jobs.folder import text_in

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


def follow_quarantine(cluster: Cluster, folder: ClusterFolder) -> bool:
    """Write the hosts file again if it has a node in quarantine, or lacks one that came back.

    Another machine may have done that. Returns whether the file was written, as follow_addresses.
    """
    text = text_in(folder.hosts)
    resting = set(re.findall(r"^# ([\d.]+): .*, in quarantine since", text, re.MULTILINE))
    service = {node.private_ip for node in cluster.in_service}
    out = {node.private_ip for node in cluster.nodes} - service
    if not text or (resting <= out and not out & set(re.findall(r"^[\d.]+", text, re.M))):
        return False
    from clusterctl.operations.local_state import hosts_text, locked

    try:
        with locked(folder):
            slots = {one.host: one.slots for one in parse_hosts_file(text).entries}
            # A node that another machine has just launched may not be ready.
            known = [one for one in cluster.nodes if one.private_ip in {*slots, *resting, *out}]
            now = replace(cluster, nodes=tuple(known))
            gpus = [slots.get(node.private_ip, node.gpus) for node in now.in_service]
            write_file(folder.hosts, hosts_text(now, gpus))
    except (ClusterctlError, OSError):
        return False
    return True
