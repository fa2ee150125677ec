"""What a rule of launches sees: the request, the launch that it becomes, the instances.

moto's RunInstances hands its backend a part of the request, and checks little of it. A rule sees
the whole request before anything is made, then the launch as it is going to be (its subnet is
settled), then each instance. `run_instances` asks all rules, inside what a client token protects.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from werkzeug.exceptions import HTTPException

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
class PendingLaunch:
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

    def check_room(self, backend: Any, count: int) -> None:
        """Before a subnet is looked for. A fleet's and a stack's launches are asked this too."""

    def check_subnet(self, subnet: Any) -> None:
        """With the subnet settled. A fleet's and a stack's launches are asked this too."""

    def check_launch(self, launch: PendingLaunch) -> None:
        """With the subnet settled, while nothing else is launched."""

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        """What the new instance shows."""

    def launched(self, instances: Sequence[Any]) -> None:
        """When all of a launch are made and tagged, a fleet's and a stack's too."""

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


class EC2ServerError(HTTPException):
    """What EC2 says with a status of 500 and above; moto answers all its errors with 400."""

    def __init__(self, code: str, message: str, status: int = 500) -> None:
        inner = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
        super().__init__(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors>{inner}</Errors><RequestID>{uuid.uuid4()}</RequestID></Response>"
        )
        self.error_code, self.code = code, status

    def get_headers(self, *_: Any, **__: Any) -> list[tuple[str, str]]:
        return [("Content-Type", "text/xml;charset=UTF-8")]


def all_instances() -> list[Any]:
    """Of every account and region."""
    backends = [one for account in list(ec2_backends.values()) for one in list(account.values())]
    return [instance for backend in backends for instance in backend.all_instances()]
