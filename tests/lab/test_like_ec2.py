"""What other clients rely on: Flintrock, Ray, Ansible, SkyPilot, aws-cli and CDK sent these."""

from __future__ import annotations

import base64
from unittest import mock

import pytest

from tests import hostless
from tests.lab.refusals import refused
from tests.lab.running import ssh, wait_until


@pytest.fixture
def clients():
    """Yield a function that makes clients of the lab's API, without hosts."""
    import boto3
    from moto import mock_aws
    from moto.ec2.models.amis import AmiBackend

    from clusterctl.lab import app
    from clusterctl.lab.hosts import images

    hostless.complete_moto()
    # Other tests of this process may have images of their own.
    with mock.patch.object(AmiBackend, "_load_amis", images._load_amis), mock_aws():
        app._backend("cloudformation")
        yield lambda name: boto3.client(name, region_name="us-east-1")


@pytest.fixture
def api(clients):
    return clients("ec2")


def launched(api, **more):
    """Return a running instance."""
    image = api.describe_images(Owners=["898082745236"])["Images"][0]["ImageId"]
    wanted = {"ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1, **more}
    id = api.run_instances(**wanted)["Instances"][0]["InstanceId"]
    return in_state(api, id, "running")


def in_state(api, id, state):
    def found():
        [one] = api.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"]
        return one if one["State"]["Name"] == state else None

    return wait_until(found, f"{id} {state}")


def test_groups_of_an_instance_and_of_its_interface_are_the_same(api):
    one = launched(api)
    id, nic = one["InstanceId"], one["NetworkInterfaces"][0]["NetworkInterfaceId"]
    a, b = (api.create_security_group(GroupName=n, Description="d")["GroupId"] for n in "ab")
    for change in (
        lambda: api.modify_instance_attribute(InstanceId=id, Groups=[a]),
        lambda: api.modify_network_interface_attribute(NetworkInterfaceId=nic, Groups=[b]),
    ):
        change()
        one = in_state(api, id, "running")
        own = [group["GroupId"] for group in one["SecurityGroups"]]
        assert own == [g["GroupId"] for g in one["NetworkInterfaces"][0]["Groups"]]
    assert own == [b]
    api.delete_security_group(GroupId=a)
    assert refused(api.delete_security_group, GroupId=b)[0] == "DependencyViolation"


def test_user_data_can_be_changed_while_stopped(api):
    id = launched(api)["InstanceId"]
    change = {"InstanceId": id, "UserData": {"Value": b"#!/bin/sh\n"}}
    assert refused(api.modify_instance_attribute, **change)[0] == "IncorrectInstanceState"
    api.stop_instances(InstanceIds=[id])
    in_state(api, id, "stopped")
    api.modify_instance_attribute(**change)
    shown = api.describe_instance_attribute(InstanceId=id, Attribute="userData")
    assert shown["UserData"]["Value"] == "IyEvYmluL3NoCg=="


def test_a_volume_is_detached_by_its_id_and_the_root_is_kept(api):
    disks = [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 1}}]
    mapped = launched(api, BlockDeviceMappings=disks)["BlockDeviceMappings"]
    ids = {one["DeviceName"]: one["Ebs"]["VolumeId"] for one in mapped}
    assert api.detach_volume(VolumeId=ids.pop("/dev/sdb"))["State"] == "detaching"
    [root] = ids.values()
    assert refused(api.detach_volume, VolumeId=root)[0] == "OperationNotPermitted"


def test_an_instant_fleet_launches(api):
    image = api.describe_images(Owners=["898082745236"])["Images"][0]["ImageId"]
    data = {"ImageId": image, "InstanceType": "t3.micro"}
    api.create_launch_template(LaunchTemplateName="temp", LaunchTemplateData=data)
    named = {"LaunchTemplateName": "temp", "Version": "$Latest"}
    wanted = {"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "on-demand"}
    made = api.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[{"LaunchTemplateSpecification": named}],
        TargetCapacitySpecification=wanted,
    )
    assert len(made["Instances"]) == 2


def test_filters_find_an_instance_by_what_is_documented(api):
    one = launched(api)
    nic = one["NetworkInterfaces"][0]
    for name, value in (
        ("network-interface.addresses.private-ip-address", one["PrivateIpAddress"]),
        ("network-interface.association.public-ip", one["PublicIpAddress"]),
        ("network-interface.network-interface-id", nic["NetworkInterfaceId"]),
        ("block-device-mapping.volume-id", one["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]),
        ("metadata-options.http-tokens", "optional"),
        ("launch-time", f"{one['LaunchTime']:%Y-%m-%dT*}"),
        ("instance-state-code", "16"),
        ("ena-support", "true"),
    ):
        found = api.describe_instances(Filters=[{"Name": name, "Values": [value, "x"]}])
        assert [r["Instances"][0]["InstanceId"] for r in found["Reservations"]] == [
            one["InstanceId"]
        ], name
        none = api.describe_instances(Filters=[{"Name": name, "Values": ["x"]}])
        assert not none["Reservations"], name
    odd = [{"Name": "outpost-arn", "Values": ["x"]}]
    assert "'outpost-arn'" in refused(api.describe_instances, Filters=odd)[1]


def test_an_image_has_the_instances_volumes_and_a_name_of_its_own(api):
    disks = [{"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 3}}]
    id = launched(api, BlockDeviceMappings=disks)["InstanceId"]
    image = api.create_image(InstanceId=id, Name="mine")["ImageId"]
    [shown] = api.describe_images(ImageIds=[image])["Images"]
    sizes = {one["DeviceName"]: one["Ebs"]["VolumeSize"] for one in shown["BlockDeviceMappings"]}
    assert (shown["RootDeviceType"], sizes["/dev/sdb"], len(sizes)) == ("ebs", 3, 2)
    assert refused(api.create_image, InstanceId=id, Name="mine")[0] == "InvalidAMIName.Duplicate"


def test_a_key_pair_of_a_template_that_is_gone(api):
    api.create_key_pair(KeyName="gone")
    image = api.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    data = {"KeyName": "gone", "ImageId": image, "InstanceType": "t3.micro"}
    api.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)
    api.delete_key_pair(KeyName="gone")
    named = {"LaunchTemplate": {"LaunchTemplateName": "t"}, "MinCount": 1, "MaxCount": 1}
    assert refused(api.run_instances, **named)[0] == "InvalidKeyPair.NotFound"


def test_a_new_instance_can_be_tagged_at_once(api):
    """SkyPilot does that. Only a fault makes it fail, as on AWS now and then."""
    from clusterctl.lab.faults.kinds import Lag
    from clusterctl.lab.faults.store import FAULTS

    image = api.describe_images(Owners=["898082745236"])["Images"][0]["ImageId"]
    wanted = {"ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    tags = {"Tags": [{"Key": "a", "Value": "b"}]}
    FAULTS.clear()
    try:
        id = api.run_instances(**wanted)["Instances"][0]["InstanceId"]
        api.create_tags(Resources=[id], **tags)
        FAULTS.add(Lag(visible_s=1000.0))
        id = api.run_instances(**wanted)["Instances"][0]["InstanceId"]
        assert refused(api.create_tags, Resources=[id], **tags)[0] == "InvalidInstanceID.NotFound"
    finally:
        hostless.clear_faults()


def test_key_pairs_have_a_kind_and_its_fingerprint_and_a_host_knows_their_name(api):
    from clusterctl.lab.hosts import metadata
    from clusterctl.lab.hosts.instances import all_lab_instances

    for kind in ("rsa", "ed25519"):
        api.create_key_pair(KeyName=f"mine {kind}", KeyType=kind)
    shown = {one["KeyType"]: one["KeyFingerprint"] for one in api.describe_key_pairs()["KeyPairs"]}
    assert shown["rsa"].count(":") == 19
    assert len(base64.b64decode(shown["ed25519"], validate=True)) == 32
    disks = [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 1}}]
    one = launched(api, KeyName="mine rsa", BlockDeviceMappings=disks)
    [host] = [host for host in all_lab_instances() if host.id == one["InstanceId"]]
    tree = metadata.tree_of(host)
    read = lambda path: metadata.lookup(tree, f"meta-data/{path}")  # noqa: E731
    assert read("public-keys/") == b"0=mine rsa"
    assert (read("public-keys/0/openssh-key") or b"").endswith(b" mine rsa\n")
    assert read("block-device-mapping/ebs1") == b"sdf"


def test_what_cannot_be_run_is_forgotten_with_its_instance(api):
    from clusterctl.lab.hosts.instances import all_lab_instances

    id = launched(api, UserData="#cloud-config\npackages: [jq]\n")["InstanceId"]
    [host] = [one for one in all_lab_instances() if one.id == id]
    assert "not packages" in host.user_data_problem
    api.terminate_instances(InstanceIds=[id])
    in_state(api, id, "terminated")
    assert host.user_data_problem == ""


def test_an_image_by_its_parameter(api, clients):
    from clusterctl.lab.hosts import images

    name = images.parameter_name(images.FAMILIES[0])
    newest = clients("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    assert launched(api, ImageId=f"resolve:ssm:{name}")["ImageId"] == newest


def test_a_template_completes_a_launch(api):
    """And a version completes another one, and a launch without an image is refused."""
    image = api.describe_images(Owners=["898082745236"])["Images"][0]["ImageId"]
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
    data = {"ImageId": image, "InstanceType": "t3.micro", "TagSpecifications": tags}
    api.create_launch_template(LaunchTemplateName="one", LaunchTemplateData=data)
    named = {"LaunchTemplateName": "one"}
    api.create_launch_template_version(
        **named, SourceVersion="1", LaunchTemplateData={"InstanceType": "c5.large"}
    )
    launch = {"MinCount": 1, "MaxCount": 1, "LaunchTemplate": {**named, "Version": "2"}}
    [made] = api.run_instances(**launch, MetadataOptions={"HttpTokens": "required"})["Instances"]
    shown = in_state(api, made["InstanceId"], "running")
    assert (shown["ImageId"], shown["InstanceType"]) == (image, "c5.large")
    assert {"Key": "a", "Value": "b"} in shown["Tags"]
    assert shown["MetadataOptions"]["HttpTokens"] == "required"
    api.create_launch_template_version(**named, LaunchTemplateData={"InstanceType": "c5.large"})
    launch["LaunchTemplate"]["Version"] = "3"
    assert refused(api.run_instances, **launch)[0] == "MissingParameter"


def test_a_client_token_is_for_one_request_of_any_action(api):
    wanted = {"AvailabilityZone": "us-east-1a", "Size": 1, "ClientToken": "t"}
    first, again = (api.create_volume(**wanted)["VolumeId"] for _ in range(2))
    assert first == again
    assert refused(api.create_volume, **{**wanted, "Size": 2})[0] == "IdempotentParameterMismatch"


def test_a_selection_selects(api):
    """moto ignores these, and describes everything."""
    pairs = [api.create_key_pair(KeyName=name)["KeyPairId"] for name in "ab"]
    shown = api.describe_key_pairs(KeyPairIds=pairs[:1])["KeyPairs"]
    assert [one["KeyName"] for one in shown] == ["a"]
    id = launched(api)["InstanceId"]
    for status, found in (("ok", [id]), ("initializing", [])):
        passing = [{"Name": "instance-status.status", "Values": [status]}]
        shown = api.describe_instance_status(Filters=passing)["InstanceStatuses"]
        assert [one["InstanceId"] for one in shown] in (found, [id][len(found) :])
    volume = api.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    mine = api.create_snapshot(VolumeId=volume)["SnapshotId"]
    shown = api.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert [one["SnapshotId"] for one in shown] == [mine]
    by_name = [{"Name": "region-name", "Values": ["eu-*"]}]
    [region] = api.describe_regions(Filters=by_name)["Regions"]
    assert region["RegionName"] == "eu-west-1"


def test_what_is_shown_of_an_instance_and_of_states(api):
    one = launched(api)
    assert "StateReason" not in one
    assert one["NetworkInterfaces"][0]["Association"]["IpOwnerId"] == "amazon"
    ids = [one["InstanceId"]]
    api.terminate_instances(InstanceIds=ids)
    in_state(api, ids[0], "terminated")
    [again] = api.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert again["CurrentState"]["Name"] == "terminated"


def test_types_come_in_pages_and_regions_are_the_labs(api):
    assert len(api.describe_instance_types()["InstanceTypes"]) == 100
    pages = api.get_paginator("describe_instance_types").paginate()
    assert len([one for page in pages for one in page["InstanceTypes"]]) > 1000
    assert len(api.describe_regions()["Regions"]) == 4


def test_what_s3_refuses(clients):
    s3 = clients("s3")
    s3.create_bucket(Bucket="there")
    for name in ("Bad_Bucket", "xn--bucket", "bucket-s3alias"):
        assert refused(s3.create_bucket, Bucket=name)[0] == "InvalidBucketName"
    policy = {"Bucket": "there", "Policy": "no"}
    assert refused(s3.put_bucket_policy, **policy)[0] == "MalformedPolicy"


def test_s3_refuses_a_thousand_and_one_keys_and_a_tag_twice(clients):
    s3 = clients("s3")
    s3.create_bucket(Bucket="limits")
    s3.put_object(Bucket="limits", Key="k")
    keys = [{"Key": f"k{n}"} for n in range(1001)]
    delete = {"Bucket": "limits", "Delete": {"Objects": keys}}
    assert refused(s3.delete_objects, **delete)[::2] == ("MalformedXML", 400)
    assert len(s3.delete_objects(Bucket="limits", Delete={"Objects": keys[1:]})["Deleted"]) == 1000
    tags = {"Bucket": "limits", "Key": "k", "Tagging": {"TagSet": [{"Key": "a", "Value": "1"}] * 2}}
    assert refused(s3.put_object_tagging, **tags)[0] == "InvalidTag"


def test_tags_are_found_by_key_and_value(api):
    groups = [api.create_security_group(GroupName=n, Description="d")["GroupId"] for n in "ab"]
    for group, value in zip(groups, ("x1", "y1")):
        api.create_tags(Resources=[group], Tags=[{"Key": k, "Value": value} for k in "kl"])
    found = api.describe_tags(Filters=[{"Name": "tag:k", "Values": ["x*", "z"]}])["Tags"]
    assert [(one["ResourceId"], one["Key"], one["Value"]) for one in found] == [
        (groups[0], "k", "x1")
    ]


def test_tags_and_rules_that_aws_refuses(api):
    group = api.create_security_group(GroupName="g", Description="d")["GroupId"]
    for tags in ([{"Key": "aws:x", "Value": ""}], [{"Key": "a", "Value": "1"}] * 2):
        code = refused(api.create_tags, Resources=[group], Tags=tags)[0]
        assert code in ("InvalidTagKey.Malformed", "InvalidParameterValue")
    for ports, block in (((22, 21), "1.2.3.4/32"), ((22, 22), "1.2.3.400/32")):
        rule = {"IpProtocol": "tcp", "FromPort": ports[0], "ToPort": ports[1]}
        rule["IpRanges"] = [{"CidrIp": block}]
        allow = api.authorize_security_group_ingress
        code, text, _ = refused(allow, GroupId=group, IpPermissions=[rule])
        assert code == "InvalidParameterValue"
        assert "{" not in text


def test_objects_that_came_in_parts_are_listed_with_their_versions(clients):
    s3 = clients("s3")
    s3.create_bucket(Bucket="parts")
    id = s3.create_multipart_upload(Bucket="parts", Key="k")["UploadId"]
    part = s3.upload_part(Bucket="parts", Key="k", UploadId=id, PartNumber=1, Body=b"x" * 9)
    done = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="parts", Key="k", UploadId=id, MultipartUpload=done)
    assert s3.list_object_versions(Bucket="parts")["Versions"][0]["Size"] == 9


TEMPLATE = """
Description: net
Parameters: {Cidr: {Type: String, AllowedPattern: '10[.].*', Default: 10.30.0.0/16}}
Resources:
  Vpc: {Type: 'AWS::EC2::VPC', Properties: {CidrBlock: !Ref Cidr}}
  Net:
    Type: AWS::EC2::Subnet
    Properties:
      VpcId: !Ref Vpc
      CidrBlock: 10.30.0.0/24
      AvailabilityZone: !Select [1, !GetAZs {Ref: 'AWS::Region'}]
Outputs: {Vpc: {Value: !Ref Vpc, Export: {Name: net}}}
"""


def test_a_change_set_makes_a_stack_and_updates_are_refused(clients):
    stacks = clients("cloudformation")
    named = {"StackName": "a", "TemplateBody": TEMPLATE}
    stacks.create_change_set(**named, ChangeSetName="c", ChangeSetType="CREATE")
    stacks.execute_change_set(StackName="a", ChangeSetName="c")
    [stack] = stacks.describe_stacks(StackName="a")["Stacks"]
    assert (stack["StackStatus"], stack["Description"]) == ("CREATE_COMPLETE", "net")
    assert stack["Outputs"][0]["ExportName"] == "net"
    [subnet] = clients("ec2").describe_subnets(
        Filters=[{"Name": "cidr-block", "Values": ["10.30.0.0/24"]}]
    )["Subnets"]
    assert subnet["AvailabilityZone"] == "us-east-1b"
    for number, (body, reason) in enumerate(
        ((TEMPLATE, "didn't contain changes"), (TEMPLATE.replace("net\n", "x\n"), "cannot update"))
    ):
        change = {"StackName": "a", "ChangeSetName": f"c{number}"}
        stacks.create_change_set(**change, ChangeSetType="UPDATE", TemplateBody=body)
        shown = stacks.describe_change_set(**change)
        assert (shown["Status"], reason in shown["StatusReason"]) == ("FAILED", True)
        assert refused(stacks.execute_change_set, **change)[0] == "InvalidChangeSetStatus"
    code, text, _ = refused(stacks.update_stack, **named)
    assert (code, text) == ("ValidationError", "No updates are to be performed.")
    stacks.delete_stack(StackName="a")
    assert stacks.describe_stacks()["Stacks"] == []


def test_a_template_is_read_from_the_labs_own_s3(clients):
    """As `aws cloudformation deploy --s3-bucket` and CDK leave it there."""
    s3, stacks = clients("s3"), clients("cloudformation")
    s3.create_bucket(Bucket="templates")
    s3.put_object(Bucket="templates", Key="a/net.yaml", Body=TEMPLATE.encode())
    url = "http://127.0.0.1:8123/templates/a/net.yaml"
    assert stacks.validate_template(TemplateURL=url)["Description"] == "net"
    stacks.create_stack(StackName="by-url", TemplateURL=url)
    [stack] = stacks.describe_stacks(StackName="by-url")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"


def test_a_stack_with_a_wrong_parameter_leaves_nothing(clients):
    stacks, api = clients("cloudformation"), clients("ec2")
    before = len(api.describe_vpcs()["Vpcs"])
    wrong = [{"ParameterKey": "Cidr", "ParameterValue": "11.0.0.0/16"}]
    request = {"StackName": "b", "TemplateBody": TEMPLATE, "Parameters": wrong}
    code, text, _ = refused(stacks.create_stack, **request)
    assert (code, "'Cidr' failed to satisfy" in text) == ("ValidationError", True)
    assert stacks.describe_stacks()["Stacks"] == []
    assert len(api.describe_vpcs()["Vpcs"]) == before
    [shown] = stacks.validate_template(TemplateBody=TEMPLATE)["Parameters"]
    assert (shown["ParameterKey"], shown["DefaultValue"]) == ("Cidr", "10.30.0.0/16")
    assert refused(stacks.validate_template, TemplateBody="a: b")[0] == "ValidationError"


CONFIG = """#cloud-config
users: [{name: sky, shell: /bin/bash, sudo: 'ALL=(ALL) NOPASSWD:ALL'}]
write_files: [{path: /etc/my/app, content: "a 'b'", permissions: '0604'}]
runcmd: ["echo hi >/tmp/ran"]
packages: [jq]
"""


@pytest.mark.lab
def test_a_host_is_like_ubuntus_image(instances, lab):
    if lab.mode == "single":
        pytest.skip("there is no root on its hosts")
    one = instances.up(UserData=CONFIG)[0]
    instances.console(one["InstanceId"])
    assert instances.run(one, "logname; lsblk; cat /tmp/ran /etc/my/app") == "ubuntu\nhi\na 'b'"
    assert instances.run(one, "cat /sys/class/net/eth0/mtu") == "9001"
    assert instances.run(one, "sudo -u sky sudo id -un") == "root"
    assert instances.run(
        one, "tail -c1 .ssh/authorized_keys | wc -l; wc -l <.ssh/authorized_keys"
    ) == ("1\n1")
    instances.run(one, "echo FOO=bar | sudo tee -a /etc/environment")
    assert instances.run(one, "echo $FOO") == "bar"
    said = ssh(lab, instances.key, one["PrivateIpAddress"], "cloud-init status --long")
    assert "not packages" in said.stdout
    ssh(lab, instances.key, one["PrivateIpAddress"], "sudo shutdown -r 0 'see you'")
    wait_until(
        lambda: (
            ssh(lab, instances.key, one["PrivateIpAddress"], "test ! -e /tmp/ran").returncode == 0
        ),
        "rebooted",
    )
