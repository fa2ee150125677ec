"""Descriptions as EC2 gives them: fields, filters, pages and regions that moto lacks."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ec2 import utils
from moto.ec2.models import EC2Backend
from moto.ec2.models.availability_zones_and_regions import Zone
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.responses import EC2Response
from moto.ssm.exceptions import SSMException
from moto.ssm.responses import SimpleSystemManagerResponse

from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import add, around, override, replace, setup
from clusterctl.lab.ec2.instance_types import P3_ZONES
from clusterctl.lab.ec2.launch import EC2ServerError, refuse

FIELDS, FILTERS, IGNORED = (table("instances")[one] for one in ("fields", "filters", "ignored"))
# Responses that EC2 gives in pages -> the key of the list, and the most of a page (botocore: "max"
# of MaxResults; 1000 for the others is EC2's usual one).
PAGES = {
    "describe_instance_types": ("InstanceTypes", 100),
    "describe_instance_type_offerings": ("InstanceTypeOfferings", 1000),
}


@setup
def _complete() -> None:
    utils.filter_dict_attribute_mapping.update(FILTERS)
    shown: Any = EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER
    shown["Instances.Instance.StateReason"] = lambda why: why if why and why.code else None
    Zone.group_name = property(lambda zone: f"{zone.network_border_group}-zg-1")  # type: ignore[attr-defined]
    NetworkInterface.association = property(_association)  # type: ignore[method-assign,assignment]
    for name, (key, most) in PAGES.items():
        replace(EC2Response, name, functools.partial(paged, key, most))
    for name, (key, paths) in IGNORED.items():
        replace(EC2Response, name, functools.partial(_filtered, key, paths))
    for past, key, state in (
        ("stop_instances", "StoppingInstances", "stopped"),
        ("terminate_instances", "TerminatingInstances", "terminated"),
    ):
        replace(EC2Response, past, functools.partial(_as_before, key, state))


@around(EC2Backend)
def create_key_pair(create: Any, backend: Any, name: str, key_type: str | None, tags: Any) -> Any:
    return _with_fingerprint(create(backend, name, key_type or "rsa", tags))


@around(EC2Backend)
def import_key_pair(import_: Any, backend: Any, *given: Any, **named: Any) -> Any:
    return _with_fingerprint(import_(backend, *given, **named))


@around(EC2Backend)
def describe_regions(
    regions: Any, backend: Any, region_names: list[str] | None = None
) -> list[Any]:
    """Return the regions that are enabled for the lab's accounts: those of its types."""
    if unknown := [name for name in region_names or () if name not in P3_ZONES]:
        raise refuse("region-name", ", ".join(unknown))
    return [one for one in regions(backend, region_names) if one.name in P3_ZONES]


@around(EC2Response)
def serialized(serialize: Any, response: Any, action_result: ActionResult) -> Any:
    """Write a response with an id of its own, and an error without Python's sets."""
    failed = action_result.result
    if isinstance(failed, ServiceException):
        failed.message = re.sub(r"'?\{'([^{}]*)'\}'?", r"'\1'", str(failed.message))
    status, headers, body = serialize(response, action_result)
    status = 500 if isinstance(failed, EC2ServerError) else status
    return status, headers, re.sub(">request-id<", f">{uuid.uuid4()}<", str(body), count=1)


# No host has an agent of Systems Manager.
@override(SimpleSystemManagerResponse)
def send_command(response: Any) -> ActionResult:
    named = response._get_param("InstanceIds", [])
    text = f"Instances {named} have no agent of Systems Manager: the lab's hosts have none"
    raise SSMException("InvalidInstanceId", text)


@add(SimpleSystemManagerResponse)
def describe_instance_information(_: Any) -> ActionResult:
    return ActionResult({"InstanceInformationList": []})


@override(utils)
def passes_filter_dict(instance: Any, filter_dict: dict[str, Any]) -> bool:
    """Return whether an instance passes every filter. `refusals` has checked their names."""
    known = utils.filter_dict_attribute_mapping
    return all(
        utils.instance_value_in_filter_values(
            _flat(utils.get_object_value(instance, known[name])), values
        )
        if name in known
        else utils.tag_filter_matches(instance, name, values)
        for name, values in filter_dict.items()
    )


def _flat(found: Any) -> Any:
    """Return a filter's value without lists in lists, with times as EC2 writes them."""
    if isinstance(found, (list, set, tuple)):
        parts = [_flat(one) for one in found if one is not None]
        return [one for part in parts for one in (part if isinstance(part, list) else [part])]
    if isinstance(found, datetime):
        return f"{found:%Y-%m-%dT%H:%M:%S}.000Z"
    return "" if found is None else found


def paged(key: str, most: int, answer: Callable[[Any], ActionResult]) -> Callable[..., Any]:
    """Return `answer`, whose list under `key` comes in pages of `most` or MaxResults."""

    def page(response: Any) -> ActionResult:
        result: Any = answer(response).result
        token, size = response._get_param("NextToken"), response._get_param("MaxResults") or most
        if token and not (token.isdecimal() and int(token) < len(result[key])):
            raise refuse("token")
        begin = int(token or 0)
        rest = str(begin + size) if begin + size < len(result[key]) else None
        return ActionResult({**result, key: result[key][begin : begin + size], "NextToken": rest})

    return page


def _filtered(key: str, paths: dict[str, str], answer: Callable[[Any], ActionResult]) -> Any:
    """Return `answer`, whose list under `key` passes the filters of `paths`, too."""

    def passes(one: Any, name: str, values: list[str]) -> bool:
        found = _flat(utils.get_object_value(one, paths[name])) if name in paths else values
        return bool(utils.instance_value_in_filter_values(found, values))

    def passing(response: Any) -> ActionResult:
        result: Any = answer(response).result
        wanted = response._filters_from_querystring().items()
        found = [one for one in result[key] if all(passes(one, *each) for each in wanted)]
        return ActionResult({**result, key: found})

    return passing


def _as_before(key: str, state: str, answer: Callable[[Any], ActionResult]) -> Callable[..., Any]:
    """Return `answer`, which shows instances that are in `state` already as such."""

    def respond(response: Any) -> ActionResult:
        result: Any = answer(response)
        for one in result.result[key]:
            if one["PreviousState"].name == state:
                one["CurrentState"] = one["PreviousState"]
        return ActionResult(result.result)

    return respond


def _association(nic: Any) -> dict[str, Any] | None:
    """Return the public address of an interface. Its owner is Amazon, if it is not elastic."""
    if not nic.public_ip:
        return None
    name = nic.instance and nic.instance.public_dns_name
    own = {"natEnabled": True, "publicIp": nic.public_ip, "publicDnsName": name}
    for one in nic.ec2_backend.address_by_ip([nic.public_ip], fail_if_not_found=False):
        ids = {"allocationId": one.allocation_id, "associationId": one.association_id}
        return {**own, **ids, "ipOwnerId": nic.ec2_backend.account_id}
    return {**own, "ipOwnerId": "amazon"}


def _with_fingerprint(pair: Any) -> Any:
    """Return a key pair. ED25519 keys have OpenSSH's fingerprint (botocore's text)."""
    kind, _, rest = pair.public_key.partition(" ")
    if kind == "ssh-ed25519":
        digest = hashlib.sha256(base64.b64decode(rest.split()[0])).digest()
        pair.key_fingerprint = base64.b64encode(digest).decode()
    return pair
