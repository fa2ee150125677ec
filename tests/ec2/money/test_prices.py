"""Sources of prices, and what replaces a missing price."""

import datetime
import json
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest
from botocore.stub import ANY, Stubber

from clusterctl.domain.cluster import Market
from clusterctl.ec2.money.prices import (
    Price,
    PriceCache,
    find_price,
    list_prices,
    price_list_region,
    product_filters,
    table_price,
)
from clusterctl.ec2.session import Account, Clients

KEYS = {"access_key": "test", "secret_key": "test"}
TABLE = Price(21.957642, "clusterctl's table for us-east-1", "2026-07-20")


class StubbedClients(Clients):
    """AWS clients with prepared answers. A call without an answer fails the test."""

    def __init__(self, region="us-east-1"):
        super().__init__(Account(region=region, **KEYS))
        self.list_client = super().pricing("us-east-1")
        self.asked = []

    def pricing(self, region):
        self.asked.append(region)
        return self.list_client


@pytest.fixture(scope="module")
def made():
    # To make a client takes longer than a test.
    return StubbedClients()


@pytest.fixture
def aws(made):
    made.asked.clear()
    made.account = replace(made.account, price_cache=None)
    with Stubber(made.list_client) as made.list, Stubber(made.ec2) as made.history:
        yield made


def listed(*usd, instance_type="p4d.24xlarge", **attributes):
    """Return an entry of a price list, with a term per price."""
    terms = {
        f"SKU.{number}": {"priceDimensions": {"x": {"unit": "Hrs", "pricePerUnit": {"USD": price}}}}
        for number, price in enumerate(usd)
    }
    known = {**product_filters(instance_type, "us-east-1"), "vcpu": "96", **attributes}
    return json.dumps(
        {"product": {"sku": "SKU", "attributes": known}, "terms": {"OnDemand": terms}}
    )


def test_the_price_list_is_asked_for_exactly_one_price(aws):
    fields = {
        "instanceType": "p4d.24xlarge",
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "productFamily": "Compute Instance",
        "tenancy": "Shared",
    }
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": fields[key]} for key in fields]
    aws.list.add_response(
        "get_products",
        {"PriceList": [listed("20.0000000000")]},
        {"ServiceCode": "AmazonEC2", "Filters": filters, "MaxResults": ANY},
    )
    before = datetime.datetime.now(datetime.timezone.utc).date()
    found = find_price(aws, "p4d.24xlarge", Market.ON_DEMAND)
    days = {before.isoformat(), datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    assert found in [Price(20.0, "AWS's price list", day) for day in days]


def test_bare_metal_is_listed_elsewhere():
    filters = product_filters("g4dn.metal", "eu-west-1")
    assert filters["productFamily"] == "Compute Instance (bare metal)"
    assert "tenancy" not in filters


@pytest.mark.parametrize(
    "entries",
    [
        ["null", "[]", "1", "{}"],
        [json.dumps({"product": {"attributes": {}}, "terms": {"OnDemand": []}})],
        [listed()],
        [listed("0.0000000000")],
        [listed("NaN")],
        [listed(None)],
        # A price of another type.
        [listed("1.0", instance_type="p5.48xlarge")],
        [listed("1.0", operatingSystem="Windows")],
    ],
)
def test_a_price_list_without_the_price_leaves_the_table(aws, entries):
    aws.list.add_response("get_products", {"PriceList": entries})
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND) == TABLE


def test_of_two_prices_the_dearer_counts_and_broken_entries_are_passed_over(aws):
    entries = ["{", listed("20.0", "0"), listed("22.5")]
    aws.list.add_response("get_products", {"PriceList": entries})
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND).hourly_usd == 22.5


def test_who_may_not_ask_gets_the_table(aws, tmp_path):
    aws.account = replace(aws.account, price_cache=tmp_path / "prices.json")
    aws.list.add_client_error("get_products", "AccessDeniedException", "no", 400)
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND) == TABLE
    # It is not requested again at once: there is no second answer.
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND) == TABLE
    assert aws.asked == ["us-east-1"]


def test_a_price_list_that_is_not_there(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        nowhere = Clients(Account(region="us-east-1", endpoint_url=endpoint, **KEYS))
        local = replace(TABLE, source=f"the local EC2 bills nothing: {TABLE.source}")
        assert find_price(nowhere, "p4d.24xlarge", Market.ON_DEMAND) == local


def test_an_unknown_type_has_no_price_and_a_capacity_block_none_that_is_asked_for(aws):
    aws.list.add_response("get_products", {"PriceList": []})
    assert find_price(aws, "x99.huge", Market.ON_DEMAND) is None
    found = find_price(aws, "p5.48xlarge", Market.CAPACITY_BLOCK)
    assert (found.hourly_usd, found.source) == (0.0, "paid in advance")


@pytest.mark.parametrize(
    ("region", "where"),
    [
        ("us-east-1", "us-east-1"),
        ("sa-east-1", "us-east-1"),
        ("ap-northeast-1", "ap-south-1"),
        ("eu-west-1", "eu-central-1"),
        ("af-south-1", "us-east-1"),
        ("us-gov-west-1", None),
        ("cn-north-1", None),
        ("eusc-de-east-1", None),
    ],
)
def test_where_a_regions_prices_are_listed(region, where):
    assert price_list_region(region) == where


def test_elsewhere_the_table_says_whose_prices_it_has():
    aws = StubbedClients("us-gov-west-1")
    found = find_price(aws, "p4d.24xlarge", Market.ON_DEMAND)
    assert found.source == "clusterctl's table for us-east-1; prices in us-gov-west-1 differ"
    assert aws.asked == []


@pytest.mark.parametrize(
    ("instance_type", "usd", "as_of"),
    [("p5.48xlarge", 55.04, "2026-07-20"), ("p3.16xlarge", 24.48, "2026-01-19")],
)
def test_the_table_is_dated(instance_type, usd, as_of):
    found = table_price(instance_type, "us-east-1")
    assert (found.hourly_usd, found.as_of) == (usd, as_of)


# Spot


def spot(zone, usd, hour):
    return {
        "AvailabilityZone": zone,
        "InstanceType": "p4d.24xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": datetime.datetime(2026, 11, 21, hour),
    }


HISTORY = [
    spot("us-east-1a", "9.50", 12),
    spot("us-east-1a", "99.0", 3),
    spot("us-east-1b", "7.25", 11),
]


def test_the_spot_price_is_the_newest_of_the_dearest_zone_or_that_of_a_zone(aws):
    aws.history.add_response("describe_spot_price_history", {"SpotPriceHistory": HISTORY})
    found = find_price(aws, "p4d.24xlarge", Market.SPOT)
    assert (found.hourly_usd, found.source) == (9.5, "the spot price in the dearest zone")
    aws.history.add_response(
        "describe_spot_price_history",
        {"SpotPriceHistory": HISTORY[2:]},
        {
            "InstanceTypes": ["p4d.24xlarge"],
            "ProductDescriptions": ["Linux/UNIX"],
            "StartTime": ANY,
            "AvailabilityZone": "us-east-1b",
        },
    )
    found = find_price(aws, "p4d.24xlarge", Market.SPOT, "us-east-1b")
    assert (found.hourly_usd, found.source) == (7.25, "the spot price in us-east-1b")


@pytest.mark.parametrize("denied", [True, False])
def test_without_a_spot_price_it_is_at_most_on_demands(aws, denied):
    if denied:
        aws.history.add_client_error("describe_spot_price_history", "UnauthorizedOperation", "no")
    else:
        aws.history.add_response("describe_spot_price_history", {"SpotPriceHistory": []})
    aws.list.add_response("get_products", {"PriceList": [listed("20.0")]})
    found = find_price(aws, "p4d.24xlarge", Market.SPOT)
    assert (found.hourly_usd, found.source) == (20.0, "AWS's price list, on demand: spot is less")


# The cache


def test_a_price_is_asked_for_once_a_day(aws, tmp_path):
    aws.account = replace(aws.account, price_cache=tmp_path / "prices.json")
    aws.list.add_response("get_products", {"PriceList": [listed("20.0")]})
    first = find_price(aws, "p4d.24xlarge", Market.ON_DEMAND)
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND) == first
    assert len(aws.asked) == 1
    # Another type, market or region is another price.
    aws.list.add_response("get_products", {"PriceList": []})
    assert find_price(aws, "p5.48xlarge", Market.ON_DEMAND).hourly_usd == 55.04


@pytest.mark.parametrize(
    ("age_s", "max_age_s", "found"),
    [(0, 600, True), (600, 600, True), (601, 600, False), (-5, 600, False)],
)
def test_old_prices_and_those_of_the_future_do_not_count(tmp_path, age_s, max_age_s, found):
    path = tmp_path / "prices.json"
    PriceCache(path, clock=lambda: 1e9).put("k", Price(1.5, "somewhere", "2026-11-21"))
    assert bool(PriceCache(path, clock=lambda: 1e9 + age_s).find("k", max_age_s)) is found


def test_what_is_older_than_a_day_is_dropped(tmp_path):
    path = tmp_path / "prices.json"
    PriceCache(path, clock=lambda: 1e9).put("old", Price(1.5, "somewhere", "2026-11-21"))
    PriceCache(path, clock=lambda: 1e9 + 86401).put("new", None)
    assert list(json.loads(path.read_text())) == ["new"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b'{"k": 3}',
        b'{"k": {}}',
        *(
            b'{"k": {"at": %s, "price": {"hourly_usd": %s, "source": "", "as_of": ""}}}' % pair
            for pair in [
                (b"1000000000", b'"1"'),
                (b"1000000000", b"-1"),
                (b"1000000000", b"NaN"),
                (b"1000000000", b"1" + b"0" * 400),
                (b"NaN", b"1"),
            ]
        ),
        b"[" * 100_000,
    ],
)
def test_a_broken_cache_is_an_empty_one(tmp_path, content):
    path = tmp_path / "prices.json"
    path.write_bytes(content)
    cache = PriceCache(path, clock=lambda: 1e9 + 1)
    assert cache.find("k", 600) is None
    cache.put("k", Price(1.5, "somewhere", "2026-11-21"))
    assert cache.find("k", 600) == Price(1.5, "somewhere", "2026-11-21")


@pytest.mark.parametrize("folder", ["file", "nowhere"])
def test_a_cache_that_cannot_be_written_costs_a_call_and_nothing_else(aws, tmp_path, folder):
    (tmp_path / "file").write_text("")
    aws.list.add_response("get_products", {"PriceList": [listed("20.0")]})
    aws.account = replace(aws.account, price_cache=tmp_path / folder / "prices.json")
    assert find_price(aws, "p4d.24xlarge", Market.ON_DEMAND).hourly_usd == 20.0
    assert not (tmp_path / "nowhere").exists()


def test_types_are_compared_by_the_price_list_and_hosts_of_the_lab_have_no_such_price(
    aws, moto_url
):
    """A spot node counts at its price on demand. A host of the lab has this machine's speed."""
    spot = SimpleNamespace(node=SimpleNamespace(instance_type="p4d.24xlarge"), market=Market.SPOT)
    unknown = SimpleNamespace(node=SimpleNamespace(instance_type="x9.huge"), market=Market.SPOT)
    aws.list.add_response("get_products", {"PriceList": [listed("22.5")]})
    aws.list.add_response("get_products", {"PriceList": []})
    assert list_prices(aws, [spot, spot, unknown]) == {"p4d.24xlarge": 22.5}
    local = Clients(Account(region="us-east-1", endpoint_url=moto_url, **KEYS))
    assert list_prices(local, [spot]) == {}


# The lab's price list understands our requests


@pytest.mark.parametrize(
    ("instance_type", "region", "market", "source"),
    [
        ("g4dn.metal", "us-east-1", Market.ON_DEMAND, "AWS's price list"),
        ("p4d.24xlarge", "eu-west-1", Market.ON_DEMAND, "AWS's price list"),
        ("p4d.24xlarge", "us-east-1", Market.SPOT, "the spot price in the dearest zone"),
    ],
)
def test_a_price_list_answers(moto_url, instance_type, region, market, source):
    clients = Clients(Account(region=region, endpoint_url=moto_url, **KEYS))
    found = find_price(clients, instance_type, market)
    assert found.source == f"the local EC2 bills nothing: {source}"
    assert 1 < found.hourly_usd < 100
