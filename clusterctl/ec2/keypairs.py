"""A cluster's key pair at EC2: the public half only, found by tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class KeyPair:
    name: str
    public_key: str

    def holds(self, public_key: str) -> bool:
        """Whether it is this key, whatever the comment."""
        return self.public_key.split()[:2] == public_key.split()[:2]


def find_key_pairs(client: EC2Client, name: str) -> tuple[KeyPair, ...]:
    """The key pairs with the cluster's tag: one, or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_key_pairs(Filters=[of_cluster], IncludePublicKey=True)["KeyPairs"]
    return tuple(KeyPair(pair["KeyName"], pair.get("PublicKey", "")) for pair in found)
