"""Requests that are refused, throttled, delayed, or carried out and never answered."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ConnectionClosedError

from tests.lab.refusals import refused
from tests.lab.running import once_client, wait_until

pytestmark = pytest.mark.lab


def groups(ec2, name):
    found = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])
    return len(found["SecurityGroups"])


def test_an_error_strikes_once(once, faults):
    for fault, said in (
        ({"code": "RequestLimitExceeded"}, ("Request limit exceeded.", 503)),
        (
            {"code": "UnauthorizedOperation"},
            ("You are not authorized to perform this operation.", 403),
        ),
        (
            {"code": "InvalidVpcID.NotFound", "message": "no <VPC> & 'no' \"\u00fc\""},
            ("no <VPC> & 'no' \"\u00fc\"", 400),
        ),
        ({"code": "Odd", "message": "as told", "status": 418}, ("as told", 418)),
    ):
        faults("error", action="DescribeVpcs", **fault)
        assert refused(once.describe_vpcs) == (fault["code"], *said)
        assert once.describe_vpcs()["Vpcs"]


def test_an_error_before_and_after_the_effect_and_a_lost_answer(once, faults):
    for name, made in (("before", 0), ("after", 1)):
        faults("error", action="CreateSecurityGroup", code="InternalError", after=bool(made))
        refused(once.create_security_group, GroupName=name, Description="d")
        assert groups(once, name) == made
    faults("lost", action="CreateSecurityGroup")
    with pytest.raises(ConnectionClosedError):
        once.create_security_group(GroupName="lost", Description="d")
    assert groups(once, "lost") == 1


def test_requests_that_pass_first_are_counted_over_all_actions(once, faults):
    faults("error", action="*", code="Unavailable", skip=2, times=2)
    once.describe_vpcs()
    once.describe_subnets()
    assert refused(once.describe_vpcs)[0] == "Unavailable"
    assert refused(once.describe_key_pairs)[2] == 503
    once.describe_vpcs()


def test_a_launch_whose_answer_is_lost_is_found_again_by_its_token(instances, once, faults):
    faults("lost", action="RunInstances")
    request = instances.wanted(ClientToken="lost-reply", MinCount=2, MaxCount=2)
    with pytest.raises(ConnectionClosedError):
        once.run_instances(**request)
    again = instances.request(**request)
    assert len(again) == 2
    by_token = [{"Name": "client-token", "Values": ["lost-reply"]}]
    shown = once.describe_instances(Filters=by_token)["Reservations"]
    assert [one["InstanceId"] for one in shown[0]["Instances"]] == [
        one["InstanceId"] for one in again
    ]


def test_throttled_until_the_bucket_has_filled(lab, once, faults):
    faults("throttle", action="DescribeVpcs", rate=5, burst=2)
    said = refused(lambda: [once.describe_vpcs() for _ in range(20)])
    assert said == ("RequestLimitExceeded", "Request limit exceeded.", 503)
    once.describe_subnets()
    # boto3's retries succeed in the end.
    patient = once_client(lab, attempts=10)
    assert all(patient.describe_vpcs()["Vpcs"] for _ in range(3))


@pytest.mark.parametrize(
    ("service", "method", "action", "code", "status"),
    [
        ("ssm", "describe_parameters", "DescribeParameters", "ThrottlingException", 400),
        ("cloudwatch", "describe_alarms", "DescribeAlarms", "ThrottlingException", 400),
        ("cloudformation", "describe_stacks", "DescribeStacks", "Throttling", 400),
    ],
)
def test_other_services_have_faults_too(lab, faults, service, method, action, code, status):
    call = getattr(once_client(lab, service), method)
    faults("error", action=action, code="ExpiredTokenException", message="over")
    assert refused(call) == ("ExpiredTokenException", "over", 400)
    faults("lost", action=action)
    with pytest.raises(ConnectionClosedError):
        call()
    faults("throttle", action=action, rate=0, burst=1)
    call()
    assert refused(call)[::2] == (code, status)


def test_a_signed_url_has_faults_in_its_services_words(lab, faults):
    faults("error", action="GetCallerIdentity", code="ExpiredToken")
    sts = once_client(lab, "sts")
    url = sts.generate_presigned_url("get_caller_identity", HttpMethod="GET")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=60)
    assert b"<ErrorResponse>" in refused.value.read()


def test_s3_has_no_faults_whatever_its_objects_look_like(lab, faults):
    s3, form = once_client(lab, "s3"), "application/x-www-form-urlencoded"
    faults("error", action="*", code="Unavailable")
    s3.create_bucket(Bucket="forms")
    s3.put_object(Bucket="forms", Key="form", Body=b"Action=DescribeVpcs", ContentType=form)
    s3.delete_object(Bucket="forms", Key="form")
    s3.delete_bucket(Bucket="forms")


def test_delayed_requests_wait_side_by_side(once, faults):
    faults("delay", action="DescribeVpcs", seconds=1)

    def ended(_):
        began = time.monotonic()
        assert once.describe_vpcs()["Vpcs"]
        end = time.monotonic()
        assert end - began >= 1
        return end

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(ended, range(8)))
    assert max(ends) - min(ends) < 7, "one after the other, each ends 1 s after the one before"


def test_a_new_instance_is_hidden_from_every_question(instances, once, faults):
    lag = faults("lag", visible_s=3600)
    made = once.run_instances(**instances.wanted())["Instances"][0]["InstanceId"]
    text = f"The instance ID '{made}' does not exist"
    not_found = ("InvalidInstanceID.NotFound", text, 400)
    one = {"InstanceIds": [made]}
    for call, arguments in (
        (once.describe_instances, one),
        (once.describe_instance_status, one),
        (once.terminate_instances, one),
        (once.get_console_output, {"InstanceId": made}),
        (once.create_tags, {"Resources": [made], "Tags": [{"Key": "k", "Value": "v"}]}),
    ):
        assert refused(call, **arguments) == not_found
    everything = [{"Name": "instance-id", "Values": [made]}]
    assert once.describe_instances(Filters=everything)["Reservations"] == []
    every_status = once.describe_instance_status(IncludeAllInstances=True)["InstanceStatuses"]
    assert made not in [each["InstanceId"] for each in every_status]
    faults.clear(lag["id"])
    instances.ids.append(made)
    wait_until(lambda: once.describe_instances(Filters=everything)["Reservations"], "seen")
    assert once.describe_instances(**one)["Reservations"]


def test_a_console_that_lags(instances, faults):
    faults("lag", console_s=3600)
    id = instances.up()[0]["InstanceId"]
    assert "Output" not in instances.ec2.get_console_output(InstanceId=id)
    faults.clear()
    assert "SSH HOST KEY" in instances.console(id)
