"""RunInstances as EC2 has it: checks, MaxCount, and the same instances for the same token."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from ipaddress import IPv4Network, ip_address
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response

from clusterctl.lab.addresses import REGIONS
from clusterctl.lab.moto_completion import replace
from clusterctl.lab.moto_instances import LabInstance, all_lab_instances
from clusterctl.lab.moto_types import offered_zones

USER_DATA_LIMIT = 16384
# One bridge takes 1,024 links, and IPv4's neighbour tables overflow not far above 500.
MOST_HOSTS = 512


def install(network: IPv4Network) -> None:
    launch = EC2Backend.run_instances
    respond = EC2Response.run_instances
    tokens = Tokens()

    def run_instances(
        backend: Any, image_id: str, count: int, user_data: Any, groups: list[str], **kwargs: Any
    ) -> Any:
        if backend.region_name not in REGIONS:
            raise EC2ClientError("OptInRequired", f"The lab serves {', '.join(REGIONS)} only.")
        _check_room(count)
        _check_known(backend, image_id, user_data, kwargs)
        _settle_network(backend, kwargs, network)
        reservation = launch(backend, image_id, count, user_data, groups, **kwargs)
        LabInstance.changed.set()
        return reservation

    def answer(response: Any) -> ActionResult:
        # moto launches MinCount; EC2 launches MaxCount where it can.
        response.params["MinCount"] = response._get_param("MaxCount", 1)
        return tokens.once(response, lambda: respond(response))

    answer.__name__ = "run_instances"
    replace(EC2Backend, run_instances)
    replace(EC2Response, answer)


class Tokens:
    """What each client token launched, by account and region."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str], tuple[str, ActionResult]] = {}

    def once(self, response: Any, launch: Callable[[], ActionResult]) -> ActionResult:
        token = response._get_param("ClientToken")
        if not token:
            return launch()
        key = (response.current_account, response.region, token)
        request = json.dumps({**response.params, "DryRun": None}, sort_keys=True, default=str)
        with self._lock:
            if key not in self._seen:
                self._seen[key] = (request, launch())
            first_request, result = self._seen[key]
        if request != first_request:
            raise EC2ClientError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        return result


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


def _settle_network(backend: Any, kwargs: dict[str, Any], network: IPv4Network) -> None:
    """A default subnet where none is named, in a zone that has the type."""
    nics = kwargs.get("nics") or []
    primary = next((nic for nic in nics if int(nic.get("DeviceIndex", 0)) == 0), None)
    named = (primary or {}).get("SubnetId") or kwargs.get("subnet_id")
    subnet = backend.get_subnet(named) if named else _default_subnet(backend, kwargs)
    if ip_address(str(subnet.cidr.network_address)) not in network:
        raise EC2ClientError(
            "UnsupportedOperation",
            f"The lab's hosts live in {network}; {subnet.id} is {subnet.cidr_block}. "
            "Use a subnet of the default VPC.",
        )
    _check_zone(backend.region_name, subnet.availability_zone, kwargs)
    if primary is None:
        kwargs["nics"] = nics = [{"DeviceIndex": 0}]
        primary = nics[0]
        kwargs["subnet_id"] = subnet.id
    else:
        primary["SubnetId"] = subnet.id
    primary.setdefault("DeleteOnTermination", True)


def _default_subnet(backend: Any, kwargs: dict[str, Any]) -> Any:
    subnets = backend.get_default_subnets()
    zone = kwargs.get("placement")
    if zone:
        candidates = [subnets[zone]] if zone in subnets else []
    else:
        offered = offered_zones(backend.region_name, kwargs["instance_type"])
        candidates = [subnets[one] for one in sorted(subnets) if one in offered] or [
            subnets[one] for one in sorted(subnets)
        ]
    if not candidates:
        raise EC2ClientError("MissingInput", "No subnets found for the default VPC.")
    return candidates[0]


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
