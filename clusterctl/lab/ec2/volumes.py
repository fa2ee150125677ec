"""The EBS volumes of an instance: its image's, with the request's changes and additions.

moto makes a root volume of 8 GiB for every image, and ignores the performance that a request sets.
It allows every change of a volume and makes it at once. EBS allows one change in six hours, allows
no smaller size, and takes some time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_block_store import VolumeModification
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import guard, override, setup
from clusterctl.lab.ec2.launch import Request, Rule, current_request, refuse

# Types that need a number of IOPS.
IOPS_TYPES = ("io1", "io2")
# Type -> its smallest and largest size in GiB.
SIZES = {"standard": (1, 1024), "gp2": (1, 16_384), "gp3": (1, 65_536), "io1": (4, 16_384)}
SIZES |= {"io2": (4, 65_536), "st1": (125, 16_384), "sc1": (125, 16_384)}
# Smallest and largest values of gp3: IOPS, MiB/s. The smallest are the default.
GP3_IOPS, GP3_THROUGHPUT = (3000, 80_000), (125, 2000)
# Smallest and largest rate at which a volume is filled from its snapshot, and the most of all
# volumes together that are being filled in a region.
LOAD_MIB_S, LOAD_REGION_MIB_S = (100, 300), 5000
# How long a change is `modifying`, and its age when it is `completed`. On EBS the largest volumes
# take days. Then, the time until EBS allows the next change.
MODIFYING_S, OPTIMIZING_S, NEXT_CHANGE_S = 0.3, 2.0, 6 * 3600
# Largest ratios of gp3.
IOPS_PER_GIB, THROUGHPUT_PER_IOPS = 500, 0.25


@dataclass(frozen=True)
class VolumeRequest:
    """A volume to make with an instance. None stands for what the request leaves out.

    `snapshot_gib` is the snapshot's size, `load_mib_s` the rate at which it fills the volume.
    """

    device: str
    type: str
    size_gib: int
    iops: int | None = None
    throughput: int | None = None
    snapshot_id: str | None = None
    snapshot_gib: int = 0
    encrypted: bool = False
    kms_key_id: str | None = None
    delete: bool = False
    load_mib_s: int | None = None


# The root volume of an image without mappings, as moto makes it.
DEFAULT_DISK = VolumeRequest("/dev/sda1", "gp2", 8, delete=True)


class VolumeRule(Rule):
    """The instance's volumes follow EC2's rules."""

    def check_request(self, request: Request) -> None:
        disks = disks_of(request.backend, request.image, request.get("BlockDeviceMappings", []))
        for disk in disks:
            check_disk(disk)
        nodes = int(request.get("MaxCount", 1))
        check_load(request.backend, nodes * sum(disk.load_mib_s or 0 for disk in disks))


@override(EC2Response)
def _parse_block_device_mapping(_: Any) -> list[Any]:
    """Return no mappings, so that moto has `setup_defaults` make all volumes."""
    return []


@guard(EC2Backend)
def modify_volume(backend: Any, volume_id: str, target_size: int | None, *_: Any) -> None:
    check_change(backend.get_volume(volume_id), target_size)


@setup
def _take_time() -> None:
    VolumeModification.modification_state = property(_state_of)  # type: ignore[assignment, method-assign]


def _state_of(change: Any) -> str:
    age_s = (utcnow() - change.start_time).total_seconds()
    if age_s < MODIFYING_S:
        return "modifying"
    return "optimizing" if age_s < OPTIMIZING_S else "completed"


def check_change(volume: Any, size_gib: int | None) -> None:
    """Raise EBS's error for the first of its rules that a change of a volume breaks."""
    if size_gib is not None and size_gib < volume.size:
        raise refuse("smaller-volume")
    for change in volume.modifications[-1:]:
        if change.modification_state != "completed":
            raise refuse("modifying", volume.id, change.modification_state.upper())
        if (utcnow() - change.start_time).total_seconds() < NEXT_CHANGE_S:
            raise refuse("modified")


@override(Instance)
def setup_defaults(instance: Any) -> None:
    """Make an instance's volumes. moto calls this for an instance without mappings: for all."""
    request, backend = current_request(), instance.ec2_backend
    image = backend.amis.get(instance.image_id)
    mappings = request.get("BlockDeviceMappings", []) if request else []
    for disk in disks_of(backend, image, mappings):
        is_gp3 = disk.type == "gp3"
        volume = backend.create_volume(
            size=disk.size_gib,
            zone_name=instance.placement.zone,
            snapshot_id=disk.snapshot_id,
            encrypted=disk.encrypted,
            kms_key_id=disk.kms_key_id,
            volume_type=disk.type,
            iops=disk.iops or (GP3_IOPS[0] if is_gp3 else None),
            throughput=disk.throughput or (GP3_THROUGHPUT[0] if is_gp3 else None),
        )
        if disk.load_mib_s:
            filled_s = disk.snapshot_gib * 1024 / disk.load_mib_s
            volume.load_mib_s, volume.filled_at = disk.load_mib_s, time.monotonic() + filled_s
        attached = backend.attach_volume(volume.id, instance.id, disk.device, disk.delete)
        attached.delete_on_termination = disk.delete


def disks_of(backend: Any, image: Any, mappings: list[Mapping[str, Any]]) -> list[VolumeRequest]:
    """Return the EBS volumes of an instance, the image's first.

    `mappings` are the request's block device mappings. Raise EC2ClientError for an unknown snapshot
    and for a mapping that describes no volume.
    """
    of_image = {one["DeviceName"]: one for one in image.block_device_mappings} if image else {}
    found = {device: dict(one["Ebs"]) for device, one in of_image.items()}
    for one in mappings:
        device = one.get("DeviceName")
        if one.get("NoDevice") is not None:
            found.pop(device, None)
        elif "Ebs" in one:
            given = {key: value for key, value in one["Ebs"].items() if value is not None}
            found[device] = {**found.get(device, {}), **given}
        elif not one.get("VirtualName"):
            raise refuse("missing", "ebs")
    return [disk_of(backend, device, ebs) for device, ebs in found.items()] or [DEFAULT_DISK]


def disk_of(backend: Any, device: str, ebs: Mapping[str, Any]) -> VolumeRequest:
    snapshot_id = ebs.get("SnapshotId")
    snapshot_gib = int(backend.snapshots[snapshot_id].volume.size) if snapshot_id else 0
    size, iops, throughput, load = (
        None if ebs.get(key) is None else int(ebs[key])
        for key in ("VolumeSize", "Iops", "Throughput", "VolumeInitializationRate")
    )
    return VolumeRequest(
        device=device,
        type=ebs.get("VolumeType") or "gp2",
        size_gib=size or snapshot_gib,
        iops=iops,
        throughput=throughput,
        snapshot_id=snapshot_id,
        snapshot_gib=snapshot_gib,
        encrypted=bool(ebs.get("Encrypted")),
        kms_key_id=ebs.get("KmsKeyId"),
        delete=bool(ebs.get("DeleteOnTermination", True)),
        load_mib_s=load,
    )


def check_load(backend: Any, more_mib_s: int) -> None:
    """Raise an error if volumes would be filled at more than the region's rate.

    EBS fails such a request (EBS user guide, "Initialize Amazon EBS volumes"). AWS documents no
    code and no words.
    """
    now = time.monotonic()
    filling = [
        volume.load_mib_s
        for volume in backend.volumes.values()
        if getattr(volume, "filled_at", 0.0) > now
    ]
    if more_mib_s and sum(filling) + more_mib_s > LOAD_REGION_MIB_S:
        raise refuse("load-region", LOAD_REGION_MIB_S)


def check_disk(disk: VolumeRequest) -> None:
    """Raise EC2's error for the first of its rules that a volume breaks."""
    if not disk.size_gib:
        raise refuse("missing", "size or snapshotId")
    least, most = SIZES[disk.type]
    if disk.type != "gp3" and not least <= disk.size_gib <= most:
        raise refuse("volume-size", disk.size_gib, disk.type, least, most)
    if disk.snapshot_id and disk.size_gib < disk.snapshot_gib:
        raise refuse("smaller-than-snapshot", disk.size_gib, disk.snapshot_id, disk.snapshot_gib)
    if disk.kms_key_id and not disk.encrypted:
        raise refuse("kms")
    if disk.load_mib_s is not None and not disk.snapshot_id:
        raise refuse("load-snapshot")
    if disk.load_mib_s is not None and not LOAD_MIB_S[0] <= disk.load_mib_s <= LOAD_MIB_S[1]:
        raise refuse("load-rate", disk.load_mib_s, LOAD_MIB_S[0], LOAD_MIB_S[1])
    _check_performance(disk)


def _check_performance(disk: VolumeRequest) -> None:
    if disk.throughput is not None and disk.type != "gp3":
        raise refuse("not-for-type", "throughput", disk.type)
    if disk.iops is not None and disk.type not in ("gp3", *IOPS_TYPES):
        raise refuse("not-for-type", "iops", disk.type)
    if disk.type in IOPS_TYPES and disk.iops is None:
        raise refuse("missing-for-type", "iops", disk.type)
    if disk.type != "gp3":
        return
    iops, throughput = disk.iops or GP3_IOPS[0], disk.throughput or GP3_THROUGHPUT[0]
    for value, (least, most), what in (
        (disk.size_gib, SIZES["gp3"], "size (GiB)"),
        (iops, GP3_IOPS, "iops"),
        (throughput, GP3_THROUGHPUT, "throughput (MiBps)"),
    ):
        if not least <= value <= most:
            edge = f"low; minimum is {least}" if value < least else f"high; maximum is {most}"
            raise refuse("volume-value", what, value, edge)
    if iops > max(GP3_IOPS[0], IOPS_PER_GIB * disk.size_gib):
        raise refuse("iops-ratio", iops / disk.size_gib, IOPS_PER_GIB)
    if throughput > THROUGHPUT_PER_IOPS * iops:
        raise refuse("throughput-ratio", throughput / iops, THROUGHPUT_PER_IOPS)
