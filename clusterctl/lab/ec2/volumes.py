"""The volumes that come with an instance: the image's, as the request changes and adds to them.

moto makes an 8 GiB root volume whatever the image says, and forgets a request's performance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.launch import Request, Rule, current_request, refuse
from clusterctl.lab.ec2.volume_rules import VolumeRequest, check_disk

# moto's own for an image that the lab did not make.
DEFAULT_DISK = VolumeRequest("/dev/sda1", "gp2", 8, delete=True)


class VolumeRule(Rule):
    def check_request(self, request: Request) -> None:
        for disk in disks_of(request.backend, request.image, _asked(request)):
            refused = check_disk(disk)
            if refused:
                raise refuse(refused.code, refused.message)


def install() -> None:
    override(EC2Response, _parse_block_device_mapping)
    override(Instance, setup_defaults)


def _parse_block_device_mapping(_: Any) -> list[Any]:
    """Nothing for moto: `setup_defaults` makes all volumes, and `VolumeRule` has looked at them."""
    return []


def setup_defaults(instance: Any) -> None:
    """moto calls it for an instance without mappings of its own, that is for all."""
    request, backend = current_request(), instance.ec2_backend
    image = backend.amis.get(instance.image_id)
    for disk in disks_of(backend, image, _asked(request) if request else []):
        volume = backend.create_volume(
            size=disk.effective_gib,
            zone_name=instance.placement.zone,
            snapshot_id=disk.snapshot_id,
            encrypted=disk.encrypted,
            kms_key_id=disk.kms_key_id,
            volume_type=disk.type,
            iops=disk.effective_iops,
            throughput=disk.effective_throughput,
        )
        attached = backend.attach_volume(volume.id, instance.id, disk.device, disk.delete)
        attached.delete_on_termination = disk.delete


def disks_of(backend: Any, image: Any, asked: list[Mapping[str, Any]]) -> list[VolumeRequest]:
    """Every EBS volume of an instance: the image's first. Refuses a snapshot that is not there."""
    mappings = {one["DeviceName"]: one for one in image.block_device_mappings} if image else {}
    found = {device: dict(one["Ebs"]) for device, one in mappings.items()}
    for one in asked:
        device = one.get("DeviceName")
        if one.get("NoDevice") is not None:
            found.pop(device, None)
        elif "Ebs" in one:
            found[device] = {**found.get(device, {}), **_given(one["Ebs"])}
        elif not one.get("VirtualName"):
            raise refuse("MissingParameter", "The request must contain the parameter ebs")
    return [_disk(backend, device, ebs) for device, ebs in found.items()] or [DEFAULT_DISK]


def _asked(request: Request) -> list[Mapping[str, Any]]:
    return list(request.get("BlockDeviceMappings", []))


def _given(ebs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: ebs[key] for key in ebs if ebs[key] is not None}


def _disk(backend: Any, device: str, ebs: Mapping[str, Any]) -> VolumeRequest:
    snapshot_id = ebs.get("SnapshotId")
    if snapshot_id and snapshot_id not in backend.snapshots:
        raise refuse("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
    snapshot = backend.snapshots[snapshot_id] if snapshot_id else None
    iops, throughput, size = (ebs.get(key) for key in ("Iops", "Throughput", "VolumeSize"))
    load = ebs.get("VolumeInitializationRate")
    return VolumeRequest(
        device=device,
        type=ebs.get("VolumeType") or "gp2",
        size_gib=None if size is None else int(size),
        iops=None if iops is None else int(iops),
        throughput=None if throughput is None else int(throughput),
        snapshot_id=snapshot_id,
        snapshot_gib=int(snapshot.volume.size) if snapshot else 0,
        encrypted=bool(ebs.get("Encrypted")),
        kms_key_id=ebs.get("KmsKeyId"),
        delete=bool(ebs.get("DeleteOnTermination")),
        load_mib_s=None if load is None else int(load),
    )
