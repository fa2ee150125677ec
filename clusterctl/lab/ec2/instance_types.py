"""Instance types: adds those of the p3 family that moto's tables lack, and lists a type's zones."""

from __future__ import annotations

import copy
from typing import Any

from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
    InstanceTypeBackend,
)

from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import setup

# The type of the family that moto has. The others are made from its description.
BASE = "p3dn.24xlarge"
P3, P3_ZONES = (table("types")[name] for name in ("p3", "p3_zones"))


@setup
def _add_p3() -> None:
    """Add the types to moto's tables, and offer them in P3_ZONES."""
    for name in P3:
        INSTANCE_TYPES[name] = p3_type(name)
        InstanceTypeBackend.instance_types.append(InstanceType(name))
        for region, zones in P3_ZONES.items():
            offer(name, "region", region, [region])
            offer(name, "availability-zone", region, list(zones))


def p3_type(name: str) -> dict[str, Any]:
    """Return a type's entry in DescribeInstanceTypes, made from that of BASE."""
    vcpus, memory_mib, gpus, network, gbps = P3[name]
    entry = copy.deepcopy(INSTANCE_TYPES[BASE])
    entry.pop("InstanceStorageInfo", None)
    entry["NetworkInfo"].pop("EfaInfo", None)
    entry["NetworkInfo"].update(NetworkPerformance=network, EfaSupported=False)
    entry["NetworkInfo"]["NetworkCards"][0]["BaselineBandwidthInGbps"] = gbps
    entry["VCpuInfo"].update(DefaultVCpus=vcpus, DefaultCores=vcpus // 2)
    card = {"Name": "V100", "Manufacturer": "NVIDIA", "Count": gpus}
    card["MemoryInfo"] = {"SizeInMiB": 16384}
    entry.update(
        InstanceType=name,
        Hypervisor="xen",
        InstanceStorageSupported=False,
        MemoryInfo={"SizeInMiB": memory_mib},
        GpuInfo={"Gpus": [card], "TotalGpuMemoryInMiB": 16384 * gpus},
    )
    return entry


def offered_zones(region: str, instance_type: str) -> list[str]:
    """Return the zones of a region that offer the type, in order."""
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(one["Location"] for one in offers if one["InstanceType"] == instance_type)


def offer(name: str, kind: str, region: str, locations: list[str]) -> None:
    """Offer a type in locations of a region. `kind` is `region` or `availability-zone`."""
    offers = INSTANCE_TYPE_OFFERINGS[kind].setdefault(region, [])
    offers += [
        {"InstanceType": name, "LocationType": kind, "Location": location} for location in locations
    ]
