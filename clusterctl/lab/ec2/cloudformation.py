"""CloudFormation's network resources: properties that moto ignores, and deletions that it lacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from moto.cloudformation import parsing
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend
from moto.core.common_models import CloudFormationModel
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.subnets import Subnet, SubnetRouteTableAssociation
from moto.ec2.models.vpcs import VPC, VPCEndPoint
from moto.ec2.models.vpn_gateway import VPCGatewayAttachment

from clusterctl.lab.ec2.completion import override

# moto first checks that a name is free, and adds the stack later: two requests at the same time
# would make two stacks with one name.
CREATING = threading.Lock()


class SecurityGroupEgress(CloudFormationModel):
    """AWS::EC2::SecurityGroupEgress, which moto lacks."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self.rule = rule
        self.physical_resource_id = f"{rule['group_name_or_id']}-egress"

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::SecurityGroupEgress"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return False

    def is_created(self) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **kwargs: Any,
    ) -> SecurityGroupEgress:
        wanted = cloudformation_json["Properties"]
        note = {"Description": wanted["Description"]} if "Description" in wanted else {}
        group, block = wanted.get("DestinationSecurityGroupId"), wanted.get("CidrIp")
        rule = {
            "group_name_or_id": wanted["GroupId"],
            "ip_protocol": str(wanted["IpProtocol"]),
            "from_port": wanted.get("FromPort"),
            "to_port": wanted.get("ToPort"),
            "ip_ranges": [{"CidrIp": block, **note}] if block else [],
            "source_groups": [{"GroupId": group, **note}] if group else [],
        }
        ec2_backends[account_id][region_name].authorize_security_group_egress(**rule)
        return cls(rule)


def install(served: tuple[str, ...]) -> None:
    """Complete CloudFormation. Stacks can only have types that begin with one of `served`."""
    _complete(VPC, _set_dns)
    _complete(Subnet, _set_public)
    _complete(SubnetRouteTableAssociation, _associate)
    _complete(SecurityGroup, lambda *_: None, _tidy_rules)
    for owner, delete in DELETES.items():
        owner.delete = _unless_gone(delete)
    parse = parsing.parse_resource

    def parse_resource(resource_json: dict[str, Any], resources_map: Any) -> Any:
        """Refuse a type that cannot be made. moto skips it, and then reports a complete stack."""
        kind = resource_json["Type"]
        nothing = kind in parsing.NULL_MODELS
        found = parse(resource_json, resources_map) if nothing or kind.startswith(served) else None
        if found is None and not nothing:
            raise ValidationError(message=f"Resources of the type {kind} cannot be made here")
        return found

    override(parsing, parse_resource)
    _keep_failures()


def _keep_failures() -> None:
    """Roll back a stack that cannot be created, keep one that cannot be deleted, record the reason.

    moto leaves the one incomplete, and forgets the other.
    """
    make = CloudFormationBackend.create_stack
    remove = CloudFormationBackend.delete_stack

    def create_stack(backend: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        with CREATING:
            before = set(backend.stacks)
            try:
                return make(backend, name, *args, **kwargs)
            except Exception as failed:
                new = [stack for id, stack in backend.stacks.items() if id not in before]
                for stack in new:
                    _roll_back(backend, stack)
                # An error in the template is the request's error, and leaves no stack.
                if not new or isinstance(failed, ValidationError):
                    for stack in new:
                        del backend.stacks[stack.stack_id]
                    raise
                return _fail(new[0], "ROLLBACK_COMPLETE", failed)

    def delete_stack(backend: Any, name_or_stack_id: str) -> None:
        stacks = [
            stack
            for stack in backend.stacks.values()
            if name_or_stack_id in (stack.stack_id, stack.name)
        ]
        try:
            remove(backend, name_or_stack_id)
        except Exception as kept:
            if not stacks:
                raise
            backend.stacks[stacks[0].stack_id] = _fail(stacks[0], "DELETE_FAILED", kept)

    override(CloudFormationBackend, create_stack)
    override(CloudFormationBackend, delete_stack)


def _roll_back(backend: Any, stack: Any) -> None:
    """Delete the resources of a stack, and what it exports."""
    stack.resource_map.delete()
    # Else moto would make the resources again for whoever reads them, or an output.
    stack.resource_map._resource_json_map, stack.output_map._output_json_map = {}, {}
    for name, export in list(backend.exports.items()):
        if export.exporting_stack_id == stack.stack_id:
            del backend.exports[name]


def _fail(stack: Any, status: str, why: Exception) -> Any:
    """Set a stack's status, with the reason in its events, and return the stack."""
    stack.status = status
    stack._add_stack_event(status, resource_status_reason=str(why))
    return stack


def _complete(
    owner: Any,
    finish: Callable[[Any, dict[str, Any], Any], None],
    tidy: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Wrap how stacks create a class's resources.

    `tidy` changes the properties before. `finish` gets the new resource, the properties and the
    region's backend after.
    """
    make = owner.create_from_cloudformation_json

    def create(
        _: Any, name: str, wanted: dict[str, Any], account_id: str, region: str, **more: Any
    ) -> Any:
        if tidy:
            tidy(wanted["Properties"])
        made = make(name, wanted, account_id, region, **more)
        finish(made, wanted["Properties"], ec2_backends[account_id][region])
        return made

    owner.create_from_cloudformation_json = classmethod(create)


def _set_dns(vpc: Any, wanted: dict[str, Any], _: Any) -> None:
    vpc.enable_dns_hostnames = _is_true(wanted.get("EnableDnsHostnames", False))
    vpc.enable_dns_support = _is_true(wanted.get("EnableDnsSupport", True))


def _set_public(subnet: Any, wanted: dict[str, Any], _: Any) -> None:
    subnet.map_public_ip_on_launch = _is_true(wanted.get("MapPublicIpOnLaunch", False))


def _associate(association: Any, wanted: dict[str, Any], backend: Any) -> None:
    """Associate the table with the subnet, under an id with which the association can be ended."""
    association.id = backend.associate_route_table(
        wanted["RouteTableId"], subnet_id=wanted["SubnetId"]
    )


def _tidy_rules(wanted: dict[str, Any]) -> None:
    """Add missing ports: moto needs them even in a rule for all protocols, which has none."""
    for rule in wanted.get("SecurityGroupIngress", []):
        rule.setdefault("FromPort", None)
        rule.setdefault("ToPort", None)


def _unless_gone(delete: Callable[..., None]) -> Callable[..., None]:
    """Wrap a deletion so that it succeeds for a resource that is gone already.

    It may have been deleted by a user, or together with another resource.
    """

    def act(resource: Any, account_id: str, region: str) -> None:
        try:
            delete(resource, account_id, region)
        except EC2ClientError as refused:
            if "NotFound" not in str(refused):
                raise

    return act


def _delete_rule(egress: Any, account_id: str, region: str) -> None:
    ec2_backends[account_id][region].revoke_security_group_egress(**egress.rule)


def _delete_association(association: Any, account_id: str, region: str) -> None:
    ec2_backends[account_id][region].disassociate_route_table(association.id)


def _delete_route_table(table: Any, *_: str) -> None:
    table.ec2_backend.delete_route_table(table.id)


def _delete_gateway(gateway: Any, *_: str) -> None:
    gateway.ec2_backend.delete_internet_gateway(gateway.id)


def _delete_attachment(attachment: Any, account_id: str, region: str) -> None:
    backend = ec2_backends[account_id][region]
    backend.detach_internet_gateway(attachment.gateway_id, attachment.vpc_id)


def _delete_endpoint(endpoint: Any, *_: str) -> None:
    try:
        # This fails if the stack's route table was deleted before: the order is not fixed.
        endpoint.ec2_backend.delete_vpc_endpoints([endpoint.id])
    finally:
        endpoint.ec2_backend.vpc_end_points.pop(endpoint.id, None)


# How a stack deletes the resources of a class.
DELETES: dict[Any, Callable[..., None]] = {
    SecurityGroupEgress: _delete_rule,
    SubnetRouteTableAssociation: _delete_association,
    RouteTable: _delete_route_table,
    InternetGateway: _delete_gateway,
    VPCGatewayAttachment: _delete_attachment,
    VPCEndPoint: _delete_endpoint,
}


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
