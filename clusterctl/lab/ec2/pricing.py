"""The price list's GetProducts, which moto lacks: on-demand instances of AmazonEC2.

Prices of spot instances and Capacity Blocks are derived from these.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

# AWS serves the price list of all regions from these.
SERVED_FROM = ("us-east-1", "eu-central-1", "ap-south-1")
LOCATIONS = {
    "us-east-1": "US East (N. Virginia)",
    "us-east-2": "US East (Ohio)",
    "us-west-2": "US West (Oregon)",
    "eu-west-1": "EU (Ireland)",
}
MOST_PER_PAGE = 100
PUBLISHED = "2026-07-20T00:00:00Z"

# USD per hour, Linux, us-east-1, July 2026. AWS's list also has types that AWS has retired.
ON_DEMAND_USD = {
    "c5.large": 0.085,
    "c5.xlarge": 0.17,
    "c5n.18xlarge": 3.888,
    "dl1.24xlarge": 13.10904,
    "g3.16xlarge": 4.56,
    "g3.4xlarge": 1.14,
    "g3.8xlarge": 2.28,
    "g3s.xlarge": 0.75,
    "g4ad.16xlarge": 3.468,
    "g4ad.2xlarge": 0.54117,
    "g4ad.4xlarge": 0.867,
    "g4ad.8xlarge": 1.734,
    "g4ad.xlarge": 0.37853,
    "g4dn.12xlarge": 3.912,
    "g4dn.16xlarge": 4.352,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.metal": 7.824,
    "g4dn.xlarge": 0.526,
    "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096,
    "g5.24xlarge": 8.144,
    "g5.2xlarge": 1.212,
    "g5.48xlarge": 16.288,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.xlarge": 1.006,
    "g5g.16xlarge": 2.744,
    "g5g.2xlarge": 0.556,
    "g5g.4xlarge": 0.828,
    "g5g.8xlarge": 1.372,
    "g5g.metal": 2.744,
    "g5g.xlarge": 0.42,
    "g6.12xlarge": 4.6016,
    "g6.16xlarge": 3.3968,
    "g6.24xlarge": 6.6752,
    "g6.2xlarge": 0.9776,
    "g6.48xlarge": 13.3504,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.xlarge": 0.8048,
    "g6e.12xlarge": 10.49264,
    "g6e.16xlarge": 7.57719,
    "g6e.24xlarge": 15.06559,
    "g6e.2xlarge": 2.24208,
    "g6e.48xlarge": 30.13118,
    "g6e.4xlarge": 3.00424,
    "g6e.8xlarge": 4.52856,
    "g6e.xlarge": 1.861,
    "g6f.2xlarge": 0.475,
    "g6f.4xlarge": 0.95,
    "g6f.large": 0.202,
    "g6f.xlarge": 0.2375,
    "g7e.12xlarge": 8.28608,
    "g7e.24xlarge": 16.57216,
    "g7e.2xlarge": 3.36312,
    "g7e.48xlarge": 33.14432,
    "g7e.4xlarge": 3.99816,
    "g7e.8xlarge": 5.26824,
    "gr6.4xlarge": 1.5392,
    "gr6.8xlarge": 2.4464,
    "gr6f.4xlarge": 1.066,
    "m5.2xlarge": 0.384,
    "m5.large": 0.096,
    "m5.xlarge": 0.192,
    "p2.16xlarge": 14.4,
    "p2.8xlarge": 7.2,
    "p2.xlarge": 0.9,
    "p3.16xlarge": 24.48,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p3dn.24xlarge": 31.212,
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.44705,
    "p5.48xlarge": 55.04,
    "p5.4xlarge": 6.88,
    "p5en.48xlarge": 63.296,
    "p6-b200.48xlarge": 113.9328,
    "p6-b300.48xlarge": 142.416,
    "t3.large": 0.0832,
    "t3.medium": 0.0416,
    "t3.micro": 0.0104,
    "t3.small": 0.0208,
    "trn1.2xlarge": 1.34375,
    "trn1.32xlarge": 21.5,
    "trn1n.32xlarge": 24.78,
}

# HTTP status and JSON.
Answer = tuple[str, dict[str, Any]]


def respond(region: str, action: str, asked: dict[str, Any]) -> Answer:
    """Answer a request. `region` is the one that it is signed for, `asked` its parsed body."""
    if region not in SERVED_FROM:
        return refusal("AccessDeniedException", f"The price list is not served from {region}.")
    if action != "GetProducts":
        return refusal("UnknownOperationException", f"The price list has no {action}.")
    if asked.get("ServiceCode") != "AmazonEC2":
        return refusal("NotFoundException", "The requested service code was not found.")
    found = [one for one in _products(asked) if _passes(one["product"], asked.get("Filters", []))]
    first = int(asked.get("NextToken") or 0)
    after = first + min(int(asked.get("MaxResults") or MOST_PER_PAGE), MOST_PER_PAGE)
    page = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found[first:after]]}
    return "200 OK", {**page, **({"NextToken": str(after)} if after < len(found) else {})}


def _products(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the products of the types that the filters name, or all.

    Most callers name one type. So this saves making all the others, which the filters then drop.
    """
    named = [
        one.get("Value")
        for one in asked.get("Filters", [])
        if one.get("Field") == "instanceType" and one.get("Type", "TERM_MATCH") == "TERM_MATCH"
    ]
    kinds = [kind for kind in ON_DEMAND_USD if not named or kind in named]
    return [product(kind, region) for kind in kinds for region in LOCATIONS]


def product(kind: str, region: str) -> dict[str, Any]:
    """Return one entry of the price list, in AWS's format."""
    # JRTCKXETXF is AWS's code of on-demand terms, 6YS6EN2CT7 that of the rate per hour.
    sku = hashlib.sha256(f"{kind} {region}".encode()).hexdigest()[:16].upper()
    offer, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    usd = f"{ON_DEMAND_USD[kind]:.10f}"
    dimension = {
        "unit": "Hrs",
        "endRange": "Inf",
        "beginRange": "0",
        "description": f"${usd} per On Demand Linux {kind} Instance Hour",
        "appliesTo": [],
        "rateCode": rate,
        "pricePerUnit": {"USD": usd},
    }
    term = {
        "priceDimensions": {rate: dimension},
        "sku": sku,
        "effectiveDate": PUBLISHED,
        "offerTermCode": "JRTCKXETXF",
        "termAttributes": {},
    }
    return {
        "product": {
            "productFamily": _family(kind),
            "attributes": _attributes(kind, region),
            "sku": sku,
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {offer: term}},
        "version": PUBLISHED.replace("-", "").replace(":", ""),
        "publicationDate": PUBLISHED,
    }


def _family(kind: str) -> str:
    return "Compute Instance (bare metal)" if kind.endswith(".metal") else "Compute Instance"


def _attributes(kind: str, region: str) -> dict[str, str]:
    info = INSTANCE_TYPES.get(kind, {})
    return {
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
        "instanceType": kind,
        "vcpu": str(info.get("VCpuInfo", {}).get("DefaultVCpus", "NA")),
        "memory": f"{info['MemoryInfo']['SizeInMiB'] // 1024} GiB" if info else "NA",
        "regionCode": region,
        "location": LOCATIONS[region],
        "locationType": "AWS Region",
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        "usagetype": f"BoxUsage:{kind}",
    }


def _passes(one: dict[str, Any], filters: list[dict[str, str]]) -> bool:
    """Return whether a product passes all filters. Their fields and values ignore case."""
    known = {**one["attributes"], "productFamily": one["productFamily"], "sku": one["sku"]}
    folded = {key.lower(): value for key, value in known.items()}
    return all(_matches(folded.get(wish["Field"].lower()), wish) for wish in filters)


def _matches(value: str | None, wish: dict[str, str]) -> bool:
    """Return whether a value passes a filter of the type TERM_MATCH, EQUALS, CONTAINS, ..."""
    if value is None:
        return False
    wanted, kind = wish["Value"].lower(), wish.get("Type", "TERM_MATCH")
    if kind == "CONTAINS":
        return wanted in value.lower()
    if kind in ("ANY_OF", "NONE_OF"):
        listed = value.lower() in [one.strip() for one in wanted.split(",")]
        return listed == (kind == "ANY_OF")
    return value.lower() == wanted


def refusal(code: str, message: str) -> Answer:
    """Return an error as an answer."""
    return "400 Bad Request", {"__type": code, "message": message}
