"""Tags, and the filters of Describe calls: moto's own completed, `matches` for what moto has not.

A filter with several values passes what has any of them; `*` and `?` stand for characters. moto
wants a resource's list to have all of a filter's values, or nothing else: DescribeKeyPairs by two
tag keys then finds none that has a third. Of an instance's own values it knows no wildcards.

For the tags of one resource moto looks through those of all, several times per instance and
filter: DescribeInstances of 100 instances then takes seconds, of 1,000 minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2 import utils
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.tags import TagBackend

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.launch import refuse


def install() -> None:
    matches_one = utils.is_filter_matching

    def is_filter_matching(obj: Any, _filter: str, filter_value: Any) -> bool:
        if not isinstance(filter_value, list):
            return bool(matches_one(obj, _filter, filter_value))
        return any(matches_one(obj, _filter, [value]) for value in filter_value)

    def instance_value_in_filter_values(value: Any, filter_values: Any) -> bool:
        texts = [str(one) for one in value] if isinstance(value, list) else [str(value)]
        shown = [text.lower() for text in texts] if isinstance(value, bool) else texts
        return any(fnmatchcase(text, str(one)) for text in shown for one in filter_values)

    override(utils, is_filter_matching)
    override(utils, instance_value_in_filter_values)

    def get_tags(resource: Any) -> list[dict[str, str]]:
        kind = (
            utils.EC2_PREFIX_TO_RESOURCE.get(utils.get_prefix(resource.id), "")
            if resource.id
            else ""
        )
        return [
            {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
            for key, value in resource.ec2_backend.tags.get(resource.id, {}).items()
        ]

    override(TaggedEC2Resource, get_tags)
    take = TagBackend.create_tags

    def create_tags(backend: Any, resource_ids: list[str], tags: dict[str, str]) -> bool:
        if any(len(value or "") > 256 for value in tags.values()):
            text = "Tag value exceeds the maximum length of 256 characters"
            raise refuse("InvalidParameterValue", text)
        return take(backend, resource_ids, tags)

    override(TagBackend, create_tags)


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
        raise refuse("InvalidParameterValue", f"The filter '{name}' is invalid")
    return [str(attributes[name])]


def _like(value: str, wanted: str) -> bool:
    """`*` and `?` stand for characters; brackets stand for themselves."""
    return fnmatchcase(value, wanted.replace("[", "[[]"))
