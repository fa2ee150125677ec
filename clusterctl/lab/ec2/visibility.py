"""What EC2 shows of instances: one just launched not yet, and all of an answer of one moment."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.instances import LabInstance

LOOKS = ("DescribeInstances", "DescribeInstanceStatus")
NAMES = ("InstanceId", "InstanceIds", "Resources", "ResourceId")


def install() -> None:
    call = EC2Response.call_action
    describe, describe_status = EC2Backend.describe_instances, EC2Backend.describe_instance_status

    def call_action(response: Any) -> Any:
        hidden = [id for id in _named(response.params) if _is_hidden(response.ec2_backend, id)]
        if hidden:
            return response.serialized(ActionResult(InvalidInstanceIdError(hidden)))
        if response._get_action() not in LOOKS:
            return call(response)
        # moto filters, and reads the states again when it writes the answer: what was asked for as
        # shutting down would come as terminated.
        with LabInstance.transition:
            return call(response)

    def describe_instances(backend: Any, filters: Any = None) -> list[Any]:
        found = describe(backend, filters)
        for reservation in found:
            reservation.instances = [one for one in reservation.instances if _visible(one)]
        return [reservation for reservation in found if reservation.instances]

    def describe_instance_status(backend: Any, *arguments: Any, **named: Any) -> list[Any]:
        return [one for one in describe_status(backend, *arguments, **named) if _visible(one)]

    override(EC2Response, call_action)
    override(EC2Backend, describe_instances)
    override(EC2Backend, describe_instance_status)


def _named(params: Any) -> list[str]:
    """The instance ids that a request names."""
    values = [params.get(name) for name in NAMES]
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return [one for one in flat if isinstance(one, str) and one.startswith("i-")]


def _is_hidden(backend: Any, id: str) -> bool:
    instance = backend.get_instance_by_id(id)
    return instance is not None and not _visible(instance)


def _visible(instance: Any) -> bool:
    return bool(instance.visible)
