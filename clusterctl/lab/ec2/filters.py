"""Tags, and the filters of Describe calls: moto's, corrected, and `matches` for other resources.

On AWS a filter with several values passes a resource that has any of them, and `*` and `?` are
wildcards. moto passes a resource only if it has all of the filter's values, or no others: a filter
by two tag keys misses a resource that has one of them and a third key. moto also knows no wildcards
in the filters for an instance's own attributes.

To find the tags of one resource, moto searches those of all resources, several times per instance
and filter. DescribeInstances of 100 instances then takes seconds, of 1,000 instances minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2 import utils
from moto.ec2.models.core import TaggedEC2Resource

from clusterctl.lab.ec2 import late
from clusterctl.lab.ec2.completion import around, override
from clusterctl.lab.ec2.launch import refuse


@around(utils)
def is_filter_matching(matches_one: Any, obj: Any, _filter: str, filter_value: Any) -> bool:
    if not isinstance(filter_value, list):
        return bool(matches_one(obj, _filter, filter_value))
    return any(matches_one(obj, _filter, [_for_fnmatch(value)]) for value in filter_value)


@around(utils)
def simple_aws_filter_to_re(to_regex: Any, filter_string: str) -> str:
    return str(to_regex(_for_fnmatch(filter_string)))


@override(utils)
def instance_value_in_filter_values(value: Any, filter_values: Any) -> bool:
    texts = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    shown = [text.lower() for text in texts] if isinstance(value, bool) else texts
    return any(_like(text, str(one)) for text in shown for one in filter_values)


@override(TaggedEC2Resource)
def get_tags(resource: Any) -> list[dict[str, str]]:
    """Return a resource's tags without a search through all resources."""
    prefix = utils.get_prefix(resource.id) if resource.id else ""
    kind = utils.EC2_PREFIX_TO_RESOURCE.get(prefix, "")
    # The tags that a resource was made with are shown together with it.
    now = resource.ec2_backend.tags.get(resource.id, {})
    tags = dict((late.shown("tags") or {}).get(resource.id, now))
    return [
        {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
        for key, value in tags.items()
    ]


def matches(
    shown: Mapping[str, Any], names: Sequence[str], filters: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether a resource passes every filter. `shown` is its description.

    `names` are the keys that it can be filtered by, besides its tags: `GroupName` is the filter
    group-name. Raise EC2ClientError for a filter with another name.
    """
    tags = {tag["Key"]: tag["Value"] for tag in shown.get("Tags", ())}
    known = {f"tag:{key}": [value] for key, value in tags.items()} | {"tag-key": list(tags)}
    for name in names:
        known[re.sub("(?<!^)(?=[A-Z])", "-", name).lower()] = [str(shown[name])]
    for name in filters:
        if name not in known and not name.startswith("tag:"):
            raise refuse("filter", name)
    return all(
        any(_like(value, wanted) for value in known.get(name, ()) for wanted in several)
        for name, several in filters.items()
    )


def _like(value: str, wanted: str) -> bool:
    return fnmatchcase(value, _for_fnmatch(wanted))


def _for_fnmatch(wanted: str) -> str:
    """Return a filter's value as a pattern for fnmatch, whose brackets are no wildcards on AWS."""
    return wanted.replace("[", "[[]")
