"""Tags on instances that are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.ec2.errors import translated
from clusterctl.ec2.tags import tag_list

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def tag(client: EC2Client, instance_ids: Sequence[str], labels: Mapping[str, str]) -> None:
    """Set these tags; without instances there is nothing to do. Raises AwsError."""
    if instance_ids:
        given: Any = tag_list(labels)
        with translated():
            client.create_tags(Resources=list(instance_ids), Tags=given)


def untag(client: EC2Client, instance_ids: Sequence[str], key: str) -> None:
    """Take this tag away; without instances there is nothing to do. Raises AwsError."""
    if instance_ids:
        with translated():
            client.delete_tags(Resources=list(instance_ids), Tags=[{"Key": key}])
