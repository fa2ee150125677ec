"""A filter with several values passes what has any of them.

moto wants a resource's list to have all of a filter's values, or nothing else: DescribeKeyPairs
by two tag keys then finds none that has a third.
"""

from __future__ import annotations

from typing import Any

from moto.ec2 import utils

from clusterctl.lab.moto_completion import replace


def install() -> None:
    matches_one = utils.is_filter_matching

    def is_filter_matching(obj: Any, _filter: str, filter_value: Any) -> bool:
        if not isinstance(filter_value, list):
            return bool(matches_one(obj, _filter, filter_value))
        return any(matches_one(obj, _filter, [value]) for value in filter_value)

    replace(utils, is_filter_matching)
