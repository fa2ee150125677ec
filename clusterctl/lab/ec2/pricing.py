"""The price list's GetProducts, which moto lacks: on-demand instances of AmazonEC2.

Prices of spot instances and Capacity Blocks are derived from these.
"""

from __future__ import annotations

import functools
import hashlib
import json
import string
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.lab.data import table

# AWS serves the price list of all regions from these.
SERVED_FROM = ("us-east-1", "eu-central-1", "ap-south-1")
LOCATIONS: dict[str, str] = table("prices")["locations"]
MOST_PER_PAGE = 100

ON_DEMAND_USD: dict[str, float] = table("prices")["on_demand"]

# HTTP status and JSON.
Answer = tuple[str, dict[str, Any]]


def respond(region: str, action: str, request: dict[str, Any]) -> Answer:
    """Answer a request. `region` is the one that it is signed for, `request` its parsed body."""
    if region not in SERVED_FROM:
        return refusal("AccessDeniedException", f"The price list is not served from {region}.")
    if action != "GetProducts":
        return refusal("UnknownOperationException", f"The price list has no {action}.")
    if request.get("ServiceCode") != "AmazonEC2":
        return refusal("NotFoundException", "The requested service code was not found.")
    products = [product(kind, region) for kind in ON_DEMAND_USD for region in LOCATIONS]
    found = [one for one in products if _passes(one["product"], request.get("Filters", []))]
    first = int(request.get("NextToken") or 0)
    after = first + min(int(request.get("MaxResults") or MOST_PER_PAGE), MOST_PER_PAGE)
    page = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found[first:after]]}
    return "200 OK", {**page, **({"NextToken": str(after)} if after < len(found) else {})}


@functools.cache
def product(kind: str, region: str) -> dict[str, Any]:
    """Return one entry of the price list, in AWS's format (`entry` in prices.toml)."""
    info = INSTANCE_TYPES.get(kind, {})
    values = {
        "kind": kind,
        "region": region,
        "location": LOCATIONS[region],
        "metal": " (bare metal)" if kind.endswith(".metal") else "",
        "sku": hashlib.sha256(f"{kind} {region}".encode()).hexdigest()[:16].upper(),
        "usd": f"{ON_DEMAND_USD[kind]:.10f}",
        "vcpus": str(info.get("VCpuInfo", {}).get("DefaultVCpus", "NA")),
        "memory": f"{info['MemoryInfo']['SizeInMiB'] // 1024} GiB" if info else "NA",
    }
    entry: dict[str, Any] = json.loads(string.Template(table("prices")["entry"]).substitute(values))
    return entry


def _passes(one: dict[str, Any], filters: list[dict[str, str]]) -> bool:
    """Return whether a product passes all filters. Their fields and values ignore case."""
    known = {**one["attributes"], "productFamily": one["productFamily"], "sku": one["sku"]}
    folded = {key.lower(): value for key, value in known.items()}
    return all(_matches(folded.get(criterion["Field"].lower()), criterion) for criterion in filters)


def _matches(value: str | None, criterion: dict[str, str]) -> bool:
    """Return whether a value passes a filter of the type TERM_MATCH, EQUALS, CONTAINS, ..."""
    if value is None:
        return False
    wanted, kind = criterion["Value"].lower(), criterion.get("Type", "TERM_MATCH")
    if kind == "CONTAINS":
        return wanted in value.lower()
    if kind in ("ANY_OF", "NONE_OF"):
        listed = value.lower() in [one.strip() for one in wanted.split(",")]
        return listed == (kind == "ANY_OF")
    return value.lower() == wanted


def refusal(code: str, message: str) -> Answer:
    return "400 Bad Request", {"__type": code, "message": message}
