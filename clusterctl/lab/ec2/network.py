"""Default VPCs inside the lab's own network, and in which subnets of others hosts can be."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv4Network, ip_network
from typing import Any

from moto.ec2.exceptions import DefaultVpcAlreadyExists, EC2ClientError
from moto.ec2.models import EC2Backend, nat_gateways, vpcs
from moto.ec2.models.subnets import Subnet

from clusterctl.lab.addresses import REGIONS, SUBNET_PREFIX, default_network
from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.instances import all_lab_instances

EVERYWHERE = "0.0.0.0/0"
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
        _open_to_the_internet(backend, vpc)
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

    request_address = Subnet.request_ip

    def request_ip(subnet: Any, ip: str, instance: Any) -> None:
        check_address(subnet, ip)
        if ip in subnet._subnet_ips:
            raise EC2ClientError("InvalidIPAddress.InUse", f"Address {ip} is in use.")
        request_address(subnet, ip, instance)

    create_interface = EC2Backend.create_network_interface

    def create_network_interface(
        backend: Any, subnet: Any, address: Any, addresses: Any = None, *rest: Any, **others: Any
    ) -> Any:
        """moto takes any address, and of those that it chooses itself some are the gateway's."""
        subnet = backend.get_subnet(subnet) if isinstance(subnet, str) else subnet
        named = [address] if isinstance(address, str) else [*(address or ())]
        more = [one if isinstance(one, str) else one["PrivateIpAddress"] for one in addresses or ()]
        for one in filter(None, [*named, *more]):
            check_address(subnet, one)
        if not any([*named, *more]):
            free = {str(one) for one in subnet.cidr.hosts()} - set(_reserved(subnet))
            address = random.choice(sorted(free - set(subnet._subnet_ips)))  # noqa: S311
        return create_interface(backend, subnet, address, addresses, *rest, **others)

    def random_private_ip() -> str:
        """moto's lies in no subnet: a NAT gateway's and an endpoint's interface choose theirs."""
        return ""

    override(nat_gateways, random_private_ip)
    override(vpcs, random_private_ip)
    override(Subnet, request_ip)
    override(EC2Backend, create_network_interface)
    override(EC2Backend, create_subnet)
    override(EC2Backend, create_default_vpc)
    override(EC2Backend, create_default_subnet)
    _complete_endpoints()


def _complete_endpoints() -> None:
    """Endpoints: the type that is the default, one route to a service, and their end."""
    make = EC2Backend.create_vpc_endpoint
    remove = EC2Backend.delete_vpc_endpoints

    def create_vpc_endpoint(
        backend: Any,
        vpc_id: str,
        service_name: str,
        endpoint_type: str | None,
        policy_document: str | None,
        route_table_ids: list[str],
        *more: Any,
        **named: Any,
    ) -> Any:
        for id in route_table_ids:
            _check_no_endpoint(backend, id, service_name)
        kind = endpoint_type or "Gateway"
        given = (vpc_id, service_name, kind, policy_document, route_table_ids)
        return make(backend, *given, *more, **named)

    def delete_vpc_endpoints(backend: Any, vpce_ids: list[str] | None = None) -> None:
        remove(backend, vpce_ids)
        for id in vpce_ids or ():
            backend.vpc_end_points.pop(id, None)

    override(EC2Backend, create_vpc_endpoint)
    override(EC2Backend, delete_vpc_endpoints)


def _check_no_endpoint(backend: Any, table_id: str, service_name: str) -> None:
    """Raises RouteAlreadyExists: a table has one route to a service."""
    backend.get_route_table(table_id)
    for one in backend.vpc_end_points.values():
        if one.service_name == service_name and table_id in (one.route_table_ids or ()):
            prefixes = one.destination_prefix_list_id
            raise EC2ClientError(
                "RouteAlreadyExists",
                f"route table {table_id} already has a route with destination-prefix-list-id "
                f"{prefixes}",
            )


def _open_to_the_internet(backend: Any, vpc: Any) -> None:
    """The gateway and the route that a default VPC has, and moto's has not."""
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    [table] = [one for one in backend.route_tables.values() if one.vpc_id == vpc.id]
    backend.create_route(table.id, EVERYWHERE, gateway_id=gateway.id)


def reaches_s3(instance: Any) -> bool:
    """Whether a route leads from it to S3: an endpoint's, a NAT gateway's, or the internet's.

    An internet gateway takes only what has a public address.
    """
    nic, backend = instance.nics[0], instance.ec2_backend
    table = _table_of(backend, nic.subnet)
    service = f"com.amazonaws.{backend.region_name}.s3"
    for endpoint in list(backend.vpc_end_points.values()):
        if endpoint.service_name == service and table.id in (endpoint.route_table_ids or ()):
            return True
    for route in table.routes:
        if route.destination_cidr_block == EVERYWHERE:
            to_internet = route.gateway is not None and str(route.gateway.id).startswith("igw-")
            return bool(nic.public_ip) or not to_internet
    return False


def _table_of(backend: Any, subnet: Any) -> Any:
    """The table that the subnet is associated with, or its VPC's main one."""
    tables = [one for one in list(backend.route_tables.values()) if one.vpc_id == subnet.vpc_id]
    own = [one for one in tables if subnet.id in one._associations.values()]
    return (own or [one for one in tables if one.main_association_id])[0]


def check_address(subnet: Any, address: str) -> None:
    """Refuse an address that no interface in the subnet can have, in EC2's words."""
    try:
        inside = IPv4Address(address) in subnet.cidr
    except ValueError:
        inside = False
    if not inside:
        text = "Address does not fall within the subnet's address range"
        raise EC2ClientError("InvalidParameterValue", text)
    if address in _reserved(subnet):
        text = f"Address {address} is in subnet's reserved address range"
        raise EC2ClientError("InvalidParameterValue", text)


def _reserved(subnet: Any) -> list[str]:
    """The first four addresses, of which the gateway has the second, and the last one."""
    return [str(subnet.cidr[index]) for index in (0, 1, 2, 3, -1)]


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
