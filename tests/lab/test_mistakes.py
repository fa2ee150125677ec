"""A client's mistake is answered with one of AWS's error codes, and never with an error of AWS's.

Every action that the lab answers is sent, in one process and without hosts: with its required
parameters, without each of them, and with each documented one: of a plain value, of a wrong form,
and of a resource that is gone.
"""

from __future__ import annotations

import io
import logging
import re
import zlib
from pathlib import Path
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.serialize import create_serializer

from clusterctl.lab.faults.answers import Call
from clusterctl.toml_file import read_toml
from tests import hostless

CODES = {
    service: {code for codes in sources.values() for code in codes}
    for service, sources in read_toml(Path(__file__).parent / "error_codes.toml").items()
}
NAMES = {"monitoring": "cloudwatch", "servicequotas": "service-quotas"}
# Where moto fails, and the lab says that it cannot, and logs why.
BEYOND = {
    *("AssociateRouteTable", "ModifySecurityGroupRules", "ReplaceNetworkAclAssociation"),
    *("CreateServiceLinkedRole", "GetTemplateSummary"),
}
WRONG = {
    **dict.fromkeys(("integer", "long", "float", "double"), "x1"),
    "boolean": "maybe",
    "timestamp": "not-a-time",
    "string": "\u00fc none",
    "blob": b"x",
}
# How many of the cases are sent by default: one of so many.
SAMPLE = 4


@pytest.fixture
def api():
    """Return the lab's API, and what it logs. moto is as new before and after."""
    from moto import mock_aws

    from clusterctl.lab import app
    from clusterctl.lab.faults.api import with_api_faults
    from clusterctl.lab.faults.store import FAULTS

    hostless.complete_moto()
    with mock_aws():
        yield with_api_faults(app._dispatch, FAULTS)


@pytest.fixture
def gone(api):
    """Return ids, by their parameters' names, of resources that were made and are gone."""
    import boto3

    ec2 = boto3.client("ec2", region_name="us-east-1")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    made = ec2.run_instances(ImageId=image, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    [instance] = made["Instances"]
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    ec2.delete_volume(VolumeId=volume)
    group = ec2.create_security_group(GroupName="gone", Description="d")["GroupId"]
    ec2.delete_security_group(GroupId=group)
    return {
        "InstanceId": instance["InstanceId"],
        "NetworkInterfaceId": instance["NetworkInterfaces"][0]["NetworkInterfaceId"],
        "VolumeId": volume,
        "SecurityGroupId": group,
    }


def send(api, service, model, action, request):
    """Return status and body of a request that a client could send."""
    from clusterctl.lab.wsgi import SERVICE

    serializer = create_serializer(model.resolved_protocol, include_validation=False)
    made = serializer.serialize_to_request(request, model.operation_model(action))
    body = made["body"]
    body = urlencode(body) if isinstance(body, dict) else body
    body = body.encode() if isinstance(body, str) else body
    scope = f"AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/{service}/aws4_request"
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/",
        "QUERY_STRING": "",
        "HTTP_HOST": "lab",
        "SERVER_NAME": "lab",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential={scope}, Signature=x",
        "HTTP_X_MOTO_ACCOUNT_ID": "123456789012",
        "CONTENT_TYPE": "application/x-www-form-urlencoded; charset=utf-8",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        SERVICE: service,
    }
    for name, value in made["headers"].items():
        key = name.upper().replace("-", "_")
        environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
    status = []
    content = b"".join(api(environ, lambda said, *_: status.append(int(said.split()[0]))))
    return status[0], content.decode()


def example(shape, depth=0):
    """Return a value of a botocore shape: of a structure what is required."""
    kind = shape.type_name
    if kind == "structure":
        return {name: example(shape.members[name], depth + 1) for name in shape.required_members}
    if kind == "list":
        return [example(shape.member, depth + 1)] if depth < 6 else []
    if kind == "map":
        return {"k": example(shape.value, depth + 1)}
    plain = {"boolean": True, "timestamp": "2026-01-01T00:00:00Z", "blob": b"x"}
    numbers = {**dict.fromkeys(("integer", "long"), 5), **dict.fromkeys(("float", "double"), 1.0)}
    found = {**plain, **numbers}.get(kind)
    return found if found is not None else _text(shape)


def _text(shape):
    from clusterctl.lab.ec2.refusals import IDS

    if shape.name in IDS:
        return f"{IDS[shape.name][0]}-0123456789abcdef0"
    return shape.enum[0] if shape.enum else "none"


def requests_of(shape, gone):
    """Yield the name and the parameters of every request of an action to send."""
    base = example(shape) if shape else {}
    yield "required", base
    for name, member in shape.members.items() if shape else ():
        if name != "DryRun":
            if name in base:
                yield f"-{name}", {key: base[key] for key in base if key != name}
            yield f"+{name}", {**base, name: example(member)}
            inner = member.member if member.type_name == "list" else member
            if inner.name in gone:
                id = gone[inner.name]
                yield f"~{name}", {**base, name: [id] if inner is not member else id}
            if member.type_name in WRONG:
                yield f"!{name}", {**base, name: WRONG[member.type_name]}


def code_of(body):
    found = re.search(r'<Code>([^<]*)|"(?:__type|code)": ?"(?:[^"#]*#)?([^"]*)', body)
    return (found[1] or found[2]) if found else ""


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(1, marks=pytest.mark.all)])
def test_every_action_answers_every_request_as_aws_would(api, gone, caplog, sample):
    from clusterctl.lab import forms

    wrong, sent = [], 0
    for service, codes in CODES.items():
        model = botocore.session.get_session().get_service_model(NAMES.get(service, service))
        served = [one for one in model.operation_names if forms._is_served(Call(service, one))]
        for action in served:
            shape = model.operation_model(action).input_shape
            for name, request in requests_of(shape, gone):
                if zlib.crc32(f"{action} {name}".encode()) % sample:
                    continue
                try:
                    status, body = send(api, service, model, action, request)
                except (TypeError, AttributeError, ValueError):
                    continue  # botocore cannot even send it
                sent += 1
                right = status == 200 or (400 <= status < 500 and code_of(body) in codes)
                if not right or "moto" in body.lower().replace("/moto", ""):
                    wrong.append((service, action, name, status, body[:300]))
    assert not wrong
    assert sent > 3000 / sample
    # The supervisor of this process logs, too, while moto is reset.
    of_requests = [one for one in caplog.records if one.name == "clusterctl.lab.faults.api"]
    failed = {line.getMessage().split()[1] for line in of_requests if line.exc_info}
    assert failed <= BEYOND


@pytest.mark.parametrize(
    ("service", "action", "request_", "code"),
    [
        ("ec2", "GetConsoleScreenshot", {"InstanceId": "i-0123456789abcdef0"}, "InvalidAction"),
        ("ec2", "DescribeTransitGateways", {}, "InvalidAction"),
        ("ec2", "DescribeInstances", {"Filters": [{"Name": "a"}]}, "InvalidParameterValue"),
        ("ec2", "DescribeInstances", {"NextToken": "none"}, "InvalidNextToken"),
        ("ec2", "DescribeInstances", {"MaxResults": 4}, "InvalidParameterValue"),
        ("ec2", "DescribeInstances", {"InstanceIds": ["i-zz"]}, "InvalidInstanceID.Malformed"),
        ("ec2", "RunInstances", {"MinCount": 1}, "MissingParameter"),
        ("cloudformation", "CreateStackSet", {"StackSetName": "s"}, "InvalidAction"),
        ("ssm", "CreateDocument", {"Name": "n", "Content": "c"}, "UnknownOperationException"),
        ("ssm", "GetParameter", {}, "ValidationException"),
        ("iam", "GetRole", {}, "ValidationError"),
    ],
)
def test_what_is_wrong_or_missing_has_its_code(api, caplog, service, action, request_, code):
    model = botocore.session.get_session().get_service_model(service)
    status, body = send(api, service, model, action, request_)
    assert (status, code_of(body)) == (400, code)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


NOBODY = "i-0123456789abcdef0"
TAG = {"Tags": [{"Key": "a", "Value": "b"}]}
ROLE = '{"Resources": {"R": {"Type": "AWS::IAM::Role"}}}'
REFERENCE = (
    '{"Resources": {"V": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": {"Ref": "X"}}}}}'
)
CIRCLE = """{"Resources": {"A": {"Type": "AWS::EC2::VPC", "DependsOn": "B"},
  "B": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": {"Fn::GetAtt": ["A", "x"]}}}}}"""
# What users of EC2 send in their first week.
REFUSED = (
    ("ec2", "CreateTags", {"Resources": [NOBODY], **TAG}, "InvalidInstanceID.NotFound"),
    ("ec2", "DescribeImages", {"ExecutableUsers": ["self"]}, "UnsupportedOperation"),
    ("ec2", "DescribeSnapshots", {"RestorableByUserIds": ["self"]}, "UnsupportedOperation"),
    ("ec2", "DescribeVpcEndpointServices", {"ServiceRegions": ["a"]}, "UnsupportedOperation"),
    ("ec2", "DeleteTags", {"Resources": [NOBODY], **TAG}, "InvalidInstanceID.NotFound"),
    ("ec2", "TerminateInstances", {"InstanceIds": [NOBODY], "DryRun": True},
     "InvalidInstanceID.NotFound"),
    ("ec2", "CreateVolume", {"AvailabilityZone": "us-east-1z", "Size": 1}, "InvalidZone.NotFound"),
    ("ec2", "CreateVolume", {"AvailabilityZone": "us-east-1a", "Size": 99999},
     "InvalidParameterValue"),
    ("ec2", "CreateVolume", {"AvailabilityZone": "us-east-1a", "Size": 9, "VolumeType": "gp9"},
     "InvalidParameterValue"),
    ("ec2", "DeleteSecurityGroup", {"GroupName": "default"}, "CannotDelete"),
    ("ec2", "CreateSecurityGroup", {"GroupName": "sg-x", "Description": "d"},
     "InvalidParameterValue"),
    ("ec2", "CreateSecurityGroup",
     {"GroupName": "g", "Description": "d", "VpcId": "vpc-0123456789abcdef0"},
     "InvalidVpcID.NotFound"),
    ("ec2", "CreateKeyPair", {"KeyName": ""}, "InvalidParameterValue"),
    ("ec2", "CreateKeyPair",
     {"KeyName": "k", "TagSpecifications": [{"ResourceType": "vpc", **TAG}]},
     "InvalidParameterValue"),
    ("ec2", "CreatePlacementGroup", {"GroupName": "p", "Strategy": "cluster", "PartitionCount": 3},
     "InvalidParameterValue"),
    ("ec2", "AllocateAddress", {"Domain": "moon"}, "InvalidParameterValue"),
    ("ec2", "DescribeRegions", {"RegionNames": ["x"]}, "InvalidParameterValue"),
    ("ec2", "DescribeInstanceStatus", {"InstanceIds": [NOBODY], "MaxResults": 5},
     "InvalidParameterCombination"),
    ("ec2", "DescribeKeyPairs", {"KeyPairIds": ["key-0123456789abcdef0"]},
     "InvalidKeyPair.NotFound"),
    ("ec2", "DescribeVolumes", {"Filters": [{"Name": "nonsense", "Values": ["x"]}]},
     "InvalidParameterValue"),
    ("ec2", "DescribeLaunchTemplates", {"LaunchTemplateIds": ["lt-0123456789abcdef0"]},
     "InvalidLaunchTemplateId.NotFound"),
    ("ec2", "DeleteLaunchTemplate", {"LaunchTemplateName": "none"},
     "InvalidLaunchTemplateName.NotFoundException"),
    ("ec2", "CreateLaunchTemplate",
     {"LaunchTemplateName": "a b", "LaunchTemplateData": {"KeyName": "k"}},
     "InvalidLaunchTemplateName.MalformedException"),
    ("ec2", "CreateVpc", {"CidrBlock": "10.99.0.0/16", "DryRun": True}, "DryRunOperation"),
    ("iam", "CreateRole", {"RoleName": "r", "AssumeRolePolicyDocument": "no"},
     "MalformedPolicyDocument"),
    ("iam", "CreateRole", {"RoleName": "a b", "AssumeRolePolicyDocument": "{}"}, "ValidationError"),
    ("cloudformation", "CreateStack", {"StackName": "c", "TemplateBody": ROLE},
     "InsufficientCapabilitiesException"),
    ("cloudformation", "CreateStack", {"StackName": "c", "TemplateBody": REFERENCE},
     "ValidationError"),
    (
        "cloudformation",
        "CreateStack",
        {"StackName": "c", "TemplateBody": CIRCLE},
        "ValidationError",
    ),
    ("cloudformation", "ListStacks", {"StackStatusFilter": ["LOST"]}, "ValidationError"),
    ("ssm", "SendCommand", {"DocumentName": "AWS-RunShellScript"}, "InvalidInstanceId"),
    ("ssm", "PutParameter", {"Name": "a b", "Value": "v", "Type": "String"}, "ValidationException"),
)  # fmt: skip


def test_what_a_new_user_does_wrong_is_refused_as_by_aws(api):
    for service, action, request, code in REFUSED:
        model = botocore.session.get_session().get_service_model(service)
        status, body = send(api, service, model, action, request)
        assert (code_of(body), status // 100) == (code, 4), (action, request, body)
        assert re.search("<Message>.|[Mm]essage", body), body
    older = {"Filters": [{"Name": "isDefault", "Values": ["true"]}]}  # Ansible's
    model = botocore.session.get_session().get_service_model("ec2")
    status, body = send(api, "ec2", model, "DescribeVpcs", older)
    assert (status, body.count("<vpcId>")) == (200, 1), body


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(1, marks=pytest.mark.all)])
def test_a_dry_run_carries_nothing_out(api, sample):
    from clusterctl.lab import forms

    model = botocore.session.get_session().get_service_model("ec2")
    done = []
    for action in model.operation_names:
        shape = model.operation_model(action).input_shape
        if zlib.crc32(action.encode()) % sample or not shape or "DryRun" not in shape.members:
            continue
        if forms._is_served(Call("ec2", action)):
            status, body = send(api, "ec2", model, action, {**example(shape), "DryRun": True})
            done += [(action, body[:200])] if status < 400 else []
    assert not done


@pytest.mark.parametrize("sample", [16, pytest.param(1, marks=pytest.mark.all)])
def test_no_filter_is_ignored(api, gone, sample):
    """A filter finds nothing with a value that nothing has, or is refused by its name."""
    import boto3

    from clusterctl.lab import forms

    ec2 = boto3.client("ec2", region_name="us-east-1")
    ec2.create_key_pair(KeyName="k")
    ec2.create_placement_group(GroupName="p", Strategy="cluster")
    ec2.allocate_address(Domain="vpc")
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
    ec2.create_snapshot(VolumeId=volume)
    model, ignored, sent = ec2.meta.service_model, [], 0
    for action in model.operation_names:
        shape = model.operation_model(action).input_shape
        if not action.startswith("Describe") or shape is None or shape.required_members:
            continue
        key = "Filters" if "Filters" in shape.members else "Filter"
        for name in re.findall("<li> *<p> *<code>([a-z.-]+)", forms._text_of(shape, key)):
            if zlib.crc32(f"{action} {name}".encode()) % sample or name == "tag":
                continue
            filters = {key: [{"Name": name, "Values": ["nonsense"]}]}
            status, body = send(api, "ec2", model, action, filters)
            sent += 1
            ignored += [(action, name)] if status == 200 and "<item>" in body else []
            assert status == 200 or code_of(body) not in ("InternalError", ""), body
    assert not ignored
    assert sent > 400 / sample


def test_an_optional_id_that_is_empty_is_not_given(api):
    """Flintrock launches with an empty subnet and zone, and EC2 chooses both."""
    import boto3

    ec2 = boto3.client("ec2", region_name="us-east-1")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    model = ec2.meta.service_model
    launch = {"ImageId": image, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    empty = {"SubnetId": "", "Placement": {"AvailabilityZone": ""}}
    status, body = send(api, "ec2", model, "RunInstances", {**launch, **empty})
    assert status == 200, body
    [id] = re.findall("<instanceId>(.+?)<", body)
    ec2.terminate_instances(InstanceIds=[id])
    for action, request in (
        ("DescribeInstances", {"InstanceIds": [""]}),
        ("RebootInstances", {"InstanceIds": [""]}),
        ("DescribeInstanceAttribute", {"InstanceId": "", "Attribute": "userData"}),
    ):
        status, body = send(api, "ec2", model, action, request)
        assert (status, code_of(body)) == (400, "InvalidInstanceID.Malformed"), body


def test_a_request_to_s3_that_fails_after_its_body_was_read_is_answered():
    """To read the body again would wait for a client that has sent everything."""
    from clusterctl.lab.faults.api import with_api_faults
    from clusterctl.lab.faults.store import Faults
    from clusterctl.lab.wsgi import SERVICE

    class Sent:
        def read(self, *_):
            raise AssertionError("the client has sent its body, and waits")

    def fail(environ, start):
        raise KeyError("k")

    environ = {SERVICE: "s3", "REQUEST_METHOD": "PUT", "PATH_INFO": "/bucket/k"}
    environ |= {"QUERY_STRING": "versionId=k", "CONTENT_LENGTH": "5", "wsgi.input": Sent()}
    statuses = []
    body = with_api_faults(fail, Faults())(environ, lambda status, _: statuses.append(status))
    assert (statuses, b"<Code>InvalidRequest</Code>" in b"".join(body)) == (
        ["400 Bad Request"],
        True,
    )
