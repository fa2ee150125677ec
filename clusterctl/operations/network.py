"""`network up`, `down` and `status`: a VPC for clusters, as one CloudFormation stack.

And `network s3`: an endpoint for S3 in a VPC that somebody else made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import PAGE
from clusterctl.ec2.launch.capacity import find_offers
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.launch.steps import Step
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
from clusterctl.ec2.network.stack import Network, find_stack, network_of, template_version
from clusterctl.ec2.network.vpcs import (
    NETWORK,
    Vpc,
    caller_cidr,
    find_subnets,
    find_vpc,
    find_ways_out,
)
from clusterctl.operations.launcher import StepProgress
from clusterctl.operations.stack_work import StackWork

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

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
