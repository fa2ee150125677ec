"""What moto does again and again, and needs to do once only.

Without this, a DescribeInstances takes twice as much processor time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from moto.core import responses
from moto.core.serialize import (
    AttributePicker,
    AttributePickerContext,
    BaseXMLSerializer,
    EC2Serializer,
    XFormedAttributePicker,
)
from moto.core.utils import get_value, method_names_from_class
from moto.iam.models import IAMBackend, ManagedPolicy
from moto.kms import models as kms
from moto.kms.utils import KeySpec

from clusterctl.lab.ec2.completion import override

_ABSENT: Any = object()


def install() -> None:
    """Make moto do less."""
    # EC2's class has more than 700 methods, which moto lists to find the one of the request.
    kept = functools.lru_cache(maxsize=None)(method_names_from_class)
    responses.method_names_from_class = kept  # type: ignore[attr-defined]
    find_keys, read_policies = (
        XFormedAttributePicker.get_possible_keys,
        IAMBackend._init_aws_policies,
    )
    generate = kms.generate_private_key  # type: ignore[attr-defined]
    shared_pair = functools.lru_cache(maxsize=None)(generate)
    policies: list[ManagedPolicy] = []

    def get_possible_keys(self: Any, context: AttributePickerContext) -> tuple[str, ...]:
        """Return the names that an attribute may have, which the class and the shape decide."""
        if context.shape is None:
            return tuple(find_keys(self, context))
        known = context.shape.__dict__.setdefault("_possible_keys", {})
        key = (type(context.obj), context.key)
        if key not in known:
            known[key] = tuple(find_keys(self, context))
        return known[key]

    # Which path's function changes a value depends on the end of the value's own path, and there
    # are 20 of them. A request can change a function and add a path.
    ends: dict[tuple[int, int, str], str | None] = {}

    def __call__(self: Any, context: AttributePickerContext) -> Any:
        """Return the value of an attribute, as the API shows it."""
        owner, value = context.obj, _ABSENT
        plain = not hasattr(owner, "__getitem__")
        for key in self.get_possible_keys(context):
            # As moto's get_value, which most of the time goes into.
            is_name = plain and "." not in key
            value = getattr(owner, key, _ABSENT) if is_name else get_value(owner, key, _ABSENT)
            if value is not _ABSENT:
                break
        else:
            value = None
        known: Mapping[str, Callable[[Any], Any]] = self.response_transformers
        if not known:
            return value
        path = f"{context.key_path}.{context.key}"
        place = (id(known), len(known), path)
        if place not in ends:
            ends[place] = next((end for end in known if path.endswith(end)), None)
        end = ends[place]
        return known[end](value) if end else value

    def generate_private_key(key_spec: str) -> Any:
        """Have all symmetric KMS keys share one key pair.

        EBS makes such a key for the first encrypted volume of a region. A symmetric key has no key
        pair, but moto makes one, which takes as long as the rest of a launch.
        """
        symmetric = key_spec == KeySpec.SYMMETRIC_DEFAULT
        return shared_pair(key_spec) if symmetric else generate(key_spec)

    def _init_aws_policies(self: IAMBackend) -> list[ManagedPolicy]:
        """Read AWS's own policies once, and give each account its own copies.

        moto reads all 1,500 for each account in each of AWS's seven partitions, of which the lab
        has one, to find the account of a request's key.
        """
        if self.partition != "aws":
            return []
        policies[:] = policies or read_policies(self)
        return [_own(policy, self.account_id) for policy in policies]

    override(AttributePicker, __call__)
    override(XFormedAttributePicker, get_possible_keys)
    override(BaseXMLSerializer, _body_of(""))
    override(EC2Serializer, _body_of('<?xml version="1.0" encoding="utf-8"?>\n'))
    override(kms, generate_private_key)
    override(IAMBackend, _init_aws_policies)


def _body_of(before: str) -> Callable[..., str]:
    def _serialize_body(self: Any, body: Mapping[str, Any]) -> str:
        """Return a response's XML. moto's library checks each name, which takes ten times as long.

        It is made for documents from anywhere, and these names are those of the API.
        """
        return before + "".join(xml_of(name, value) for name, value in body.items())

    return _serialize_body


def xml_of(name: str, value: Any) -> str:
    """Return an element. A list has many; keys that begin with @ are attributes."""
    if isinstance(value, (list, tuple)):
        return "".join([xml_of(name, one) for one in value])
    if isinstance(value, dict):
        inner = "".join([xml_of(key, one) for key, one in value.items() if key[0] != "@"])
        name_and_attributes = name + "".join(
            [f" {key[1:]}={quoteattr(str(one))}" for key, one in value.items() if key[0] == "@"]
        )
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        inner, name_and_attributes = escape("" if value is None else text), name
    return f"<{name_and_attributes}>{inner}</{name}>" if inner else f"<{name_and_attributes}/>"


def _own(policy: ManagedPolicy, account_id: str) -> ManagedPolicy:
    mine: ManagedPolicy = object.__new__(type(policy))  # not kept by moto as well
    vars(mine).update(vars(policy), account_id=account_id, versions=[*policy.versions], tags={})
    return mine
