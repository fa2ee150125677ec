"""The root volume that a node gets, as asked for or as image and machine call for; its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.domain.spec import Disk
from clusterctl.ec2.errors import translated
from clusterctl.ec2.machines import MachineType, find_machine_type

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LEAST_GIB = 150
# Big machines load images and write checkpoints faster than gp3's free share (3,000 and 125).
LARGE_GPUS, LARGE_IOPS, LARGE_MIB_S = 4, 6000, 500


# The root is loaded from the image's snapshot while it is read, at a rate that EC2 leaves open: the
# first `import tensorflow` takes minutes. The fastest rate that can be bought, in MiB/s.
LOAD_MIB_S = 300


def load_mib_s(machine: MachineType, image_gib: int) -> int | None:
    """At which rate the root volume is filled from its image, where that is worth its price.

    On big machines it is less than half a minute of the machine's own for 100 GiB.
    """
    return LOAD_MIB_S if machine.gpus >= LARGE_GPUS and image_gib else None


def root_disk(asked: Disk, machine: MachineType, image_gib: int) -> Disk:
    """`image_gib` is the size of the image's snapshot. None: gp3's own share."""
    large = machine.gpus >= LARGE_GPUS
    return Disk(
        asked.size_gib or max(image_gib, LEAST_GIB),
        asked.iops or (LARGE_IOPS if large else None),
        asked.throughput_mib_s or (LARGE_MIB_S if large else None),
        asked.kms_key,
    )


def root_rate(client: EC2Client, instance_id: str) -> float | None:
    """Bytes a second that the root volume of a machine takes: the least of what the volume (a gp3)
    and the machine's way to EBS carry. None where EC2 says neither. Raises AwsError.
    """
    with translated():
        found = client.describe_instances(InstanceIds=[instance_id])
        machine = found["Reservations"][0]["Instances"][0]
        ids = [
            one["Ebs"]["VolumeId"]
            for one in machine["BlockDeviceMappings"]
            if one["DeviceName"] == machine["RootDeviceName"]
        ]
        volumes = client.describe_volumes(VolumeIds=ids)["Volumes"] if ids else []
    ebs_mb_s = find_machine_type(client, machine["InstanceType"]).ebs_mb_s
    rates = [ebs_mb_s * 1e6, *(one.get("Throughput", 0) * 2.0**20 for one in volumes)]
    return min((rate for rate in rates if rate), default=None)
