"""What moto does again and again, and needs to do once only.

Without this, a DescribeInstances of 30 instances takes half as much processor time again.
"""

from __future__ import annotations

import functools
from typing import Any

from moto.core import responses
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import method_names_from_class
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, InstanceTypeOfferingBackend
from moto.iam.models import IAMBackend, ManagedPolicy
from moto.kms import models as kms
from moto.kms.utils import KeySpec

from clusterctl.lab.ec2.completion import around, setup

# AWS's own policies, once they have been read.
POLICIES: list[ManagedPolicy] = []


@setup
def _keep_names() -> None:
    # EC2's class has more than 700 methods, which moto lists to find the one of the request.
    kept = functools.lru_cache(maxsize=None)(method_names_from_class)
    responses.method_names_from_class = kept  # type: ignore[attr-defined]


@around(XFormedAttributePicker)
def get_possible_keys(
    find_keys: Any, self: Any, context: AttributePickerContext
) -> tuple[str, ...]:
    """Return the names that an attribute may have, which the class and the shape decide."""
    if context.shape is None:
        return tuple(find_keys(self, context))
    known = context.shape.__dict__.setdefault("_possible_keys", {})
    key = (type(context.obj), context.key)
    if key not in known:
        known[key] = tuple(find_keys(self, context))
    return known[key]


@around(InstanceTypeOfferingBackend)
def describe_instance_type_offerings(
    describe: Any,
    self: Any,
    location_type: str | None = None,
    filters: dict[str, Any] | None = None,
) -> list[dict[str, str]]:
    """Look at the offerings of the types that are asked for, of thousands in a region."""
    rest = dict(filters or {})
    types = rest.pop("instance-type", None)
    where = location_type or "region"
    if types is None:
        found: list[dict[str, str]] = describe(self, location_type, filters)
        return found
    offered = offerings_by_type(where, self.region_name)
    chosen = sorted(at for one in {*types} for at in offered.get(one, ()))
    listed = INSTANCE_TYPE_OFFERINGS[where].get(self.region_name, [])
    return [listed[at] for at in chosen if self.matches_filters(listed[at], rest, where)]


@functools.cache
def offerings_by_type(where: str, region: str) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for at, one in enumerate(INSTANCE_TYPE_OFFERINGS[where].get(region, [])):
        places.setdefault(one["InstanceType"], []).append(at)
    return places


@around(kms)
def generate_private_key(generate: Any, key_spec: str) -> Any:
    """Have all symmetric KMS keys share one key pair.

    EBS makes such a key for the first encrypted volume of a region. A symmetric key has no key
    pair, but moto makes one, which takes as long as the rest of a launch.
    """
    symmetric = key_spec == KeySpec.SYMMETRIC_DEFAULT
    return _shared_pair(generate) if symmetric else generate(key_spec)


@functools.cache
def _shared_pair(generate: Any) -> Any:
    return generate(KeySpec.SYMMETRIC_DEFAULT)


@around(IAMBackend)
def _init_aws_policies(read_policies: Any, self: IAMBackend) -> list[ManagedPolicy]:
    """Read AWS's own policies once, and give each account its own copies.

    moto reads all 1,500 for each account in each of AWS's seven partitions, of which the lab
    has one, to find the account of a request's key.
    """
    if self.partition != "aws":
        return []
    POLICIES[:] = POLICIES or read_policies(self)
    return [_own(policy, self.account_id) for policy in POLICIES]


def _own(policy: ManagedPolicy, account_id: str) -> ManagedPolicy:
    mine: ManagedPolicy = object.__new__(type(policy))  # not kept by moto as well
    vars(mine).update(vars(policy), account_id=account_id, versions=[*policy.versions], tags={})
    return mine
