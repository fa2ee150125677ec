"""The CloudFormation stack of a network: its creation, update, deletion and failures."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.timeouts import Clock, Polling
from clusterctl.domain.units import format_duration
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


def _request(settings: NetworkSettings) -> dict[str, Any]:
    return {
        "StackName": stack_name(settings.name),
        "TemplateBody": template_body(),
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value}
            for key, value in settings.parameters().items()
        ],
        "Tags": tags.tag_list({NETWORK: settings.name, TEMPLATE: template_version()}),
        "ClientRequestToken": _token(),
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


# For so long after a request, DescribeStacks may show the stack's earlier state.
STALE_FOR_S = 10.0
# The states of resources that are shown to the user, and the word for each.
_REPORTED = {
    "CREATE_COMPLETE": "created",
    "UPDATE_COMPLETE": "updated",
    "DELETE_COMPLETE": "deleted",
}


class StackFailed(ClusterctlError):
    """CloudFormation could not carry out a request. `reasons` are those of the failed resources."""

    def __init__(self, message: str, reasons: tuple[str, ...], hint: str) -> None:
        listed = "".join(f"\n  {reason}" for reason in reasons)
        super().__init__(message + (f":{listed}" if listed else ""), hint)
        self.reasons = reasons


class StackWork:
    """Creates, updates and deletes a stack, and waits for CloudFormation each time.

    Everything can be interrupted and repeated. `timeout_s` is for all waits of one object together.
    """

    def __init__(
        self,
        client: CloudFormationClient,
        notify: Callable[[str], None],
        timeout_s: float,
        clock: Clock = Clock(),
    ) -> None:
        self._clock = clock
        self._client = client
        self._notify = notify
        self._timeout_s = timeout_s
        self._deadline = self._clock.monotonic() + timeout_s
        self._reported: set[str] = set()

    def create(self, settings: NetworkSettings) -> Stack | None:
        """Create the stack, and return it; None if another command has created it meanwhile.

        Raises StackFailed if it could not be created, AwsError, ClusterctlError at the deadline.
        """
        name = stack_name(settings.name)
        self._notify(f"creating stack {name}")
        try:
            with translated():
                stack_id = self._client.create_stack(**_request(settings))["StackId"]
        except AwsError as error:
            if error.code != "AlreadyExistsException":
                raise
            # DescribeStacks may not show the other command's stack for a moment.
            if self._clock.monotonic() > self._deadline:
                raise
            self._clock.sleep(1.0)
            return None
        stack = self._follow(Stack(stack_id, name, "CREATE_IN_PROGRESS"))
        return self._expect(stack, "CREATE_COMPLETE", "created")

    def update(self, stack: Stack, settings: NetworkSettings) -> Stack:
        """Update the stack to these settings, and return it.

        Raises StackFailed if it could not be changed, AwsError, ClusterctlError at the deadline.
        """
        self._notify(f"updating stack {stack.name}")
        request = {**_request(settings), "StackName": stack.stack_id}
        try:
            with translated():
                self._client.update_stack(**request)
        except AwsError as error:
            if "No updates are to be performed" in error.message:
                return stack
            raise
        return self._expect(self._follow(stack, before=stack), "UPDATE_COMPLETE", "updated")

    def delete(self, stack: Stack) -> None:
        """Delete the stack, or wait for a deletion that is under way.

        Raises StackFailed if it could not be deleted, AwsError, ClusterctlError at the deadline.
        """
        self._notify(f"deleting stack {stack.name}, which is {stack.status}")
        before = None
        if stack.status != "DELETE_IN_PROGRESS":
            with translated():
                self._client.delete_stack(StackName=stack.stack_id, ClientRequestToken=_token())
            before = stack
        self._expect(self._follow(stack, before), "DELETE_COMPLETE", "deleted")

    def wait(self, stack: Stack) -> Stack:
        """Wait until the operation under way has ended, well or not. Return the stack."""
        self._notify(f"stack {stack.name} is {stack.status}: waiting for it")
        return self._follow(stack)

    def _expect(self, stack: Stack, status: str, done: str) -> Stack:
        """Return the stack if it has this status. Raises StackFailed if it has another."""
        if stack.status == status:
            return stack
        events = operation_events(self._client, stack.stack_id)
        reasons = tuple(event.describe() for event in events if event.failed and event.kind)
        hint = "when the reason is gone, run the command again: it clears up what failed"
        if status == "DELETE_COMPLETE":
            hint = "remove what holds it, and run the command again"
        raise StackFailed(
            f"stack {stack.name} could not be {done}, it is {stack.status}",
            reasons or tuple(filter(None, [stack.reason])),
            hint,
        )

    def _follow(self, stack: Stack, before: Stack | None = None) -> Stack:
        """Wait until no operation is under way, reporting its events. Return the stack.

        `before` is the stack as of the request, which CloudFormation may still show for a moment.
        Raises ClusterctlError at the deadline.
        """
        stale_until = self._clock.monotonic() + STALE_FOR_S
        polling = Polling(self._clock, self._deadline - self._clock.monotonic(), 0.5)
        while True:
            known = find_stack(self._client, stack.stack_id)
            if known is None:
                return replace(stack, status="DELETE_COMPLETE")
            stale = before is not None and (known.status, known.changed) == (
                before.status,
                before.changed,
            )
            if not stale or self._clock.monotonic() > stale_until:
                self._report(stack)
                if not known.in_progress:
                    return known
            if polling.left_s < 0:
                raise ClusterctlError(
                    f"stack {stack.name} is still {known.status} "
                    f"after {format_duration(self._timeout_s)}",
                    "AWS goes on by itself; run the command again to wait for it",
                )
            polling.wait()

    def _report(self, stack: Stack) -> None:
        """Report the events that are new since the last call."""
        for event in operation_events(self._client, stack.stack_id):
            if event.event_id in self._reported or not event.kind:
                continue
            self._reported.add(event.event_id)
            if event.failed:
                self._notify(f"failed: {event.describe()}")
            elif event.status in _REPORTED:
                self._notify(f"{event.resource}: {_REPORTED[event.status]}")


def _token() -> str:
    # When a response is lost, the SDK repeats the request with the same token, and CloudFormation
    # does the work once.
    return f"clusterctl-{uuid.uuid4().hex}"
