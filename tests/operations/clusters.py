"""A cluster as a value, for tests without EC2."""

from __future__ import annotations

from datetime import datetime, timezone

from clusterctl.domain.cluster import Cluster, Node, NodeState

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpKsSb4iRTaMhcPcU3cYKcwWxW8oXhGJFRSgkE3Jd2k"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAMurDY1ljmtMV8d9sHhDgH0pT0Yc3bMgmu0NGQ2vkuA"


def node(index: int, public_ip: str | None = None, **fields) -> Node:
    common = {
        "index": index,
        "name": f"demo-{index}",
        "instance_id": f"i-{index}",
        "state": NodeState.RUNNING,
        "instance_type": "p4d.24xlarge",
        "gpus": 8,
        "private_ip": f"10.0.0.{index + 4}",
        "public_ip": public_ip,
        "zone": "us-east-1a",
        "launched_at": datetime(2026, 11, 1, tzinfo=timezone.utc),
    }
    return Node(**{**common, **fields})


def cluster(*nodes: Node) -> Cluster:
    return Cluster("demo", "us-east-1", "ubuntu", nodes)
