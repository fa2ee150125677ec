"""What a host reads of itself at http://169.254.169.254: EC2's tree of names and texts."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from typing import Any, Union

from clusterctl.lab.accounts import KEYS
from clusterctl.lab.faults.interruptions import notice_of
from clusterctl.lab.hosts.instances import LabInstance

Tree = dict[str, Union["Tree", str, bytes]]
TIME = "%Y-%m-%dT%H:%M:%SZ"


def lookup(tree: Tree, path: str) -> bytes | None:
    """The text at `meta-data/placement/region`, or a folder's names; None where there is none."""
    found: Tree | str | bytes | None = tree
    for name in filter(None, path.split("/")):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, dict):
        names = (f"{name}/" if isinstance(below, dict) else name for name, below in found.items())
        found = "\n".join(sorted(names))
    return found.encode() if isinstance(found, str) else found


def tree_of(instance: LabInstance) -> Tree:
    """All of it, as it is now."""
    tree: Tree = {
        "meta-data": _meta_data(instance),
        "dynamic": {"instance-identity": {"document": _document(instance)}},
    }
    if instance.user_data:
        tree["user-data"] = base64.b64decode(str(instance.user_data))
    return tree


def _meta_data(instance: LabInstance) -> Tree:
    nic, zone = instance.nics[0], str(instance.availability_zone)
    private, public = instance.private_ip_address or "", instance.public_ip_address or ""
    groups = "\n".join(sorted(group.name for group in nic.group_set))
    found: Tree = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.ami_launch_index),
        "ami-manifest-path": "(unknown)",
        "events": {"recommendations": {}},
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": private,
        "mac": nic.mac_address,
        "network": {"interfaces": {"macs": {nic.mac_address: _interface(instance, nic)}}},
        "placement": {
            "availability-zone": zone,
            "availability-zone-id": str(nic.subnet.availability_zone_id),
            "region": instance.region_name,
        },
        "reservation-id": _reservation_of(instance),
        "security-groups": groups,
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    if public:
        found |= {"public-hostname": instance.public_dns_name or "", "public-ipv4": public}
    if instance.public_key:
        found["public-keys"] = {"0": {"openssh-key": instance.public_key}}
    return found | _notices(instance) | _tags(instance) | _profile(instance)


def _interface(instance: LabInstance, nic: Any) -> Tree:
    found: Tree = {
        "device-number": "0",
        "interface-id": nic.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": nic.private_ip_address,
        "mac": nic.mac_address,
        "owner-id": nic.owner_id,
        "security-group-ids": "\n".join(sorted(group.id for group in nic.group_set)),
        "subnet-id": nic.subnet.id,
        "subnet-ipv4-cidr-block": nic.subnet.cidr_block,
        "vpc-id": nic.subnet.vpc_id,
        "vpc-ipv4-cidr-block": nic.ec2_backend.get_vpc(nic.subnet.vpc_id).cidr_block,
    }
    return {**found, "public-ipv4s": nic.public_ip} if nic.public_ip else found


def _notices(instance: LabInstance) -> Tree:
    """Not there without one: programs ask whether it is."""
    notice = notice_of(instance.id)
    if notice is None:
        return {}
    ends = notice.ends.strftime(TIME)
    action = json.dumps({"action": "terminate", "time": ends})
    given = json.dumps({"noticeTime": notice.given.strftime(TIME)})
    return {
        "spot": {"instance-action": action, "termination-time": ends},
        "events": {"recommendations": {"rebalance": given}},
    }


def _tags(instance: LabInstance) -> Tree:
    if instance.metadata_options.instance_metadata_tags != "enabled":
        return {}
    return {"tags": {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}}


def _profile(instance: LabInstance) -> Tree:
    """The keys of the profile's roles. Of all APIs a host reaches S3 only."""
    associations = instance.ec2_backend.iam_instance_profile_associations
    association = associations.get(instance.id)
    if association is None:
        return {}
    profile, now = association.iam_instance_profile, datetime.now(timezone.utc)
    about = {
        "Code": "Success",
        "LastUpdated": now.strftime(TIME),
        "InstanceProfileArn": profile.arn,
        "InstanceProfileId": profile.id,
    }
    lent = KEYS.lend(str(instance.owner_id), instance.id)
    keys = {
        "Code": "Success",
        "LastUpdated": now.strftime(TIME),
        "Type": "AWS-HMAC",
        "AccessKeyId": lent.id,
        "SecretAccessKey": lent.secret,
        "Token": lent.token,
        "Expiration": lent.expires.strftime(TIME),
    }
    roles: Tree = {role.name: json.dumps(keys, indent=2) for role in profile.roles}
    return {"iam": {"info": json.dumps(about, indent=2), "security-credentials": roles}}


def _document(instance: LabInstance) -> str:
    about = {
        "accountId": instance.owner_id,
        "architecture": instance.architecture,
        "availabilityZone": instance.availability_zone,
        "imageId": instance.image_id,
        "instanceId": instance.id,
        "instanceType": instance.instance_type,
        "pendingTime": instance.launch_time.strftime(TIME),
        "privateIp": instance.private_ip_address,
        "region": instance.region_name,
        "version": "2017-09-30",
    }
    return json.dumps(about, indent=2)


def _reservation_of(instance: LabInstance) -> str:
    reservations = list(instance.ec2_backend.reservations.values())
    found = [one.id for one in reservations if instance in one.instances]
    return str(found[0]) if found else ""
