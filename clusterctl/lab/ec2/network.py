"""Subnets and their addresses, VPC endpoints, and routes to S3.

Resources in use cannot be deleted: security groups with instances, subnets with interfaces, VPCs
with groups or a gateway.
"""

from __future__ import annotations

import random
from ipaddress import IPv4Address
from typing import Any

from moto.ec2.models import EC2Backend, nat_gateways, vpcs
from moto.ec2.models.subnets import Subnet

from clusterctl.lab.ec2.completion import around, guard, override
from clusterctl.lab.ec2.launch import refuse

EVERYWHERE = "0.0.0.0/0"


@around(EC2Backend)
def create_subnet(create: Any, backend: Any, vpc_id: str, *args: Any, **kwargs: Any) -> Any:
    """Make a subnet. moto makes the first one in a zone a default subnet in every VPC."""
    subnet = create(backend, vpc_id, *args, **kwargs)
    if not backend.get_vpc(vpc_id).is_default:
        subnet.default_for_az = subnet.map_public_ip_on_launch = False
    return subnet


@guard(Subnet)
def request_ip(subnet: Any, ip: str, instance: Any) -> None:
    check_address(subnet, ip)
    if ip in subnet._subnet_ips:
        raise refuse("address-in-use", ip)


@around(EC2Backend)
def create_network_interface(
    create: Any,
    backend: Any,
    subnet: Any,
    address: Any,
    addresses: Any = None,
    *rest: Any,
    **others: Any,
) -> Any:
    """Check the addresses of an interface, or choose a free one.

    moto takes any address, and may choose the gateway's itself.
    """
    subnet = backend.get_subnet(subnet) if isinstance(subnet, str) else subnet
    named = [address] if isinstance(address, str) else [*(address or ())]
    more = [one if isinstance(one, str) else one["PrivateIpAddress"] for one in addresses or ()]
    for one in filter(None, [*named, *more]):
        check_address(subnet, one)
    if not any([*named, *more]):
        address = _free_address(subnet)
    return create(backend, subnet, address, addresses, *rest, **others)


@override(nat_gateways)
@override(vpcs)
def random_private_ip() -> str:
    """Leave the choice to `create_network_interface`.

    moto calls this for the interfaces of NAT gateways and endpoints, and its own address is in
    no subnet.
    """
    return ""


@around(EC2Backend)
def create_vpc_endpoint(make: Any, backend: Any, **named: Any) -> Any:
    """Make an endpoint, a gateway by default, with one route per table and service."""
    all = list(backend.vpc_end_points.values())
    for one in (one for one in all if one.service_name == named["service_name"]):
        for id in {*named["route_table_ids"]} & {*(one.route_table_ids or ())}:
            raise refuse("route-exists", id, one.destination_prefix_list_id)
    return make(backend, **{**named, "endpoint_type": named["endpoint_type"] or "Gateway"})


@around(EC2Backend)
def delete_vpc_endpoints(remove: Any, backend: Any, vpce_ids: list[str] | None = None) -> None:
    try:
        # This fails for one of a stack whose route table was deleted before.
        remove(backend, vpce_ids)
    finally:
        for id in vpce_ids or ():
            backend.vpc_end_points.pop(id, None)


def reaches_s3(instance: Any) -> bool:
    """Return whether a route leads from the instance to S3.

    It can be that of an S3 endpoint, or the default route: to a NAT gateway, or, for an instance
    with a public address, to an internet gateway.
    """
    nic, backend = instance.nics[0], instance.ec2_backend
    table = _table_of(backend, nic.subnet)
    service = f"com.amazonaws.{backend.region_name}.s3"
    for endpoint in list(backend.vpc_end_points.values()):
        if endpoint.service_name == service and table.id in (endpoint.route_table_ids or ()):
            return True
    return reaches_internet(instance)


def reaches_internet(instance: Any) -> bool:
    """Return whether the default route leads from the instance to the Internet."""
    nic = instance.nics[0]
    table = _table_of(instance.ec2_backend, nic.subnet)
    return any(bool(nic.public_ip) or not to_internet for to_internet in _defaults(table))


def answers_publicly(instance: Any) -> bool:
    """Return whether the instance's public address, if it has one, leads to it.

    It does where the default route of its subnet leads to an internet gateway.
    """
    return any(_defaults(_table_of(instance.ec2_backend, instance.nics[0].subnet)))


def _defaults(table: Any) -> list[bool]:
    """Return of each default route, of which there is at most one: it is to an internet gateway."""
    return [
        route.gateway is not None and str(route.gateway.id).startswith("igw-")
        for route in table.routes
        if route.destination_cidr_block == EVERYWHERE
    ]


def _table_of(backend: Any, subnet: Any) -> Any:
    """Return the route table of a subnet: the associated one, or its VPC's main one."""
    tables = [one for one in list(backend.route_tables.values()) if one.vpc_id == subnet.vpc_id]
    own = [one for one in tables if subnet.id in one._associations.values()]
    return (own or [one for one in tables if one.main_association_id])[0]


def check_address(subnet: Any, address: str) -> None:
    """Raise EC2's error for an address that no interface in the subnet can have."""
    try:
        inside = IPv4Address(address) in subnet.cidr
    except ValueError:
        inside = False
    if not inside:
        raise refuse("address-outside")
    if address in _reserved(subnet):
        raise refuse("address-reserved", address)


def _free_address(subnet: Any) -> str:
    taken = {*_reserved(subnet), *subnet._subnet_ips}
    # Few addresses of a subnet are taken, as a rule: to list the free ones takes a thousand times
    # longer.
    for _ in range(20):
        address = str(subnet.cidr[random.randrange(1, subnet.cidr.num_addresses - 1)])  # noqa: S311
        if address not in taken:
            return address
    free = [str(one) for one in subnet.cidr.hosts() if str(one) not in taken]
    return random.choice(free)  # noqa: S311


def _reserved(subnet: Any) -> list[str]:
    """Return the addresses that AWS reserves in a subnet. The second one is the gateway's."""
    return [str(subnet.cidr[index]) for index in (0, 1, 2, 3, -1)]


@guard(EC2Backend)
def delete_security_group(
    backend: Any, name: str | None = None, group_id: str | None = None
) -> None:
    """Refuse, as the checks below do, to delete or detach what others depend on."""
    if any(_uses(one, name, group_id) for one in backend.all_instances()):
        raise refuse("dependent-object", group_id or name)


@guard(EC2Backend)
def delete_subnet(backend: Any, subnet_id: str) -> None:
    if any(nic.subnet.id == subnet_id for nic in backend.enis.values()):
        raise refuse("has-dependencies", "subnet", subnet_id)


@guard(EC2Backend)
def delete_vpc(backend: Any, vpc_id: str) -> None:
    gateways = [one for one in backend.internet_gateways.values() if one.vpc]
    others = [one for one in backend.groups[vpc_id].values() if one.name != "default"]
    if others or any(one.vpc.id == vpc_id for one in gateways):
        raise refuse("has-dependencies", "vpc", vpc_id)


@guard(EC2Backend)
def detach_internet_gateway(backend: Any, internet_gateway_id: str, vpc_id: str) -> None:
    nics = [nic for nic in backend.enis.values() if nic.subnet.vpc_id == vpc_id]
    if any(nic.public_ip for nic in nics):
        raise refuse("addresses-mapped", vpc_id)


def _uses(instance: Any, name: str | None, group_id: str | None) -> bool:
    """Return whether an instance has the security group, given by its id or its name."""
    if instance.state == "terminated":
        return False
    groups = [group for nic in instance.nics.values() for group in nic.group_set]
    return any(group.id == group_id if group_id else group.name == name for group in groups)
