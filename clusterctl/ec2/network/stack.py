"""The CloudFormation stack of a network: its creation, update, deletion and failures."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.network.plan import NetworkSettings, Stack, stack_name
from clusterctl.ec2.network.vpcs import NETWORK, Subnet, find_subnets

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

    from clusterctl.ec2.session import Clients

# The tag with the version of the template that a stack was last made or updated with.
TEMPLATE = "clusterctl:template"
# The resource type of the stack's own events.
STACK_TYPE = "AWS::CloudFormation::Stack"
# The status of the stack's own event that begins an operation.
_BEGINS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
# How the reason begins for a resource that CloudFormation gave up because another one failed.
_CANCELLED = "Resource creation cancelled"


@dataclass(frozen=True)
class Network:
    """An existing network. It has one subnet per zone, all of them public."""

    name: str
    vpc_id: str
    cidr: str
    subnets: tuple[Subnet, ...]
    security_group_id: str


@dataclass(frozen=True)
class StackEvent:
    """A CloudFormation event about one resource. `kind` is its type, empty for the stack itself."""

    event_id: str
    resource: str
    kind: str
    status: str
    reason: str

    @property
    def failed(self) -> bool:
        """Whether the resource failed by itself, not because another one did."""
        return self.status.endswith("_FAILED") and not self.reason.startswith(_CANCELLED)

    def describe(self) -> str:
        """Return a line for the user: the resource, and the reason or else the status."""
        what = f"{self.resource} ({self.kind})" if self.kind else self.resource
        return f"{what}: {self.reason or self.status}"


@functools.lru_cache(maxsize=1)
def template_body() -> str:
    """Return the text of the template that the package contains."""
    return (
        resources.files("clusterctl.ec2.network")
        .joinpath("network.yaml")
        .read_text(encoding="utf-8")
    )


def template_version() -> str:
    """Return a hash of the template's text: every change of it updates existing networks."""
    return hashlib.sha256(template_body().encode()).hexdigest()[:12]


def find_stack(client: CloudFormationClient, name_or_id: str) -> Stack | None:
    """Return the stack; None if there is none. Raises AwsError.

    CloudFormation finds a deleted stack by its id only, not by its name.
    """
    try:
        with translated():
            found = client.describe_stacks(StackName=name_or_id)["Stacks"]
    except AwsError as error:
        # CloudFormation has no error code of its own for an unknown stack.
        if error.code == "ValidationError" and "does not exist" in error.message:
            return None
        raise
    return read_stack(found[0]) if found else None


def read_stack(described: Any) -> Stack:
    """Read one stack of DescribeStacks' answer."""
    return Stack(
        stack_id=described["StackId"],
        name=described["StackName"],
        status=described["StackStatus"],
        reason=described.get("StackStatusReason", ""),
        parameters=_by_key(described.get("Parameters"), "Parameter"),
        outputs=_by_key(described.get("Outputs"), "Output"),
        template=tags.tag_dict(described.get("Tags")).get(TEMPLATE, ""),
        changed=str(described.get("DeletionTime") or described.get("LastUpdatedTime") or ""),
    )


def _by_key(entries: Any, kind: str) -> Mapping[str, str]:
    return {entry[f"{kind}Key"]: entry.get(f"{kind}Value", "") for entry in entries or ()}


def create_stack(client: CloudFormationClient, settings: NetworkSettings, token: str) -> str:
    """Start the creation of a network's stack and return the stack's id.

    `token` makes a repetition harmless. Raises AwsError, with code AlreadyExistsException if a
    stack of that name exists.
    """
    with translated():
        return client.create_stack(**_request(settings, token))["StackId"]


def update_stack(
    client: CloudFormationClient, stack: Stack, settings: NetworkSettings, token: str
) -> bool:
    """Start an update of the stack; return False if there is nothing to update. Raises AwsError."""
    try:
        with translated():
            client.update_stack(**{**_request(settings, token), "StackName": stack.stack_id})
    except AwsError as error:
        if "No updates are to be performed" in error.message:
            return False
        raise
    return True


def delete_stack(client: CloudFormationClient, stack: Stack, token: str) -> None:
    """Start the deletion of the stack. Raises AwsError."""
    with translated():
        client.delete_stack(StackName=stack.stack_id, ClientRequestToken=token)


def _request(settings: NetworkSettings, token: str) -> dict[str, Any]:
    return {
        "StackName": stack_name(settings.name),
        "TemplateBody": template_body(),
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value}
            for key, value in settings.parameters().items()
        ],
        "Tags": tags.tag_list({NETWORK: settings.name, TEMPLATE: template_version()}),
        "ClientRequestToken": token,
    }


def operation_events(client: CloudFormationClient, stack_id: str) -> tuple[StackEvent, ...]:
    """Return the events of the stack's last operation, oldest first. Raises AwsError."""
    with translated():
        return tuple(reversed(list(_newest_first(client, stack_id))))


def _newest_first(client: CloudFormationClient, stack_id: str) -> Iterator[StackEvent]:
    for page in client.get_paginator("describe_stack_events").paginate(StackName=stack_id):
        for event in page["StackEvents"]:
            own = event.get("ResourceType") == STACK_TYPE
            yield StackEvent(
                event_id=event["EventId"],
                resource=event.get("LogicalResourceId", ""),
                kind="" if own else event.get("ResourceType", ""),
                status=event.get("ResourceStatus", ""),
                reason=event.get("ResourceStatusReason", ""),
            )
            # The older events belong to earlier operations.
            if own and event.get("ResourceStatus") in _BEGINS:
                return


def network_of(clients: Clients, name: str, stack: Stack) -> Network:
    """Return the network of a usable stack (see `Stack.usable`). Raises AwsError."""
    subnet_ids = [stack.outputs["FirstSubnetId"], stack.outputs["SecondSubnetId"]]
    return Network(
        name=name,
        vpc_id=stack.outputs["VpcId"],
        cidr=stack.parameters.get("Cidr", ""),
        subnets=find_subnets(clients.ec2, subnet_ids=subnet_ids),
        security_group_id=stack.outputs["SecurityGroupId"],
    )
