"""RunInstances as EC2 has it: checks, capacity, MinCount and MaxCount, all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from clusterctl.lab.addresses import REGIONS
from clusterctl.lab.ec2 import capacity
from clusterctl.lab.ec2.completion import replace
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.instances import LabInstance, all_lab_instances
from clusterctl.lab.ec2.network import check_subnet
from clusterctl.lab.ec2.tokens import Tokens

USER_DATA_LIMIT = 16384
# One bridge takes 1,024 links, and IPv4's neighbour tables overflow not far above 500.
MOST_HOSTS = 512

# Counting what is there and adding to it is one step.
LAUNCHES = threading.RLock()
_asked = threading.local()


def install(network: IPv4Network) -> None:
    launch = EC2Backend.run_instances
    respond = EC2Response.run_instances
    tokens = Tokens()

    def run_instances(
        backend: Any, image_id: str, count: int, user_data: Any, groups: list[str], **kwargs: Any
    ) -> Any:
        if backend.region_name not in REGIONS:
            raise EC2ClientError("OptInRequired", f"The lab serves {', '.join(REGIONS)} only.")
        _check_known(backend, image_id, user_data, kwargs)
        with LAUNCHES:
            _check_room(count)
            least = _least(count)
            zone = _settle_network(backend, kwargs, network, (least, count))
            wanted = (kwargs["instance_type"], zone)
            count = capacity.grant(backend.region_name, wanted, least, count)
            reservation = _all_or_nothing(
                backend, lambda: launch(backend, image_id, count, user_data, groups, **kwargs)
            )
            for instance in reservation.instances:
                instance.admit()
        LabInstance.changed.set()
        return reservation

    def answer(response: Any) -> ActionResult:
        return tokens.once(response, lambda: _respond(response, respond))

    answer.__name__ = "run_instances"
    replace(EC2Backend, run_instances)
    replace(EC2Response, answer)


def _respond(response: Any, respond: Callable[[Any], ActionResult]) -> ActionResult:
    """moto launches MinCount; EC2 launches MaxCount where it can."""
    least, most = (int(response._get_param(name, 1)) for name in ("MinCount", "MaxCount"))
    if least < 1 or most < least:
        wrong = f"({least}) for parameter minCount" if least < 1 else f"({most}) for maxCount"
        raise EC2ClientError(
            "InvalidParameterValue",
            f"Value {wrong} is invalid: 1 <= minCount <= maxCount must hold.",
        )
    response.params["MinCount"] = most
    _asked.least = least
    try:
        return respond(response)
    finally:
        _asked.least = None


def _least(count: int) -> int:
    """The MinCount of the request that is being carried out; a fleet's launches have none."""
    return min(getattr(_asked, "least", None) or count, count)


def _all_or_nothing(backend: Any, launch: Callable[[], Any]) -> Any:
    """moto keeps what it made of a launch before it failed."""
    before = set(backend.reservations)
    try:
        return launch()
    except Exception:
        for id in set(backend.reservations) - before:
            for instance in backend.reservations[id].instances:
                instance.enter("terminated", "")
            del backend.reservations[id]
        raise


def _check_room(count: int) -> None:
    there = sum(one.state != "terminated" for one in all_lab_instances())
    if there + count > MOST_HOSTS:
        raise EC2ClientError(
            "InstanceLimitExceeded",
            f"You have requested {count} more instances, and the lab runs {MOST_HOSTS} at most "
            f"({there} are there).",
        )


def _check_known(backend: Any, image_id: str, user_data: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what is not there, with EC2's codes."""
    if not image_id and not kwargs.get("launch_template"):
        raise EC2ClientError("MissingParameter", "The request must contain the parameter ImageId")
    if image_id:
        backend.describe_images(ami_ids=[image_id])
    if kwargs.get("key_name"):
        backend.describe_key_pairs(key_names=[kwargs["key_name"]])
    wanted = kwargs["instance_type"]
    if not kwargs["is_instance_type_default"] and wanted not in INSTANCE_TYPES:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{wanted}' for InstanceType.")
    if user_data is not None and len(str(user_data)) * 3 // 4 > USER_DATA_LIMIT + 2:
        raise EC2ClientError(
            "InvalidParameterValue", f"User data is limited to {USER_DATA_LIMIT} bytes"
        )


def _settle_network(
    backend: Any, kwargs: dict[str, Any], network: IPv4Network, counts: tuple[int, int]
) -> str:
    """A default subnet where none is named, in a zone that has the type; the zone."""
    nics = kwargs.get("nics") or []
    primary = next((nic for nic in nics if int(nic.get("DeviceIndex", 0)) == 0), None)
    named = (primary or {}).get("SubnetId") or kwargs.get("subnet_id")
    subnet = backend.get_subnet(named) if named else _default_subnet(backend, kwargs, counts)
    check_subnet(subnet, network)
    _check_zone(backend.region_name, subnet.availability_zone, kwargs)
    if primary is None:
        kwargs["nics"] = nics = [{"DeviceIndex": 0}]
        primary = nics[0]
        kwargs["subnet_id"] = subnet.id
    else:
        primary["SubnetId"] = subnet.id
    primary.setdefault("DeleteOnTermination", True)
    return str(subnet.availability_zone)


def _default_subnet(backend: Any, kwargs: dict[str, Any], counts: tuple[int, int]) -> Any:
    """The first that has room for all, or for the least, in the zone if one is named."""
    subnets = backend.get_default_subnets()
    zone, wanted = kwargs.get("placement"), kwargs["instance_type"]
    offered = [zone] if zone else offered_zones(backend.region_name, wanted)
    candidates = [one for one in sorted(subnets) if one in offered]
    candidates = candidates or ([] if zone else sorted(subnets))
    if not candidates:
        raise EC2ClientError("MissingInput", "No subnets found for the default VPC.")
    if zone:
        return subnets[zone]
    for count in reversed(counts):
        for one in candidates:
            if capacity.has(wanted, one, count):
                return subnets[one]
    spot = kwargs.get("instance_market_options") == "spot"
    raise capacity.none_anywhere(wanted, spot)


def _check_zone(region: str, zone: str, kwargs: dict[str, Any]) -> None:
    wanted = kwargs["instance_type"]
    offered = offered_zones(region, wanted)
    if kwargs["is_instance_type_default"] or zone in offered:
        return
    raise EC2ClientError(
        "Unsupported",
        f"Your requested instance type ({wanted}) is not supported in your requested Availability "
        f"Zone ({zone}). Please retry your request by not specifying an Availability Zone or "
        f"choosing {', '.join(offered) or 'another region'}.",
    )
