"""What EC2 tells of one instance at a time: its user data, and what a power-off does to it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# EC2 has no call for several; more at once would only be throttled.
AT_ONCE = 8


def find_user_data(client: EC2Client, instance_id: str) -> bytes:
    """As RunInstances got it; empty for none. Raises AwsError."""
    with translated():
        answer = client.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    return base64.b64decode((answer.get("UserData") or {}).get("Value", ""))


def set_at_power_off(client: EC2Client, instance_ids: Iterable[str], behavior: str) -> None:
    """Have EC2 `stop` or `terminate` these when they switch themselves off. Raises AwsError.

    EC2 is asked what it has, not a tag: a change may have been cut off half-way.
    """

    def one(instance_id: str) -> None:
        wanted: Any = {"Value": behavior}
        name: Any = "instanceInitiatedShutdownBehavior"
        with translated():
            found = client.describe_instance_attribute(InstanceId=instance_id, Attribute=name)
            if found.get("InstanceInitiatedShutdownBehavior") != wanted:
                client.modify_instance_attribute(
                    InstanceId=instance_id, InstanceInitiatedShutdownBehavior=wanted
                )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, instance_ids))
