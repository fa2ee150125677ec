"""The verdict of `gc` on each resource with clusterctl's tags, and its rules. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Optional

from clusterctl.domain.cluster import Limits
from clusterctl.domain.units import format_duration
from clusterctl.ec2.instances import stopped_since
from clusterctl.ec2.money.costs import node_cost, overrun_s, passed_end
from clusterctl.ec2.resources import Resource, ResourceKind
from clusterctl.ec2.tags import parse_limits

# Anything younger is kept: a launch creates its key pair and security group minutes before its
# instances. Limits get OVERRUN_AFTER_H, because a node that was started after its end may boot for
# long, and then has a quarter of an hour.
YOUNG_S = 900.0
# The tag with the time at which `gc` first saw a stopped instance. For instances that shut down by
# themselves: EC2 does not record when.
STOPPED_FOUND = "clusterctl:stopped-seen"

# Region and cluster name. The same name in two regions is two clusters.
ClusterId = tuple[str, str]
# Region, kind and the resource's id.
ResourceId = tuple[str, ResourceKind, str]


class Verdict(Enum):
    """What `gc` does: it removes an ORPHAN, lists what is KEPT, and hides what is IN_USE."""

    ORPHAN = "orphan"
    KEPT = "kept"
    IN_USE = "in use"


@dataclass(frozen=True)
class GcOptions:
    """The user's options that decide what is an orphan.

    `cluster` checks only the cluster of that name, and all of it is an orphan. `older_than_s` makes
    orphans of all instances that have been up longer. `networks` makes orphans of unused networks.
    """

    cluster: str | None = None
    older_than_s: float | None = None
    networks: bool = False


@dataclass(frozen=True)
class Rules:
    """The facts and options that the verdicts depend on.

    `here` are the clusters with a folder on this machine, `busy` those that another command has or
    may have locked, and why, `unresolved` those with a launch of unknown outcome. `unlisted_kinds`
    are the kinds that could not be listed in a region. `unused_since` is when `gc` first saw each
    unused resource for which EC2 has no creation date; None counts all of these as old. `spent` has
    what clusters with a budget have cost in US dollars, and what they cost an hour; None if that is
    unknown.
    """

    now: datetime
    here: frozenset[ClusterId] = frozenset()
    busy: Mapping[ClusterId, str] = field(default_factory=dict)
    unresolved: frozenset[ClusterId] = frozenset()
    unlisted_kinds: frozenset[tuple[str, ResourceKind]] = frozenset()
    unused_since: Mapping[ResourceId, datetime] | None = None
    spent: Mapping[ClusterId, tuple[float, float | None]] = field(default_factory=dict)
    options: GcOptions = GcOptions()


@dataclass(frozen=True)
class Classified:
    """One resource with its verdict and the reason for it."""

    resource: Resource
    verdict: Verdict
    why: str


def resource_id(one: Resource) -> ResourceId:
    """Return what identifies a resource across regions and kinds."""
    return one.region, one.kind, one.id


def age_s(one: Resource, now: datetime) -> float | None:
    """Return the resource's age in seconds; None where EC2 has no creation date for it."""
    return (now - one.made_at).total_seconds() if one.made_at else None


def stopped_at(one: Resource) -> datetime | None:
    """Return when an instance stopped, from EC2 or from the tag that `gc` set; None if neither."""
    if one.instance is None or one.made_at is None:
        return None
    requested = stopped_since(one.instance.transition_reason)
    try:
        noted = datetime.fromisoformat(one.instance.tags.get(STOPPED_FOUND, ""))
    except ValueError:
        noted = None
    # Each start sets a new launch time, so an older time is that of an earlier stop.
    times = [
        time
        for time in (requested, noted)
        if time is not None and time.tzinfo is not None and time >= one.made_at
    ]
    return min(times) if times else None


def limits_of(one: Resource) -> Limits:
    """Return the limits in an instance's tag. Anybody may have edited it: nonsense is no limit."""
    return parse_limits(one.instance.limits_text if one.instance else "")


def classify_network(one: Resource, everything: Sequence[Resource], rules: Rules) -> Classified:
    """Return the verdict on a network. `everything` is all that was found in all regions."""
    # Some kinds carry only the network's tag, some only the id of a VPC: both lead to its users.
    inside = set(one.vpc_ids)
    for other in everything:
        if other.region == one.region and other.network and other.network == one.network:
            inside.update(other.vpc_ids)
    users = {
        other.cluster
        for other in everything
        if other.region == one.region
        and other.cluster is not None
        and (inside & set(other.vpc_ids) or (other.network and other.network == one.network))
    }
    if users:
        return Classified(one, Verdict.IN_USE, f"used by {', '.join(sorted(users))}")
    # A kind that could not be listed may hide a cluster in the network.
    if any(region == one.region for region, _ in rules.unlisted_kinds):
        return Classified(one, Verdict.KEPT, "its contents could not be listed")
    if one.state == "DELETE_IN_PROGRESS":
        return Classified(one, Verdict.KEPT, "it is being deleted")
    if not inside and not one.state.startswith(("ROLLBACK", "CREATE_FAILED", "DELETE_FAILED")):
        return Classified(one, Verdict.KEPT, "it does not say which VPC is its own")
    age = age_s(one, rules.now)
    if age is not None and age < YOUNG_S:
        return Classified(one, Verdict.KEPT, "no cluster is in it; under 15 minutes old")
    if not rules.options.networks:
        return Classified(one, Verdict.KEPT, "no cluster is in it; --networks removes it")
    return Classified(one, Verdict.ORPHAN, "no cluster is in it")


_Answer = Optional[tuple[Verdict, str]]
_Way = Callable[[Resource], tuple[Verdict, str]]
_ATTACHABLE = (ResourceKind.VOLUME, ResourceKind.ADDRESS, ResourceKind.INTERFACE)
# The kinds whose creation dates bound the age of a cluster's resources without one.
_DATED = (ResourceKind.VOLUME, ResourceKind.KEY_PAIR)


def classify(resources: Iterable[Resource], rules: Rules) -> tuple[Classified, ...]:
    """Return the verdicts on the resources that the rules cover, by region, cluster and kind.

    With `rules.options.cluster` these are that cluster's only.
    """
    clusters: dict[ClusterId, list[Resource]] = {}
    networks: list[Resource] = []
    everything = list(resources)
    for one in everything:
        if one.cluster is not None:
            clusters.setdefault((one.region, one.cluster), []).append(one)
        elif one.kind is ResourceKind.NETWORK:
            networks.append(one)
    classified = []
    for identity in sorted(clusters):
        if rules.options.cluster is None or identity[1] == rules.options.cluster:
            classified += _ClusterResources(identity, clusters[identity], rules).classified()
    if rules.options.cluster is None:
        classified += [classify_network(one, everything, rules) for one in networks]
    order = list(ResourceKind)
    return tuple(
        sorted(
            classified,
            key=lambda one: (
                one.resource.region,
                one.resource.cluster is None,
                one.resource.cluster or "",
                order.index(one.resource.kind),
                one.resource.id,
            ),
        )
    )


class _ClusterResources:
    """The resources of one cluster in one region, checked together."""

    def __init__(self, identity: ClusterId, members: Sequence[Resource], rules: Rules) -> None:
        self._identity = identity
        self._members = members
        self._rules = rules
        self._instances = {one.id: one for one in members if one.kind is ResourceKind.INSTANCE}
        self._classified_instances: dict[str, Classified] = {}

    def classified(self) -> list[Classified]:
        for one in self._instances.values():
            self._classified_instances[one.id] = self._classified(one, self._instance)
        others = [
            self._classified(one, self._attachable if one.kind in _ATTACHABLE else self._shared)
            for one in self._members
            if one.kind is not ResourceKind.INSTANCE
        ]
        return [*self._classified_instances.values(), *others]

    def _classified(self, one: Resource, way: _Way) -> Classified:
        if why := self._rules.busy.get(self._identity):
            return Classified(one, Verdict.KEPT, why)
        if self._identity in self._rules.unresolved:
            why = (
                "what came of a launch from this machine is not known yet, and no command is at "
                f"work: clusterctl up {one.cluster} goes on with it; clusterctl down {one.cluster} "
                "waits for it, and removes the cluster"
            )
            return Classified(one, Verdict.KEPT, why)
        # Without the list of instances everything else would seem unused.
        if self._is_blind(ResourceKind.INSTANCE):
            return Classified(one, Verdict.KEPT, "its instances could not be listed")
        if self._rules.options.cluster is not None:
            return Classified(one, Verdict.ORPHAN, "all of this cluster is requested (--cluster)")
        return Classified(one, *way(one))

    def _instance(self, one: Resource) -> tuple[Verdict, str]:
        if one.state == "shutting-down":
            return Verdict.KEPT, "it is ending"
        if self._is_young(one):
            return self._not_unused(f"launched {self._ago(one)}")
        # One rule that makes it an orphan is enough, whatever the other rules yield.
        ways = (self._replaced, self._over, self._stopped, self._old)
        answers = [answer for way in ways if (answer := way(one))]
        to_delete = [answer for answer in answers if answer[0] is Verdict.ORPHAN]
        if to_delete or answers:
            return (to_delete or answers)[0]
        return self._not_unused(
            "not launched from this machine; --older-than or --cluster includes it"
        )

    def _not_unused(self, why: str) -> tuple[Verdict, str]:
        if self._identity in self._rules.here:
            return Verdict.IN_USE, "its cluster is kept on this machine"
        return Verdict.KEPT, why

    def _replaced(self, one: Resource) -> _Answer:
        if not one.instance or not one.instance.retired:
            return None
        for other in self._instances.values():
            new = other.instance
            same = new and new.node.index == one.instance.node.index and not new.retired
            if same and other.state == "running":
                if not self._is_young(other):
                    return Verdict.ORPHAN, f"replaced by {other.id}"
                return Verdict.KEPT, f"just replaced by {other.id}"
        return Verdict.KEPT, "to be replaced; its replacement does not run"

    def _over(self, one: Resource) -> _Answer:
        limits = limits_of(one)
        if one.instance is None or not limits.ends:
            return None
        spent_usd, hourly = self._rules.spent.get(self._identity, (0.0, None))
        ran_h = node_cost(one.instance, None, self._rules.now).ran_h
        end = passed_end(limits, ran_h, spent_usd, hourly)
        if end is None:
            return None
        if one.state == "stopped":
            return Verdict.KEPT, f"stopped, and its end by {end.option} has passed"
        late_s = overrun_s(one.instance, end, self._rules.now)
        if late_s is None:
            return None
        return Verdict.ORPHAN, f"its end by {end.option} was {format_duration(late_s)} ago"

    def _stopped(self, one: Resource) -> _Answer:
        days = limits_of(one).stopped_days
        if days is None or one.state != "stopped":
            return None
        since = stopped_at(one)
        if since is None:
            return Verdict.KEPT, "stopped, EC2 does not say since when: counted from now on"
        stopped_s = (self._rules.now - since).total_seconds()
        if stopped_s < days * 86400:
            return None
        return Verdict.ORPHAN, f"stopped for {format_duration(stopped_s)}; {days:g} d are allowed"

    def _old(self, one: Resource) -> _Answer:
        limit_s = self._rules.options.older_than_s
        if limit_s is None or self._age_s(one) < limit_s:
            return None
        return Verdict.ORPHAN, f"older than {format_duration(limit_s)}"

    def _attachable(self, one: Resource) -> tuple[Verdict, str]:
        if one.state == "deleting":
            return Verdict.KEPT, "it is being deleted"
        holder = self._classified_instances.get(one.attached_to)
        if holder and holder.verdict is Verdict.ORPHAN:
            return Verdict.ORPHAN, f"goes with {one.attached_to}"
        if holder and holder.resource.state == "shutting-down":
            return Verdict.KEPT, f"{one.attached_to} is ending"
        if holder:
            return holder.verdict, f"used by {one.attached_to}"
        if one.attached_to:
            return Verdict.KEPT, f"used by {one.attached_to}, which is not its cluster's"
        # A volume or network interface is free in these states only. Addresses have no state.
        if one.kind is not ResourceKind.ADDRESS and one.state not in ("available", "error"):
            return Verdict.KEPT, "it is not free"
        return self._unless_young(one, "attached to nothing")

    def _shared(self, one: Resource) -> tuple[Verdict, str]:
        """Classify a group or a key pair: it is in use while the cluster has instances."""
        if one.state == "deleting":
            return Verdict.KEPT, "it is being deleted"
        verdicts = {found.verdict for found in self._classified_instances.values()}
        if verdicts == {Verdict.ORPHAN}:
            return Verdict.ORPHAN, "goes with its cluster's instances"
        # Also true without instances.
        if all(found.state == "shutting-down" for found in self._instances.values()):
            if self._instances:
                return Verdict.KEPT, "its cluster's instances are ending"
            return self._unless_young(one, "its cluster has no instance")
        return Verdict.IN_USE, "its cluster has instances"

    def _unless_young(self, one: Resource, why: str) -> tuple[Verdict, str]:
        # A resource without a date counts as young as the youngest one of its cluster, because a
        # launch creates all of them within minutes.
        unlisted = [kind.value for kind in _DATED if self._is_blind(kind)]
        if unlisted and one.made_at is None:
            missing = " and ".join(f"{name}s" for name in unlisted)
            return Verdict.KEPT, f"{why}, but its cluster's {missing} could not be listed"
        dated = [one] if one.made_at else [other for other in self._members if other.made_at]
        if any(self._is_young(other) for other in dated):
            youngest = min(dated, key=self._age_s)
            made = "made" if one.made_at else f"its cluster's {youngest.id} was made"
            return Verdict.KEPT, f"{why}, but {made} {self._ago(youngest)}"
        return self._undated(one, why) if one.made_at is None else (Verdict.ORPHAN, why)

    def _undated(self, one: Resource, why: str) -> tuple[Verdict, str]:
        """Classify an unused resource without a creation date by how long `gc` has found it unused.

        It may belong to a launch that is under way on another machine.
        """
        if self._rules.unused_since is None:
            return Verdict.ORPHAN, why
        since = self._rules.unused_since.get(resource_id(one), self._rules.now)
        unused_s = max(0.0, (self._rules.now - since).total_seconds())
        if unused_s >= YOUNG_S:
            return Verdict.ORPHAN, f"{why}, unused for {format_duration(unused_s)}"
        age = f"unused for {format_duration(unused_s)}" if unused_s else "first found unused now"
        return Verdict.KEPT, f"{why}, but {age}; removable after {format_duration(YOUNG_S)}"

    def _is_blind(self, kind: ResourceKind) -> bool:
        return (self._identity[0], kind) in self._rules.unlisted_kinds

    def _is_young(self, one: Resource) -> bool:
        return self._age_s(one) < YOUNG_S

    def _ago(self, one: Resource) -> str:
        return f"{format_duration(max(0.0, self._age_s(one)))} ago"

    def _age_s(self, one: Resource) -> float:
        return age_s(one, self._rules.now) or 0.0


def undated_orphans(resources: Iterable[Resource], rules: Rules) -> tuple[ResourceId, ...]:
    """Return the resources without a creation date that would be orphans if they were old.

    `gc` notes when it first saw these (see `Rules.unused_since`).
    """
    classified = classify(resources, replace(rules, unused_since=None))
    return tuple(
        resource_id(one.resource)
        for one in classified
        if one.verdict is Verdict.ORPHAN and one.resource.made_at is None
    )


def without_stop_time(classified: Iterable[Classified]) -> tuple[Resource, ...]:
    """Return the stopped instances that have --stopped-days but no known time of their stop."""
    return tuple(
        found.resource
        for found in classified
        if found.resource.kind is ResourceKind.INSTANCE
        and found.resource.state == "stopped"
        and limits_of(found.resource).stopped_days is not None
        and stopped_at(found.resource) is None
    )
