"""Instance types as EC2 describes them, and the types that AWS has retired; and the choice of the
image (AMI) for a type, with checks that it can drive the type's GPUs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding
from clusterctl.domain.units import count
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient

    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class MachineType:
    """An instance type. `gpus` counts only whole NVIDIA GPUs: Horovod runs on no others here.

    `gpu_name` is the chip, such as `V100`. `network_cards` and `efa_interfaces` are the largest
    numbers that it takes. `card_interfaces` is how many interfaces each card takes, `efa_cards`
    the indices of the cards that take an EFA-only interface; both are empty where EC2 does not
    list them. `link_gbps` is the first card's baseline bandwidth, `ebs_mb_s` the baseline
    throughput to EBS in 10^6 bytes a second; 0 where EC2 does not list them. `store_gb` is the size
    of its instance store in 10^9 bytes.
    """

    name: str
    gpus: int
    vcpus: int
    architectures: tuple[str, ...]
    gpu_name: str = ""
    network_cards: int = 1
    card_interfaces: tuple[int, ...] = ()
    efa_interfaces: int = 0
    efa_cards: tuple[int, ...] = ()
    link_gbps: float = 0.0
    ebs_mb_s: float = 0.0
    usage_classes: tuple[str, ...] = ("on-demand", "spot")
    placement_strategies: tuple[str, ...] = ("cluster", "partition", "spread")
    store_gb: int = 0

    @property
    def family(self) -> str:
        """Return `p4d` for `p4d.24xlarge`."""
        return self.name.partition(".")[0]


def find_machine_types(client: EC2Client, names: Sequence[str]) -> dict[str, MachineType]:
    """Return those of these types that the region has, by name. Raises AwsError."""
    try:
        found = _described(client, names)
    except AwsError as error:
        if error.code != "InvalidInstanceType":
            raise
        # One unknown name fails the call for all, so each is read separately.
        found = [entry for name in names for entry in _known(client, name)] if names[1:] else []
    return {entry["InstanceType"]: read_machine_type(entry) for entry in found}


def find_machine_type(client: EC2Client, name: str) -> MachineType:
    """Return one type. Raises AwsError, also for a type that the region does not have."""
    return read_machine_type(_described(client, [name])[0])


def _known(client: EC2Client, name: str) -> list[Any]:
    try:
        return _described(client, [name])
    except AwsError as error:
        if error.code == "InvalidInstanceType":
            return []
        raise


def _described(client: EC2Client, names: Sequence[str]) -> list[Any]:
    with translated():
        wanted: Any = list(names)
        return list(client.describe_instance_types(InstanceTypes=wanted)["InstanceTypes"])


def read_machine_type(described: Any) -> MachineType:
    """Read one type of DescribeInstanceTypes' answer."""
    gpus = [
        gpu
        for gpu in described.get("GpuInfo", {}).get("Gpus", [])
        if gpu.get("Manufacturer") == "NVIDIA"
    ]
    network = described.get("NetworkInfo", {})
    cards = network.get("NetworkCards", [])
    return MachineType(
        name=described.get("InstanceType", ""),
        gpus=sum(gpu.get("Count", 0) for gpu in gpus),
        vcpus=described.get("VCpuInfo", {}).get("DefaultVCpus", 0),
        architectures=tuple(described.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
        gpu_name=gpus[0].get("Name", "") if gpus else "",
        network_cards=network.get("MaximumNetworkCards", 1),
        card_interfaces=tuple(card.get("MaximumNetworkInterfaces", 1) for card in cards),
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        efa_cards=tuple(
            card.get("NetworkCardIndex", 0)
            for card in cards
            if "efa-only" in card.get("InterfaceTypes", ())
        ),
        link_gbps=cards[0].get("BaselineBandwidthInGbps", 0.0) if cards else 0.0,
        ebs_mb_s=described.get("EbsInfo", {})
        .get("EbsOptimizedInfo", {})
        .get("BaselineThroughputInMBps", 0.0),
        usage_classes=tuple(described.get("SupportedUsageClasses", ())),
        placement_strategies=tuple(
            described.get("PlacementGroupInfo", {}).get("SupportedStrategies", ())
        ),
        store_gb=described.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
    )


# Retired type -> (its GPUs, newer types with as many). An empty tuple: no type has as many.
RETIRED: dict[str, tuple[int, tuple[str, ...]]] = {
    "p3.2xlarge": (1, ("g5.xlarge", "g6.xlarge")),
    "p3.8xlarge": (4, ("g5.12xlarge", "g6.12xlarge")),
    "p3.16xlarge": (8, ("p4d.24xlarge", "g5.48xlarge")),
    "p3dn.24xlarge": (8, ("p4d.24xlarge", "g5.48xlarge")),
    "p2.xlarge": (1, ("g4dn.xlarge", "g6.xlarge")),
    "p2.8xlarge": (8, ("g6.48xlarge", "g5.48xlarge")),
    "p2.16xlarge": (16, ()),
    "g3s.xlarge": (1, ("g4dn.xlarge", "g6.xlarge")),
    "g3.4xlarge": (1, ("g4dn.4xlarge", "g6.4xlarge")),
    "g3.8xlarge": (2, ("g7e.12xlarge",)),
    "g3.16xlarge": (4, ("g4dn.12xlarge", "g6.12xlarge")),
    "g2.2xlarge": (1, ("g4dn.2xlarge", "g6.2xlarge")),
    "g2.8xlarge": (4, ("g4dn.12xlarge", "g6.12xlarge")),
}
FAMILIES = frozenset(name.partition(".")[0] for name in RETIRED)
# The regions that still offered types of a retired family in May 2026.
LAST_REGIONS = {"p3dn": ("us-east-1", "us-west-2", "eu-west-1", "ap-northeast-1")}


def retired_finding(instance_type: str, known: bool, region: str) -> Finding | None:
    """Return the finding about a retired type; None for any other type.

    `known`: EC2 still lists the type in `region`. Then the finding is information, else an error.
    """
    family = instance_type.partition(".")[0]
    if family not in FAMILIES:
        return None
    if known:
        message = f"{instance_type} is of a retired family; few regions still launch it"
        return Finding.info("type.retired", message, _hint(instance_type, region))
    if instance_type not in RETIRED:
        near = difflib.get_close_matches(instance_type, RETIRED, 1)
        meant = f"did you mean {near[0]}?" if near else f"the family {family} had others"
        return Finding.error("type.unknown", f"there is no type {instance_type}", meant)
    message = f"AWS no longer launches {instance_type} in {region}: the family {family} is retired"
    return Finding.error("type.retired", message, _hint(instance_type, region))


def _hint(instance_type: str, region: str) -> str:
    gpus, replacements = RETIRED.get(instance_type, (0, ()))
    if replacements:
        hint = f"with {count(gpus, 'GPU')} too: --instance-type {' or '.join(replacements)}"
    elif gpus:
        hint = f"no type has {gpus} GPUs now: take two of --instance-type g5.48xlarge for each"
    else:
        hint = "choose from g4dn, g5, g6, p4d or p5, for example --instance-type g5.12xlarge"
    regions = LAST_REGIONS.get(instance_type.partition(".")[0], ())
    elsewhere = [name for name in regions if name != region]
    return f"{hint}; it was last offered in {', '.join(elsewhere)}" if elsewhere else hint


# Name patterns of the Deep Learning AMIs with NVIDIA's open or proprietary kernel modules.
OPEN_DRIVER = "Deep Learning {arm}Base OSS Nvidia Driver GPU AMI (Ubuntu {ubuntu}) *"
# The versions of Ubuntu, in the order in which they are tried. TensorFlow 2.15 has wheels for the
# Python of the first. New types come to the second one's image first.
UBUNTU = ("22.04", "24.04")
# For Ubuntu and Amazon Linux. No SSM parameter names these, and AWS publishes no new ones.
PROPRIETARY_DRIVER = "Deep Learning Base Proprietary Nvidia Driver *"
PARAMETER = (
    "/aws/service/deeplearning/ami/{architecture}/"
    "base-oss-nvidia-driver-gpu-ubuntu-{ubuntu}/latest/ami-id"
)
# Whose images a name pattern from the user may match. The Deep Learning AMIs are Amazon's in every
# partition; the account that owns them is another in each.
OWNERS = ("self", "amazon")

# NVIDIA's open kernel modules need the GPU System Processor (GSP), which GPUs before Turing lack.
_NO_GSP = frozenset(("K520", "K80", "M60", "V100"))
_NO_GSP_FAMILIES = frozenset(("g2", "g3", "g3s", "p2", "p3", "p3dn"))

# Pattern of the distribution's name -> login user. None: no login over SSH. The first match counts.
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
    """An AMI. `root_gib` is the size of its snapshot: the least size of a root volume.

    `user` is the login user, None where it is unknown. `driver` is `oss` (NVIDIA's open kernel
    modules), `proprietary` or empty (unknown). `created` and `deprecated` are EC2's timestamps in
    ISO 8601, empty where there is none.
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
    """Return whether the type's GPUs are too old for NVIDIA's open kernel modules."""
    return machine.gpu_name in _NO_GSP or machine.family in _NO_GSP_FAMILIES


def architecture_of(machine: MachineType) -> str:
    """Return the architecture to choose an image for: x86_64 wherever the type supports it."""
    known = machine.architectures
    return "arm64" if "arm64" in known and "x86_64" not in known else "x86_64"


def default_pattern(machine: MachineType, ubuntu: str = UBUNTU[0]) -> str:
    """Return the name pattern of the Deep Learning AMIs that fit this type."""
    if needs_proprietary_driver(machine):
        return PROPRIETARY_DRIVER
    arm = "ARM64 " if architecture_of(machine) == "arm64" else ""
    return OPEN_DRIVER.format(arm=arm, ubuntu=ubuntu)


def is_image_id(text: str) -> bool:
    """Return whether `--image` names an AMI by its id; a name may begin with `ami-`, too."""
    return bool(re.fullmatch("ami-[0-9a-f]+", text))


def find_image(clients: Clients, wanted: str | None, machine: MachineType) -> Image | None:
    """Return the image to launch on this type; None if there is none. Raises AwsError.

    `wanted` is an AMI id, the name of an SSM parameter or a name pattern; None means the newest
    Deep Learning AMI, of the first of UBUNTU whose image lists the type's family. Where SSM does
    not name that one, for example because the user may not read its parameters, it is found by
    name.
    """
    if wanted is not None and wanted.startswith("/"):
        image_id = _parameter(clients.ssm, wanted)
        return _newest_of(clients.ec2, ImageIds=[image_id]) if image_id else None
    if wanted is not None and is_image_id(wanted):
        return _newest_of(clients.ec2, ImageIds=[wanted])
    if wanted is not None:
        return _named(clients.ec2, wanted, machine, OWNERS)
    if needs_proprietary_driver(machine):
        return _named(clients.ec2, PROPRIETARY_DRIVER, machine, ("amazon",))
    first = None
    for ubuntu in UBUNTU:
        image = _latest(clients, machine, ubuntu) or _named(
            clients.ec2, default_pattern(machine, ubuntu), machine, ("amazon",)
        )
        if image and (not machine.gpus or _supports(image.description, machine.family)):
            return image
        first = first or image
    return first


def _named(
    client: EC2Client, pattern: str, machine: MachineType, owners: Sequence[str]
) -> Image | None:
    """Return the newest image of this name pattern that the type can run."""
    if not pattern.strip():
        return None
    filters = [{"Name": "name", "Values": [pattern]}, {"Name": "state", "Values": ["available"]}]
    if machine.architectures:
        filters.append({"Name": "architecture", "Values": list(machine.architectures)})
    # EC2 hides deprecated images of other accounts by default. All images with the proprietary
    # driver are old.
    return _newest_of(client, Owners=list(owners), Filters=filters, IncludeDeprecated=True)


def _latest(clients: Clients, machine: MachineType, ubuntu: str) -> Image | None:
    """Return the Deep Learning AMI that AWS's SSM parameter names; None where SSM does not."""
    name = PARAMETER.format(architecture=architecture_of(machine), ubuntu=ubuntu)
    try:
        image_id = _parameter(clients.ssm, name)
    except AwsError:
        # SSM is not allowed or cannot be reached. Any wider problem shows in the next EC2 call.
        return None
    return _newest_of(clients.ec2, ImageIds=[image_id]) if image_id else None


def _parameter(client: SSMClient, name: str) -> str | None:
    try:
        with translated():
            return client.get_parameter(Name=name)["Parameter"].get("Value")
    except AwsError as error:
        if error.code in ("ParameterNotFound", "ParameterVersionNotFound"):
            return None
        raise


def _newest_of(client: EC2Client, **wanted: Any) -> Image | None:
    try:
        with translated():
            found = client.describe_images(**wanted)["Images"]
    except AwsError as error:
        if error.code.startswith("InvalidAMIID"):
            return None
        raise
    return newest_image(found)


def newest_image(described: Any) -> Image | None:
    """Return the newest image of DescribeImages' answer; None if it has none."""
    if not described:
        return None
    return read_image(
        max(described, key=lambda entry: (entry.get("CreationDate", ""), entry["ImageId"]))
    )


def read_image(described: Any) -> Image:
    """Read one image of DescribeImages' answer."""
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


def login_user(*sources: str) -> str | None:
    """Return the login user of an image, from its platform, name and description, in this order.

    None where none of them names a known distribution, and for Windows.
    """
    for text in sources:
        for pattern, user in _USERS:
            if re.search(pattern, text, re.IGNORECASE):
                return user
    return None


def driver_of(name: str) -> str:
    """Return `oss` or `proprietary` where a Deep Learning AMI's name has it, else empty."""
    sources = re.search(r"\b(oss|proprietary)[ _-]nvidia[ _-]driver", name, re.IGNORECASE)
    if sources:
        return sources[1].lower()
    if name.startswith("Deep Learning Base AMI with Single CUDA"):
        return "oss"
    # Names from before AWS split the images by driver: these have the proprietary one.
    old = re.match(r"Deep Learning (Base )?(GPU )?AMI (\(|GPU )", name)
    return "proprietary" if old else ""


# Pattern of the family -> its accelerator, for types without NVIDIA GPUs, which Horovod needs here.
_ACCELERATORS = (
    (r"trn\d", "AWS Trainium"),
    (r"inf\d", "AWS Inferentia"),
    (r"g4ad$", "AMD GPUs"),
    (r"dl1$", "Habana Gaudi"),
    (r"dl2q$", "Qualcomm AI 100"),
)
_HOPPER_FAMILY = re.compile(r"p5")
_BLACKWELL_FAMILY = re.compile(r"p6|g7")
# When AWS's first Blackwell machines appeared. CUDA 12.8, the first version that supports
# Blackwell, is a little older. Images from before this date may lack it.
_BLACKWELL_SINCE = "2025-05-15"
# Names that descriptions of images use for several families.
_FAMILIES = {"p4": ("p4d", "p4de"), "p6": ("p6-b200", "p6-b300"), "gr6(f)": ("gr6", "gr6f")}
# Names of plain distribution images, which have no NVIDIA driver.
_PLAIN_SYSTEM = re.compile(r"ubuntu/images|al2023-ami-|amzn2-ami-(hvm|kernel)|debian-\d|RHEL-")
_DLAMI = "Deep Learning "
_HAS_FRAMEWORK = re.compile(r"TensorFlow|Deep Learning AMI \(")


def image_findings(
    image: Image | None, machine: MachineType, wanted: str | None = None, today: date | None = None
) -> list[Finding]:
    """Check whether an image runs on this type, and return all findings.

    `image` is what `find_image` returned for `wanted`; None becomes an error.
    """
    today = today or datetime.now(timezone.utc).date()
    findings = [*_machine_findings(machine)]
    if image is None:
        return [*findings, _no_image(machine, wanted)]
    of_software = [*_horovod(image, machine), *_kernels(machine)]
    return [*findings, *_fit(image, machine, wanted), *_age(image, today), *of_software]


def _machine_findings(machine: MachineType) -> Iterator[Finding]:
    others = (what for pattern, what in _ACCELERATORS if re.match(pattern, machine.family))
    if not machine.gpus and (accelerator := next(others, "")):
        yield Finding.error(
            "type.accelerator",
            f"{machine.name} computes with {accelerator}; Horovod needs NVIDIA GPUs",
            "choose another, for example --instance-type g5.12xlarge",
        )
    elif machine.gpu_name and not machine.gpus:
        yield Finding.warning(
            "type.fractional",
            f"{machine.name} has a part of one {machine.gpu_name} and no whole GPU: "
            "it gets no slot for a rank, and its driver is not the Deep Learning AMI's",
            "choose a whole GPU: --instance-type " + _whole(machine),
        )


def _whole(machine: MachineType) -> str:
    """Return the type with a whole GPU for one with a part: `gr6.4xlarge` for `gr6f.4xlarge`.

    The smallest of the family for size `large`, which whole GPUs do not have.
    """
    family = machine.family.rstrip("f")
    size = machine.name.partition(".")[2]
    smallest = "4xlarge" if family == "gr6" else "xlarge"
    return f"{family}.{smallest if size == 'large' else size}"


def _no_image(machine: MachineType, wanted: str | None) -> Finding:
    if wanted is not None:
        message = f"there is no image {wanted!r} in this region that {machine.name} can run"
        hint = "image ids are regional: check --image and --region, or leave --image out"
    else:
        names = {repr(default_pattern(machine, ubuntu)) for ubuntu in UBUNTU}
        message = (
            f"there is no image for {machine.name} in this region: "
            f"none is named {' or '.join(sorted(names))}"
        )
        hint = "choose one with --image, or another region with --region"
        if needs_proprietary_driver(machine):
            message += "; its GPUs need NVIDIA's proprietary driver"
            hint = (
                "give an image of your own with a driver up to R580: --image AMI; "
                "or a newer type, for example --instance-type g5.12xlarge"
            )
    return Finding.error("image.none", message, hint)


def _fit(image: Image, machine: MachineType, wanted: str | None) -> Iterator[Finding]:
    known = machine.architectures
    if image.platform.lower().startswith("windows"):
        yield Finding.error(
            "image.platform", f"image {_called(image)} is Windows", "give a Linux --image"
        )
    elif known and image.architecture and image.architecture not in known:
        yield Finding.error(
            "image.architecture",
            f"image {_called(image)} is for {image.architecture}, "
            f"{machine.name} is {' or '.join(known)}",
            "leave --image out, or choose one that fits",
        )
    elif machine.gpus:
        yield from _driver(image, machine, wanted)


def _driver(image: Image, machine: MachineType, wanted: str | None) -> Iterator[Finding]:
    gpus = f"the {machine.gpu_name} of {machine.name}" if machine.gpu_name else machine.name
    blackwell = _BLACKWELL_FAMILY.match(machine.family)
    if needs_proprietary_driver(machine) and image.driver == "oss":
        yield Finding.error(
            "image.driver",
            f"image {_called(image)} has NVIDIA's open kernel modules, "
            f"which do not know {gpus}: they need Turing or newer",
            f"leave --image out, or give --image '{PROPRIETARY_DRIVER}'",
        )
        return
    if blackwell and image.driver == "proprietary":
        yield Finding.error(
            "image.driver",
            f"image {_called(image)} has NVIDIA's proprietary driver, "
            f"which does not know {gpus}: Blackwell needs the open kernel modules",
            f"leave --image out, or give --image '{default_pattern(machine)}'",
        )
        return
    if _PLAIN_SYSTEM.match(image.name):
        message = f"image {_called(image)} is a plain system without NVIDIA's driver"
    elif blackwell and image.driver and image.created and image.created < _BLACKWELL_SINCE:
        message = (
            f"image {_called(image)} is of {image.created[:10]}, "
            f"and {gpus} needs CUDA 12.8 or newer with its driver"
        )
    elif not _supports(image.description, machine.family):
        message = f"image {_called(image)} does not list {machine.family} among what it supports"
    else:
        return
    hint = "leave --image out for the Deep Learning AMI that fits"
    if wanted is None:
        hint = "choose a newer one whose description lists it: --image"
    yield Finding.warning("image.driver", message, hint)


def _supports(description: str, family: str) -> bool:
    """Return whether an image's description lists this family as supported.

    True for a description without such a list.
    """
    listed = re.search(r"Supported EC2 instances: ([\w, ()-]+)\.", description, re.IGNORECASE)
    if not listed:
        return True
    names = re.split(r"[\s,]+", listed[1].lower())
    return family in {one for name in names for one in (name, *_FAMILIES.get(name, ()))}


def _age(image: Image, today: date) -> Iterator[Finding]:
    if image.state != "available":
        wait = "wait until it is available, or " if image.state == "pending" else ""
        yield Finding.error(
            "image.state",
            f"image {_called(image)} is {image.state}",
            f"{wait}choose another with --image",
        )
    # Timestamps in ISO 8601 sort as text.
    elif image.deprecated and image.deprecated[:10] <= today.isoformat():
        yield Finding.info(
            "image.deprecated",
            f"image {_called(image)} is deprecated since {image.deprecated[:10]}",
            "its owner may withdraw it: copy it (aws ec2 copy-image), "
            "or choose another with --image",
        )


def _horovod(image: Image, machine: MachineType) -> Iterator[Finding]:
    if not machine.gpus:
        return
    if _BLACKWELL_FAMILY.match(machine.family):
        yield Finding.warning(
            "image.horovod",
            "no TensorFlow that Horovod works with has kernels for Blackwell GPUs",
            "for Horovod choose an older GPU: --instance-type p4d.24xlarge or p5.48xlarge",
        )
    elif image.name.startswith(_DLAMI) and not _HAS_FRAMEWORK.search(image.name):
        yield Finding.info(
            "image.horovod",
            "no supported Deep Learning AMI has TensorFlow or Horovod on it",
            "put them on the nodes before you train: clusterctl env install NAME",
        )


def _kernels(machine: MachineType) -> Iterator[Finding]:
    """Report Hopper GPUs: TensorFlow 2.15's wheels have no kernels for compute capability 9.0."""
    if machine.gpus and _HOPPER_FAMILY.match(machine.family):
        yield Finding.info(
            "type.kernels",
            f"TensorFlow 2.15 has no kernels for the {machine.gpu_name}: `env install` chooses the "
            "newest TensorFlow that Horovod can be built for",
            "see what it would do: clusterctl env install NAME --dry-run",
        )


def _called(image: Image) -> str:
    return f"{image.image_id} ({image.name})" if image.name else image.image_id
