"""A resource finds its own tags at once, and EC2 takes no value of more than 256 characters.

moto looks through the tags of all resources for those of one, several times per instance and
filter: DescribeInstances of 100 instances then takes seconds, of 1,000 minutes.
"""

from __future__ import annotations

from typing import Any

from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.tags import TagBackend
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.launch import refuse


def install() -> None:
    def get_tags(resource: Any) -> list[dict[str, str]]:
        kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource.id), "") if resource.id else ""
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
