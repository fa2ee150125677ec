"""The lab's images: Deep Learning AMIs with the names, dates and owner that AWS lists.

AWS's public SSM parameters name the newest image of each kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from moto.ec2.models.amis import Ami, AmiBackend
from moto.ssm.models import Parameter, ParameterDict

from clusterctl.lab.addresses import REGIONS
from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import around, override
from clusterctl.lab.ec2.launch import Request, Rule, refuse

DLAMI_OWNER = "898082745236"
ROOT_GIB = 75
PARAMETERS = "/aws/service/deeplearning/ami"


@dataclass(frozen=True)
class Family:
    """Images that differ only by their date.

    `name` is theirs without the date, `kind` their part of the SSM parameter's name. `dates` are
    YYYYMMDD.
    """

    name: str
    kind: str
    dates: tuple[str, ...]
    supported: str
    architecture: str = "x86_64"
    root_device: str = "/dev/sda1"
    root_gib: int = ROOT_GIB


FAMILIES = tuple(
    Family(**{**one, "dates": tuple(one["dates"])}) for one in table("images")["families"]
)


class LabImage(Ami):
    """An image whose root volume has a Deep Learning AMI's size."""

    root_gib = ROOT_GIB
    platform_details, usage_operation, ena_support = "Linux/UNIX", "RunInstances", True
    # The mappings of an image that was made of an instance.
    copied: Sequence[dict[str, Any]] = ()

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        if self.copied:
            return list(self.copied)
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": self.root_gib,
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "Encrypted": False,
        }
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


class ArchitectureRule(Rule):
    """An image boots on processors of its own architecture only."""

    def check_request(self, request: Request) -> None:
        known = request.type_info.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
        if request.image and known and request.image.architecture not in known:
            raise refuse("architecture", ",".join(known), request.image.architecture)


def image_id(region: str, date: str, family: Family = FAMILIES[0]) -> str:
    """Return an image's id: the same in every lab, but another one in every region."""
    family_text = "" if family is FAMILIES[0] else f" {family.kind} {family.architecture}"
    return "ami-0" + hashlib.sha256(f"{region} {date}{family_text}".encode()).hexdigest()[:16]


@around(ParameterDict)
def _check_loading_status(load: Any, parameters: Any, key: str) -> None:
    """Publish the parameters. moto calls this before it looks up a parameter or a path."""
    # moto's images of other kinds are not the lab's.
    if not str(key or "").startswith("/aws/service/ami-"):
        load(parameters, key)
    if str(key or "").startswith(PARAMETERS) and parameters.region_name in REGIONS:
        for family in FAMILIES:
            _publish(parameters, family)


@around(AmiBackend)
def create_image(create: Any, backend: Any, instance_id: str, *given: Any, **named: Any) -> Any:
    """Make an image with the instance's volumes (botocore: CreateImage), unlike moto."""
    made: Any = create(backend, instance_id, *given, **named)
    made.__class__, made.root_device_type = LabImage, "ebs"
    instance, text = backend.get_instance(instance_id), f"Created by CreateImage for {made.id}"
    made.root_device_name = instance.root_device_name
    made.copied = [
        {
            "DeviceName": device,
            "Ebs": {
                "SnapshotId": backend.create_snapshot(disk.volume_id, text, from_ami=made.id).id,
                "VolumeSize": disk.size,
                "DeleteOnTermination": disk.delete_on_termination,
                "VolumeType": backend.volumes[disk.volume_id].volume_type,
                "Encrypted": backend.volumes[disk.volume_id].encrypted,
            },
        }
        for device, disk in instance.get_block_device_mapping
    ]
    return made


@override(AmiBackend)
def _load_amis(backend: Any) -> None:
    for image in [_image(backend, family, date) for family in FAMILIES for date in family.dates]:
        backend.amis[image.id] = image


def _image(backend: Any, family: Family, date: str) -> LabImage:
    name = f"{family.name} {date}"
    image = LabImage(
        backend,
        image_id(backend.region_name, date, family),
        name=name,
        description=f"Supported EC2 instances: {family.supported}. Simulated by clusterctl's lab: "
        "the machine's own programs",
        owner_id=DLAMI_OWNER,
        owner_alias="amazon",
        public=True,
        virtualization_type="hvm",
        architecture=family.architecture,
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name=family.root_device,
        image_location=f"amazon/{name}",
        creation_date=datetime.strptime(date, "%Y%m%d").replace(tzinfo=timezone.utc),
    )
    image.root_gib = family.root_gib
    image.ebs_snapshot.volume.size = family.root_gib
    return image


def parameter_name(family: Family) -> str:
    """Return the name of the SSM parameter that holds the id of the family's newest image."""
    return f"{PARAMETERS}/{family.architecture}/{family.kind}/latest/ami-id"


def _publish(parameters: Any, family: Family) -> None:
    name, date = parameter_name(family), max(family.dates)
    # ParameterDict's own methods call `_check_loading_status`, and so this function again.
    if dict.__contains__(parameters, name):
        return
    made = Parameter(  # type: ignore[abstract]
        account_id="aws",
        name=name,
        value=image_id(parameters.region_name, date, family),
        parameter_type="String",
        description=None,
        allowed_pattern=None,
        keyid=None,
        last_modified_date=datetime.strptime(date, "%Y%m%d").replace(tzinfo=timezone.utc),
        version=len(family.dates),
        data_type="aws:ec2:image",
    )
    dict.__setitem__(parameters, name, [made])
