"""What EC2 refuses and moto accepts, but for launches: checks of a request before moto has it.

The codes are those of "Error codes for the Amazon EC2 API" but where a comment says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from moto.core.utils import get_service_model
from moto.ec2 import utils
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.lab.data import table
from clusterctl.lab.ec2 import volumes
from clusterctl.lab.ec2.launch import refuse

Params = dict[str, Any]
RULES = table("forms")
# Shape of an id -> its prefix, and the code for an id of another form. A shape with a suffix may
# name its resource in another way, too.
IDS: dict[str, list[str]] = {
    f"{name}{suffix}": found
    for name, found in RULES["ids"].items()
    for suffix in ("", "WithResolver", "ForResolver")
}
RESOURCES: dict[str, list[str]] = RULES["resources"]
# Attributes of an instance that only a stopped one can change.
STOPPED_ONLY = {"InstanceType", "UserData", "Kernel", "Ramdisk", "EbsOptimized"}
NO_ATTRIBUTES = {"InstanceId", "DryRun", "Attribute", "Value", "Force"}
PORTS = ("tcp", "udp", "6", "17")
PROTOCOLS = (*PORTS, "icmp", "icmpv6", "-1")
# Where a rule has its sources or destinations.
ENDS = ("IpRanges", "Ipv6Ranges", "PrefixListIds", "UserIdGroupPairs")


def check(action: str, params: Params, ec2: Any) -> None:
    """Raise EC2ClientError if EC2 refuses a request with these parameters. `ec2` is the backend."""
    for spec in params.get("TagSpecifications", []):
        kind, kinds = spec.get("ResourceType"), RULES["tagged"].get(action, ())
        if kinds and kind not in kinds:
            raise refuse("untagged", kind)
        _check_keys(spec.get("Tags", []))
    shape = get_service_model("ec2").operation_model(action).input_shape
    if shape and not re.fullmatch(RULES["unchecked"], action):
        for _, of, id in texts_in(shape, params):
            if of.name in IDS:
                _check_exists(ec2, id)
    if action in CHECKS:
        CHECKS[action](params, ec2)
    if params.get("DryRun") and not re.fullmatch(RULES["dry"], action):
        raise DryRunClientError


def texts_in(shape: Any, given: Any, key: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield every text of a request with its parameter's name and its shape, botocore's.

    An optional one that is empty is not given: Flintrock launches with an empty SubnetId.
    """
    if shape.type_name == "structure" and isinstance(given, dict):
        for name, member in shape.members.items():
            if name in given and (given[name] != "" or name in shape.required_members):
                yield from texts_in(member, given[name], name)
    elif shape.type_name == "list":
        for one in given:
            yield from texts_in(shape.member, one, key)
    elif isinstance(given, str):
        yield key, shape, given


def _check_keys(tags: Sequence[Mapping[str, str]]) -> None:
    keys = [tag.get("Key", "") for tag in tags]
    for key in keys:
        if key.lower().startswith("aws:"):
            raise refuse("reserved-tag")
        # The rules are botocore's ("Tag keys must be unique", "a maximum of 127", "of 256").
        if keys.count(key) > 1:
            raise refuse("tag-twice", key)
        if not 0 < len(key) < 128:
            raise refuse("tag-key", key)
    if any(len(tag.get("Value") or "") > 256 for tag in tags):
        raise refuse("tag-value")


def _check_exists(ec2: Any, id: str) -> None:
    where, code, text = RESOURCES.get(id.partition("-")[0], ("", "", ""))
    found = getattr(ec2, where, {id: True})
    if not (found(id) if callable(found) else found.get(id)):
        raise EC2ClientError(code, text.format(id))


def _check_tags(params: Params, ec2: Any) -> None:
    _check_keys(params.get("Tags", []))
    for id in params["Resources"]:
        _check_exists(ec2, id)


def _check_attribute(params: Params, ec2: Any) -> None:
    instance = ec2.get_instance(params["InstanceId"])
    given: set[str] = {name[0].upper() + name[1:] for name in params} - NO_ATTRIBUTES
    if attribute := params.get("Attribute"):
        given.add(attribute[0].upper() + attribute[1:])
    if not given:
        raise refuse("no-attribute")
    if len(given) > 1:
        raise refuse("attributes")
    if instance.state not in ("running", "stopped"):
        raise refuse("not-running-or-stopped", instance.id)
    if given & STOPPED_ONLY and instance.state != "stopped":
        raise refuse("not-stopped", instance.id)
    [name], value = given, params.get("Value")
    kind = params[name]["Value"] if isinstance(params.get(name), dict) else value
    if name == "InstanceInitiatedShutdownBehavior" and kind not in ("stop", "terminate"):
        raise refuse("value", kind, name)
    if name == "InstanceType":
        about = INSTANCE_TYPES.get(str(kind), {}).get("ProcessorInfo", {})
        found = about.get("SupportedArchitectures")
        if not found:
            raise refuse("value", kind, "instanceType")
        if instance.architecture not in found:
            raise refuse("architecture", found[0], instance.architecture)


def _check_image(params: Params, ec2: Any) -> None:
    for one in ec2.amis.values():
        if one.name == params["Name"] and one.owner_id == ec2.account_id:
            raise refuse("image-name", one.name, one.id)


def _check_deregister(params: Params, ec2: Any) -> None:
    if ec2.amis[params["ImageId"]].owner_id != ec2.account_id:
        raise refuse("image-owner", params["ImageId"])


def _check_volume(params: Params, ec2: Any) -> None:
    _check_zone(params, ec2)
    volumes.check_disk(volumes.disk_of(ec2, "", {**params, "VolumeSize": params.get("Size")}))


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
    if params["Device"] in instance.block_device_mapping:
        raise refuse("device-used", params["Device"])


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
    flat: Params = {
        key: params[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in params
    }
    if "CidrIp" in params:
        flat["IpRanges"] = [{"CidrIp": params["CidrIp"]}]
    for rule in [*([flat] if flat else []), *params.get("IpPermissions", [])]:
        protocol, first, last = (rule.get(key) for key in ("IpProtocol", "FromPort", "ToPort"))
        if protocol not in PROTOCOLS and not str(protocol).isdecimal():
            raise refuse("protocol", protocol)
        if protocol in PORTS:
            if first is None or last is None:
                raise refuse("no-ports")
            for port in (first, last):
                if not -1 <= port <= 65535:
                    raise refuse("port", port)
            if first > last:
                raise refuse("port-range", protocol.upper(), first, last)
        if not any(rule.get(end) for end in ENDS) and rule is not flat:
            raise refuse("missing", "cidrIp or groupId")
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
    for other in ec2.describe_security_groups() if group else ():
        rules = (*other.ingress_rules, *other.egress_rules) if other.id != group.id else ()
        if any((rule.source_group or {}).get("GroupId") == group.id for rule in rules):
            raise refuse("dependent-object", group.id)


def _check_interface(params: Params, ec2: Any) -> None:
    if ec2.enis[params["NetworkInterfaceId"]].attachment_id:
        raise refuse("interface-in-use", params["NetworkInterfaceId"])


def _select_pairs(params: Params, ec2: Any) -> None:
    """Name the key pairs that a request names by id, which moto ignores."""
    by_id = {pair.id: name for name, pair in ec2.key_pairs.items()}
    for id in params.get("KeyPairIds", []):
        if id not in by_id:
            raise refuse("key-pair-id", id)
        params.setdefault("KeyNames", []).append(by_id[id])


def _select_snapshots(params: Params, ec2: Any) -> None:
    """Filter snapshots by their owners, which moto ignores."""
    if owners := params.get("OwnerIds"):
        ids = [ec2.account_id if one == "self" else one for one in owners]
        params.setdefault("Filters", []).append({"Name": "owner-id", "Values": ids})


def _select_tags(params: Params, _: Any) -> None:
    """Have the filter `tag:KEY`, which moto ignores, be those for the key and the value."""
    for one in params.get("Filters", []):
        if one.get("Name", "").startswith("tag:"):
            params["Filters"].append({"Name": "key", "Values": [one["Name"][4:]]})
            one["Name"] = "value"


def _check_filters(params: Params, _: Any) -> None:
    for one in params.get("Filters", []):
        name = one.get("Name", "")
        if name not in utils.filter_dict_attribute_mapping and not utils.is_tag_filter(name):
            raise refuse("filter-beyond", name)


CHECKS: dict[str, Callable[[Params, Any], object]] = {
    "AttachVolume": _check_attach,
    "AuthorizeSecurityGroupEgress": _check_rules,
    "AuthorizeSecurityGroupIngress": _check_rules,
    "CreateImage": _check_image,
    "CreateTags": _check_tags,
    "CreateVolume": _check_volume,
    "DeleteLaunchTemplate": lambda params, ec2: (
        "LaunchTemplateName" in params
        and ec2.get_launch_template_by_name(params["LaunchTemplateName"])
    ),
    "DeleteNetworkInterface": _check_interface,
    "DeleteTags": _check_tags,
    "DeregisterImage": _check_deregister,
    "DeleteSecurityGroup": _check_group,
    "DescribeInstanceStatus": _check_filters,
    "DescribeInstances": _check_filters,
    "DescribeKeyPairs": _select_pairs,
    "DescribeSnapshots": _select_snapshots,
    "DescribeTags": _select_tags,
    "DetachVolume": _check_detach,
    "ModifyInstanceAttribute": _check_attribute,
}
