"""What is in use stays: security groups with instances, subnets with interfaces, VPCs with groups
or a gateway."""

from __future__ import annotations

from typing import Any

from moto.ec2.exceptions import DependencyViolationError, EC2ClientError
from moto.ec2.models import EC2Backend

from clusterctl.lab.ec2.completion import override


def install() -> None:
    delete = EC2Backend.delete_security_group
    remove_subnet = EC2Backend.delete_subnet
    remove_vpc = EC2Backend.delete_vpc
    detach = EC2Backend.detach_internet_gateway

    def delete_security_group(
        backend: Any, name: str | None = None, group_id: str | None = None
    ) -> None:
        if any(_uses(one, name, group_id) for one in backend.all_instances()):
            raise EC2ClientError(
                "DependencyViolation", f"resource {group_id or name} has a dependent object"
            )
        delete(backend, name, group_id)

    def delete_subnet(backend: Any, subnet_id: str) -> Any:
        if any(nic.subnet.id == subnet_id for nic in backend.enis.values()):
            raise DependencyViolationError(
                f"The subnet '{subnet_id}' has dependencies and cannot be deleted."
            )
        return remove_subnet(backend, subnet_id)

    def delete_vpc(backend: Any, vpc_id: str) -> Any:
        groups = [group.name for group in backend.groups[vpc_id].values()]
        gateways = [one for one in backend.internet_gateways.values() if one.vpc]
        attached = any(one.vpc.id == vpc_id for one in gateways)
        if attached or any(name != "default" for name in groups):
            raise DependencyViolationError(
                f"The vpc '{vpc_id}' has dependencies and cannot be deleted."
            )
        return remove_vpc(backend, vpc_id)

    def detach_internet_gateway(backend: Any, internet_gateway_id: str, vpc_id: str) -> None:
        nics = [nic for nic in backend.enis.values() if nic.subnet.vpc_id == vpc_id]
        if any(nic.public_ip for nic in nics):
            raise DependencyViolationError(
                f"Network {vpc_id} has some mapped public address(es). Please unmap those public "
                "address(es) before detaching the gateway."
            )
        detach(backend, internet_gateway_id, vpc_id)

    override(EC2Backend, delete_security_group)
    override(EC2Backend, delete_subnet)
    override(EC2Backend, delete_vpc)
    override(EC2Backend, detach_internet_gateway)


def _uses(instance: Any, name: str | None, group_id: str | None) -> bool:
    if instance.state == "terminated":
        return False
    groups = [group for nic in instance.nics.values() for group in nic.group_set]
    return any(group.id == group_id if group_id else group.name == name for group in groups)
