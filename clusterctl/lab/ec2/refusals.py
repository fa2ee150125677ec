"""What EC2 refuses and moto accepts, but for launches: checks of a request before moto has it.

The codes are those of "Error codes for the Amazon EC2 API" but where a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from moto.ec2 import utils
from moto.ec2.exceptions import EC2ClientError

from clusterctl.lab.data import table
from clusterctl.lab.ec2.launch import refuse

Params = dict[str, Any]
RESOURCES: dict[str, list[str]] = table("forms")["resources"]
# Attributes of an instance that only a stopped one can change.
STOPPED_ONLY = ("InstanceType", "UserData", "Kernel", "Ramdisk", "EbsOptimized")
PORTS = ("tcp", "udp", "6", "17")


def check(action: str, params: Params, ec2: Any) -> None:
    """Raise EC2ClientError if EC2 refuses a request with these parameters. `ec2` is the backend."""
    for spec in params.get("TagSpecifications", []):
        _check_keys(spec.get("Tags", []))
    if action in CHECKS:
        CHECKS[action](params, ec2)


def _check_keys(tags: Sequence[Mapping[str, str]]) -> None:
    keys = [tag.get("Key", "") for tag in tags]
    for key in keys:
        if key.lower().startswith("aws:"):
            raise refuse("reserved-tag")
        if keys.count(key) > 1:
            # The rule is botocore's ("Tag keys must be unique").
            raise refuse("tag-twice", key)


def _check_tags(params: Params, ec2: Any) -> None:
    _check_keys(params.get("Tags", []))
    for id in params["Resources"]:
        _check_exists(ec2, id)


def _check_exists(ec2: Any, id: str) -> None:
    where, code = RESOURCES.get(id.partition("-")[0], ("", ""))
    found = getattr(ec2, where, {id: True})
    if not (found(id) if callable(found) else found.get(id)):
        raise EC2ClientError(code, f"The ID '{id}' does not exist")


def _check_attribute(params: Params, ec2: Any) -> None:
    instance = ec2.get_instance(params["InstanceId"])
    named = [*STOPPED_ONLY, *(name[0].lower() + name[1:] for name in STOPPED_ONLY)]
    changed = [one for one in named if one in params or params.get("Attribute") == one]
    if changed and instance.state != "stopped":
        raise refuse("not-stopped", instance.id)
    for id in params.get("Groups", []):
        _check_exists(ec2, id)


def _check_image(params: Params, ec2: Any) -> None:
    for one in ec2.amis.values():
        if one.name == params["Name"] and one.owner_id == ec2.account_id:
            raise refuse("image-name", one.name, one.id)


def _check_zone(params: Params, ec2: Any) -> None:
    zone = params.get("AvailabilityZone")
    if zone and zone not in [one.name for one in ec2.describe_availability_zones()]:
        raise refuse("zone", zone)


def _check_attach(params: Params, ec2: Any) -> None:
    volume, instance = ec2.get_volume(params["VolumeId"]), ec2.get_instance(params["InstanceId"])
    zones = volume.zone.name, instance.placement.zone
    if zones[0] != zones[1]:
        raise refuse("zone-mismatch", volume.id, instance.id)
    if volume.attachment:
        raise refuse("volume-in-use", volume.id)
    if instance.state not in ("running", "stopped"):
        raise refuse("not-attachable", instance.id)


def _check_detach(params: Params, ec2: Any) -> None:
    volume = ec2.get_volume(params["VolumeId"])
    if not volume.attachment:
        raise refuse("volume-available", volume.id)
    instance = volume.attachment.instance
    if volume.attachment.device == instance.root_device_name and instance.state != "stopped":
        # The rule is botocore's (DetachVolume).
        raise refuse("root-volume", volume.id, instance.id)
    # moto cannot do without what the request may leave out.
    params.setdefault("InstanceId", instance.id)


def _check_rules(params: Params, ec2: Any) -> None:
    ranges = [{"CidrIp": params["CidrIp"]}] if "CidrIp" in params else []
    for rule in [{**params, "IpRanges": ranges}, *params.get("IpPermissions", [])]:
        first, last = rule.get("FromPort"), rule.get("ToPort")
        if rule.get("IpProtocol") in PORTS and None not in (first, last) and first > last:
            raise refuse("port-range", rule["IpProtocol"].upper(), first, last)
        for one in rule.get("IpRanges", []):
            try:
                IPv4Network(one.get("CidrIp", ""), strict=False)
            except ValueError:
                raise refuse("block", one.get("CidrIp")) from None


def _check_group(params: Params, ec2: Any) -> None:
    group = ec2.get_security_group_from_id(params.get("GroupId"))
    name = group.name if group else params.get("GroupName")
    if name == "default":
        raise refuse("default-group", group.id if group else name)


def _check_price(params: Params, _: Any) -> None:
    try:
        float(params.get("SpotPrice") or 0)
    except ValueError:
        raise refuse("price", params["SpotPrice"]) from None


def _check_filters(params: Params, _: Any) -> None:
    for one in params.get("Filters", []):
        name = one.get("Name", "")
        if name not in utils.filter_dict_attribute_mapping and not utils.is_tag_filter(name):
            raise refuse("filter", name)


CHECKS: dict[str, Callable[[Params, Any], None]] = {
    "AttachVolume": _check_attach,
    "AuthorizeSecurityGroupEgress": _check_rules,
    "AuthorizeSecurityGroupIngress": _check_rules,
    "CreateImage": _check_image,
    "CreateTags": _check_tags,
    "CreateVolume": _check_zone,
    "DeleteNatGateway": lambda params, ec2: _check_exists(ec2, params["NatGatewayId"]),
    "DeleteSecurityGroup": _check_group,
    "DescribeInstances": _check_filters,
    "DetachVolume": _check_detach,
    "ModifyInstanceAttribute": _check_attribute,
    "RequestSpotInstances": _check_price,
}
