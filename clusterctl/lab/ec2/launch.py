"""Launches as rules see them: the request, the launch that it becomes, the instances.

moto's RunInstances passes only a part of the request to its backend, and checks little of it. A
rule sees the whole request before anything is made, then the launch with its subnet, then each
instance. `run_instances` calls all rules. A request that repeats a client token does not reach
them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.lab.data import table

# Held by launches and starts from counting the existing resources until theirs are added, so that
# two of them cannot both take the last place.
LAUNCHING = threading.RLock()


@dataclass(frozen=True)
class Request:
    """A RunInstances request. `response` is moto's object that answers it."""

    response: Any

    def get(self, path: str, default: Any = None) -> Any:
        """Return a parameter by its path, such as `Placement.GroupName`, as moto parsed it."""
        return self.response._get_param(path, default)

    @property
    def backend(self) -> Any:
        return self.response.ec2_backend

    @property
    def instance_type(self) -> str:
        return str(self.get("InstanceType", ""))

    @property
    def type_info(self) -> dict[str, Any]:
        """The type's entry in DescribeInstanceTypes; empty for an unknown type."""
        info: dict[str, Any] = INSTANCE_TYPES.get(self.instance_type, {})
        return info

    @property
    def image(self) -> Any:
        """The image of the request, or None if it does not exist."""
        return self.backend.amis.get(self.get("ImageId"))

    @property
    def least(self) -> int:
        """The request's own MinCount. `run_instances` overwrites the parsed one with MaxCount."""
        return int(self.response.querystring.get("MinCount", ["1"])[0])

    @property
    def market(self) -> str:
        """The market's type; `on-demand` if the request names none."""
        return str(self.get("InstanceMarketOptions.MarketType") or "on-demand")


@dataclass(frozen=True)
class PendingLaunch:
    """A launch that is about to be made: `count` instances in `subnet`."""

    request: Request
    backend: Any
    count: int
    subnet: Any

    @property
    def zone(self) -> str:
        return str(self.subnet.availability_zone)


class Rule:
    """The part that one subject has in launches and starts. A check raises EC2ClientError.

    Fleets and stacks launch too, but not with a RunInstances request: for them only `check_room`,
    `check_subnet` and `launched` are called.
    """

    def check_request(self, request: Request) -> None:
        """Check a request before anything else is done. Called for dry runs too."""

    def check_room(self, backend: Any, count: int) -> None:
        """Check the number of instances, before a subnet is chosen."""

    def check_subnet(self, subnet: Any) -> None:
        """Check the chosen subnet."""

    def check_launch(self, launch: PendingLaunch) -> None:
        """Check a launch whose subnet is chosen, while LAUNCHING is held."""

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        """Set what a new instance shows of the rule's subject."""

    def launched(self, instances: Sequence[Any]) -> None:
        """Handle a launch whose instances are all made and tagged."""

    def check_start(self, backend: Any, stopped: Sequence[Any]) -> None:
        """Check stopped instances that are to start, while LAUNCHING is held."""


_under_way = threading.local()


@contextlib.contextmanager
def answering(request: Request) -> Iterator[None]:
    """Have `current_request` return this request to the current thread, inside the `with`."""
    _under_way.request = request
    try:
        yield
    finally:
        _under_way.request = None


def current_request() -> Request | None:
    """Return the request that this thread answers; None outside of RunInstances."""
    return getattr(_under_way, "request", None)


REFUSALS: dict[str, tuple[str, str]] = {
    name: (code, text) for code, named in table("refusals").items() for name, text in named.items()
}


def refuse(name: str, *values: object) -> EC2ClientError:
    """Return a refusal by its name in refusals.toml, with these values, for the caller to raise."""
    code, text = REFUSALS[name]
    return EC2ClientError(code, text.format(*values))


class EC2ServerError(EC2ClientError):
    """An error that EC2 answers with the status 500. `descriptions` sets it: moto's is 400."""


def all_instances() -> list[Any]:
    """Return the instances of every account and region."""
    backends = [one for account in list(ec2_backends.values()) for one in list(account.values())]
    return [instance for backend in backends for instance in backend.all_instances()]
