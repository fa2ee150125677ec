"""Instance types as EC2 describes them, and the types that AWS has retired."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding
from clusterctl.domain.units import count
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


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
