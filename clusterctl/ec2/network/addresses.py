"""A cluster's elastic address: the head node's, where nodes get no public address by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class ElasticAddress:
    """`interface_id` is the network interface it is on; empty while it is on none."""

    allocation_id: str
    public_ip: str
    association_id: str = ""
    interface_id: str = ""


def find_addresses(client: EC2Client, name: str) -> tuple[ElasticAddress, ...]:
    """Those with the cluster's tag: one, or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_addresses(Filters=[of_cluster])["Addresses"]
    return tuple(
        ElasticAddress(
            allocation_id=address["AllocationId"],
            public_ip=address.get("PublicIp", ""),
            association_id=address.get("AssociationId", ""),
            interface_id=address.get("NetworkInterfaceId", ""),
        )
        for address in found
    )


def release_addresses(client: EC2Client, name: str) -> tuple[str, ...]:
    """Give the cluster's addresses back; what they were. Raises AwsError."""
    released = []
    for address in find_addresses(client, name):
        try:
            with translated():
                if address.association_id:
                    client.disassociate_address(AssociationId=address.association_id)
        except AwsError as error:
            if error.code != "InvalidAssociationID.NotFound":
                raise
        try:
            with translated():
                client.release_address(AllocationId=address.allocation_id)
        except AwsError as error:
            if error.code != "InvalidAllocationID.NotFound":
                raise
        released.append(address.public_ip)
    return tuple(released)
