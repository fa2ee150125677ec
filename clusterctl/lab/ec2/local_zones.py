"""A Local Zone of us-west-2, which both accounts have opted into.

It has no default subnet, offers few types, and has a network border group of its own (Local Zones
user guide, "How Local Zones work").
"""

from __future__ import annotations

from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone
from moto.ec2.models.elastic_ip_addresses import ElasticAddress
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import around, guard, setup
from clusterctl.lab.ec2.instance_types import offer
from clusterctl.lab.ec2.launch import PendingLaunch, Rule, refuse

REGION = "us-west-2"
LOCAL_ZONE = "us-west-2-lax-1a"
GROUP = "us-west-2-lax-1"
# Some of those that AWS lists for Los Angeles.
TYPES = ("t3.medium", "t3.xlarge", "c5.2xlarge", "g4dn.2xlarge", "g4dn.12xlarge")


class LocalZoneRule(Rule):
    """A launch in the Local Zone requests nothing that EBS lacks in it."""

    def check_launch(self, launch: PendingLaunch) -> None:
        disks = launch.request.get("BlockDeviceMappings", [])
        rates = [disk.get("Ebs", {}).get("VolumeInitializationRate") for disk in disks]
        if launch.zone == LOCAL_ZONE and any(rates):
            # EBS user guide, "Initialize Amazon EBS volumes". AWS documents no code and no words.
            raise refuse("local-zone-rate")


@setup
def _add_zone() -> None:
    """Add the zone, and give each elastic address its network border group."""
    zone = Zone(LOCAL_ZONE, REGION, "usw2-lax1-az1", "local-zone")
    RegionsAndZonesBackend.zones[REGION].append(zone)
    for name in TYPES:
        offer(name, "availability-zone", REGION, [LOCAL_ZONE])
    Zone.network_border_group = property(lambda one: _group(one.region_name, one.name))  # type: ignore[attr-defined]
    Zone.opt_in_status = property(  # type: ignore[attr-defined]
        lambda one: "opted-in" if one.name == LOCAL_ZONE else "opt-in-not-required"
    )
    ElasticAddress.network_border_group = property(_group_of_address)  # type: ignore[attr-defined]


@around(EC2Response)
def allocate_address(allocate: Any, response: Any) -> Any:
    region = response.ec2_backend.region_name
    wanted = response._get_param("NetworkBorderGroup") or region
    if wanted not in (region, _group(region, LOCAL_ZONE)):
        raise refuse("border-group", wanted)
    answer: Any = allocate(response)
    [address] = response.ec2_backend.address_by_allocation([answer.result["AllocationId"]])
    address.lab_border_group = answer.result["NetworkBorderGroup"] = wanted
    return answer


@guard(EC2Response)
def release_address(response: Any) -> None:
    """Check a release. A request that names no network border group means the region's."""
    backend, named = response.ec2_backend, response._get_param("AllocationId")
    wanted = response._get_param("NetworkBorderGroup") or backend.region_name
    there = [one for one in backend.addresses if one.allocation_id == named]
    if any(_group_of_address(one) != wanted for one in there):
        # The code is from the EC2 API reference, ReleaseAddress.
        raise refuse("address-elsewhere", named, wanted)


def check_group(elastic: Any, nic: Any) -> None:
    """Raise an error for an address of another network border group than the interface's.

    EC2 refuses this (EC2 API reference, AssociateAddress), but AWS documents no code. This one is
    that of CreateNatGateway for the same fault.
    """
    zone = nic.subnet.availability_zone
    if _group_of_address(elastic) != _group(nic.ec2_backend.region_name, zone):
        raise refuse("border-groups")


def _group_of_address(elastic: Any) -> str:
    region: str = elastic.ec2_backend.region_name
    return str(vars(elastic).get("lab_border_group", region))


def _group(region: str, zone: str) -> str:
    return GROUP if zone == LOCAL_ZONE else region
