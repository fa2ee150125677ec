"""Nodes that join a cluster are as those that are there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from clusterctl.domain.errors import NoSuchCluster, UsageError
from clusterctl.domain.spec import MOST_TAGS, ClusterSpec, Disk, Limits, Market, is_free_tag
from clusterctl.ec2.instances import Instance, standing, wanted_of
from clusterctl.ec2.money.costs import parse_limits


def like(spec: ClusterSpec, instances: Sequence[Instance]) -> ClusterSpec:
    """The spec, with what it leaves open taken from the head node: zone, image, market, …

    Raises UsageError where it asks for something else than what is there.
    """
    members = standing(instances)
    if not members:
        return spec
    head = members[0]
    _check(spec, head)
    return replace(
        spec,
        instance_type=head.node.instance_type,
        or_types=(),
        # A name or a parameter may mean another image by now: the cluster's stays.
        image=head.image_id or spec.image,
        ssh_user=head.ssh_user,
        market=head.market,
        capacity_reservation=head.reservation_id or None,
        placement_group=bool(head.placement_group),
        efa=head.efa,
        zone=head.node.availability_zone or None,
        subnet_id=head.subnet_id or None,
        network=None,
        private=head.private,
        instance_profile=head.instance_profile or None,
        disk=_filled(spec.disk, head.disk),
        tags=spec.tags or _own_tags(head),
        limits=_limits(spec.limits, parse_limits(head.limits_text)),
    )


def spec_of(name: str, instances: Sequence[Instance]) -> ClusterSpec:
    """The spec of a cluster that is there. Raises NoSuchCluster for one without nodes."""
    members = standing(instances)
    if not members:
        raise NoSuchCluster(
            f"there is no cluster {name}",
            f"see `clusterctl list`, or launch it: clusterctl up {name}",
        )
    asked = ClusterSpec(
        name, max(len(wanted_of(instances)), len(members)), members[0].node.instance_type
    )
    return like(asked, instances)


def _check(spec: ClusterSpec, head: Instance) -> None:
    asked: list[tuple[str, object, object]] = [
        ("login user", spec.ssh_user, head.ssh_user),
        ("image", _ami(spec.image), head.image_id or None),
        ("zone", spec.zone, head.node.availability_zone or None),
        ("subnet", spec.subnet_id, head.subnet_id or None),
        ("capacity reservation", spec.capacity_reservation, head.reservation_id),
        ("instance profile", spec.instance_profile, head.instance_profile),
        ("market", None if spec.market is Market.ON_DEMAND else spec.market, head.market),
        ("a placement group", spec.placement_group, bool(head.placement_group)),
        ("EFA", spec.efa, head.efa),
        ("private nodes", spec.private or None, head.private),
    ]
    if head.node.instance_type not in spec.types:
        asked.insert(0, ("type", spec.instance_type, head.node.instance_type))
    for what, wanted, found in asked:
        # Neither what nobody asked for is compared, nor what EC2 does not show.
        if wanted is not None and found is not None and found != wanted:
            raise UsageError(
                f"cluster {spec.name} has {_difference(what, wanted, found)}",
                f"leave that option out, or remove the cluster first: clusterctl down {spec.name}",
            )


def _ami(image: str | None) -> str | None:
    return image if image and image.startswith("ami-") else None


def _difference(what: str, wanted: object, found: object) -> str:
    if found is True:
        return what
    if not found:
        return f"no {what.removeprefix('a ')}"
    return f"another {what}: {_shown(found)}, not {_shown(wanted)}"


def _shown(value: object) -> str:
    return value.value if isinstance(value, Market) else str(value)


def _filled(disk: Disk, other: Disk) -> Disk:
    return Disk(*(getattr(disk, one.name) or getattr(other, one.name) for one in fields(Disk)))


def _limits(asked: Limits, kept: Limits) -> Limits:
    return kept if asked == Limits() else asked


def _own_tags(head: Instance) -> tuple[tuple[str, str], ...]:
    # Others tag too: never more than a launch can carry, nor what `--tag` would not take.
    own = [
        (key, value)
        for key, value in sorted(head.tags.items())
        if is_free_tag(key) and (key + value).isprintable()
    ]
    return tuple(own[:MOST_TAGS])
