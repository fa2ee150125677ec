"""Default VPCs inside the lab's own network, and a check of which other subnets can have hosts."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, ip_network
from typing import Any

from moto.ec2.exceptions import DefaultVpcAlreadyExists
from moto.ec2.models import EC2Backend

from clusterctl.lab.addresses import REGIONS, SUBNET_PREFIX, default_network
from clusterctl.lab.ec2.completion import LAB, around
from clusterctl.lab.ec2.launch import Rule, all_instances, refuse
from clusterctl.lab.ec2.network import EVERYWHERE
from clusterctl.lab.hosts.instances import LabInstance

PRIVATE = tuple(IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
# A bridge takes 1,024 links, but the kernel's neighbour table overflows not far above 500 hosts.
MOST_HOSTS = 512


class HostRule(Rule):
    """The lab has room for the instances, and their subnet can have hosts. Then they get hosts."""

    def check_room(self, backend: Any, count: int) -> None:
        if backend.region_name not in REGIONS:
            raise refuse("region", ", ".join(REGIONS))
        there = sum(one.state != "terminated" for one in all_instances())
        if there + count > MOST_HOSTS:
            raise refuse("hosts", count, MOST_HOSTS, there)

    def check_subnet(self, subnet: Any) -> None:
        """Raise UnsupportedOperation for a subnet that cannot have hosts.

        All hosts are in one network, so an address cannot be used in two VPCs at the same time.
        """
        if subnet.ec2_backend.get_vpc(subnet.vpc_id).is_default:
            return
        it = subnet.id, subnet.cidr_block
        if not any(subnet.cidr.subnet_of(block) for block in PRIVATE):
            blocks = ", ".join(str(block) for block in PRIVATE)
            raise refuse("host-subnet", *it, f"the lab has hosts in {blocks} only")
        if subnet.cidr.overlaps(LAB.inside):
            raise refuse("host-subnet", *it, f"the lab's default VPCs are in {LAB.inside}")
        for other in all_instances():
            if other.state == "terminated" or other.vpc_id == subnet.vpc_id:
                continue
            there = other.nics[0].subnet
            if subnet.cidr.overlaps(there.cidr):
                used = f"{there.cidr_block} of {there.vpc_id}, which {other.id} is in"
                why = f"that overlaps {used}, and the lab has each address once"
                raise refuse("host-subnet", *it, why)

    def launched(self, instances: Sequence[Any]) -> None:
        """Let the instances have hosts, and wake the supervisor."""
        for instance in instances:
            instance.admit()
        LabInstance.changed.set()


@around(EC2Backend)
def create_default_vpc(elsewhere: Any, backend: Any) -> Any:
    """Make the default VPC in `LAB.inside`. Other regions keep moto's own."""
    if backend.region_name not in REGIONS:
        return elsewhere(backend)
    if backend.get_default_vpc():
        raise DefaultVpcAlreadyExists
    block = default_network(LAB.inside, backend.region_name, backend.account_id)
    vpc = backend.create_vpc(cidr_block=str(block), is_default=True)
    # The internet gateway and the route that a default VPC has on AWS, but not in moto.
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    [table] = [one for one in backend.route_tables.values() if one.vpc_id == vpc.id]
    backend.create_route(table.id, EVERYWHERE, gateway_id=gateway.id)
    own = {"zone-type": ["availability-zone"]}
    for zone in backend.describe_availability_zones(own):
        backend.create_default_subnet(zone.name)
    return vpc


@around(EC2Backend)
def create_default_subnet(original: Any, backend: Any, availability_zone: str) -> Any:
    vpc = backend.get_default_vpc()
    existing = backend.get_default_subnets()
    if backend.region_name not in REGIONS or vpc is None or availability_zone in existing:
        return original(backend, availability_zone)
    blocks = list(ip_network(vpc.cidr_block).subnets(new_prefix=SUBNET_PREFIX))
    subnet = backend.create_subnet(
        vpc_id=vpc.id,
        cidr_block=str(blocks[len(existing)]),
        availability_zone=availability_zone,
    )
    subnet.default_for_az = subnet.map_public_ip_on_launch = True
    return subnet
