"""`network up`, `down` and `status`: a VPC for clusters, as one CloudFormation stack.

Also `network s3`: a gateway endpoint for S3 in an existing VPC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.domain.cluster import check_name
from clusterctl.domain.errors import AwsError, ClusterctlError, NotFound, UsageError
from clusterctl.domain.timeouts import Clock
from clusterctl.domain.units import count
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import describe_instances, in_states
from clusterctl.ec2.launch.capacity import find_offers
from clusterctl.ec2.launch.request import Step, tagged
from clusterctl.ec2.network.plan import (
    DEFAULT_CIDR,
    Action,
    NetworkRequest,
    NetworkSettings,
    Stack,
    check_ssh_from,
    choose_zones,
    decide,
    settings_of,
    stack_name,
)
from clusterctl.ec2.network.stack import (
    Network,
    StackWork,
    find_stack,
    network_of,
    template_version,
)
from clusterctl.ec2.network.vpcs import (
    NETWORK,
    Vpc,
    caller_cidr,
    find_subnets,
    find_vpc,
    find_ways_out,
)
from clusterctl.ec2.resources import NOT_TERMINATED
from clusterctl.operations.launcher import StepProgress

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


# For all waits of `network up` or `network down` together.
DEFAULT_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class NetworkPlan:
    """What `network up` will do.

    `settings` are those that the network will have; None while another operation is under way.
    `stack` is the existing stack; None if there is none.
    """

    action: Action
    settings: NetworkSettings | None
    stack: Stack | None = None
    json_names = ("action", "parameters")

    @property
    def parameters(self) -> Mapping[str, str]:
        return self.settings.parameters() if self.settings else {}


@dataclass(frozen=True)
class NetworkReport:
    """An existing network, and what was done to get it."""

    network: Network
    done: Action


@dataclass(frozen=True)
class NetworkStatus:
    """A network and its users.

    `status` and `reason` are CloudFormation's. `ssh_from` is the range of addresses that SSH is
    open to, in CIDR notation. `network` is None while the stack's resources do not exist.
    `clusters` has the number of instances of each cluster in it, `instances` the ids of others.
    """

    name: str
    status: str
    reason: str
    ssh_from: str
    network: Optional[Network]
    clusters: Mapping[str, int]
    instances: Sequence[str]


def plan_network(clients: Clients, request: NetworkRequest) -> NetworkPlan:
    """Return what `network up` would do. Changes nothing.

    Raises UsageError if the network exists with other settings, ClusterctlError if it is in a state
    that only the user can resolve, AwsError.
    """
    stack = find_stack(clients.cloudformation, stack_name(request.name))
    action = decide(stack, request, template_version())
    if stack is None or action in (Action.CREATE, Action.REPLACE):
        return NetworkPlan(action, _new_settings(clients, request), stack)
    if action is Action.WAIT:
        return NetworkPlan(action, None, stack)
    given = settings_of(request.name, stack.parameters)
    return NetworkPlan(action, replace(given, ssh_from=request.ssh_from or given.ssh_from), stack)


def _new_settings(clients: Clients, request: NetworkRequest) -> NetworkSettings:
    """Return the settings of a new network, with defaults for what the request leaves open."""
    cidr = request.cidr or DEFAULT_CIDR
    ssh_from = request.ssh_from
    if ssh_from is None:
        ssh_from = caller_cidr(clients.ec2.meta.endpoint_url, Vpc("", cidr))
        # The VPC has IPv4 only, so an IPv6 address of this machine is refused.
        check_ssh_from(ssh_from)
    offered = None
    if request.for_type:
        offered = find_offers(clients.ec2, [request.for_type])[request.for_type]
    available = _zones(clients)
    zones = choose_zones(clients.ec2.meta.region_name, available, request.zones, offered)
    return NetworkSettings(request.name, cidr, zones, ssh_from)


def _zones(clients: Clients) -> list[str]:
    # Without Local Zones, which an account may have opted into.
    wanted: Any = [
        {"Name": "zone-type", "Values": ["availability-zone"]},
        {"Name": "state", "Values": ["available"]},
    ]
    with translated():
        found = clients.ec2.describe_availability_zones(Filters=wanted)["AvailabilityZones"]
    return [zone["ZoneName"] for zone in found]


def network_up(
    clients: Clients,
    request: NetworkRequest,
    *,
    progress: StepProgress | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    clock: Clock = Clock(),
) -> NetworkReport:
    """Create or update the network, whatever exists of it. Return it with what was done.

    Raises what plan_network raises, StackFailed with CloudFormation's reasons, and ClusterctlError
    at the deadline.
    """
    notify = (progress or StepProgress()).step
    work = StackWork(clients.cloudformation, notify, timeout_s, clock)
    while True:
        plan = plan_network(clients, request)
        done = _carry_out(work, plan)
        if done is not None:
            return NetworkReport(network_of(clients, request.name, done), plan.action)


def _carry_out(work: StackWork, plan: NetworkPlan) -> Stack | None:
    """Carry the plan out. Return the stack, or None if the caller has to plan again."""
    stack = plan.stack
    if stack and plan.action is Action.NOTHING:
        return stack
    if plan.settings is None:  # another operation is under way
        if stack:
            work.wait(stack)
        return None
    if stack and plan.action is Action.UPDATE:
        return work.update(stack, plan.settings)
    if stack and plan.action is Action.REPLACE:
        work.delete(stack)
    return work.create(plan.settings)


def network_down(
    clients: Clients,
    name: str,
    *,
    progress: StepProgress | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    clock: Clock = Clock(),
) -> bool:
    """Remove the network. Return False if there was none.

    Raises ClusterctlError while instances are in it, if the stack is not clusterctl's, or at the
    deadline, StackFailed, AwsError.
    """
    notify = (progress or StepProgress()).step
    work = StackWork(clients.cloudformation, notify, timeout_s, clock)
    stack = find_stack(clients.cloudformation, stack_name(check_name("network", name)))
    if stack is None:
        _check_no_orphans(clients, name)
        return False
    if stack.in_progress and not stack.status.startswith(("CREATE", "DELETE")):
        # CloudFormation refuses to delete a stack during an update or a rollback.
        stack = work.wait(stack)
    # Only for its check: raises if clusterctl did not make the stack.
    settings_of(name, stack.parameters)
    clusters, instances = _users(clients, stack)
    if clusters or instances:
        users = [f"cluster {one} ({count(n, 'instance')})" for one, n in sorted(clusters.items())]
        commands = [f"clusterctl down {cluster}" for cluster in sorted(clusters)]
        if instances:
            ids = " ".join(instances)
            commands.append(f"aws ec2 terminate-instances --instance-ids {ids}")
        raise ClusterctlError(
            f"network {name} is in use by {', '.join([*users, *instances])}",
            f"remove what is in it first: {'; '.join(commands)}",
        )
    work.delete(stack)
    return True


def _check_no_orphans(clients: Clients, name: str) -> None:
    """Raise ClusterctlError if the stack was deleted and its VPC was kept.

    CloudFormation can delete a stack and retain resources that it fails to delete.
    """
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
    """Return the state of a network. Raises NotFound if there is none, AwsError."""
    stack = find_stack(clients.cloudformation, stack_name(check_name("network", name)))
    if stack is None:
        raise NotFound(
            f"there is no network {name} in {clients.ec2.meta.region_name}",
            f"make it: clusterctl network up {name}",
        )
    clusters, instances = _users(clients, stack)
    return NetworkStatus(
        name=name,
        status=stack.status,
        reason=stack.reason,
        ssh_from=stack.parameters.get("SshFrom", ""),
        network=network_of(clients, name, stack) if stack.usable else None,
        clusters=clusters,
        instances=instances,
    )


def plan_s3_endpoint(clients: Clients, subnet_id: str | None) -> Step | None:
    """Return the step that gives a subnet a gateway endpoint for S3.

    Without `subnet_id` it is for all subnets of the default VPC. None if all of them have one.
    Raises UsageError if there is no such subnet, AwsError.
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
        # Someone else has made an endpoint for these route tables meanwhile.
        done_if=("RouteAlreadyExists",),
    )


def make_s3_endpoint(clients: Clients, step: Step) -> str:
    """Carry out the step of plan_s3_endpoint. Return the id of the new endpoint.

    Empty if someone else has made one meanwhile. Raises AwsError.
    """
    try:
        with translated():
            made = clients.ec2.create_vpc_endpoint(**step.resolved({}))
    except AwsError as error:
        if error.code not in step.done_if:
            raise
        return ""
    return made["VpcEndpoint"]["VpcEndpointId"]


def _users(clients: Clients, stack: Stack) -> tuple[Mapping[str, int], Sequence[str]]:
    """Return what is in the stack's VPC: instances per cluster, and the ids of other instances."""
    vpc_id = stack.outputs.get("VpcId")
    if not vpc_id:
        return {}, ()
    in_vpc = {"Name": "vpc-id", "Values": [vpc_id]}
    # Also "shutting-down": an instance holds its network interface until it is terminated.
    there = describe_instances(clients.ec2, [in_vpc, in_states(NOT_TERMINATED)])
    others = sorted(one.node.instance_id for one in there if not one.cluster)
    return Counter(one.cluster for one in there if one.cluster), others
