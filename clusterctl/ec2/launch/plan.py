"""What is missing between the cluster asked for and the one seen: steps and their cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.cluster import ASLEEP, ClusterSpec, Node
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import (
    Instance,
    leaving_of,
    standing,
    unfinished_of,
    wanted_of,
)
from clusterctl.ec2.launch.attempt import SentLaunch
from clusterctl.ec2.launch.capacity import Place, places
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.launch.preflight import (
    check_request,
    check_settled,
    cluster_estimate,
    error,
    estimate_of,
    kept,
    limit_findings,
    preflight,
    settling,
    ssh_findings,
)
from clusterctl.ec2.launch.request import (
    Launch,
    ResultOf,
    Step,
    base_tags,
    load_mib_s,
    run_request,
    run_step,
    runs,
    tagged,
)
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.money.costs import (
    PUBLIC_IPV4_HOUR_USD,
    CostEstimate,
    LoadCost,
    format_limits,
)
from clusterctl.ec2.network.vpcs import FOUND_RULE, GIVEN_RULE


def group_steps(seen: Observed) -> Iterator[Step]:
    """What the group lacks, all of it for a cluster without one."""
    spec, group = seen.spec, seen.group
    name = tags.resource_name(spec.name)
    group_id: Any = group.group_id if group else ResultOf("GroupId")
    if group is None:
        yield Step(
            "create_security_group",
            {
                "GroupName": name,
                "Description": f"clusterctl cluster {spec.name}",
                "VpcId": seen.vpc.vpc_id,
                "TagSpecifications": tagged(["security-group"], base_tags(spec)),
            },
            f"{name} in {seen.vpc.vpc_id}",
            gives=("GroupId",),
        )
    members = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    let_in: list[tuple[dict[str, Any], str]] = []
    older = _outdated(seen)
    if group is None or (seen.ssh_from and not group.lets_in(seen.ssh_from, without=older)):
        description = GIVEN_RULE if spec.ssh_from else FOUND_RULE
        let_in.append((_ssh_rule(seen.ssh_from, description), f"SSH from {seen.ssh_from}"))
    if group is None or not group.members_in:
        let_in.append((members, "all traffic between the nodes"))
    if let_in:
        yield _rule_step("ingress", group_id, let_in)
    if group is None or not group.members_out:
        # Not covered by the default rule for 0.0.0.0/0: EFA asks for this one.
        yield _rule_step("egress", group_id, [(members, "all traffic between the nodes")])
    if older:
        # The new rule is there by now: nobody is locked out in between.
        yield Step(
            "revoke_security_group_ingress",
            {"GroupId": group_id, "IpPermissions": [_ssh_rule(cidr) for cidr in older]},
            f"no SSH from {', '.join(older)} any more",
            done_if=("InvalidPermission.NotFound",),
        )


def _outdated(seen: Observed) -> list[str]:
    """Return the networks that earlier runs of `up` let SSH in from, and this one does not.

    What was given with --ssh-from stays until something else is given.
    """
    if seen.group is None or not seen.ssh_from:
        return []
    return [
        cidr
        for cidr, description in seen.group.ssh_rules
        if cidr != seen.ssh_from and (seen.spec.ssh_from or description == FOUND_RULE)
    ]


def _rule_step(way: str, group_id: Any, rules: Sequence[tuple[dict[str, Any], str]]) -> Step:
    return Step(
        f"authorize_security_group_{way}",
        {"GroupId": group_id, "IpPermissions": [rule for rule, _ in rules]},
        "; ".join(text for _, text in rules),
        done_if=("InvalidPermission.Duplicate",),
    )


def _ssh_rule(cidr: str, description: str = "") -> dict[str, Any]:
    key, argument = ("Ipv6Ranges", "CidrIpv6") if ":" in cidr else ("IpRanges", "CidrIp")
    source = {argument: cidr, **({"Description": description} if description else {})}
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, key: [source]}


def key_steps(seen: Observed, public_key: str) -> Iterator[Step]:
    name = tags.resource_name(seen.spec.name)
    if seen.key_pair and seen.key_pair.holds(public_key):
        return
    if seen.key_pair:
        yield Step(
            "delete_key_pair",
            {"KeyName": seen.key_pair.name},
            f"{name}, whose private half is not here",
        )
    yield Step(
        "import_key_pair",
        {
            "KeyName": name,
            "PublicKeyMaterial": public_key.encode(),
            "TagSpecifications": tagged(["key-pair"], base_tags(seen.spec)),
        },
        f"{name}, the public half of the cluster's key",
    )


def placement_steps(seen: Observed, launch: Launch) -> Iterator[Step]:
    if launch.placement_group and seen.placement_group is None:
        yield Step(
            "create_placement_group",
            {
                "GroupName": tags.resource_name(seen.spec.name),
                "Strategy": "cluster",
                "TagSpecifications": tagged(["placement-group"], base_tags(seen.spec)),
            },
            f"{tags.resource_name(seen.spec.name)}: all nodes close to each other",
            done_if=("InvalidPlacementGroup.Duplicate",),
        )


def tag_steps(seen: Observed, wanted: tuple[int, ...]) -> Iterator[Step]:
    """What the nodes that are there say of the whole cluster."""
    limits = format_limits(seen.spec.limits)
    labels = {tags.NODES: tags.indices_text(wanted), tags.LIMITS: limits}
    added = _added(seen, wanted) if seen.spec.adds else None
    if added:
        # Asked for again, it must not be added twice.
        labels[tags.UNFINISHED] = added.text
    stale = [
        one
        for one in seen.members
        if one.wanted != wanted or one.limits_text != limits or (added and one.unfinished != added)
    ]
    if stale:
        yield Step(
            "create_tags",
            {
                "Resources": [found.node.instance_id for found in stale],
                "Tags": tags.tag_list(labels),
            },
            f"{count(len(wanted), 'node')} wanted now" + (f", limits: {limits}" if limits else ""),
        )


def _added(seen: Observed, wanted: tuple[int, ...]) -> tags.Unfinished:
    """What is unfinished once `add` has asked for the nodes that are missing of these."""
    before = unfinished_of(seen.instances)
    present = {found.node.index for found in seen.members}
    return tags.Unfinished(
        add=tuple(index for index in wanted if index in before.add or index not in present),
        remove=tuple(index for index in before.remove if index not in wanted),
        replace=before.replace,
    )


def stopped_nodes(seen: Observed) -> list[Node]:
    """The members that are to be started."""
    return [found.node for found in seen.members if found.node.state in ASLEEP]


def start_steps(seen: Observed) -> Iterator[Step]:
    stopped = stopped_nodes(seen)
    if stopped:
        yield Step(
            "start_instances",
            {"InstanceIds": [node.instance_id for node in stopped]},
            fold_hosts([node.name for node in stopped]),
        )


def needs_address(seen: Observed, launch: Launch | None = None) -> bool:
    """Whether the head node needs an elastic address: nodes get no public one by themselves."""
    head = seen.head
    if head:
        return seen.spec.private or head.several_interfaces or seen.address is not None
    return launch is not None and launch.without_address


def allocate_steps(seen: Observed) -> Iterator[Step]:
    """Allocate the head node's address, before the launch.

    Without it nobody gets in, and the account may be out of addresses.
    """
    if seen.address is None:
        yield Step(
            "allocate_address",
            {"Domain": "vpc", "TagSpecifications": tagged(["elastic-ip"], base_tags(seen.spec))},
            f"{tags.resource_name(seen.spec.name)}, for the head node: the others are reached "
            "through it",
            gives=("AllocationId",),
            hourly_usd=PUBLIC_IPV4_HOUR_USD,
        )


def associate_steps(seen: Observed, launch: Launch | None = None) -> Iterator[Step]:
    """The address on the head node; given back where another type of machine needs none."""
    head = seen.head
    allocation: Any = seen.address.allocation_id if seen.address else ResultOf("AllocationId")
    if not needs_address(seen, launch):
        yield Step("release_address", {"AllocationId": allocation}, "no node needs one")
    elif not (head and seen.address and seen.address.interface_id == head.interface_id):
        interface: Any = head.interface_id if head else ResultOf("HeadInterface")
        yield Step(
            "associate_address",
            {
                "AllocationId": allocation,
                "NetworkInterfaceId": interface,
                "AllowReassociation": True,
            },
            "to the head node",
        )


def least_counts(groups: Sequence[tuple[int, ...]], spare: int) -> dict[tuple[int, ...], int]:
    """How many nodes of each run have to come, where `spare` may be missing of all together."""
    least = {}
    for group in reversed(groups):
        least[group] = max(1, len(group) - max(0, spare))
        spare -= len(group) - least[group]
    return least


def placement_wanted(spec: ClusterSpec, machine: MachineType) -> bool:
    """Whether nodes go into the cluster's placement group. Reserved capacity is placed already."""
    if spec.placement_group is not None:
        return spec.placement_group
    several = spec.nodes > 1 and not spec.capacity_reservation
    return several and "cluster" in machine.placement_strategies


@dataclass(frozen=True)
class LaunchPlan:
    """The steps from what is there to what was asked for; none when nothing is missing.

    Doing it executes these very steps. `missing` are the indices of the nodes to launch, `wanted`
    those of the whole cluster. `places` are where the launch is tried, in this order: the step is
    for the first. With an error among `findings` there are no steps to launch anything.
    """

    seen: Observed
    launch_id: str
    wanted: tuple[int, ...]
    missing: tuple[int, ...]
    steps: tuple[Step, ...]
    places: tuple[Place, ...] = ()
    findings: tuple[Finding, ...] = ()
    estimate: CostEstimate | None = None

    @property
    def spec(self) -> ClusterSpec:
        """What the cluster is to be: settled when it was looked at."""
        return self.seen.spec

    @property
    def stopped(self) -> tuple[int, ...]:
        """The indices of the nodes that are started."""
        return tuple(node.index for node in stopped_nodes(self.seen))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, nor to finish."""
        return not self.steps and not any(unfinished_findings(self.spec.name, self.seen.instances))

    @property
    def refused(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def can_do_without(self, indices: tuple[int, ...], launched: int) -> bool:
        """Whether the cluster is large enough without these nodes, when so many were launched."""
        least, present = self.spec.min_nodes, len(self.wanted) - len(self.missing)
        return least is not None and 0 not in indices and present + launched >= least

    def launch_at(self, place: Place, indices: tuple[int, ...]) -> Launch:
        """The launch of these nodes at another place than the step says."""
        spec, catalogue = self.spec, self.seen.catalogue
        assert catalogue is not None, "observe fills it in when a node is missing"
        machine = catalogue.machines[place.instance_type]
        image = catalogue.images[place.instance_type]
        assert image is not None, "a place is of a type that has an image"
        spare = 0 if spec.min_nodes is None else len(self.wanted) - spec.min_nodes
        return Launch(
            spec=spec,
            place=place,
            machine=machine,
            image=image,
            indices=indices,
            least=least_counts(runs(self.missing), spare).get(indices, len(indices)),
            wanted=self.wanted,
            group_id=self.seen.group.group_id if self.seen.group else ResultOf("GroupId"),
            placement_group=placement_wanted(spec, machine),
        )

    def steps_after(self, instance_type: str) -> tuple[Step, ...]:
        """What there is to do after a launch of this type: the address of the head node."""
        others = dict.fromkeys(place.instance_type for place in self.places)
        return tuple(self.addressed([instance_type, *others])[1])

    def addressed(self, instance_types: Sequence[str]) -> tuple[list[Step], list[Step]]:
        """The steps for the head node's address, before and after a launch of the first type.

        It is allocated if any of these types needs it.
        """
        first = {place.instance_type: place for place in reversed(self.places)}
        launches = [self.launch_at(first[name], self.missing) for name in instance_types]
        if not any(needs_address(self.seen, one) for one in launches):
            return [], []
        after = associate_steps(self.seen, launches[0])
        return list(allocate_steps(self.seen)), list(after)

    def step_at(self, place: Place, indices: tuple[int, ...], token: str) -> Step:
        """The step that does it."""
        launch, nodes = self.launch_at(place, indices), len(indices)
        addresses = 0 if launch.without_address else nodes
        cost = estimate_of(self.seen, launch.machine, nodes, addresses)
        return run_step(launch, token, cost.hourly_usd)


def plan_launch(seen: Observed, public_key: str, launch_id: str) -> LaunchPlan:
    """Decide by difference. `public_key` is the cluster's own, an OpenSSH line.

    Raises UsageError or ClusterctlError where the difference cannot be made up by adding.
    """
    check_request(seen, public_key)
    wanted = wanted_indices(seen)
    present = {found.node.index for found in seen.members}
    missing = tuple(index for index in wanted if index not in present)
    plan = LaunchPlan(seen, launch_id, wanted, missing, ())
    if missing:
        plan = _with_launch(plan, public_key)
    else:
        # Nothing is launched: what is there is put right, and started where it was stopped.
        steps = [*group_steps(seen), *tag_steps(seen, plan.wanted), *start_steps(seen)]
        said = (*limit_findings(seen), *ssh_findings(seen.ssh_from))
        if needs_address(seen):
            steps += [*allocate_steps(seen), *associate_steps(seen)]
        plan = replace(plan, steps=tuple(steps), findings=said)
    said = (*kept(seen), *_tags_kept(seen), *unfinished_findings(seen.spec.name, seen.instances))
    plan = replace(plan, findings=(*plan.findings, *said))
    tokens = [step.arguments.get("ClientToken", "") for step in plan.steps]
    if not plan.refused:
        check_settled(seen, tokens)
    return plan


def wanted_indices(seen: Observed) -> tuple[int, ...]:
    """The indices for `spec.nodes` nodes: those the cluster has, and the next free ones.

    Of more that were wanted and never came, the last are wanted no longer.
    """
    spec, present = seen.spec, [found.node.index for found in seen.members]
    wanted = wanted_of(seen.instances) or tuple(present)
    absent = sorted({*wanted} - {*present})
    there = [*present, *absent][: spec.nodes]
    # A node that was removed and still runs would be a member again.
    taken = {*there, *(found.node.index for found in seen.instances)}
    free = (index for index in range(spec.nodes + len(taken)) if index not in taken)
    more = [next(free) for _ in range(spec.nodes - len(there))]
    return tuple(sorted((*there, *more)))


def _tags_kept(seen: Observed) -> Iterator[Finding]:
    """Warn of other tags than those of the nodes that are there, which keep theirs."""
    head = standing(seen.instances)[:1]
    lacking = [key for key, value in seen.spec.tags for one in head if one.tags.get(key) != value]
    if lacking:
        yield Finding(
            "tags.kept",
            Severity.WARNING,
            f"--tag {', '.join(sorted(lacking))}: only new nodes get it",
            hint="tag the others yourself: aws ec2 create-tags",
        )


def unfinished_findings(name: str, instances: Sequence[Instance]) -> Iterator[Finding]:
    """Say what an earlier command was asked for and did not finish: this one does."""
    leaving = [found.node.name for found in leaving_of(instances)]
    told = unfinished_of(instances).told(name)
    if leaving:
        told += ("; " if told else "") + f"{fold_hosts(leaving)}: to be terminated"
    if told:
        yield Finding(
            "cluster.unfinished",
            Severity.INFO,
            f"asked for before and not finished: {told}",
            hint=f"finish it, with nothing done twice: clusterctl up {name}",
        )


def _with_launch(plan: LaunchPlan, public_key: str) -> LaunchPlan:
    seen, spec = plan.seen, plan.spec
    verdict = preflight(seen, len(plan.missing))
    found = _places(seen, verdict.types, len(plan.missing))
    groups = runs(plan.missing)
    resent = _resent(plan, groups)
    # What stands against a launch that was sent already may be that it took place.
    findings = settling(verdict.findings) if len(resent) == len(groups) else verdict.findings
    first = [place for place, _, _ in resent.values()]
    found = tuple(dict.fromkeys((*first, *found)))
    plan = replace(plan, findings=findings, places=found)
    if not found and not plan.refused:
        plan = replace(plan, findings=(*plan.findings, _no_place(spec, len(plan.missing))))
    if not found or plan.refused:
        return plan
    run_steps = []
    for run in groups:
        new = (found[0], f"{plan.launch_id}-{run[0]}", None)
        place, token, request = resent.get(run, new)
        step = plan.step_at(place, run, token)
        run_steps.append(step if request is None else replace(step, arguments=request))
    first_run = groups[0]
    allocated, associated = plan.addressed(
        list(dict.fromkeys(place.instance_type for place in found))
    )
    steps = [
        # First: it takes EC2 a moment to make it available.
        *placement_steps(seen, plan.launch_at(found[0], first_run)),
        *key_steps(seen, public_key),
        *group_steps(seen),
        *tag_steps(seen, plan.wanted),
        *start_steps(seen),
        *allocated,
        *run_steps,
        *associated,
    ]
    launch = plan.launch_at(found[0], plan.missing)
    gib = launch.image.root_gib
    rate = load_mib_s(launch.machine, gib)
    load = LoadCost(len(plan.missing), gib, rate) if rate else None
    whole = replace(cluster_estimate(seen, launch.machine), once=load)
    return replace(plan, steps=tuple(steps), estimate=whole)


def _no_place(spec: ClusterSpec, nodes: int) -> Finding:
    return error(
        "place.none",
        f"no zone that offers {' or '.join(spec.types)} has a subnet with {nodes} free addresses",
        "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
    )


def _places(seen: Observed, types: Sequence[str], nodes: int) -> tuple[Place, ...]:
    spec, catalogue = seen.spec, seen.catalogue
    assert catalogue is not None, "observe fills it in when a node is missing"
    reservation = catalogue.reservation
    zone = spec.zone or (reservation.zone if reservation else None)
    return places(types, catalogue.offers, catalogue.subnets, zone, nodes)


def _resent(
    plan: LaunchPlan, groups: list[tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[Place, str, Any]]:
    """The launches of unknown outcome that are to be sent again: where, and as they were sent.

    Their places need not be among the plan's any more: they may have taken the last addresses.
    """
    found = {}
    for run in groups:
        for sent in plan.seen.unsettled:
            place = _place_of(sent, plan.seen)
            if place and sent.asks_for(run_request(plan.launch_at(place, run), sent.token)):
                found[run] = (place, sent.token, dict(sent.request))
    return found


def _place_of(sent: SentLaunch, seen: Observed) -> Place | None:
    """Return where it was sent; None where that is unknown by now."""
    catalogue = seen.catalogue
    assert catalogue is not None
    kind = str(sent.request.get("InstanceType"))
    interfaces = sent.request.get("NetworkInterfaces") or [{}]
    if kind not in catalogue.machines or catalogue.images.get(kind) is None:
        return None
    for subnet in catalogue.subnets:
        if subnet.subnet_id == interfaces[0].get("SubnetId"):
            return Place(kind, subnet.zone, subnet.subnet_id)
    return None
