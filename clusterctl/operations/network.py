"""`network up`, `down` and `status`: a VPC for clusters, as one CloudFormation stack.

And `network s3`: an endpoint for S3 in a VPC that somebody else made.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import gaps, translated
from clusterctl.ec2.instances import PAGE
from clusterctl.ec2.launch.capacity import find_offers
from clusterctl.ec2.launch.request import Step, tagged
from clusterctl.ec2.network.plan import (
    DEFAULT_CIDR,
    Action,
    NetworkSettings,
    NetworkWish,
    Stack,
    check_network_name,
    check_ssh_from,
    choose_zones,
    decide,
    settings_of,
    stack_name,
)
from clusterctl.ec2.network.stack import (
    Network,
    create_stack,
    delete_stack,
    find_stack,
    network_of,
    operation_events,
    template_version,
    update_stack,
)
from clusterctl.ec2.network.vpcs import (
    NETWORK,
    Vpc,
    caller_cidr,
    find_subnets,
    find_vpc,
    find_ways_out,
)
from clusterctl.operations.launcher import StepProgress

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

    from clusterctl.ec2.session import Clients


# For so long DescribeStacks may show what was before the request.
STALE_FOR_S = 10.0
_TOLD = {
    "CREATE_COMPLETE": "created",
    "UPDATE_COMPLETE": "updated",
    "DELETE_COMPLETE": "deleted",
}


class StackFailed(ClusterctlError):
    """CloudFormation could not do it; `reasons` are the resources' own."""

    def __init__(self, message: str, reasons: tuple[str, ...], hint: str) -> None:
        listed = "".join(f"\n  {reason}" for reason in reasons)
        super().__init__(message + (f":{listed}" if listed else ""), hint)
        self.reasons = reasons


class StackWork:
    """One run's dealings with a stack. All of it may be cut off and done again."""

    def __init__(
        self, client: CloudFormationClient, progress: StepProgress, timeout_s: float
    ) -> None:
        self._client = client
        self._progress = progress
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._told: set[str] = set()

    def create(self, settings: NetworkSettings) -> Stack | None:
        """None if another run was quicker. Raises StackFailed, AwsError."""
        name = stack_name(settings.name)
        self._progress.step(f"creating stack {name}")
        try:
            stack_id = create_stack(self._client, settings, _token())
        except AwsError as error:
            if error.code == "AlreadyExistsException":
                return None
            raise
        stack = self._follow(Stack(stack_id, name, "CREATE_IN_PROGRESS"))
        return self._expect(stack, "CREATE_COMPLETE", "created")

    def update(self, stack: Stack, settings: NetworkSettings) -> Stack:
        """Raises StackFailed with what could not be changed, AwsError."""
        self._progress.step(f"updating stack {stack.name}")
        if not update_stack(self._client, stack, settings, _token()):
            return stack
        return self._expect(self._follow(stack, before=stack), "UPDATE_COMPLETE", "updated")

    def delete(self, stack: Stack) -> None:
        """Raises StackFailed with what could not be deleted, AwsError."""
        self._progress.step(f"deleting stack {stack.name}, which is {stack.status}")
        before = None
        if stack.status != "DELETE_IN_PROGRESS":
            delete_stack(self._client, stack, _token())
            before = stack
        self._expect(self._follow(stack, before), "DELETE_COMPLETE", "deleted")

    def wait(self, stack: Stack) -> Stack:
        """The stack when what is under way has ended, whichever way."""
        self._progress.step(f"stack {stack.name} is {stack.status}: waiting for it")
        return self._follow(stack)

    def _expect(self, stack: Stack, status: str, done: str) -> Stack:
        # What cleans up after an update does not change its outcome.
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
        """The stack when nothing is under way any more; what happens to it is told.

        `before` is the stack as it was when the request was made, and may still be shown for a
        moment. Raises ClusterctlError at the deadline.
        """
        stale_until = time.monotonic() + STALE_FOR_S
        for gap_s in gaps(0.5, 1.3, 5.0):
            seen = find_stack(self._client, stack.stack_id)
            if seen is None:
                return replace(stack, status="DELETE_COMPLETE")
            stale = before is not None and (seen.status, seen.changed) == (
                before.status,
                before.changed,
            )
            if not stale or time.monotonic() > stale_until:
                self._tell(stack)
                if not seen.in_progress:
                    return seen
            if time.monotonic() + gap_s > self._deadline:
                raise ClusterctlError(
                    f"stack {stack.name} is still {seen.status} "
                    f"after {format_duration(self._timeout_s)}",
                    "AWS goes on by itself; run the command again to wait for it",
                )
            time.sleep(gap_s)
        raise AssertionError("unreachable")

    def _tell(self, stack: Stack) -> None:
        for event in operation_events(self._client, stack.stack_id):
            if event.event_id in self._told or not event.kind:
                continue
            self._told.add(event.event_id)
            if event.failed:
                self._progress.step(f"failed: {event.describe()}")
            elif event.status in _TOLD:
                self._progress.step(f"{event.resource}: {_TOLD[event.status]}")


def _token() -> str:
    # Repeated by the SDK with the request: a lost answer makes no second stack.
    return f"clusterctl-{uuid.uuid4().hex}"


DEFAULT_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class NetworkPlan:
    """What `network up` is about to do. `settings` are what the network will have."""

    action: Action
    settings: NetworkSettings | None
    stack: Stack | None = None


@dataclass(frozen=True)
class NetworkReport:
    """A network that is there, and what was done for that."""

    network: Network
    done: Action


@dataclass(frozen=True)
class NetworkStatus:
    """What a network is and who is in it. `users`: instances by cluster, or by id without one."""

    name: str
    status: str
    reason: str
    ssh_from: str
    network: Network | None
    users: Mapping[str, int]


def plan_network(clients: Clients, wish: NetworkWish) -> NetworkPlan:
    """What is to be done now. Changes nothing. Raises UsageError, ClusterctlError, AwsError."""
    stack = find_stack(clients.cloudformation, stack_name(wish.name))
    action = decide(stack, wish, template_version())
    if stack is None or action in (Action.CREATE, Action.REPLACE):
        return NetworkPlan(action, _new_settings(clients, wish), stack)
    if action is Action.WAIT:
        return NetworkPlan(action, None, stack)
    given = settings_of(wish.name, stack.parameters)
    return NetworkPlan(action, replace(given, ssh_from=wish.ssh_from or given.ssh_from), stack)


def _new_settings(clients: Clients, wish: NetworkWish) -> NetworkSettings:
    cidr = wish.cidr or DEFAULT_CIDR
    ssh_from = wish.ssh_from
    if ssh_from is None:
        ssh_from = caller_cidr(clients.ec2.meta.endpoint_url, Vpc("", cidr))
        # The VPC has no IPv6: an address of that kind cannot come here.
        check_ssh_from(ssh_from)
    offered = None
    if wish.for_type:
        offered = find_offers(clients.ec2, [wish.for_type])[wish.for_type]
    available = _zones(clients)
    zones = choose_zones(clients.ec2.meta.region_name, available, wish.zones, offered)
    return NetworkSettings(wish.name, cidr, zones, ssh_from)


def _zones(clients: Clients) -> list[str]:
    # Not the local zones that an account may have opted into.
    wanted: Any = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    with translated():
        found = clients.ec2.describe_availability_zones(Filters=wanted)["AvailabilityZones"]
    return [zone["ZoneName"] for zone in found]


def network_up(
    clients: Clients,
    wish: NetworkWish,
    *,
    progress: StepProgress | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> NetworkReport:
    """The network as wished, whatever there was. Raises NetworkFailed with the reasons."""
    work = StackWork(clients.cloudformation, progress or StepProgress(), timeout_s)
    while True:
        plan = plan_network(clients, wish)
        done = _carry_out(work, plan)
        if done is not None:
            return NetworkReport(network_of(clients, wish.name, done), plan.action)


def _carry_out(work: StackWork, plan: NetworkPlan) -> Stack | None:
    """The stack once it is as planned; None where what is there has to be looked at again."""
    if plan.stack is not None and plan.action is Action.NOTHING:
        return plan.stack
    if plan.stack is not None and plan.action is Action.WAIT:
        work.wait(plan.stack)
        return None
    assert plan.settings
    if plan.stack is not None and plan.action is Action.UPDATE:
        return work.update(plan.stack, plan.settings)
    if plan.stack is not None and plan.action is Action.REPLACE:
        work.delete(plan.stack)
    return work.create(plan.settings)


def network_down(
    clients: Clients,
    name: str,
    *,
    progress: StepProgress | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> bool:
    """Remove the network; False if there was none. Raises ClusterctlError while it is used."""
    work = StackWork(clients.cloudformation, progress or StepProgress(), timeout_s)
    stack = find_stack(clients.cloudformation, stack_name(check_network_name(name)))
    if stack is None:
        _check_no_orphans(clients, name)
        return False
    if stack.in_progress and not stack.status.startswith(("CREATE", "DELETE")):
        # CloudFormation deletes nothing while it updates or takes back.
        stack = work.wait(stack)
    settings_of(name, stack.parameters)
    users = _users(clients, stack)
    if users:
        raise ClusterctlError(
            f"network {name} is in use by {_listed(users)}",
            "remove what is in it first: "
            + "; ".join(f"clusterctl down {user}" for user in users if not user.startswith("i-")),
        )
    work.delete(stack)
    return True


def _check_no_orphans(clients: Clients, name: str) -> None:
    """Raises ClusterctlError where a stack was removed without what it had made."""
    tagged: Any = [{"Name": f"tag:{NETWORK}", "Values": [name]}]
    with translated():
        found = clients.ec2.describe_vpcs(Filters=tagged)["Vpcs"]
    if found:
        vpcs = ", ".join(vpc["VpcId"] for vpc in found)
        raise ClusterctlError(
            f"network {name} has no stack any more, and something of it is left: {vpcs}",
            "remove it in the VPC console, which takes along what is in it",
        )


def network_status(clients: Clients, name: str) -> NetworkStatus:
    """Raises ClusterctlError if there is none, AwsError."""
    stack = find_stack(clients.cloudformation, stack_name(check_network_name(name)))
    if stack is None:
        raise ClusterctlError(
            f"there is no network {name} in {clients.ec2.meta.region_name}",
            f"make it: clusterctl network up {name}",
        )
    return NetworkStatus(
        name=name,
        status=stack.status,
        reason=stack.reason,
        ssh_from=stack.parameters.get("SshFrom", ""),
        network=network_of(clients, name, stack) if stack.usable else None,
        users=_users(clients, stack),
    )


def plan_s3_endpoint(clients: Clients, subnet_id: str | None) -> Step | None:
    """What gives this subnet, or all of the default VPC's, a gateway endpoint for S3.

    None where all have one. Raises UsageError for a subnet that is not there, AwsError.
    """
    client = clients.ec2
    try:
        found = find_subnets(client, subnet_ids=[subnet_id] if subnet_id else None)
    except AwsError as error:
        if not error.code.lower().startswith("invalidsubnetid"):
            raise
        raise UsageError(error.message, error.hint) from error
    if not found:
        vpc = find_vpc(client)
        raise UsageError(f"{vpc.vpc_id}, the default VPC, has no subnet", "give a --subnet")
    ways = find_ways_out(client, found)
    tables = sorted({way.table_id for way in ways.values() if not way.s3_gateway})
    if not tables:
        return None
    return Step(
        "create_vpc_endpoint",
        {
            "VpcEndpointType": "Gateway",
            "VpcId": found[0].vpc_id,
            "ServiceName": f"com.amazonaws.{client.meta.region_name}.s3",
            "RouteTableIds": tables,
            "TagSpecifications": tagged(["vpc-endpoint"], {"Name": "clusterctl-s3"}),
        },
        f"S3 for {', '.join(sorted(ways))} of {found[0].vpc_id}, free of charge",
        # Somebody was faster.
        done_if=("RouteAlreadyExists",),
    )


def make_s3_endpoint(clients: Clients, step: Step) -> str:
    """Carry the step out; the endpoint's id, empty where there is one by now. Raises AwsError."""
    try:
        with translated():
            made = clients.ec2.create_vpc_endpoint(**step.resolved({}))
    except AwsError as error:
        if error.code not in step.done_if:
            raise
        return ""
    return made["VpcEndpoint"]["VpcEndpointId"]


def _users(clients: Clients, stack: Stack) -> Mapping[str, int]:
    vpc_id = stack.outputs.get("VpcId")
    if not vpc_id:
        return {}
    # One that shuts down holds its address until it is gone.
    states = ["pending", "running", "shutting-down", "stopping", "stopped"]
    wanted: Any = [
        {"Name": "vpc-id", "Values": [vpc_id]},
        {"Name": "instance-state-name", "Values": states},
    ]
    users: dict[str, int] = {}
    with translated():
        pages = clients.ec2.get_paginator("describe_instances")
        for page in pages.paginate(Filters=wanted, PaginationConfig=PAGE):
            for reservation in page["Reservations"]:
                for instance in reservation["Instances"]:
                    cluster = tags.tag_dict(instance.get("Tags")).get(tags.CLUSTER)
                    user = cluster or instance["InstanceId"]
                    users[user] = users.get(user, 0) + 1
    return users


def _listed(users: Mapping[str, int]) -> str:
    return ", ".join(
        user if user.startswith("i-") else f"cluster {user} ({count(number, 'instance')})"
        for user, number in sorted(users.items())
    )
