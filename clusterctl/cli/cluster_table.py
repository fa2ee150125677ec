"""A cluster's nodes, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterctl.cli import output
from clusterctl.domain.cluster import Cluster

HEADERS = ("NODE", "STATE", "TYPE", "GPUS", "ADDRESS", "ZONE")


def print_nodes(cluster: Cluster, gpus: Sequence[int] | None = None) -> None:
    """A table: node, state, type, GPUs (as counted, where they were), address, zone."""
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
    output.table(HEADERS, rows)


def cluster_data(cluster: Cluster, gpus: Sequence[int] | None = None) -> dict[str, Any]:
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
    return {
        "name": cluster.name,
        "region": cluster.region,
        "ssh_user": cluster.ssh_user,
        "nodes": nodes,
    }


def _counts(cluster: Cluster, gpus: Sequence[int] | None) -> Sequence[int]:
    return [node.gpus for node in cluster.nodes] if gpus is None else gpus
