"""The tags that say what exists: the only store of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

CLUSTER = "clusterctl:cluster"
# One RunInstances call gives all its instances the same tags: a node's index is this number
# plus its AmiLaunchIndex.
FIRST_INDEX = "clusterctl:first-index"
NODES = "clusterctl:nodes"
GPUS = "clusterctl:gpus"
USER = "clusterctl:user"
IMAGE = "clusterctl:image"
# The client token: EC2 can be asked for what a launch of unknown outcome made.
LAUNCH = "clusterctl:launch"


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as EC2 takes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_dict(tags: Iterable[Any] | None) -> dict[str, str]:
    """Tags as EC2 gives them, by key."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags or ()}


def of_cluster(name: str) -> dict[str, Any]:
    """The filter for everything that belongs to a cluster."""
    return {"Name": f"tag:{CLUSTER}", "Values": [name]}


def resource_name(name: str) -> str:
    """The name of a cluster's key pair and security group."""
    return f"clusterctl-{name}"
