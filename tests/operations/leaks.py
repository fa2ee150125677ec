"""Left-over resources of clusters, made by tests."""

from __future__ import annotations

from hashlib import sha256

from clusterctl.ec2 import tags
from tests.moto_ec2 import NEW_IMAGE


def labels(kind: str, cluster: str | None, key: str = tags.CLUSTER) -> dict:
    """Return the TagSpecifications argument. It is empty for resources of others."""
    if cluster is None:
        return {}
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags.tag_list({key: cluster})}]}


def subnet_of(ec2) -> str:
    return ec2.describe_subnets()["Subnets"][0]["SubnetId"]


def launch(ec2, cluster: str | None, image: str = NEW_IMAGE, **more) -> str:
    """Launch an instance, with a volume and an interface as RunInstances makes them."""
    kinds = labels("instance", cluster)
    made = ec2.run_instances(
        ImageId=image,
        InstanceType="p4d.24xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=subnet_of(ec2),
        **kinds,
        **more,
    )
    return made["Instances"][0]["InstanceId"]


def leave_behind(ec2, cluster: str | None) -> dict[str, str]:
    """Make one unused resource of every kind. Return their ids by kind; some ids are names."""
    zone = f"{ec2.meta.region_name}a"
    # Names have fewer characters than tags.
    name = f"leak-{sha256(repr(cluster).encode()).hexdigest()[:12]}"
    ec2.create_placement_group(
        GroupName=name, Strategy="cluster", **labels("placement-group", cluster)
    )
    return {
        "volume": ec2.create_volume(
            Size=500, VolumeType="gp3", AvailabilityZone=zone, **labels("volume", cluster)
        )["VolumeId"],
        "address": ec2.allocate_address(Domain="vpc", **labels("elastic-ip", cluster))[
            "AllocationId"
        ],
        "network interface": ec2.create_network_interface(
            SubnetId=subnet_of(ec2), **labels("network-interface", cluster)
        )["NetworkInterface"]["NetworkInterfaceId"],
        "security group": ec2.create_security_group(
            GroupName=name, Description="x", **labels("security-group", cluster)
        )["GroupId"],
        "key pair": ec2.create_key_pair(
            KeyName=name, KeyType="ed25519", **labels("key-pair", cluster)
        )["KeyPairId"],
        "placement group": name,
    }


def everything(ec2, iam=None) -> set[str]:
    """Return the ids of all resources that are not ending; those without an id by name.

    They may belong to any test: an instance of another test may still be shutting down.
    """
    instances = [
        one["InstanceId"]
        for page in ec2.get_paginator("describe_instances").paginate()
        for reservation in page["Reservations"]
        for one in reservation["Instances"]
        if one["State"]["Name"] not in ("shutting-down", "terminated")
    ]
    lists = [
        ("volumes", "Volumes", "VolumeId"),
        ("addresses", "Addresses", "AllocationId"),
        ("network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
        ("security_groups", "SecurityGroups", "GroupId"),
        ("key_pairs", "KeyPairs", "KeyPairId"),
        ("placement_groups", "PlacementGroups", "GroupName"),
    ]
    found = [
        entry[key]
        for method, answer, key in lists
        for entry in getattr(ec2, f"describe_{method}")()[answer]
    ]
    if iam is None:
        return {*instances, *found}
    roles = [f"role:{one['RoleName']}" for one in iam.list_roles()["Roles"]]
    profiles = [
        f"profile:{one['InstanceProfileName']}"
        for one in iam.list_instance_profiles()["InstanceProfiles"]
    ]
    return {*instances, *found, *roles, *profiles}


def clear(ec2) -> None:
    """Remove the resources that this module has made as those of others."""
    ours = [{"Name": "tag-key", "Values": [tags.CLUSTER]}]
    kept = {
        one["InstanceId"]
        for reservation in ec2.describe_instances(Filters=ours)["Reservations"]
        for one in reservation["Instances"]
    }
    theirs = [one for one in everything(ec2) if one.startswith("i-") and one not in kept]
    if theirs:
        ec2.terminate_instances(InstanceIds=theirs)
    for one in everything(ec2):
        if one.startswith("eipalloc-"):
            ec2.release_address(AllocationId=one)
        elif one.startswith("leak-"):
            ec2.delete_placement_group(GroupName=one)
