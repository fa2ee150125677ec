"""The lab's catalogue: images, prices, and quotas with their effect."""

from __future__ import annotations

import datetime
import json

import pytest

from clusterctl.lab.addresses import REGIONS
from tests.lab.refusals import quota, refused, service
from tests.lab.running import DLAMI_OWNER

pytestmark = pytest.mark.lab

ROOT = "/aws/service/deeplearning/ami"
BASE = "Deep Learning Base OSS Nvidia Driver GPU AMI"


def images(lab, region, pattern="*"):
    return service(lab, "ec2", region).describe_images(
        Owners=[DLAMI_OWNER], Filters=[{"Name": "name", "Values": [pattern]}]
    )["Images"]


def test_families_of_images(lab):
    for pattern, count, root, gib, architecture in (
        (f"{BASE} (Ubuntu 22.04) *", 2, "/dev/sda1", 75, "x86_64"),
        (f"{BASE} (Amazon Linux 2023) *", 1, "/dev/xvda", 75, "x86_64"),
        ("Deep Learning Base Proprietary Nvidia Driver *", 1, "/dev/sda1", 75, "x86_64"),
        ("Deep Learning OSS Nvidia Driver AMI GPU PyTorch *", 1, "/dev/sda1", 105, "x86_64"),
        ("Deep Learning ARM64 Base OSS *", 1, "/dev/sda1", 75, "arm64"),
    ):
        found = images(lab, lab.region, pattern)
        assert len(found) == count, pattern
        for one in found:
            disk = one["BlockDeviceMappings"][0]
            assert (one["RootDeviceName"], disk["DeviceName"]) == (root, root)
            assert (disk["Ebs"]["VolumeSize"], one["Architecture"]) == (gib, architecture)
            assert one["Description"].startswith("Supported EC2 instances: ")


def test_parameters_name_the_newest_image_of_each_region(lab):
    name = f"{ROOT}/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    for region in REGIONS:
        found = service(lab, "ssm", region).get_parameter(Name=name)["Parameter"]
        of_region = images(lab, region, f"{BASE} (Ubuntu 22.04) *")
        newest = max(of_region, key=lambda one: one["CreationDate"])
        assert (found["Value"], found["Type"]) == (newest["ImageId"], "String")


def test_parameters_by_name_and_by_path(lab):
    ssm = service(lab, "ssm")
    wanted = [f"{ROOT}/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id", f"{ROOT}/no"]
    answer = ssm.get_parameters(Names=wanted)
    assert [one["Name"] for one in answer["Parameters"]] == wanted[:1]
    assert answer["InvalidParameters"] == wanted[1:]
    below = ssm.get_parameters_by_path(Path=f"{ROOT}/x86_64", Recursive=True)["Parameters"]
    assert len(below) == 5
    for name in (f"{ROOT}/x86_64/no/latest/ami-id", f"{ROOT}/x86_64", "/aws/service/deeplearning"):
        code, _, status = refused(ssm.get_parameter, Name=name)
        assert (code, status) == ("ParameterNotFound", 400)


def priced(prices, **fields):
    """Return the price list's entries for Linux on demand, with changed filters."""
    usual = {
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "productFamily": "Compute Instance",
        "instanceType": "p4d.24xlarge",
        "regionCode": "us-east-1",
    }
    wanted = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {**usual, **fields}.items()
    ]
    found = prices.get_products(ServiceCode="AmazonEC2", Filters=wanted)["PriceList"]
    return [json.loads(one) for one in found]


def test_the_price_list(lab):
    prices = service(lab, "pricing", "us-east-1")
    for instance_type, region, usd in (
        ("p4d.24xlarge", "us-east-1", 21.957642),
        ("p5.48xlarge", "us-west-2", 55.04),
        ("p3.16xlarge", "us-east-1", 24.48),
        ("g5.xlarge", "eu-west-1", 1.006),
    ):
        [entry] = priced(prices, instanceType=instance_type, regionCode=region)
        assert entry["product"]["attributes"]["instanceType"] == instance_type
        [term] = entry["terms"]["OnDemand"].values()
        [dimension] = term["priceDimensions"].values()
        assert (dimension["unit"], float(dimension["pricePerUnit"]["USD"])) == ("Hrs", usd)
    for changes in ({"instanceType": "p9.huge"}, {"operatingSystem": "Windows"}, {"colour": "red"}):
        assert priced(prices, **changes) == []
    here = {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}
    pages = prices.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=[here])
    found = [json.loads(one)["product"]["sku"] for page in pages for one in page["PriceList"]]
    assert len(set(found)) == len(found) > 60


def test_the_price_list_is_served_in_few_regions(lab):
    elsewhere = service(lab, "pricing", "us-west-2")
    assert refused(elsewhere.get_products, ServiceCode="AmazonEC2")[0] == "AccessDeniedException"
    here = service(lab, "pricing", "eu-central-1")
    assert here.get_products(ServiceCode="AmazonEC2", MaxResults=1)["PriceList"]
    assert refused(here.get_products, ServiceCode="AmazonTea")[0] == "NotFoundException"


def test_spot_prices_by_zone(lab):
    describe = service(lab, "ec2").describe_spot_price_history
    asked = {
        "InstanceTypes": ["p4d.24xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime.datetime.now(datetime.timezone.utc),
    }
    found = describe(**asked)["SpotPriceHistory"]
    zones = [one["AvailabilityZone"] for one in found]
    assert len(set(zones)) == len(zones) > 1
    assert all(0.2 * 21.96 < float(one["SpotPrice"]) < 0.7 * 21.96 for one in found)
    one_zone = describe(**asked, AvailabilityZone=zones[0])["SpotPriceHistory"]
    assert [one["AvailabilityZone"] for one in one_zone] == zones[:1]
    assert describe(**{**asked, "ProductDescriptions": ["Windows"]})["SpotPriceHistory"] == []


ON_DEMAND_P, SPOT_P, INTERFACES = "L-417A185B", "L-7212CCBC", "L-DF5E4CA3"
VCPUS = 8  # of a p3.2xlarge


def test_quotas_and_their_defaults(lab):
    quotas = service(lab, "service-quotas")
    both = (quotas.get_service_quota, quotas.get_aws_default_service_quota)
    for name, code, value in (
        ("ec2", ON_DEMAND_P, 100_000),
        ("ec2", "L-0263D0A3", 5),
        ("vpc", INTERFACES, 5000),
    ):
        for call in both:
            found = call(ServiceCode=name, QuotaCode=code)["Quota"]
            assert (found["QuotaCode"], found["Value"], found["Adjustable"]) == (code, value, True)
        listed = quotas.list_service_quotas(ServiceCode=name)["Quotas"]
        assert [one["Value"] for one in listed if one["QuotaCode"] == code] == [value]
    for call in both:
        code = refused(call, ServiceCode="ec2", QuotaCode="L-00000000")[0]
        assert code == "NoSuchResourceException"
    with quota(lab, ON_DEMAND_P, 16):
        asked = {"ServiceCode": "ec2", "QuotaCode": ON_DEMAND_P}
        assert [call(**asked)["Quota"]["Value"] for call in both] == [16, 100_000]


SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.mark.parametrize(
    ("code", "value", "launch", "said", "allowed"),
    [
        (
            ON_DEMAND_P,
            2 * VCPUS,
            {"MinCount": 3, "MaxCount": 3},
            (
                "VcpuLimitExceeded",
                "You have requested more vCPU capacity than your current vCPU limit of 16 allows "
                "for the instance bucket that the specified instance type belongs to. Please visit "
                "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this "
                "limit.",
            ),
            SPOT,
        ),
        # A dry run does not check quotas.
        (ON_DEMAND_P, 0, {"DryRun": True}, ("DryRunOperation", "Request would have"), SPOT),
        (SPOT_P, 0, SPOT, ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"), {}),
        (INTERFACES, 0, {}, ("NetworkInterfaceLimitExceeded", ""), None),
    ],
)
def test_a_launch_over_the_quota_is_refused(lab, instances, code, value, launch, said, allowed):
    with quota(lab, code, value):
        found, text, status = refused(instances.request, **launch)
        assert (found, text.startswith(said[1])) == (said[0], True)
        assert status == (412 if found == "DryRunOperation" else 400)
        if allowed is not None:
            instances.request(**allowed)


def test_what_runs_counts_and_what_is_stopped_does_not(lab, instances):
    region = {"InstanceType": "g4dn.xlarge"}  # instances of other tests do not count in its quota
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
