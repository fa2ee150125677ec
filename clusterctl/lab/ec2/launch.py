"""Where the subjects of the catalogue have their say in a launch.

moto's RunInstances hands its backend a part of the request, and checks little of it. Here a rule
sees the whole request before anything is made, then the launch as it is going to be (its subnet is
settled), then each instance. All of it inside what a client token protects.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import replace

# Counting what is there and adding to it is one step.
LAUNCHING = threading.RLock()


@dataclass(frozen=True)
class Request:
    """A RunInstances request as it came."""

    response: Any

    def get(self, path: str, default: Any = None) -> Any:
        """`Placement.GroupName`, as moto parsed it."""
        return self.response._get_param(path, default)

    @property
    def backend(self) -> Any:
        return self.response.ec2_backend

    @property
    def instance_type(self) -> str:
        return str(self.get("InstanceType", ""))

    @property
    def type_info(self) -> dict[str, Any]:
        """What DescribeInstanceTypes says; empty for a type that there is none of."""
        info: dict[str, Any] = INSTANCE_TYPES.get(self.instance_type, {})
        return info

    @property
    def image(self) -> Any:
        """The image of the request, None if there is no such."""
        return self.backend.amis.get(self.get("ImageId"))

    @property
    def least(self) -> int:
        """MinCount as it came: `moto_run_instances` puts MaxCount into its place."""
        return int(self.response.querystring.get("MinCount", ["1"])[0])

    @property
    def market(self) -> str:
        """`on-demand` where the request names none."""
        return str(self.get("InstanceMarketOptions.MarketType") or "on-demand")


@dataclass(frozen=True)
class Launch:
    """A request on its way to become instances."""

    request: Request
    backend: Any
    count: int
    subnet: Any

    @property
    def zone(self) -> str:
        return str(self.subnet.availability_zone)


class Rule:
    """One subject's part in a launch. Refuses with EC2ClientError."""

    def check_request(self, request: Request) -> None:
        """Before anything else, dry runs included."""

    def check_launch(self, launch: Launch) -> None:
        """With the subnet settled, while nothing else is launched."""

    def mark(self, launch: Launch, instance: Any) -> None:
        """What the new instance shows."""


_rules: list[Rule] = []
_under_way = threading.local()


def add_rule(rule: Rule) -> None:
    _rules.append(rule)


def current_request() -> Request | None:
    """The request that this thread is answering, None outside of RunInstances."""
    return getattr(_under_way, "request", None)


def refuse(code: str, message: str) -> EC2ClientError:
    return EC2ClientError(code, message)


def install() -> None:
    """Before the module that keeps client tokens, which has to be around this one."""
    respond = EC2Response.run_instances
    launch = EC2Backend.run_instances

    def run_instances(response: Any) -> Any:
        request = Request(response)
        for rule in _rules:
            rule.check_request(request)
        _under_way.request = request
        try:
            return respond(response)
        finally:
            _under_way.request = None

    def run_on_backend(
        backend: Any, image_id: str, count: int, user_data: Any, groups: list[str], **kwargs: Any
    ) -> Any:
        request = current_request()
        if request is None:  # a fleet's or CloudFormation's
            return launch(backend, image_id, count, user_data, groups, **kwargs)
        with LAUNCHING:
            wanted = Launch(request, backend, count, _subnet(backend, kwargs))
            for rule in _rules:
                rule.check_launch(wanted)
            made = launch(backend, image_id, count, user_data, groups, **kwargs)
            for instance in made.instances:
                for rule in _rules:
                    rule.mark(wanted, instance)
        return made

    replace(EC2Response, run_instances)
    run_on_backend.__name__ = "run_instances"
    replace(EC2Backend, run_on_backend)


def _subnet(backend: Any, kwargs: dict[str, Any]) -> Any:
    """Where the primary interface goes: settled by `moto_run_instances`."""
    named = kwargs.get("subnet_id") or next(
        nic["SubnetId"]
        for nic in kwargs["nics"]
        if "SubnetId" in nic and int(nic.get("DeviceIndex", 0)) == 0
    )
    return backend.get_subnet(named)
