"""The calls that delete things, in the order in which they have to be made."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.ec2.gc.resources import Kind


@dataclass(frozen=True)
class Deletion:
    """The call that deletes one thing. `gone` are codes that say it is not there (any more)."""

    operation: str
    argument: str
    gone: tuple[str, ...]
    in_use: tuple[str, ...] = ()
    by_name: bool = False


DELETIONS = {
    Kind.ADDRESS: Deletion(
        "release_address",
        "AllocationId",
        ("InvalidAllocationID.NotFound",),
        ("InvalidIPAddress.InUse",),
    ),
    Kind.VOLUME: Deletion(
        "delete_volume", "VolumeId", ("InvalidVolume.NotFound",), ("VolumeInUse",)
    ),
    Kind.INTERFACE: Deletion(
        "delete_network_interface",
        "NetworkInterfaceId",
        ("InvalidNetworkInterfaceID.NotFound",),
        ("InvalidNetworkInterface.InUse",),
    ),
    Kind.PLACEMENT_GROUP: Deletion(
        "delete_placement_group",
        "GroupName",
        ("InvalidPlacementGroup.Unknown",),
        ("InvalidPlacementGroup.InUse",),
        by_name=True,
    ),
    Kind.SECURITY_GROUP: Deletion(
        "delete_security_group",
        "GroupId",
        ("InvalidGroup.NotFound", "InvalidGroupId.NotFound"),
        ("DependencyViolation", "InvalidGroup.InUse"),
    ),
    Kind.KEY_PAIR: Deletion(
        "delete_key_pair", "KeyName", ("InvalidKeyPair.NotFound",), by_name=True
    ),
}
