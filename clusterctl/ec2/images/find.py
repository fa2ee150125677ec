"""Which image: read from EC2, never assumed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import translated
from clusterctl.ec2.machines import MachineType

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient

    from clusterctl.ec2.session import Clients

DLAMI_OWNER = "898082745236"
OPEN_DRIVER = "Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"
# Ubuntu's and Amazon Linux's: no parameter leads to them, and no new ones are made.
PROPRIETARY_DRIVER = "Deep Learning Base Proprietary Nvidia Driver *"
PARAMETER = (
    "/aws/service/deeplearning/ami/{architecture}/"
    "base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
OWNERS = ("self", "amazon", DLAMI_OWNER)

# GPUs before Turing have no GSP, which NVIDIA's open kernel modules need.
_NO_GSP = frozenset(("K520", "K80", "M60", "V100"))
_NO_GSP_FAMILIES = frozenset(("g2", "g3", "g3s", "p2", "p3", "p3dn"))

# The distribution that an image's name tells -> the user it lets in. The first match counts.
_USERS = (
    (r"windows", None),
    (r"ubuntu", "ubuntu"),
    (r"amazon[ _-]?linux|amzn|al2023|al2\b", "ec2-user"),
    (r"rocky", "rocky"),
    (r"fedora", "fedora"),
    (r"debian", "admin"),
    (r"centos[ _-]stream|rhel|red ?hat|suse|sles|alma", "ec2-user"),
    (r"centos", "centos"),
)


@dataclass(frozen=True)
class Image:
    """An AMI. `root_gib` is the least size its root volume can have.

    `user` is whom it lets in, None where nothing tells; `driver` is `oss`, `proprietary` or empty
    (unknown). `created` and `deprecated` are EC2's timestamps, empty where there is none.
    """

    image_id: str
    name: str
    root_device: str
    root_gib: int
    architecture: str
    user: str | None = None
    driver: str = ""
    description: str = ""
    state: str = "available"
    platform: str = ""
    created: str = ""
    deprecated: str = ""


def needs_proprietary_driver(machine: MachineType) -> bool:
    """Whether its GPUs are too old for the open kernel modules."""
    return machine.gpu_name in _NO_GSP or machine.family in _NO_GSP_FAMILIES


def architecture_of(machine: MachineType) -> str:
    """The one to choose an image for."""
    known = machine.architectures
    return "arm64" if "arm64" in known and "x86_64" not in known else "x86_64"


def default_pattern(machine: MachineType) -> str:
    """The name of the Deep Learning AMI that fits this type."""
    if needs_proprietary_driver(machine):
        return PROPRIETARY_DRIVER
    return OPEN_DRIVER.format(arm="ARM64 " if architecture_of(machine) == "arm64" else "")


def find_image(clients: Clients, wanted: str | None, machine: MachineType) -> Image | None:
    """The image to launch on this type; None if there is none. Raises AwsError.

    `wanted` is an AMI id, the name of an SSM parameter or a pattern of names; None means the
    Deep Learning AMI. Whoever may not read SSM parameters gets that one by its name.
    """
    if wanted is not None and wanted.startswith("/"):
        image_id = _parameter(clients.ssm, wanted)
        return _described(clients.ec2, ImageIds=[image_id]) if image_id else None
    if wanted is None and not needs_proprietary_driver(machine):
        image = _latest(clients, machine)
        if image:
            return image
    return _by_id_or_name(clients.ec2, wanted, machine)


def _by_id_or_name(client: EC2Client, wanted: str | None, machine: MachineType) -> Image | None:
    """An AMI id, a pattern of names, or None for the Deep Learning AMI."""
    if wanted is not None and wanted.startswith("ami-"):
        return _described(client, ImageIds=[wanted])
    pattern = default_pattern(machine) if wanted is None else wanted
    if not pattern.strip():
        return None
    filters = [
        {"Name": "name", "Values": [pattern]},
        {"Name": "state", "Values": ["available"]},
    ]
    if machine.architectures:
        filters.append({"Name": "architecture", "Values": list(machine.architectures)})
    owners = [DLAMI_OWNER] if wanted is None else list(OWNERS)
    return _described(client, Owners=owners, Filters=filters, IncludeDeprecated=True)


def _latest(clients: Clients, machine: MachineType) -> Image | None:
    """What AWS calls the latest; None where that cannot be learnt."""
    name = PARAMETER.format(architecture=architecture_of(machine))
    try:
        image_id = _parameter(clients.ssm, name)
    except AwsError:
        # Not allowed, or no way to SSM: if it is more than that, EC2 will say so.
        return None
    return _described(clients.ec2, ImageIds=[image_id]) if image_id else None


def _parameter(client: SSMClient, name: str) -> str | None:
    try:
        with translated():
            return client.get_parameter(Name=name)["Parameter"].get("Value")
    except AwsError as error:
        if error.code in ("ParameterNotFound", "ParameterVersionNotFound"):
            return None
        raise


def _described(client: EC2Client, **wanted: Any) -> Image | None:
    try:
        with translated():
            found = client.describe_images(**wanted)["Images"]
    except AwsError as error:
        if error.code.startswith("InvalidAMIID"):
            return None
        raise
    return newest_image(found)


def newest_image(described: Any) -> Image | None:
    """The newest of DescribeImages' answer."""
    if not described:
        return None
    return read_image(
        max(described, key=lambda entry: (entry.get("CreationDate", ""), entry["ImageId"]))
    )


def read_image(described: Any) -> Image:
    """What DescribeImages says about one image."""
    name = described.get("Name", "")
    description = described.get("Description", "")
    platform = described.get("Platform", "")
    root = described.get("RootDeviceName", "/dev/sda1")
    sizes = [
        disk["Ebs"].get("VolumeSize", 0)
        for disk in described.get("BlockDeviceMappings", [])
        if disk.get("DeviceName") == root and "Ebs" in disk
    ]
    return Image(
        image_id=described["ImageId"],
        name=name,
        root_device=root,
        root_gib=max(sizes, default=0),
        architecture=described.get("Architecture", ""),
        user=login_user(platform, name, description),
        driver=driver_of(name),
        description=description,
        state=described.get("State", "available"),
        platform=platform,
        created=described.get("CreationDate", ""),
        deprecated=described.get("DeprecationTime", ""),
    )


def login_user(*told: str) -> str | None:
    """The user that an image lets in, from its platform, name and description, in this order."""
    for text in told:
        for pattern, user in _USERS:
            if re.search(pattern, text, re.IGNORECASE):
                return user
    return None


def driver_of(name: str) -> str:
    """`oss` or `proprietary` where a Deep Learning AMI's name tells, else empty."""
    told = re.search(r"\b(oss|proprietary)[ _-]nvidia[ _-]driver", name, re.IGNORECASE)
    if told:
        return told[1].lower()
    if name.startswith("Deep Learning Base AMI with Single CUDA"):
        return "oss"
    # As they were named before the two parted ways.
    old = re.match(r"Deep Learning (Base )?(GPU )?AMI (\(|GPU )", name)
    return "proprietary" if old else ""
