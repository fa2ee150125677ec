"""The price list's GetProducts, which moto does not have: on-demand instances of AmazonEC2."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.lab.addresses import REGIONS
from clusterctl.lab.ec2.price_table import ON_DEMAND_USD
from clusterctl.lab.ec2.sessions import permits
from clusterctl.lab.gate import IN_ENVIRON

# AWS serves the list in these regions, for all.
SERVED_FROM = ("us-east-1", "eu-central-1", "ap-south-1")
LOCATIONS = {
    "us-east-1": "US East (N. Virginia)",
    "us-east-2": "US East (Ohio)",
    "us-west-2": "US West (Oregon)",
    "eu-west-1": "EU (Ireland)",
}
MOST_PER_PAGE = 100
PUBLISHED = "2026-07-20T00:00:00Z"
SIGNED_FOR = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/pricing/")

Answer = tuple[str, dict[str, Any]]


def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """The service. A request is for the region that it is signed for."""
    signed = SIGNED_FOR.search(environ.get("HTTP_AUTHORIZATION", ""))
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    if permits(environ[IN_ENVIRON], f"pricing:{action}"):
        status, answer = respond(signed[1] if signed else "", action, json.loads(body or b"{}"))
    else:
        text = f"You are not authorized to perform: pricing:{action}"
        status, answer = _refusal("AccessDeniedException", text)
    start(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps(answer).encode()]


def respond(region: str, action: str, asked: dict[str, Any]) -> Answer:
    if region not in SERVED_FROM:
        return _refusal("AccessDeniedException", f"The price list is not served from {region}.")
    if action != "GetProducts":
        return _refusal("UnknownOperationException", f"The lab's price list has no {action}.")
    if asked.get("ServiceCode") != "AmazonEC2":
        return _refusal("NotFoundException", "The requested service code was not found.")
    found = [one for one in _products(asked) if _passes(one["product"], asked.get("Filters", []))]
    first = int(asked.get("NextToken") or 0)
    after = first + min(int(asked.get("MaxResults") or MOST_PER_PAGE), MOST_PER_PAGE)
    page = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in found[first:after]]}
    return "200 OK", {**page, **({"NextToken": str(after)} if after < len(found) else {})}


def _products(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the types that are asked for, to begin with: most callers name one."""
    named = [
        one.get("Value")
        for one in asked.get("Filters", [])
        if one.get("Field") == "instanceType" and one.get("Type", "TERM_MATCH") == "TERM_MATCH"
    ]
    kinds = [kind for kind in ON_DEMAND_USD if not named or kind in named]
    return [product(kind, region) for kind in kinds for region in REGIONS]


def product(kind: str, region: str) -> dict[str, Any]:
    """One entry of the list as AWS writes it."""
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
    """TERM_MATCH and EQUALS compare; CONTAINS, ANY_OF and NONE_OF do what they say."""
    known = {**one["attributes"], "productFamily": one["productFamily"], "sku": one["sku"]}
    folded = {key.lower(): value for key, value in known.items()}
    return all(_matches(folded.get(wish["Field"].lower()), wish) for wish in filters)


def _matches(value: str | None, wish: dict[str, str]) -> bool:
    if value is None:
        return False
    wanted, kind = wish["Value"].lower(), wish.get("Type", "TERM_MATCH")
    if kind == "CONTAINS":
        return wanted in value.lower()
    if kind in ("ANY_OF", "NONE_OF"):
        listed = value.lower() in [one.strip() for one in wanted.split(",")]
        return listed == (kind == "ANY_OF")
    return value.lower() == wanted


def _refusal(code: str, message: str) -> Answer:
    return "400 Bad Request", {"__type": code, "message": message}
