"""The price list and the spot price history."""

from __future__ import annotations

import datetime
import json

import pytest

from tests.lab.refusals import refused, service

pytestmark = pytest.mark.lab

USUAL = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "productFamily": "Compute Instance",
}


def filters(**wanted):
    return [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]


@pytest.fixture(scope="module")
def prices(lab):
    return service(lab, "pricing", "us-east-1")


@pytest.mark.parametrize(
    ("instance_type", "region", "usd"),
    [
        ("p4d.24xlarge", "us-east-1", 21.957642),
        ("p5.48xlarge", "us-west-2", 55.04),
        ("p3.16xlarge", "us-east-1", 24.48),
        ("g5.xlarge", "eu-west-1", 1.006),
    ],
)
def test_the_price_of_a_type(prices, instance_type, region, usd):
    wanted = filters(**USUAL, instanceType=instance_type, regionCode=region)
    found = prices.get_products(ServiceCode="AmazonEC2", Filters=wanted)["PriceList"]
    (entry,) = map(json.loads, found)
    assert entry["product"]["attributes"]["instanceType"] == instance_type
    (term,) = entry["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert (dimension["unit"], float(dimension["pricePerUnit"]["USD"])) == ("Hrs", usd)


@pytest.mark.parametrize(
    "changes",
    [
        {"instanceType": "p9.huge"},
        {"regionCode": "mars-north-1"},
        {"operatingSystem": "Windows"},
        {"colour": "red"},
    ],
)
def test_what_has_no_price_is_an_empty_list(prices, changes):
    wanted = {**USUAL, "instanceType": "p4d.24xlarge", "regionCode": "us-east-1", **changes}
    found = prices.get_products(ServiceCode="AmazonEC2", Filters=filters(**wanted))
    assert found["PriceList"] == []


def test_the_list_comes_in_pages(prices):
    pages = prices.get_paginator("get_products").paginate(
        ServiceCode="AmazonEC2", Filters=filters(regionCode="us-east-1")
    )
    found = [json.loads(one)["product"]["sku"] for page in pages for one in page["PriceList"]]
    assert len(found) > 60
    assert len(set(found)) == len(found)


def test_the_list_is_served_in_few_regions(lab):
    elsewhere = service(lab, "pricing", "us-west-2")
    assert refused(elsewhere.get_products, ServiceCode="AmazonEC2")[0] == "AccessDeniedException"
    here = service(lab, "pricing", "eu-central-1")
    assert here.get_products(ServiceCode="AmazonEC2", MaxResults=1)["PriceList"]
    assert refused(here.get_products, ServiceCode="AmazonTea")[0] == "NotFoundException"


def test_spot_prices_by_zone(lab):
    ec2 = service(lab, "ec2")
    asked = {
        "InstanceTypes": ["p4d.24xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime.datetime.now(datetime.timezone.utc),
    }
    found = ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]
    zones = [one["AvailabilityZone"] for one in found]
    assert len(set(zones)) == len(zones) > 1
    assert all(0.2 * 21.96 < float(one["SpotPrice"]) < 0.7 * 21.96 for one in found)
    one_zone = ec2.describe_spot_price_history(**asked, AvailabilityZone=zones[0])
    assert [one["AvailabilityZone"] for one in one_zone["SpotPriceHistory"]] == zones[:1]
    assert not ec2.describe_spot_price_history(
        InstanceTypes=["p4d.24xlarge"], ProductDescriptions=["Windows"]
    )["SpotPriceHistory"]
