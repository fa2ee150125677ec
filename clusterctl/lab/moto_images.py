"""The images of the lab: Deep Learning AMIs by name, date and owner, as AWS lists them."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from moto.ec2.models.amis import Ami, AmiBackend

from clusterctl.lab.moto_completion import replace

DLAMI_OWNER = "898082745236"
DLAMI_NAME = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) {date}"
DLAMI_DATES = ("20260703", "20261101")
ROOT_GIB = 75


class LabImage(Ami):
    """An image whose root volume has a Deep Learning AMI's size."""

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": ROOT_GIB,
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "Encrypted": False,
        }
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


def image_id(region: str, date: str) -> str:
    """The same in every lab, another in every region."""
    return "ami-0" + hashlib.sha256(f"{region} {date}".encode()).hexdigest()[:16]


def install() -> None:
    replace(AmiBackend, _load_amis)


def _load_amis(backend: Any) -> None:
    for date in DLAMI_DATES:
        id = image_id(backend.region_name, date)
        backend.amis[id] = LabImage(
            backend,
            id,
            name=DLAMI_NAME.format(date=date),
            description="Simulated by clusterctl's lab: the machine's own programs",
            owner_id=DLAMI_OWNER,
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture="x86_64",
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name="/dev/sda1",
            image_location=f"amazon/{DLAMI_NAME.format(date=date)}",
            creation_date=datetime.strptime(date, "%Y%m%d").replace(tzinfo=timezone.utc),
        )
