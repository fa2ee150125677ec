"""Placement groups, which moto does not have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import (
    EC2_PREFIX_TO_RESOURCE,
    EC2_RESOURCE_TO_PREFIX,
    convert_tag_spec,
    filter_dict_attribute_mapping,
    random_id,
)

from clusterctl.lab.ec2.completion import add, setup
from clusterctl.lab.ec2.filters import matches
from clusterctl.lab.ec2.launch import LAUNCHING, PendingLaunch, Rule, refuse

# A new group cannot be used for so long. On EC2, too, CreatePlacementGroup returns before that.
PENDING_S = 0.3
FILTERS = ("GroupName", "GroupArn", "State", "Strategy")


@dataclass(frozen=True)
class StoredGroup:
    """A placement group. `partitions` is None unless the request names a number."""

    name: str
    id: str
    strategy: str
    partitions: int | None
    made_at: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> str:
        return "pending" if time.monotonic() < self.made_at + PENDING_S else "available"


class PlacementRule(Rule):
    """The placement group exists and takes the type. A cluster group stays in one zone."""

    def check_launch(self, launch: PendingLaunch) -> None:
        group = _wanted_group(launch)
        if group is None:
            return
        kind, info = launch.request.instance_type, launch.request.type_info
        if info and group.strategy not in info["PlacementGroupInfo"]["SupportedStrategies"]:
            raise refuse("placement-type", group.strategy.capitalize(), kind)
        zones = {one.placement.zone for one in _members(launch.backend, group.name)}
        if group.strategy == "cluster" and zones and launch.zone not in zones:
            raise refuse("placement-zone", group.name, sorted(zones)[0])

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        group = _wanted_group(launch)
        if group is not None:
            instance.placement.group_name = group.name
            instance.placement.group_id = group.id


@setup
def _name_them() -> None:
    """Add their tags, and the filter for instances by group."""
    EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"
    EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
    filter_dict_attribute_mapping["placement-group-name"] = "placement.group_name"


@add(EC2Response)
def create_placement_group(response: Any) -> ActionResult:
    name = response._get_param("GroupName")
    strategy = response._get_param("Strategy") or "cluster"
    partitions = response._get_param("PartitionCount")
    if partitions is not None and (strategy != "partition" or not 1 <= partitions <= 7):
        raise refuse("partitions", partitions)
    response.error_on_dryrun()
    tags = convert_tag_spec(response._get_param("TagSpecifications", []))
    with LAUNCHING:
        groups = _groups(response.ec2_backend)
        if name in groups:
            raise refuse("placement-exists", name)
        made = StoredGroup(name, random_id("pg"), strategy, partitions)
        groups[name] = made
    response.ec2_backend.create_tags([made.id], tags.get("placement-group", {}))
    return ActionResult({"PlacementGroup": _described(response.ec2_backend, made)})


@add(EC2Response)
def describe_placement_groups(response: Any) -> ActionResult:
    backend, filters = response.ec2_backend, response._filters_from_querystring()
    groups = _groups(backend)
    by_id = {group.id: group for group in groups.values()}
    wanted = [_known(groups, name) for name in response._get_param("GroupNames", [])]
    wanted += [_known(by_id, id) for id in response._get_param("GroupIds", [])]
    response.error_on_dryrun()
    described = [_described(backend, group) for group in wanted or list(groups.values())]
    passed = [one for one in described if matches(one, FILTERS, filters)]
    return ActionResult({"PlacementGroups": passed})


@add(EC2Response)
def delete_placement_group(response: Any) -> EmptyResult:
    name = response._get_param("GroupName")
    backend = response.ec2_backend
    group = _known(_groups(backend), name)
    response.error_on_dryrun()
    with LAUNCHING:
        if _members(backend, name):
            raise refuse("placement-in-use", name)
        _groups(backend).pop(name, None)
        backend.tags.pop(group.id, None)
    return EmptyResult()


def _groups(backend: Any) -> dict[str, StoredGroup]:
    """Return a region's groups by name. They are on moto's backend, so its reset clears them."""
    found: dict[str, StoredGroup] = backend.__dict__.setdefault("placement_groups", {})
    return found


def _known(groups: dict[str, StoredGroup], wanted: str) -> StoredGroup:
    """Return a group by its key. Raise InvalidPlacementGroup.Unknown if there is none."""
    if wanted not in groups:
        raise refuse("placement-group", wanted)
    return groups[wanted]


def _wanted_group(launch: PendingLaunch) -> StoredGroup | None:
    """Return the group that the launch names, None if it names none. Raise if it is unknown."""
    name, id = (launch.request.get(f"Placement.{key}") for key in ("GroupName", "GroupId"))
    if not name and not id:
        return None
    # A pending group is refused as an unknown one.
    usable = [one for one in _groups(launch.backend).values() if one.state == "available"]
    return _known({one.name if name else one.id: one for one in usable}, name or id)


def _members(backend: Any, name: str) -> list[Any]:
    return [
        one
        for one in backend.all_instances()
        if one.placement.group_name == name and one.state != "terminated"
    ]


def _described(backend: Any, group: StoredGroup) -> dict[str, Any]:
    arn = f"arn:aws:ec2:{backend.region_name}:{backend.account_id}:placement-group/{group.name}"
    tags = backend.tags.get(group.id, {})
    return {
        "GroupName": group.name,
        "GroupId": group.id,
        "GroupArn": arn,
        "State": group.state,
        "Strategy": group.strategy,
        "PartitionCount": group.partitions,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
