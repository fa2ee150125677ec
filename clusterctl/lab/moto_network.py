"""Default VPCs inside the lab's own network: moto's are other people's."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network
from typing import Any

from moto.ec2.exceptions import DefaultVpcAlreadyExists
from moto.ec2.models import EC2Backend

from clusterctl.lab.addresses import REGIONS, SUBNET_PREFIX, region_network
from clusterctl.lab.moto_completion import replace


def install(network: IPv4Network) -> None:
    elsewhere = EC2Backend.create_default_vpc

    def create_default_vpc(backend: Any) -> Any:
        if backend.region_name not in REGIONS:
            return elsewhere(backend)
        if backend.get_default_vpc():
            raise DefaultVpcAlreadyExists
        block = region_network(network, backend.region_name)
        vpc = backend.create_vpc(cidr_block=str(block), is_default=True)
        for zone in backend.describe_availability_zones():
            backend.create_default_subnet(zone.name)
        return vpc

    original_subnet = EC2Backend.create_default_subnet

    def create_default_subnet(backend: Any, availability_zone: str) -> Any:
        vpc = backend.get_default_vpc()
        existing = backend.get_default_subnets()
        if backend.region_name not in REGIONS or vpc is None or availability_zone in existing:
            return original_subnet(backend, availability_zone)
        blocks = list(ip_network(vpc.cidr_block).subnets(new_prefix=SUBNET_PREFIX))
        subnet = backend.create_subnet(
            vpc_id=vpc.id,
            cidr_block=str(blocks[len(existing)]),
            availability_zone=availability_zone,
        )
        subnet.default_for_az = subnet.map_public_ip_on_launch = True
        return subnet

    replace(EC2Backend, create_default_vpc)
    replace(EC2Backend, create_default_subnet)
