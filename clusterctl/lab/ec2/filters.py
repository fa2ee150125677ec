"""The filters of EC2's Describe calls, for what moto does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2.exceptions import EC2ClientError


def matches(
    attributes: Mapping[str, Any], tags: Mapping[str, str], filters: Mapping[str, Sequence[str]]
) -> bool:
    """Whether a resource passes every filter; `attributes` are what it can be filtered by.

    Raises EC2ClientError for a filter that the resource does not have.
    """
    return all(
        any(_like(value, wanted) for value in _values(name, attributes, tags) for wanted in several)
        for name, several in filters.items()
    )


def _values(name: str, attributes: Mapping[str, Any], tags: Mapping[str, str]) -> list[str]:
    if name.startswith("tag:"):
        key = name[len("tag:") :]
        return [tags[key]] if key in tags else []
    if name == "tag-key":
        return list(tags)
    if name not in attributes:
        raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return [str(attributes[name])]


def _like(value: str, wanted: str) -> bool:
    """`*` and `?` stand for characters; brackets stand for themselves."""
    return fnmatchcase(value, wanted.replace("[", "[[]"))
