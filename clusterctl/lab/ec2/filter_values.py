"""A filter with several values passes what has any of them; `*` and `?` stand for characters.

moto wants a resource's list to have all of a filter's values, or nothing else: DescribeKeyPairs
by two tag keys then finds none that has a third. Of an instance's own values it knows no wildcards.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from moto.ec2 import utils

from clusterctl.lab.ec2.completion import override


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
