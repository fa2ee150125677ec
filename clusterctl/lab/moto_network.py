"""Default VPCs inside the lab's own network, and in which subnets of others hosts can be."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network
from typing import Any

from moto.ec2.exceptions import DefaultVpcAlreadyExists, EC2ClientError
from moto.ec2.models import EC2Backend

from clusterctl.lab.addresses import REGIONS, SUBNET_PREFIX, default_network
from clusterctl.lab.moto_completion import replace
from clusterctl.lab.moto_instances import all_lab_instances

PRIVATE = tuple(IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))


def install(network: IPv4Network) -> None:
    elsewhere = EC2Backend.create_default_vpc

    def create_default_vpc(backend: Any) -> Any:
        if backend.region_name not in REGIONS:
            return elsewhere(backend)
        if backend.get_default_vpc():
            raise DefaultVpcAlreadyExists
        block = default_network(network, backend.region_name, backend.account_id)
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

    original_create = EC2Backend.create_subnet

    def create_subnet(backend: Any, vpc_id: str, cidr_block: str, *args: Any, **kwargs: Any) -> Any:
        """moto takes the first in a zone for a default one, whatever VPC it is in."""
        subnet = original_create(backend, vpc_id, cidr_block, *args, **kwargs)
        if not backend.get_vpc(vpc_id).is_default:
            subnet.default_for_az = subnet.map_public_ip_on_launch = False
        return subnet

    replace(EC2Backend, create_subnet)
    replace(EC2Backend, create_default_vpc)
    replace(EC2Backend, create_default_subnet)


def check_subnet(subnet: Any, network: IPv4Network) -> None:
    """Raises UnsupportedOperation where the lab cannot have hosts: it has each address once."""
    if subnet.ec2_backend.get_vpc(subnet.vpc_id).is_default:
        return
    if not any(subnet.cidr.subnet_of(block) for block in PRIVATE):
        blocks = ", ".join(str(block) for block in PRIVATE)
        raise _unsupported(subnet, f"the lab has hosts in {blocks} only")
    if subnet.cidr.overlaps(network):
        raise _unsupported(subnet, f"the lab's default VPCs are in {network}")
    for other in all_lab_instances():
        if other.state == "terminated" or other.vpc_id == subnet.vpc_id:
            continue
        there = other.nics[0].subnet
        if subnet.cidr.overlaps(there.cidr):
            used = f"{there.cidr_block} of {there.vpc_id}, which {other.id} is in"
            raise _unsupported(subnet, f"that overlaps {used}, and the lab has each address once")


def _unsupported(subnet: Any, why: str) -> EC2ClientError:
    text = f"No host of the lab can be in {subnet.id}, {subnet.cidr_block}: {why}."
    return EC2ClientError("UnsupportedOperation", text)
