"""The launch plan: the steps from the existing cluster to the requested one, and the places that
could take its nodes, or why none can. Pure: no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from clusterctl.domain.cluster import ASLEEP, ClusterSpec, Node
from clusterctl.domain.findings import Finding, as_warning, errors
from clusterctl.domain.ranges import fold_hosts, grouped, runs
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import Instance, leaving_of, members_or_all, unfinished_of, wanted_of
from clusterctl.ec2.launch.capacity import Place, border_group, is_local_zone, places
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.launch.preflight import (
    check_finished,
    check_request,
    cluster_estimate,
    cluster_findings,
    estimate_of,
    kept,
    open_subnets,
    preflight,
)
from clusterctl.ec2.launch.request import (
    Launch,
    ResultOf,
    Step,
    base_tags,
    run_request,
    run_step,
    tagged,
)
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.money.costs import CostEstimate, LoadCost
from clusterctl.ec2.money.prices import PUBLIC_IPV4_HOUR_USD
from clusterctl.ec2.network.vpcs import FOUND_RULE, GIVEN_RULE, release_arguments
from clusterctl.ec2.node_role import POLICY as ROLE_POLICY
from clusterctl.ec2.node_role import TRUST
from clusterctl.ec2.policy import Policy
from clusterctl.ec2.tags import format_limits


def group_steps(observed: Observed) -> Iterator[Step]:
    """Yield the steps that create the cluster's security group, or add the rules that it lacks."""
    spec, group = observed.spec, observed.group
    name = tags.resource_name(spec.name)
    group_id: Any = group.group_id if group else ResultOf("GroupId")
    if group is None:
        yield Step(
            "create_security_group",
            {
                "GroupName": name,
                "Description": f"clusterctl cluster {spec.name}",
                "VpcId": observed.vpc.vpc_id,
                "TagSpecifications": tagged(["security-group"], base_tags(spec)),
            },
            f"{name} in {observed.vpc.vpc_id}",
            gives=("GroupId",),
        )
    members = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    let_in: list[tuple[dict[str, Any], str]] = []
    # Rules that are about to be revoked do not count as allowing SSH.
    older = _outdated(observed)
    if group is None or (observed.ssh_from and not group.lets_in(observed.ssh_from, without=older)):
        description = GIVEN_RULE if spec.ssh_from else FOUND_RULE
        let_in.append((_ssh_rule(observed.ssh_from, description), f"SSH from {observed.ssh_from}"))
    if group is None or not group.members_in:
        let_in.append((members, "all traffic between the nodes"))
    if let_in:
        yield _rule_step("ingress", group_id, let_in)
    if group is None or not group.members_out:
        # The default rule for 0.0.0.0/0 does not let EFA traffic out. EFA needs a rule that names
        # the group.
        yield _rule_step("egress", group_id, [(members, "all traffic between the nodes")])
    if older:
        # Comes after the new rule, so that SSH access is never interrupted.
        yield Step(
            "revoke_security_group_ingress",
            {"GroupId": group_id, "IpPermissions": [_ssh_rule(cidr) for cidr in older]},
            f"no SSH from {', '.join(older)} any more",
            done_if=("InvalidPermission.NotFound",),
        )


def _outdated(observed: Observed) -> list[str]:
    """Return the networks that earlier runs of `up` allowed SSH from and this one does not.

    A network given with --ssh-from stays allowed until another one is given.
    """
    if observed.group is None or not observed.ssh_from:
        return []
    return [
        cidr
        for cidr, description in observed.group.ssh_rules
        if cidr != observed.ssh_from and (observed.spec.ssh_from or description == FOUND_RULE)
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


def key_steps(observed: Observed, public_key: str) -> Iterator[Step]:
    """Yield the steps that make `public_key` (an OpenSSH line) the cluster's key pair in EC2."""
    name = tags.resource_name(observed.spec.name)
    if observed.key_pair and observed.key_pair.holds(public_key):
        return
    yield Step(
        "import_key_pair",
        {
            "KeyName": name,
            "PublicKeyMaterial": public_key.encode(),
            "TagSpecifications": tagged(["key-pair"], base_tags(observed.spec)),
        },
        f"{name}, the public half of the cluster's key",
    )


def role_steps(observed: Observed) -> Iterator[Step]:
    """Yield the steps that make the cluster's own role and instance profile what they are to be."""
    role = observed.node_role
    if role is None:
        return
    labels = tags.tag_list(base_tags(observed.spec))
    if role.policy is None:
        yield Step(
            "create_role",
            {
                "RoleName": role.name,
                "Path": role.path,
                "AssumeRolePolicyDocument": TRUST,
                "Description": f"nodes of clusterctl cluster {observed.spec.name}",
                "Tags": labels,
                **({"PermissionsBoundary": role.boundary} if role.boundary else {}),
            },
            f"{role.name}, for the nodes"
            + (f", bounded by {role.boundary}" if role.boundary else ""),
            done_if=("EntityAlreadyExists",),
            service="iam",
        )
    if role.policy != role.wanted:
        yield Step(
            "put_role_policy",
            {
                "RoleName": role.name,
                "PolicyName": ROLE_POLICY,
                "PolicyDocument": json.dumps(role.wanted, separators=(",", ":")),
            },
            f"{role.name}: the nodes {grants(role.wanted)}",
            service="iam",
        )
    if not role.profile:
        yield Step(
            "create_instance_profile",
            {"InstanceProfileName": role.name, "Path": role.path, "Tags": labels},
            role.name,
            done_if=("EntityAlreadyExists",),
            service="iam",
        )
    if not role.joined:
        yield Step(
            "add_role_to_instance_profile",
            {"InstanceProfileName": role.name, "RoleName": role.name},
            role.name,
            done_if=("LimitExceeded",),
            service="iam",
        )


def grants(policy: Policy) -> str:
    """Return what a policy of `node_policy` allows, in words: `may read every bucket`."""
    places: dict[str, list[str]] = {}
    for statement in policy["Statement"]:
        actions = statement["Action"]
        verb = "write" if "s3:PutObject" in actions else "read"
        if actions != ["s3:ListBucket"]:
            found = (one.partition(":::")[2].removesuffix("*") for one in statement["Resource"])
            places.setdefault(verb, []).extend(found)
    phrases = {
        verb: "every bucket" if "*/" in found else " and ".join(f"s3://{one}" for one in found)
        for verb, found in places.items()
    }
    return "; ".join(f"may {verb} {where}" for verb, where in phrases.items())


def profile_steps(observed: Observed) -> Iterator[Step]:
    """Yield the steps that give existing nodes the instance profile that was requested."""
    for one in observed.without_profile:
        node, profile = one.node, {"Name": observed.spec.instance_profile}
        held = observed.profile_associations.get(node.instance_id)
        if held:
            yield Step(
                "replace_iam_instance_profile_association",
                {"IamInstanceProfile": profile, "AssociationId": held},
                f"{node.name} gets {profile['Name']} instead of {one.instance_profile}",
                # A repeated request: the first one has given the association a new id.
                done_if=("InvalidAssociationID.NotFound",),
            )
        else:
            yield Step(
                "associate_iam_instance_profile",
                {"IamInstanceProfile": profile, "InstanceId": node.instance_id},
                f"{node.name} gets {profile['Name']}",
                # A repeated request: the node has it.
                done_if=("IncorrectState",),
            )


def placement_steps(observed: Observed, launch: Launch) -> Iterator[Step]:
    """Yield the step that creates the cluster's placement group if the launch needs one."""
    if launch.placement_group and observed.placement_group is None:
        yield Step(
            "create_placement_group",
            {
                "GroupName": tags.resource_name(observed.spec.name),
                "Strategy": "cluster",
                "TagSpecifications": tagged(["placement-group"], base_tags(observed.spec)),
            },
            f"{tags.resource_name(observed.spec.name)}: all nodes close to each other",
            done_if=("InvalidPlacementGroup.Duplicate",),
        )


def tag_steps(observed: Observed, wanted: tuple[int, ...]) -> Iterator[Step]:
    """Yield the steps that update the tags about the whole cluster on the existing nodes.

    These are the wanted indices, the limits, and for `add` what it has not finished. Until all
    nodes have new limits, the earlier ones stay in a tag as well. One step unless nodes differ.
    """
    limits = format_limits(observed.spec.limits)
    labels = {tags.NODES: tags.indices_text(wanted), tags.LIMITS: limits}
    added = _added(observed, wanted) if observed.spec.by_add else None
    if added:
        # An `add` that is cut off and run again finds this tag and does not add its nodes twice.
        labels[tags.UNFINISHED] = added.text
    stale = [
        one
        for one in observed.members
        if one.wanted != wanted or one.limits_text != limits or (added and one.unfinished != added)
    ]
    by_earlier = grouped(
        (one.earlier_limits or (one.limits_text or "none") * (one.limits_text != limits), one)
        for one in stale
    )
    for earlier, some in by_earlier.items():
        yield Step(
            "create_tags",
            {
                "Resources": [found.node.instance_id for found in some],
                "Tags": tags.tag_list(
                    {**labels, **({tags.EARLIER_LIMITS: earlier} if earlier else {})}
                ),
            },
            f"{count(len(wanted), 'node')} wanted now" + (f", limits: {limits}" if limits else ""),
        )


def _added(observed: Observed, wanted: tuple[int, ...]) -> tags.Unfinished:
    """Return what is unfinished once `add` has requested the missing nodes of `wanted`."""
    before = unfinished_of(observed.instances)
    present = {found.node.index for found in observed.members}
    return tags.Unfinished(
        add=tuple(index for index in wanted if index in before.add or index not in present),
        remove=tuple(index for index in before.remove if index not in wanted),
        replace=before.replace,
    )


def stopped_nodes(observed: Observed) -> list[Node]:
    """Return the members that are stopped or stopping; the plan starts them."""
    return [found.node for found in observed.members if found.node.state in ASLEEP]


def start_steps(observed: Observed) -> Iterator[Step]:
    """Yield the step that starts the stopped nodes, if there are any."""
    stopped = stopped_nodes(observed)
    if stopped:
        yield Step(
            "start_instances",
            {"InstanceIds": [node.instance_id for node in stopped]},
            fold_hosts([node.name for node in stopped]),
        )


def needs_address(observed: Observed, launch: Launch | None = None) -> bool:
    """Return whether the head node needs an elastic address.

    It does where EC2 gives nodes no public address: in a private cluster, or with several network
    interfaces. `launch` is needed only while there is no head node.
    """
    head = observed.head
    if head:
        return observed.spec.private or head.several_interfaces or observed.address is not None
    return launch is not None and launch.without_address


def allocate_steps(observed: Observed, zone: str) -> Iterator[Step]:
    """Yield the step that allocates the head node's elastic address, unless there is one.

    `zone` is the head node's: in a Local Zone its address comes from there.

    It comes before the launch: without the address no login is possible, and the account's quota
    may leave none.
    """
    if observed.address is None:
        group = _zones_group(zone)
        yield Step(
            "allocate_address",
            {
                "Domain": "vpc",
                **({"NetworkBorderGroup": group} if group else {}),
                "TagSpecifications": tagged(["elastic-ip"], base_tags(observed.spec)),
            },
            f"{tags.resource_name(observed.spec.name)}, for the head node: the others are reached "
            "through it",
            gives=("AllocationId",),
            hourly_usd=PUBLIC_IPV4_HOUR_USD,
        )


def _zones_group(zone: str) -> str:
    """Return a Local Zone's network border group; empty for a zone of the region."""
    return border_group(zone) if zone and is_local_zone(zone) else ""


def associate_steps(observed: Observed, launch: Launch | None = None) -> Iterator[Step]:
    """Yield the step that associates the elastic address with the head node.

    Releases the address instead where the launch ended up with a type that needs none.
    """
    head = observed.head
    allocation: Any = (
        observed.address.allocation_id if observed.address else ResultOf("AllocationId")
    )
    if not needs_address(observed, launch):
        zone = launch.place.zone if launch else ""
        group = observed.address.border_group if observed.address else _zones_group(zone)
        yield Step("release_address", release_arguments(allocation, group), "no node needs one")
    elif not (head and observed.address and observed.address.interface_id == head.interface_id):
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
    """Return how many nodes each launch must make at least, by the launch's indices.

    `groups` are the indices of the launches. Of all together `spare` nodes may be missing; the last
    launches give up theirs first, and each has to make one node.
    """
    least = {}
    for group in reversed(groups):
        least[group] = max(1, len(group) - max(0, spare))
        spare -= len(group) - least[group]
    return least


def placement_wanted(spec: ClusterSpec, machine: MachineType) -> bool:
    """Return whether the nodes go into the cluster's placement group.

    By default they do with several nodes of a type that allows it, but not in reserved capacity,
    whose placement EC2 has already decided.
    """
    if spec.placement_group is not None:
        return spec.placement_group
    several = spec.nodes > 1 and not spec.capacity_reservation
    return several and "cluster" in machine.placement_strategies


@dataclass(frozen=True)
class LaunchPlan:
    """The steps from the existing cluster to the requested one; none when nothing is missing.

    `--dry-run` prints these steps and the launch executes the same ones. `missing` are the indices
    of the nodes to launch, `wanted` those of the whole cluster. The launch is tried at `places` in
    this order; the RunInstances step is for the first one. With an error among `findings` nothing
    is launched, and where nodes are missing there are no steps.
    """

    observed: Observed
    launch_id: str
    wanted: tuple[int, ...]
    missing: tuple[int, ...]
    steps: tuple[Step, ...]
    places: tuple[Place, ...] = ()
    findings: tuple[Finding, ...] = ()
    estimate: Optional[CostEstimate] = None
    json_names = ("launch_id", "wanted", "missing", "findings", "steps", "places", "estimate")

    @property
    def spec(self) -> ClusterSpec:
        """The complete spec, from the snapshot."""
        return self.observed.spec

    @property
    def stopped(self) -> tuple[int, ...]:
        """The indices of the stopped nodes, which the plan starts."""
        return tuple(node.index for node in stopped_nodes(self.observed))

    @property
    def terminated_first(self) -> tuple[Instance, ...]:
        """The nodes whose places in the full capacity reservation the missing nodes need."""
        found = self.observed.catalogue.reservation
        return self.observed.freeing if found and found.free < len(self.missing) else ()

    @property
    def grants(self) -> str:
        """What the plan newly allows the nodes of an own role to do; empty if nothing."""
        role = self.observed.node_role
        changes = any(step.service == "iam" for step in self.steps)
        return grants(role.wanted) if role and changes else ""

    @property
    def idle(self) -> bool:
        """Whether there are no steps, and no earlier command has left work unfinished."""
        return not self.steps and not any(
            unfinished_findings(self.spec.name, self.observed.instances)
        )

    @property
    def refused(self) -> bool:
        """Whether an error among the findings prevents the launch."""
        return bool(errors(self.findings))

    def can_do_without(self, indices: tuple[int, ...], launched: int) -> bool:
        """Return whether the cluster is large enough without these nodes.

        `launched` is the number of nodes launched so far. The head node is always needed.
        """
        least, present = self.spec.min_nodes, len(self.wanted) - len(self.missing)
        return least is not None and 0 not in indices and present + launched >= least

    def launch_at(self, place: Place, indices: tuple[int, ...], fills: bool = True) -> Launch:
        """Return the launch of the nodes with these indices at a place.

        `fills`: EC2 is to fill the volumes from the image.
        """
        spec, catalogue = self.spec, self.observed.catalogue
        machine = catalogue.machines[place.instance_type]
        spare = 0 if spec.min_nodes is None else len(self.wanted) - spec.min_nodes
        return Launch(
            spec=spec,
            place=place,
            machine=machine,
            image=catalogue.images[place.instance_type],
            indices=indices,
            least=least_counts(runs(self.missing), spare).get(indices, len(indices)),
            wanted=self.wanted,
            group_id=self.observed.group.group_id if self.observed.group else ResultOf("GroupId"),
            placement_group=placement_wanted(spec, machine),
            fills=fills,
        )

    def steps_after(self, instance_type: str) -> tuple[Step, ...]:
        """Return the steps after a launch of this type: those for the head node's address."""
        others = dict.fromkeys(place.instance_type for place in self.places)
        return tuple(self.addressed([instance_type, *others])[1])

    def addressed(self, instance_types: Sequence[str]) -> tuple[list[Step], list[Step]]:
        """Return the steps for the head node's address before and after the launch.

        The address is allocated before if any of these types needs it. Afterwards it is associated,
        or released if the first type, which is the one launched, needs none.
        """
        first = {place.instance_type: place for place in reversed(self.places)}
        launches = [self.launch_at(first[name], self.missing) for name in instance_types]
        if not any(needs_address(self.observed, one) for one in launches):
            return [], []
        after = associate_steps(self.observed, launches[0])
        head = self.observed.head
        zone = head.node.zone if head else launches[0].place.zone
        return list(allocate_steps(self.observed, zone)), list(after)

    def step_at(
        self, place: Place, indices: tuple[int, ...], token: str, fills: bool = True
    ) -> Step:
        """Return the RunInstances step for these nodes at a place, with `token` as ClientToken."""
        launch, nodes = self.launch_at(place, indices, fills), len(indices)
        addresses = 0 if launch.without_address else nodes
        cost = estimate_of(self.observed, launch.machine, nodes, addresses)
        return run_step(launch, token, cost.hourly_usd)


def plan_launch(observed: Observed, public_key: str, launch_id: str) -> LaunchPlan:
    """Plan the steps from the existing cluster to the requested one.

    `public_key` is the cluster's own key, an OpenSSH line. `launch_id` begins the client tokens of
    new launches. Raises UsageError or ClusterctlError where adding nodes cannot make the existing
    cluster the requested one.
    """
    check_request(observed, public_key)
    wanted = wanted_indices(observed)
    present = {found.node.index for found in observed.members}
    missing = tuple(index for index in wanted if index not in present)
    plan = LaunchPlan(observed, launch_id, wanted, missing, ())
    if missing:
        plan = _with_launch(plan, public_key)
    else:
        # No node is missing: only repair the existing resources, and start stopped nodes.
        steps = [
            *group_steps(observed),
            *role_steps(observed),
            *profile_steps(observed),
            *tag_steps(observed, plan.wanted),
            *start_steps(observed),
        ]
        if needs_address(observed):
            zone = observed.head.node.zone if observed.head else ""
            steps += [*allocate_steps(observed, zone), *associate_steps(observed)]
        plan = replace(plan, steps=tuple(steps), findings=tuple(cluster_findings(observed)))
    found = (
        *kept(observed),
        *_tags_kept(observed),
        *unfinished_findings(observed.spec.name, observed.instances),
    )
    plan = replace(plan, findings=(*plan.findings, *found))
    tokens = [step.arguments.get("ClientToken", "") for step in plan.steps]
    if not plan.refused:
        check_finished(observed, tokens)
    return plan


def wanted_indices(observed: Observed) -> tuple[int, ...]:
    """Return the indices for `spec.nodes` nodes, sorted.

    First those of existing nodes, then those wanted earlier but missing, lowest first, then the
    lowest free ones.
    """
    spec, present = observed.spec, [found.node.index for found in observed.members]
    wanted = wanted_of(observed.instances) or tuple(present)
    absent = sorted({*wanted} - {*present})
    there = [*present, *absent][: spec.nodes]
    # A removed node may still run. With its index taken again it would count as a member.
    taken = {*there, *(found.node.index for found in observed.instances)}
    free = (index for index in range(spec.nodes + len(taken)) if index not in taken)
    more = [next(free) for _ in range(spec.nodes - len(there))]
    return tuple(sorted((*there, *more)))


def _tags_kept(observed: Observed) -> Iterator[Finding]:
    """Warn about tags of the spec that existing nodes do not have: only new nodes get them."""
    head = members_or_all(observed.instances)[:1]
    lacking = [
        key for key, value in observed.spec.tags for one in head if one.tags.get(key) != value
    ]
    if lacking:
        yield Finding.warning(
            "tags.kept",
            f"--tag {', '.join(sorted(lacking))}: only new nodes get it",
            "tag the others yourself: aws ec2 create-tags",
        )


def unfinished_findings(name: str, instances: Sequence[Instance]) -> Iterator[Finding]:
    """Report what earlier commands did not finish. The next `up` finishes it."""
    leaving = [found.node.name for found in leaving_of(instances)]
    unfinished_text = unfinished_of(instances).described(name)
    if leaving:
        unfinished_text += (
            "; " if unfinished_text else ""
        ) + f"{fold_hosts(leaving)}: to be terminated"
    if unfinished_text:
        yield Finding.info(
            "cluster.unfinished",
            f"requested before and not finished: {unfinished_text}",
            f"finish it, with nothing done twice: clusterctl up {name}",
        )


def _with_launch(plan: LaunchPlan, public_key: str) -> LaunchPlan:
    observed, spec = plan.observed, plan.spec
    verdict = preflight(observed, len(plan.missing))
    found = _places(observed, verdict.types, len(plan.missing))
    # A node's index is its call's first index plus EC2's AmiLaunchIndex: a call leaves no gaps.
    groups = runs(plan.missing)
    resent = _resent(plan, groups)
    # Errors about a launch that was sent before become warnings: they may be caused by that very
    # launch, for example a used-up quota.
    findings = verdict.findings
    if len(resent) == len(groups):
        findings = tuple(map(as_warning, findings))
    # The other steps are planned for the first of these places, so those of resent launches come
    # first.
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
        # EC2 accepts a known token only with the very request that it came with.
        run_steps.append(step if request is None else replace(step, arguments=request))
    first_run = groups[0]
    allocated, associated = plan.addressed(
        list(dict.fromkeys(place.instance_type for place in found))
    )
    steps = [
        # First, because EC2 takes a moment until a placement group is available.
        *placement_steps(observed, plan.launch_at(found[0], first_run)),
        *role_steps(observed),
        *key_steps(observed, public_key),
        *group_steps(observed),
        *profile_steps(observed),
        *tag_steps(observed, plan.wanted),
        *start_steps(observed),
        *allocated,
        *run_steps,
        *associated,
    ]
    launch = plan.launch_at(found[0], plan.missing)
    rate = launch.load_mib_s
    load = LoadCost(len(plan.missing), launch.image.root_gib, rate) if rate else None
    whole = replace(cluster_estimate(observed, launch.machine), once=load)
    return replace(plan, steps=tuple(steps), estimate=whole)


def _no_place(spec: ClusterSpec, nodes: int) -> Finding:
    return Finding.error(
        "place.none",
        f"no zone that offers {' or '.join(spec.types)} has a subnet with {nodes} free addresses "
        "and, for a new head node, a route to an internet gateway",
        "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
    )


def _places(observed: Observed, types: Sequence[str], nodes: int) -> tuple[Place, ...]:
    spec, catalogue = observed.spec, observed.catalogue
    reservation = catalogue.reservation
    zone = spec.zone or (reservation.zone if reservation else None)
    return places(types, catalogue.offers, open_subnets(observed), zone, nodes)


def _resent(
    plan: LaunchPlan, groups: list[tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[Place, str, Any]]:
    """Return the launches of unknown outcome to send again: place, token and request, by indices.

    Their places may be missing from the plan's: the launch may have taken the subnet's last
    addresses.
    """
    found = {}
    for run in groups:
        for sent in plan.observed.unresolved:
            place = place_of(sent.request, plan.observed)
            if place and any(
                sent.requests(run_request(plan.launch_at(place, run, fills), sent.token))
                for fills in (True, False)
            ):
                found[run] = (place, sent.token, dict(sent.request))
    return found


def place_of(request: Mapping[str, Any], observed: Observed) -> Place | None:
    """Return the place of a RunInstances request; None if its type, image or subnet is unknown."""
    catalogue = observed.catalogue
    kind = str(request.get("InstanceType"))
    interfaces = request.get("NetworkInterfaces") or [{}]
    if kind not in catalogue.images:
        return None
    for subnet in catalogue.subnets:
        if subnet.subnet_id == interfaces[0].get("SubnetId"):
            return Place(kind, subnet.zone, subnet.subnet_id)
    return None
