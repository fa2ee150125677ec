"""Service quotas, and launches that would go over them."""

from __future__ import annotations

import pytest

from clusterctl.lab.ec2.quotas import quota_of
from tests.lab.refusals import quota, refused, service

pytestmark = pytest.mark.lab

ON_DEMAND_P, SPOT_P, ADDRESSES = "L-417A185B", "L-7212CCBC", "L-0263D0A3"
INTERFACES = "L-DF5E4CA3"
VCPUS = 8  # of a p3.2xlarge


@pytest.fixture(scope="module")
def quotas(lab):
    return service(lab, "service-quotas")


@pytest.mark.parametrize(
    ("instance_type", "spot", "code"),
    [
        ("p4d.24xlarge", False, "L-417A185B"),
        ("p6-b300.48xlarge", False, "L-417A185B"),
        ("p4d.24xlarge", True, "L-7212CCBC"),
        ("p5en.48xlarge", True, "L-C4BD4855"),
        ("g5.xlarge", False, "L-DB2E81BA"),
        ("gr6.4xlarge", False, "L-DB2E81BA"),
        ("g5.xlarge", True, "L-3819A6DF"),
        ("m5.large", False, "L-1216C47A"),
        ("dl1.24xlarge", False, "L-6E869C2A"),
        ("trn1.32xlarge", False, "L-2C3B7624"),
        ("inf2.xlarge", True, "L-B5D1601B"),
    ],
)
def test_the_quota_of_a_type(instance_type, spot, code):
    found = quota_of(instance_type, spot=spot)
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    ("code", "value"), [(ON_DEMAND_P, 100_000), ("L-DB2E81BA", 100_000), (ADDRESSES, 5)]
)
def test_quotas_and_their_defaults(quotas, code, value):
    asked = {"ServiceCode": "ec2", "QuotaCode": code}
    for call in (quotas.get_service_quota, quotas.get_aws_default_service_quota):
        found = call(**asked)["Quota"]
        assert (found["QuotaCode"], found["Value"], found["Adjustable"]) == (code, value, True)
    listed = quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]
    assert [one["Value"] for one in listed if one["QuotaCode"] == code] == [value]


def test_a_quota_that_is_not_there(quotas):
    asked = {"ServiceCode": "ec2", "QuotaCode": "L-00000000"}
    for call in (quotas.get_service_quota, quotas.get_aws_default_service_quota):
        assert refused(call, **asked)[0] == "NoSuchResourceException"


def test_a_launch_over_the_quota_is_refused_with_the_limit(lab, quotas, instances):
    with quota(lab, ON_DEMAND_P, 2 * VCPUS):
        asked = {"ServiceCode": "ec2", "QuotaCode": ON_DEMAND_P}
        assert quotas.get_service_quota(**asked)["Quota"]["Value"] == 2 * VCPUS
        assert quotas.get_aws_default_service_quota(**asked)["Quota"]["Value"] == 100_000
        code, text, status = refused(instances.request, MinCount=3, MaxCount=3)
        assert (code, status) == ("VcpuLimitExceeded", 400)
        assert text == (
            "You have requested more vCPU capacity than your current vCPU limit of 16 allows for "
            "the instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
        )


def test_what_runs_counts_and_what_is_stopped_does_not(lab, instances):
    region = {"InstanceType": "g4dn.xlarge"}  # a quota that no other test's instances count in
    with quota(lab, "L-DB2E81BA", 8):
        first, second = instances.up(MinCount=1, MaxCount=5, **region)
        assert refused(instances.request, **region)[0] == "VcpuLimitExceeded"
        instances.ec2.stop_instances(InstanceIds=[first["InstanceId"]])
        instances.in_state(first["InstanceId"], "stopped")
        instances.request(**region)
        code, _, _ = refused(instances.ec2.start_instances, InstanceIds=[first["InstanceId"]])
        assert code == "VcpuLimitExceeded"
        instances.ec2.terminate_instances(InstanceIds=[second["InstanceId"]])
        instances.in_state(second["InstanceId"], "terminated")
        instances.ec2.start_instances(InstanceIds=[first["InstanceId"]])


def test_spot_has_quotas_of_its_own(lab, instances):
    market = {"InstanceMarketOptions": {"MarketType": "spot"}}
    with quota(lab, SPOT_P, 0):
        code, text, status = refused(instances.request, **market)
        assert (code, text, status) == (
            "MaxSpotInstanceCountExceeded",
            "Max spot instance count exceeded",
            400,
        )
        instances.request()
    with quota(lab, ON_DEMAND_P, 0):
        instances.request(**market)


def test_network_interfaces_have_a_quota(lab, instances):
    with quota(lab, INTERFACES, 0):
        assert refused(instances.request)[0] == "NetworkInterfaceLimitExceeded"
    asked = {"ServiceCode": "vpc", "QuotaCode": INTERFACES}
    found = service(lab, "service-quotas").get_service_quota(**asked)["Quota"]
    assert (found["ServiceCode"], found["Value"]) == ("vpc", 5000)


def test_a_dry_run_tells_nothing_of_quotas(lab, instances):
    with quota(lab, ON_DEMAND_P, 0):
        assert refused(instances.request, DryRun=True)[0] == "DryRunOperation"
