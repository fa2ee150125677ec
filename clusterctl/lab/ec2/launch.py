"""What a rule of launches sees: the request, the launch that it becomes, the instances.

moto's RunInstances hands its backend a part of the request, and checks little of it. A rule sees
the whole request before anything is made, then the launch as it is going to be (its subnet is
settled), then each instance. `run_instances` asks all rules, inside what a client token protects.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES

# Held while what is there is counted and added to, by launches and starts: that is one step.
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
        """MinCount as it came: `run_instances` puts MaxCount into its place."""
        return int(self.response.querystring.get("MinCount", ["1"])[0])

    @property
    def market(self) -> str:
        """`on-demand` where the request names none."""
        return str(self.get("InstanceMarketOptions.MarketType") or "on-demand")


@dataclass(frozen=True)
class LabLaunch:
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

    def check_launch(self, launch: LabLaunch) -> None:
        """With the subnet settled, while nothing else is launched."""

    def mark(self, launch: LabLaunch, instance: Any) -> None:
        """What the new instance shows."""

    def check_start(self, backend: Any, stopped: Sequence[Any]) -> None:
        """Before these stopped instances start, while nothing else is launched."""


_under_way = threading.local()


@contextlib.contextmanager
def answering(request: Request) -> Iterator[None]:
    """While this thread answers the request, `current_request` tells it."""
    _under_way.request = request
    try:
        yield
    finally:
        _under_way.request = None


def current_request() -> Request | None:
    """Return the request that this thread answers, None outside of RunInstances."""
    return getattr(_under_way, "request", None)


def refuse(code: str, message: str) -> EC2ClientError:
    return EC2ClientError(code, message)
