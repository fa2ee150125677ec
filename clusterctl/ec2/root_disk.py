"""The root volume that a node gets: as asked for, or as image and machine call for. Pure."""

from __future__ import annotations

from clusterctl.domain.spec import Disk
from clusterctl.ec2.machines import MachineType

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
