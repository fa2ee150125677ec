"""What moto does again and again, and needs to do once only, or in a simpler way.

Without this, a DescribeInstances of 30 instances takes nearly twice the processor time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from moto.core import responses
from moto.core.serialize import (
    AttributePicker,
    AttributePickerContext,
    EC2Serializer,
    XFormedAttributePicker,
)
from moto.core.utils import get_value, method_names_from_class
from moto.iam.models import IAMBackend, ManagedPolicy
from moto.kms import models as kms
from moto.kms.utils import KeySpec

from clusterctl.lab.ec2.completion import override

Transform = Callable[[Any], Any]
_MISSING = object()


def install() -> None:
    """Make moto do less."""
    # EC2's class has more than 700 methods, which moto lists to find the one of the request.
    kept = functools.lru_cache(maxsize=None)(method_names_from_class)
    responses.method_names_from_class = kept  # type: ignore[attr-defined]
    _pick_attributes()
    _write_xml()
    _share_key_pair()
    _read_managed_policies_once()


def _pick_attributes() -> None:
    """Find an attribute's names once for each shape, and try only transforms of its name."""
    find_keys = XFormedAttributePicker.get_possible_keys

    def get_possible_keys(self: Any, context: AttributePickerContext) -> tuple[str, ...]:
        """Return the names that an attribute may have, which the class and the shape decide."""
        if context.shape is None:
            return tuple(find_keys(self, context))
        known = context.shape.__dict__.setdefault("_possible_keys", {})
        key = (type(context.obj), context.key)
        if key not in known:
            known[key] = tuple(find_keys(self, context))
        return known[key]

    def __call__(self: Any, context: AttributePickerContext) -> Any:
        value = None
        for key in self.get_possible_keys(context):
            found = get_value(context.obj, key, _MISSING)
            if found is not _MISSING:
                value = found
                break
        by_name = self.__dict__.get("by_name")
        if by_name is None:
            by_name = self.by_name = _by_name(self.response_transformers)
        for end, transform in by_name.get(context.key, ()):
            if f"{context.key_path}.{context.key}".endswith(end):
                return transform(value)
        return value

    override(XFormedAttributePicker, get_possible_keys)
    override(AttributePicker, __call__)


def _by_name(transforms: Mapping[str, Transform]) -> dict[str, list[tuple[str, Transform]]]:
    """Return the transforms, each with the end of its path, by the name of the attribute.

    moto's paths have a name after a dot. Its actions change the transforms, so these hold for one
    response only.
    """
    found: dict[str, list[tuple[str, Transform]]] = {}
    for path, transform in transforms.items():
        found.setdefault(path.rpartition(".")[2], []).append((path, transform))
    return found


def _write_xml() -> None:
    """Write EC2's answers without the general writer that moto uses.

    That one checks each name of each element, and passes each through a SAX handler.
    """

    def _serialize_body(self: Any, body: Mapping[str, Any]) -> str:
        [(name, root)] = body.items()
        return f'<?xml version="1.0" encoding="utf-8"?>\n{"".join(_element(name, root))}'

    override(EC2Serializer, _serialize_body)


def _element(name: str, value: Any) -> Iterator[str]:
    """Yield the text of an element, or of one for each item of a list."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _element(name, item)
    elif isinstance(value, Mapping):
        attributes = "".join(
            f" {key[1:]}={quoteattr(str(text))}" for key, text in value.items() if key[0] == "@"
        )
        inside = [
            text for key, one in value.items() if key[0] != "@" for text in _element(key, one)
        ]
        if inside:
            yield f"<{name}{attributes}>"
            yield from inside
            yield f"</{name}>"
        else:
            yield f"<{name}{attributes}/>"
    else:
        text = _text(value)
        yield f"<{name}>{escape(text)}</{name}>" if text else f"<{name}/>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _share_key_pair() -> None:
    """Have all symmetric KMS keys share one key pair.

    EBS makes such a key for the first encrypted volume of a region. A symmetric key has no key
    pair, but moto makes one, which takes as long as the rest of a launch.
    """
    generate = kms.generate_private_key  # type: ignore[attr-defined]
    shared = functools.lru_cache(maxsize=None)(generate)

    def generate_private_key(key_spec: str) -> Any:
        symmetric = key_spec == KeySpec.SYMMETRIC_DEFAULT
        return shared(key_spec) if symmetric else generate(key_spec)

    kms.generate_private_key = generate_private_key  # type: ignore[attr-defined]


def _read_managed_policies_once() -> None:
    """Read AWS's own policies once, and give each account its own copies.

    moto reads all 1,500 for each account in each of AWS's seven partitions, of which the lab has
    one, to find the account of a request's key.
    """
    read = IAMBackend._init_aws_policies
    shared: list[ManagedPolicy] = []

    def own(policy: ManagedPolicy, account_id: str) -> ManagedPolicy:
        mine: ManagedPolicy = object.__new__(type(policy))  # not kept by moto as well
        vars(mine).update(vars(policy), account_id=account_id, versions=[*policy.versions], tags={})
        return mine

    def _init_aws_policies(self: IAMBackend) -> list[ManagedPolicy]:
        if self.partition != "aws":
            return []
        shared[:] = shared or read(self)
        return [own(policy, self.account_id) for policy in shared]

    override(IAMBackend, _init_aws_policies)
