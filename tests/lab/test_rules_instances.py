"""The description of an instance, compared with its launch request, and what it leaves behind."""

from __future__ import annotations

import pytest

from tests.lab.refusals import refused, service
from tests.lab.running import make_profile

pytestmark = pytest.mark.lab


def nic(device=0, card=0, kind="interface", **others):
    return {"DeviceIndex": device, "NetworkCardIndex": card, "InterfaceType": kind, **others}


def interfaces_of(ec2, id):
    found = ec2.describe_network_interfaces(
        Filters=[{"Name": "attachment.instance-id", "Values": [id]}]
    )["NetworkInterfaces"]
    return {place(one): one for one in found}


def place(shown):
    return (shown["Attachment"]["NetworkCardIndex"], shown["Attachment"]["DeviceIndex"])


def volumes_of(ec2, id):
    wanted = [{"Name": "attachment.instance-id", "Values": [id]}]
    found = ec2.describe_volumes(Filters=wanted)["Volumes"]
    return {one["Attachments"][0]["Device"]: one for one in found}


def test_interfaces_on_every_card(instances):
    wanted = [
        nic(DeleteOnTermination=True),
        nic(1, 0, "efa-only", DeleteOnTermination=True),
        nic(0, 1, "efa-only", DeleteOnTermination=True),
        nic(0, 2, "efa", DeleteOnTermination=True),
        nic(1, 3),
    ]
    tags = [{"ResourceType": "network-interface", "Tags": [{"Key": "a", "Value": "b"}]}]
    one = instances.up(
        InstanceType="p4d.24xlarge", NetworkInterfaces=wanted, TagSpecifications=tags
    )[0]
    kinds = {place(shown): shown["InterfaceType"] for shown in one["NetworkInterfaces"]}
    assert kinds == {
        (0, 0): "interface",
        (0, 1): "efa-only",
        (1, 0): "efa-only",
        (2, 0): "efa",
        (3, 1): "interface",
    }
    found = interfaces_of(instances.ec2, one["InstanceId"])
    assert {where: shown["InterfaceType"] for where, shown in found.items()} == kinds
    addresses = {where: shown.get("PrivateIpAddress") for where, shown in found.items()}
    assert [where for where, address in addresses.items() if not address] == [(0, 1), (1, 0)]
    assert addresses[0, 0] == one["PrivateIpAddress"]
    given = [address for address in addresses.values() if address]
    assert len(set(given)) == 3
    assert all(shown["TagSet"] == [{"Key": "a", "Value": "b"}] for shown in found.values())
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    ids = {shown["NetworkInterfaceId"] for shown in found.values()}
    left = instances.ec2.describe_network_interfaces()["NetworkInterfaces"]
    leaked = [shown for shown in left if shown["NetworkInterfaceId"] in ids]
    assert [(shown["Status"], "Attachment" in shown) for shown in leaked] == [("available", False)]
    instances.ec2.delete_network_interface(NetworkInterfaceId=leaked[0]["NetworkInterfaceId"])


def test_volumes_as_asked_for_and_what_is_left_of_them(instances):
    wanted = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "Iops": 6000, "Throughput": 500}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 20, "VolumeType": "gp2"}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/sdd", "Ebs": {"VolumeSize": 10, "DeleteOnTermination": False}},
    ]
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "cluster", "Value": "disks"}]}]
    one = instances.up(BlockDeviceMappings=wanted, TagSpecifications=tags)[0]
    found = volumes_of(instances.ec2, one["InstanceId"])
    assert set(found) == {"/dev/sda1", "/dev/sdb", "/dev/sdd"}
    root = found["/dev/sda1"]
    assert (root["Size"], root["Iops"], root["Throughput"]) == (200, 6000, 500)
    assert (root["VolumeType"], root["State"]) == ("gp3", "in-use")
    assert all(disk["Tags"] == tags[0]["Tags"] for disk in found.values())
    shown = {disk["DeviceName"]: disk["Ebs"] for disk in one["BlockDeviceMappings"]}
    kept = {device for device, disk in shown.items() if not disk["DeleteOnTermination"]}
    assert kept == {"/dev/sdd"}
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    left = instances.ec2.describe_volumes(Filters=[{"Name": "tag:cluster", "Values": ["disks"]}])[
        "Volumes"
    ]
    assert [(disk["Size"], disk["State"]) for disk in left] == [(10, "available")]
    instances.ec2.delete_volume(VolumeId=left[0]["VolumeId"])


def test_options_are_described_as_asked(lab, instances):
    options = {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "HttpEndpoint": "enabled",
        "InstanceMetadataTags": "enabled",
    }
    arn = make_profile(service(lab, "iam"), "guests")
    one, other = instances.up(
        MetadataOptions=options,
        InstanceInitiatedShutdownBehavior="terminate",
        IamInstanceProfile={"Name": "guests"},
        MaxCount=2,
    )
    assert [each["IamInstanceProfile"]["Arn"] for each in (one, other)] == [arn, arn]
    # Without a request, it has the image's root volume.
    (root,) = volumes_of(instances.ec2, one["InstanceId"]).values()
    assert (root["Size"], root["VolumeType"], root["Iops"]) == (75, "gp3", 3000)
    assert (root["Throughput"], root["SnapshotId"][:5]) == (125, "snap-")
    assert options.items() <= one["MetadataOptions"].items()
    assert one["CpuOptions"] == {"CoreCount": 4, "ThreadsPerCore": 2}
    kept = instances.ec2.describe_instance_attribute(
        InstanceId=one["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert kept["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"


def test_a_spot_instance_has_its_request_and_is_not_stopped(instances):
    market = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    tags = [
        {"ResourceType": "spot-instances-request", "Tags": [{"Key": "cluster", "Value": "spot"}]}
    ]
    one = instances.up(InstanceMarketOptions=market, TagSpecifications=tags)[0]
    assert one["InstanceLifecycle"] == "spot"
    found = instances.ec2.describe_instances(
        Filters=[{"Name": "instance-lifecycle", "Values": ["spot"]}]
    )["Reservations"]
    ids = [each["InstanceId"] for each_of in found for each in each_of["Instances"]]
    assert one["InstanceId"] in ids
    code, text, status = refused(instances.ec2.stop_instances, InstanceIds=[one["InstanceId"]])
    assert (code, status) == ("UnsupportedOperation", 400)
    assert text.startswith(f"You can't stop the Spot Instance '{one['InstanceId']}' because it is")
    asked = {"SpotInstanceRequestIds": [one["SpotInstanceRequestId"]]}
    describe = instances.ec2.describe_spot_instance_requests
    request = describe(**asked)["SpotInstanceRequests"][0]
    assert (request["State"], request["InstanceId"]) == ("active", one["InstanceId"])
    assert request["Tags"] == tags[0]["Tags"]
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    assert describe(**asked)["SpotInstanceRequests"][0]["State"] == "closed"
