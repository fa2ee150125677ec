"""The user data that an instance was launched with."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def find_user_data(client: EC2Client, instance_id: str) -> bytes:
    """As RunInstances got it; empty for none. Raises AwsError."""
    with translated():
        answer = client.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    return base64.b64decode((answer.get("UserData") or {}).get("Value", ""))
