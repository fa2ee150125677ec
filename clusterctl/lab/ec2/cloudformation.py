"""CloudFormation's network resources: properties that moto ignores, and deletions that it lacks."""

from __future__ import annotations

import graphlib
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import yaml
from moto.cloudformation import models, parsing
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import CloudFormationBackend
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.common_models import CloudFormationModel
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.internet_gateways import InternetGateway
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.subnets import Subnet, SubnetRouteTableAssociation
from moto.ec2.models.vpcs import VPC, VPCEndPoint
from moto.ec2.models.vpn_gateway import VPCGatewayAttachment

from clusterctl.lab.ec2.completion import around, guard, override, setup

# moto first checks that a name is free, and adds the stack later: two requests at the same time
# would make two stacks with one name.
CREATING = threading.Lock()
# The types of resources that a stack may create. moto's models of other services run programs on
# this machine.
SERVED = ("AWS::EC2::", "AWS::S3::", "AWS::IAM::", "AWS::SSM::")
# A name that a resource refers to, but for AWS's own, such as AWS::Region.
REFERENCE = re.compile(r'(?:"Ref": "|"Fn::GetAtt": \["|"Fn::GetAtt": ")(?!AWS::)(\w+)')
NO_UPDATES = "The lab cannot update a stack: delete it, and create it again"
# The id of the stack that this thread makes of a change set.
CHOSEN = threading.local()


class SecurityGroupEgress(CloudFormationModel):
    """AWS::EC2::SecurityGroupEgress, which moto lacks."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self.rule = rule
        self.physical_resource_id = f"{rule['group_name_or_id']}-egress"

    cloudformation_type = staticmethod(lambda: "AWS::EC2::SecurityGroupEgress")
    cloudformation_name_type = staticmethod(lambda: "")
    has_cfn_attr = classmethod(lambda cls, attr: False)

    def is_created(self) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, _: str, described: dict[str, Any], account: str, region: str, **__: Any
    ) -> SecurityGroupEgress:
        wanted = described["Properties"]
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
        ec2_backends[account][region].authorize_security_group_egress(**rule)
        return cls(rule)


@setup
def _complete_resources() -> None:
    for owner in (VPC, Subnet, SubnetRouteTableAssociation, SecurityGroup):
        _complete(owner)
    for owner, delete in DELETES.items():
        owner.delete = _unless_gone(delete)


@around(parsing)
def parse_resource(parse: Any, resource_json: dict[str, Any], resources_map: Any) -> Any:
    """Refuse a type that cannot be made. moto skips it, and then reports a complete stack."""
    kind = resource_json["Type"]
    nothing = kind in parsing.NULL_MODELS
    found = parse(resource_json, resources_map) if nothing or kind.startswith(SERVED) else None
    if found is None and not nothing:
        raise ValidationError(message=f"Resources of the type {kind} cannot be made here")
    return found


@override(CloudFormationResponse)
def validate_template(response: Any) -> ActionResult:
    """Check a template without cfn-lint, which wants a home."""
    body = response._get_param("TemplateBody")
    body = body or response._get_stack_from_s3_url(response._get_param("TemplateURL"))
    template = _parsed(body)
    shown = [
        {
            "ParameterKey": key,
            "DefaultValue": one.get("Default"),
            "Description": one.get("Description"),
            "NoEcho": bool(one.get("NoEcho")),
        }
        for key, one in template.get("Parameters", {}).items()
    ]
    return ActionResult({"Description": template.get("Description"), "Parameters": shown})


@around(CloudFormationResponse)
def _get_stack_from_s3_url(fetch: Any, response: Any, template_url: str) -> Any:
    """Take a template from the lab's own S3, too."""
    # moto knows the address of an S3 with buckets as paths by this name only.
    return fetch(response, template_url.replace("//127.0.0.1:", "//localhost:"))


@around(parsing)
def clean_json(clean: Any, resource_json: Any, resources_map: Any) -> Any:
    """Have Fn::GetAZs take the stack's own region by name, and name its real zones."""
    if not isinstance(resource_json, dict) or "Fn::GetAZs" not in resource_json:
        return clean(resource_json, resources_map)
    own = resources_map["AWS::Region"]
    region = clean(resource_json["Fn::GetAZs"], resources_map) or own
    if region != own:
        raise ValidationError(message=f"Fn::GetAZs of another region than {own}")
    account = resources_map["AWS::AccountId"]
    return sorted(ec2_backends[account][region].get_default_subnets())


@around(models)
def yaml_tag_constructor(construct: Any, loader: Any, tag: str, node: Any) -> Any:
    """Read a tag such as `!GetAZs` with a mapping below it, unlike moto."""
    if isinstance(node, yaml.MappingNode) and tag.startswith("!"):
        return {f"Fn::{tag[1:]}": loader.construct_mapping(node, deep=True)}
    return construct(loader, tag, node)


def _parsed(body: str | None) -> dict[str, Any]:
    if not body:
        text = "Either Template URL or Template Body must be specified."
        raise ValidationError(message=text)
    try:
        template = models.Stack.parse_template(body)
    except (ValueError, yaml.YAMLError) as wrong:
        raise ValidationError(message=f"Template format error: {wrong}") from None
    if not isinstance(template, dict) or not isinstance(template.get("Resources"), dict):
        text = "Template format error: At least one Resources member must be defined."
        raise ValidationError(message=text)
    _check_references(template)
    return template


def _check_references(template: dict[str, Any]) -> None:
    """Refuse a template whose resources need others that it does not have, or each other."""
    needed = {}
    for name, one in template["Resources"].items():
        after = one.get("DependsOn", [])
        found = REFERENCE.findall(json.dumps(one, default=str))
        needed[name] = {*([after] if isinstance(after, str) else after), *found}
    known = {*needed, *(template.get("Parameters") or {})}
    if unknown := sorted(set().union(*needed.values()) - known):
        text = f"Unresolved resource dependencies [{', '.join(unknown)}]"
        text = f"Template format error: {text} in the Resources block of the template"
        raise ValidationError(message=text)
    try:
        graphlib.TopologicalSorter(needed).prepare()
    except graphlib.CycleError as cycle:
        text = f"Circular dependency between resources: [{', '.join(sorted(set(cycle.args[1])))}]"
        raise ValidationError(message=text) from None


def _check_parameters(template: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse parameters that the template's constraints do not allow, and missing ones."""
    declared = template.get("Parameters") or {}
    if unknown := [name for name in given if name not in declared]:
        text = f"Parameters: [{', '.join(unknown)}] do not exist in the template"
        raise ValidationError(message=text)
    for name, one in declared.items():
        value = str(given.get(name, one.get("Default", "")))
        if name not in given and "Default" not in one:
            raise ValidationError(message=f"Parameters: [{name}] must have values")
        allowed = [str(each) for each in one.get("AllowedValues", [value])]
        if value not in allowed or not re.fullmatch(one.get("AllowedPattern", "(?s:.*)"), value):
            text = one.get("ConstraintDescription", "it is not one of the values that are allowed")
            raise ValidationError(
                message=f"Parameter '{name}' failed to satisfy constraint: {text}"
            )


# A change set creates a stack as CreateStack does, and updates are refused. moto makes the
# resources of a change set without outputs, exports and tags, and an update of its changes nothing
# but the stack's status.


@around(CloudFormationBackend)
def create_change_set(make: Any, ec2: Any, *args: Any, **named: Any) -> Any:
    if named["change_set_type"] != "UPDATE":
        _check_parameters(_parsed(named["template"]), named["parameters"])
    made = make(ec2, *args, **named)
    change_set = ec2.change_sets[made[0]]
    if named["change_set_type"] == "UPDATE" and change_set.status != "FAILED":
        change_set.status, change_set.execution_status = "FAILED", "UNAVAILABLE"
        change_set.status_reason = NO_UPDATES
    return made


@around(CloudFormationResponse)
def _validate_different_update(different: Any, response: Any, *args: Any) -> None:
    # A change set without changes is made, and fails.
    if response._get_action() == "UpdateStack":
        different(response, *args)


@override(CloudFormationBackend)
def execute_change_set(backend: Any, change_set_name: str, stack_name: str | None = None) -> None:
    found = _find_change_set(backend, change_set_name, stack_name)
    if found.execution_status != "AVAILABLE":
        text = f"ChangeSet [{found.change_set_id}] cannot be executed in its current status"
        raise CloudFormationError("InvalidChangeSetStatus", f"{text} of [{found.status}]")
    review = backend.stacks.pop(found.stack.stack_id)
    CHOSEN.id = review.stack_id
    try:
        more = {"notification_arns": found.notification_arns, "tags": found.tags}
        named = {**more, "role_arn": found.role_arn}
        backend.create_stack(review.name, found.template, found.parameters, **named)
    except Exception:
        backend.stacks[review.stack_id] = review
        raise
    finally:
        CHOSEN.id = None
    found.execution_status = "EXECUTE_COMPLETE"


@override(CloudFormationBackend)
def delete_change_set(backend: Any, change_set_name: str) -> None:
    found = _find_change_set(backend, change_set_name)
    del backend.change_sets[found.change_set_id]


@around(models)
def generate_stack_id(name_stack: Any, *args: Any) -> str:
    return str(getattr(CHOSEN, "id", None) or name_stack(*args))


@override(CloudFormationBackend)
def update_stack(backend: Any, name: str, template: str, parameters: Any, **_: Any) -> None:
    stack = backend.get_stack(name)
    given = {one["ParameterKey"]: one.get("ParameterValue") for one in parameters}
    changed = {key for key, value in given.items() if value is not None}
    same = all(stack.stack_parameters.get(key) == given[key] for key in changed)
    if stack.has_template(template) and same:
        raise ValidationError(message="No updates are to be performed.")
    raise ValidationError(message=NO_UPDATES)


def _find_change_set(backend: Any, name: str, stack: str | None = None) -> Any:
    for one in backend.change_sets.values():
        of_stack = stack in (None, one.stack.name, one.stack.stack_id)
        if name in (one.change_set_id, one.change_set_name) and of_stack:
            return one
    raise CloudFormationError("ChangeSetNotFound", f"ChangeSet [{name}] does not exist")


@around(CloudFormationBackend)
def create_stack(
    make: Any, backend: Any, name: str, template: str, parameters: dict[str, Any], **kwargs: Any
) -> Any:
    """Roll back a stack that cannot be created, with the reason. moto leaves it incomplete."""
    _check_parameters(_parsed(template), parameters)
    with CREATING:
        before = set(backend.stacks)
        try:
            return make(backend, name, template, parameters, **kwargs)
        except Exception as failed:
            new = [stack for id, stack in backend.stacks.items() if id not in before]
            try:
                for stack in new:
                    _roll_back(backend, stack)
            except EC2ClientError as kept:
                return _fail(new[0], "ROLLBACK_FAILED", kept)
            # An error in the template is the request's error, and leaves no stack.
            if not new or isinstance(failed, ValidationError):
                for stack in new:
                    del backend.stacks[stack.stack_id]
                raise
            return _fail(new[0], "ROLLBACK_COMPLETE", failed)


@around(CloudFormationBackend)
def delete_stack(remove: Any, backend: Any, name_or_stack_id: str) -> None:
    """Keep a stack that cannot be deleted, with the reason. moto forgets it."""
    all = backend.stacks.values()
    stacks = [stack for stack in all if name_or_stack_id in (stack.stack_id, stack.name)]
    try:
        remove(backend, name_or_stack_id)
    except Exception as kept:
        if not stacks:
            raise
        backend.stacks[stacks[0].stack_id] = _fail(stacks[0], "DELETE_FAILED", kept)


@guard(CloudFormationResponse, "create_stack")
def check_capabilities(response: Any) -> None:
    body = response._get_param("TemplateBody")
    given = response._get_param("Capabilities", [])
    kinds = [one.get("Type", "") for one in _parsed(body)["Resources"].values()] if body else []
    if not given and any(kind.startswith("AWS::IAM::") for kind in kinds):
        text = "Requires capabilities : [CAPABILITY_IAM]"
        raise CloudFormationError("InsufficientCapabilitiesException", text)


def _roll_back(backend: Any, stack: Any) -> None:
    """Delete the resources of a stack, and what it exports."""
    try:
        stack.resource_map.delete()
    finally:
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


def _complete(owner: Any) -> None:
    """Have stacks create a class's resources with the properties that moto ignores."""
    make = owner.create_from_cloudformation_json

    def create(
        _: Any, name: str, described: dict[str, Any], account_id: str, region: str, **more: Any
    ) -> Any:
        wanted = described["Properties"]
        for rule in wanted.get("SecurityGroupIngress", []):
            # moto needs ports even in a rule for all protocols, which has none.
            rule.setdefault("FromPort", None)
            rule.setdefault("ToPort", None)
        made = make(name, described, account_id, region, **more)
        if owner is VPC:
            made.enable_dns_hostnames = _is_true(wanted.get("EnableDnsHostnames", False))
            made.enable_dns_support = _is_true(wanted.get("EnableDnsSupport", True))
        elif owner is Subnet:
            made.map_public_ip_on_launch = _is_true(wanted.get("MapPublicIpOnLaunch", False))
        elif owner is SubnetRouteTableAssociation:
            # Associate them under an id with which the association can be ended.
            made.id = ec2_backends[account_id][region].associate_route_table(
                wanted["RouteTableId"], subnet_id=wanted["SubnetId"]
            )
        return made

    owner.create_from_cloudformation_json = classmethod(create)


def _unless_gone(delete: Callable[[Any, Any], Any]) -> Callable[[Any, str, str], None]:
    """Wrap a deletion so that it succeeds for a resource that is gone already.

    It may have been deleted by a user, or together with another resource.
    """

    def act(resource: Any, account_id: str, region: str) -> None:
        try:
            delete(resource, ec2_backends[account_id][region])
        except EC2ClientError as refused:
            if "NotFound" not in str(refused):
                raise

    return act


# How a stack deletes the resources of a class, with the region's EC2.
DELETES: dict[Any, Callable[[Any, Any], Any]] = {
    SecurityGroupEgress: lambda egress, ec2: ec2.revoke_security_group_egress(**egress.rule),
    SubnetRouteTableAssociation: lambda one, ec2: ec2.disassociate_route_table(one.id),
    RouteTable: lambda table, ec2: ec2.delete_route_table(table.id),
    InternetGateway: lambda one, ec2: ec2.delete_internet_gateway(one.id),
    VPCGatewayAttachment: lambda one, ec2: ec2.detach_internet_gateway(one.gateway_id, one.vpc_id),
    VPCEndPoint: lambda one, ec2: ec2.delete_vpc_endpoints([one.id]),
}


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
