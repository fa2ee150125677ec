"""The price of a machine: from AWS's price list, the spot price history, or a shipped table.

A JSON file caches recent prices. Without it the price list is queried again.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.domain.cluster import Disk, Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.files import write_file
from clusterctl.ec2.errors import paged, translated
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.session import is_local
from clusterctl.node.record import RecordError, from_data, from_json, to_json

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


# Prices of us-east-1 (https://aws.amazon.com/ebs/pricing, https://aws.amazon.com/vpc/pricing,
# 2026-11), used for all regions. Others cost up to about twice as much, which is little next to
# the price of the machines.
HOURS_PER_MONTH = 730
GP3_GIB_MONTH_USD = 0.08
GP3_IOPS_MONTH_USD = 0.005
GP3_MIB_S_MONTH_USD = 0.04
GP3_FREE_IOPS = 3000
GP3_FREE_MIB_S = 125
PUBLIC_IPV4_HOUR_USD = 0.005
# Per GiB and MiB/s, once for each volume that EC2 fills from a snapshot at a given rate (EBS
# pricing, example 12: $0.0036 a GiB at 300 MiB/s).
LOAD_GIB_MIB_S_USD = 0.000012


@dataclass(frozen=True)
class Price:
    """The price of one machine. `source` is where it comes from, `as_of` its date in ISO 8601."""

    hourly_usd: float
    source: str
    as_of: str


def disk_hourly_usd(disk: Disk) -> float:
    """Return the US dollars an hour for one gp3 volume, whether or not its machine runs.

    Only what exceeds gp3's free performance is charged.
    """
    extra_iops = max(0, (disk.iops or 0) - GP3_FREE_IOPS)
    extra_mib_s = max(0, (disk.throughput_mib_s or 0) - GP3_FREE_MIB_S)
    month = (
        (disk.size_gib or 0) * GP3_GIB_MONTH_USD
        + extra_iops * GP3_IOPS_MONTH_USD
        + extra_mib_s * GP3_MIB_S_MONTH_USD
    )
    return month / HOURS_PER_MONTH


def price_key(instance: Instance) -> tuple[str, Market, str]:
    """Return what a node's price depends on: type, market, and for spot the zone (else empty)."""
    zone = instance.node.zone if instance.market is Market.SPOT else ""
    return instance.node.instance_type, instance.market, zone


# Entries older than this are dropped from the file: they are unused (see the times below).
KEPT_S = 86400.0


@dataclass(frozen=True)
class _Entry:
    """A price, or None if it could not be queried, at a Unix time."""

    at: float
    price: Optional[Price] = None


class PriceCache:
    """A cache of prices and of failed queries in a JSON file. An unreadable file counts as empty.

    Without a path, or if the path's folder does not exist, nothing is kept: a query for prices
    creates no folders. If two commands write at once, one price may be lost, but never the file.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def find(self, key: str, max_age_s: float) -> Price | None:
        """Return the price if it was put there at most `max_age_s` ago, else None."""
        entry = self._entries().get(key)
        fresh = entry and entry.price and self._age(entry) <= max_age_s
        return entry.price if entry and fresh else None

    def failed(self, key: str, max_age_s: float) -> bool:
        """Return whether a query without a price was noted at most `max_age_s` ago."""
        entry = self._entries().get(key)
        return bool(entry and entry.price is None and self._age(entry) <= max_age_s)

    def put(self, key: str, price: Price | None) -> None:
        """Store a price, or with None that there is none. Ignores a path that cannot be written."""
        if self._path is None or not self._path.parent.is_dir():
            return
        kept = {k: entry for k, entry in self._entries().items() if self._age(entry) <= KEPT_S}
        kept[key] = _Entry(self._clock(), price)
        with contextlib.suppress(OSError):
            write_file(self._path, to_json(kept) + "\n")

    def _entries(self) -> dict[str, _Entry]:
        if self._path is None:
            return {}
        try:
            entries = from_json(dict[str, _Entry], self._path.read_bytes())
        except (OSError, RecordError):
            return {}
        return {
            key: one
            for key, one in entries.items()
            if one.price is None or one.price.hourly_usd > 0
        }

    def _age(self, entry: _Entry) -> float:
        # A time in the future means that a clock was or is wrong: the entry counts as too old.
        return math.inf if entry.at > self._clock() else self._clock() - entry.at


Prices = Mapping[tuple[str, Market, str], "Price | None"]

# How long prices stay valid: those of the price list, and spot prices.
LISTED_FOR_S = 24 * 3600.0
SPOT_FOR_S = 600.0
# How long a failed query is not repeated, so that not every command waits for it again.
FAILED_FOR_S = 120.0

NOT_BILLED = "the local EC2 bills nothing"
# The regions that serve the price list, which covers all regions (botocore's endpoints.json), by
# the beginning of the region's name.
_PRICE_LISTS = {"ap": "ap-south-1", "eu": "eu-central-1", "me": "eu-central-1"}
_NEAREST = "us-east-1"
# Prefixes of regions whose prices the list does not have, or has in another currency.
_UNLISTED = ("us-gov-", "eusc-", "cn-")


def find_price(
    clients: Clients, instance_type: str, market: Market, zone: str | None = None
) -> Price | None:
    """Return the hourly price of one machine; None if no source has it. Raises no AwsError.

    A missing price must not stop a launch: where the price list cannot be queried, the shipped
    table is used. Spot without a spot price gets the on-demand price, the most it can cost. A
    machine in a Capacity Block costs 0: the block was paid in advance. `zone` counts for spot only;
    without it the price is that of the dearest zone. The source shows where nothing is billed.
    """
    price = _find_price(clients, instance_type, market, zone)
    if price and is_local(clients.ec2.meta.endpoint_url):
        return replace(price, source=f"{NOT_BILLED}: {price.source}")
    return price


def _find_price(
    clients: Clients, instance_type: str, market: Market, zone: str | None
) -> Price | None:
    if market is Market.CAPACITY_BLOCK:
        return Price(0.0, "paid in advance", _today())
    known = PriceCache(clients.account.price_cache)
    place = f"{clients.account.endpoint_url or 'aws'} {_region(clients)} {instance_type}"
    if market is Market.SPOT:
        found = _cached(
            known,
            f"{place} spot {zone or '*'}",
            SPOT_FOR_S,
            f"the spot price in {zone or 'the dearest zone'}",
            lambda: _ask_spot(clients, instance_type, zone),
        )
        if found:
            return found
    listed, where = None, price_list_region(_region(clients))
    if where:
        listed = _cached(
            known,
            f"{place} on-demand",
            LISTED_FOR_S,
            "AWS's price list",
            lambda: _ask_list(clients, where, instance_type),
        )
    price = listed or table_price(instance_type, _region(clients))
    if price and market is Market.SPOT:
        return Price(price.hourly_usd, f"{price.source}, on demand: spot is less", price.as_of)
    return price


def find_prices(clients: Clients, instances: Sequence[Instance]) -> Prices:
    """Return the prices of these instances by `price_key`. Raises no AwsError."""
    found: dict[tuple[str, Market, str], Price | None] = {}
    for key in dict.fromkeys(price_key(one) for one in instances):
        instance_type, market, zone = key
        found[key] = find_price(clients, instance_type, market, zone or None)
    return found


def list_prices(clients: Clients, instances: Sequence[Instance]) -> dict[str, float]:
    """Return the dollars an hour on demand of these instances' types, as far as they are known.

    They are to be compared with measured speeds. Hosts of the local EC2 have this machine's speed,
    whatever their type, so there the result is empty. Raises no AwsError.
    """
    if is_local(clients.ec2.meta.endpoint_url):
        return {}
    types = sorted({one.node.instance_type for one in instances})
    found = {name: find_price(clients, name, Market.ON_DEMAND) for name in types}
    return {name: price.hourly_usd for name, price in found.items() if price}


def table_price(instance_type: str, region: str) -> Price | None:
    """Return the on-demand price from the shipped table of us-east-1; None if it lacks the type.

    The source mentions that where `region` is another one.
    """
    table = _table()
    for dated in table.tables:
        usd = dated.hourly_usd.get(instance_type)
        if usd is not None:
            there = "" if region == table.region else f"; prices in {region} differ"
            return Price(usd, f"clusterctl's table for {table.region}{there}", dated.as_of)
    return None


def listed_types() -> list[str]:
    """Return the types in the shipped table, sorted."""
    return sorted({name for table in _table().tables for name in table.hourly_usd})


def price_list_region(region: str) -> str | None:
    """Return the region that serves the price list for `region`.

    None where the list does not have `region`'s prices in dollars.
    """
    if region.startswith(_UNLISTED):
        return None
    return _PRICE_LISTS.get(region.partition("-")[0], _NEAREST)


def _cached(
    known: PriceCache, key: str, max_age_s: float, source: str, query: Callable[[], float | None]
) -> Price | None:
    """Return the price from the cache, or else from AWS; None if the query fails, or has failed."""
    found = known.find(key, max_age_s)
    if found or known.failed(key, FAILED_FOR_S):
        return found
    try:
        usd = query()
    except AwsError:
        usd = None
    price = Price(usd, source, _today()) if usd else None
    known.put(key, price)
    return price


def _ask_list(clients: Clients, where: str, instance_type: str) -> float | None:
    wanted = product_filters(instance_type, _region(clients))
    filters: Any = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    with translated():
        answer = clients.pricing(where).get_products(
            ServiceCode="AmazonEC2", Filters=filters, MaxResults=10
        )
    # If several products match, the dearest one is the safe estimate.
    return max(_prices(answer.get("PriceList", ()), wanted), default=None)


def product_filters(instance_type: str, region: str) -> dict[str, str]:
    """Return the attributes that select the price of the plain machine: Linux, no software.

    Bare metal is a product family of its own. AWS lists it with dedicated tenancy, so there the
    tenancy is left out.
    """
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    if ".metal" in instance_type:
        return {**wanted, "productFamily": "Compute Instance (bare metal)"}
    return {**wanted, "productFamily": "Compute Instance", "tenancy": "Shared"}


def _prices(listed: Iterable[Any], wanted: dict[str, str]) -> Iterator[float]:
    """Yield the dollars an hour in these entries of the price list; skip entries without any."""
    for entry in listed:
        read = from_json if isinstance(entry, str) else from_data
        try:
            found = read(_Listed, entry)
        except RecordError:
            continue
        attributes = found.product.attributes
        if any(attributes.get(key, value) != value for key, value in wanted.items()):
            continue
        for term in found.terms.OnDemand.values():
            for dimension in term.priceDimensions.values():
                with contextlib.suppress(ValueError):
                    usd = float(dimension.pricePerUnit.get("USD", ""))
                    if 0 < usd < 1e6:
                        yield usd


# What is read of an entry of the price list. The names are AWS's.


@dataclass(frozen=True)
class _Dimension:
    pricePerUnit: Mapping[str, str]  # noqa: N815


@dataclass(frozen=True)
class _Term:
    priceDimensions: Mapping[str, _Dimension]  # noqa: N815


@dataclass(frozen=True)
class _Terms:
    OnDemand: Mapping[str, _Term]


@dataclass(frozen=True)
class _Product:
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class _Listed:
    product: _Product
    terms: _Terms


def _ask_spot(clients: Clients, instance_type: str, zone: str | None) -> float | None:
    request: dict[str, Any] = {
        "InstanceTypes": [instance_type],
        "ProductDescriptions": ["Linux/UNIX"],
        # With the present as the start, EC2 returns each zone's current price only.
        "StartTime": datetime.datetime.now(datetime.timezone.utc),
    }
    if zone:
        request["AvailabilityZone"] = zone
    history = paged(clients.ec2, "describe_spot_price_history", "SpotPriceHistory", **request)
    newest: dict[str, Any] = {}
    for entry in sorted(history, key=lambda found: found["Timestamp"]):
        newest[entry["AvailabilityZone"]] = entry
    return max((float(entry["SpotPrice"]) for entry in newest.values()), default=None)


def _region(clients: Clients) -> str:
    return str(clients.ec2.meta.region_name)


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


@dataclass(frozen=True)
class _DatedPrices:
    as_of: str
    hourly_usd: Mapping[str, float]


@dataclass(frozen=True)
class _Table:
    """The content of prices.json, newest prices first."""

    region: str
    tables: tuple[_DatedPrices, ...]


@functools.cache
def _table() -> _Table:
    text = (resources.files("clusterctl.ec2.money") / "prices.json").read_text()
    return from_json(_Table, text)
