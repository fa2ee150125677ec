"""Which image: read from EC2, never assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

DLAMI_OWNER = "898082745236"
DLAMI_NAME = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"


@dataclass(frozen=True)
class Image:
    """An AMI. `root_gib` is the least size its root volume can have."""

    image_id: str
    name: str
    root_device: str
    root_gib: int
    architecture: str


def find_image(client: EC2Client, image_id: str | None = None) -> Image | None:
    """This image, or the newest Deep Learning AMI; None if there is none. Raises AwsError."""
    wanted: dict[str, Any] = {"ImageIds": [image_id]}
    if image_id is None:
        named = {"Name": "name", "Values": [DLAMI_NAME]}
        usable = {"Name": "state", "Values": ["available"]}
        wanted = {"Owners": [DLAMI_OWNER], "Filters": [named, usable]}
    try:
        with translated():
            found = client.describe_images(**wanted)["Images"]
    except AwsError as error:
        if error.code == "InvalidAMIID.NotFound":
            return None
        raise
    return newest_image(found)


def newest_image(described: Any) -> Image | None:
    """The newest of DescribeImages' answer."""
    if not described:
        return None
    image = max(described, key=lambda entry: (entry.get("CreationDate", ""), entry["ImageId"]))
    root = image.get("RootDeviceName", "/dev/sda1")
    disks = image.get("BlockDeviceMappings", [])
    sizes = [
        disk["Ebs"].get("VolumeSize", 0)
        for disk in disks
        if disk.get("DeviceName") == root and "Ebs" in disk
    ]
    return Image(
        image_id=image["ImageId"],
        name=image.get("Name", ""),
        root_device=root,
        root_gib=max(sizes, default=0),
        architecture=image.get("Architecture", ""),
    )
