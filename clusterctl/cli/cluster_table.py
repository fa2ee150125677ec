"""A cluster's nodes, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.cli import output
from clusterctl.domain.cluster import Cluster, Node, NodeState

HEADERS = ("NODE", "STATE", "TYPE", "GPUS", "ADDRESS", "ZONE")
# Node -> why SSH did not reach it, "" where it did; nodes that were not tried are left out.
Reached = Mapping[str, str]


def print_nodes(
    cluster: Cluster, gpus: Sequence[int] | None = None, reached: Reached | None = None
) -> None:
    """A table: node, state, type, GPUs (as counted, where they were), address, zone, and whether
    SSH reaches it, where that was tried.
    """
    rows = [
        (
            node.name,
            node.state.value,
            node.instance_type,
            count,
            node.address or "-",
            node.availability_zone,
        )
        for node, count in zip(cluster.nodes, _counts(cluster, gpus))
    ]
    if reached is None:
        output.table(HEADERS, rows)
        return
    shown = {None: "-", True: "yes", False: "no"}
    ssh = [shown[_is_reached(node, reached)] for node in cluster.nodes]
    output.table((*HEADERS, "SSH"), [(*row, word) for row, word in zip(rows, ssh)])


def cluster_data(
    cluster: Cluster, gpus: Sequence[int] | None = None, reached: Reached | None = None
) -> dict[str, Any]:
    """The same for `--json`, with what the table leaves out."""
    nodes = [
        {
            "index": node.index,
            "name": node.name,
            "instance_id": node.instance_id,
            "state": node.state.value,
            "instance_type": node.instance_type,
            "gpus": count,
            "private_ip": node.private_ip,
            "public_ip": node.public_ip,
            "availability_zone": node.availability_zone,
            "launched_at": node.launched_at.isoformat(),
        }
        for node, count in zip(cluster.nodes, _counts(cluster, gpus))
    ]
    if reached is not None:
        for described, node in zip(nodes, cluster.nodes):
            described["reachable"] = _is_reached(node, reached)
            described["unreachable_because"] = reached.get(node.name) or None
    return {
        "name": cluster.name,
        "region": cluster.region,
        "ssh_user": cluster.ssh_user,
        "nodes": nodes,
    }


def _is_reached(node: Node, reached: Reached) -> bool | None:
    """None where it runs and was not tried."""
    if node.state is not NodeState.RUNNING:
        return False
    return not reached[node.name] if node.name in reached else None


def _counts(cluster: Cluster, gpus: Sequence[int] | None) -> Sequence[int]:
    return [node.gpus for node in cluster.nodes] if gpus is None else gpus
