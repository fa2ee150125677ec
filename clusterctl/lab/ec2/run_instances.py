"""RunInstances and StartInstances as on EC2: client tokens, rules, capacity, atomic launches."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.ssm.models import ssm_backends

from clusterctl.lab.ec2 import capacity
from clusterctl.lab.ec2.completion import around, guard
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import (
    LAUNCHING,
    EC2ServerError,
    PendingLaunch,
    Request,
    Rule,
    answering,
    current_request,
    refuse,
)

# Bytes, before base64.
USER_DATA_LIMIT = 16384
LONGEST_TOKEN = 64
TEMPLATE = ("LaunchTemplateId", "LaunchTemplateName")
BY_PARAMETER = "resolve:ssm:"


# These check in order, and the first refusal counts.
RULES: list[Rule] = []


@around(EC2Response)
def run_instances(respond: Callable[[Any], ActionResult], response: Any) -> Any:
    made = TOKENS.once(response, lambda: _respond(response, respond))
    if all(one.state == "terminated" for one in made.result.instances):
        raise refuse("token-ended")
    return made


@around(EC2Backend, "run_instances")
def run_on_backend(
    make: Any,
    backend: Any,
    image_id: str,
    count: int,
    user_data: Any,
    security_group_names: list[str],
    **kwargs: Any,
) -> Any:
    request = current_request()  # None for a launch by a fleet or by CloudFormation
    with LAUNCHING:
        for rule in RULES:
            rule.check_room(backend, count)
        _check_known(backend, user_data, kwargs)
        for name in security_group_names or ():
            if backend.get_security_group_by_name_or_id(name) is None:
                raise refuse("group-name", name)
        least = min(request.least, count) if request else count
        subnet = _resolve_network(backend, kwargs, (least, count))
        wanted = (kwargs["instance_type"], str(subnet.availability_zone))
        count = capacity.grant(backend.region_name, wanted, least, count)
        launch = PendingLaunch(request, backend, count, subnet) if request else None
        for rule in RULES:
            if launch:
                rule.check_launch(launch)
        with _all_or_nothing(backend):
            made: Any = make(backend, image_id, count, user_data, security_group_names, **kwargs)
            for instance, rule in itertools.product(made.instances, RULES):
                if launch:
                    rule.mark(launch, instance)
        for rule in RULES:
            rule.launched(made.instances)
    return made


@around(EC2Backend)
def start_instances(start: Any, backend: Any, instance_ids: list[str]) -> Any:
    with LAUNCHING:
        named = backend.get_multi_instances_by_id(instance_ids)
        stopped = [one for one in named if one.state == "stopped"]
        for rule in RULES:
            rule.check_start(backend, stopped)
        return start(backend, instance_ids)


@guard(EC2Response)
def create_launch_template_version(response: Any) -> None:
    """Make a version from another one and the changes. moto ignores the other one."""
    source = response._get_param("SourceVersion")
    if source:
        named = {name: response._get_param(name) for name in TEMPLATE}
        chosen = {name: value for name, value in named.items() if value}
        old = response.ec2_backend._get_template_from_args({**chosen, "Version": source}).data
        changes = response.params.get("LaunchTemplateData", {})
        response.params["LaunchTemplateData"] = {**old, **changes}


def _respond(response: Any, respond: Callable[[Any], ActionResult]) -> ActionResult:
    """Check a request and have moto answer it.

    moto launches MinCount instances, EC2 as many as it can up to MaxCount. So MinCount is set to
    MaxCount for moto, and the rules and the capacity lower it.
    """
    least, most = (int(response._get_param(name, 1)) for name in ("MinCount", "MaxCount"))
    if least < 1 or most < least:
        wrong = f"({least}) for parameter minCount" if least < 1 else f"({most}) for maxCount"
        raise refuse("counts", wrong)
    _complete_by_template(response)
    response.params["MinCount"] = most
    named = response._get_param("ImageId") or ""
    if named.startswith(BY_PARAMETER):
        response.params["ImageId"] = _image_of(response, named[len(BY_PARAMETER) :])
    request = Request(response)
    for rule in RULES:
        rule.check_request(request)
    with answering(request):
        return respond(response)


def _complete_by_template(response: Any) -> None:
    """Add to a request what it leaves out and its launch template has. moto uses a part of it."""
    chosen = response._get_param("LaunchTemplate")
    if chosen:
        own = response.params
        template = response.ec2_backend._get_template_from_args(chosen).data
        tags = [*template.get("TagSpecifications", []), *own.get("TagSpecifications", [])]
        data = {"UserData": str(template["UserData"])} if template.get("UserData") else {}
        response.params = {**template, **data, **own, "TagSpecifications": tags}
    if not response._get_param("ImageId"):
        raise refuse("missing", "ImageId")


def _image_of(response: Any, name: str) -> str:
    """Return the image that a parameter of Systems Manager names (botocore: RunInstances)."""
    parameters = ssm_backends[response.current_account][response.region]
    found = parameters.get_parameter(name.partition(":")[0])
    if found is None:
        raise refuse("image-parameter", name)
    return str(found.value)


@contextlib.contextmanager
def _all_or_nothing(backend: Any) -> Iterator[None]:
    """Remove the instances of a launch that fails halfway. moto would keep them."""
    before = set(backend.reservations)
    try:
        yield
    except Exception:
        for id in set(backend.reservations) - before:
            for instance in backend.reservations[id].instances:
                Instance.terminate(instance)  # LabInstance's own method only begins to
            del backend.reservations[id]
        raise


class ClientTokens:
    """The answers to requests with a client token, kept as long as the lab runs.

    A token holds for one action, account and region, and for one zone if the request names one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def once(self, response: Any, carry_out: Callable[[], Any]) -> Any:
        """Carry a request out, or return the answer to the earlier one with its token.

        A request that fails does not use up its token.
        """
        token = response._get_param("ClientToken")
        if not token or response._get_param("DryRun"):
            return carry_out()
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise refuse("client-token", LONGEST_TOKEN)
        key = (response._get_action(), _token_zone(response), token)
        request = json.dumps({**response.params, "DryRun": None}, sort_keys=True, default=str)
        # Of two requests at the same time, the second one waits and gets the first one's answer.
        with self._lock:
            # Stored on the backend, of which moto has one per account and region and which its
            # reset clears.
            answered = vars(response.ec2_backend).setdefault("client_tokens", {})
            if key not in answered:
                answer = carry_out()
                if isinstance(answer, tuple) and answer[0] >= 400:
                    return answer
                answered[key] = (request, answer)
            first_request, answer = answered[key]
        if request != first_request:
            raise refuse("token-used")
        return answer


TOKENS = ClientTokens()


def _token_zone(response: Any) -> str:
    """Return the zone that a request names, itself or by a subnet; empty if it names none."""
    zone = response._get_param("Placement.AvailabilityZone")
    nics = response._get_param("NetworkInterfaces", [])
    named = [nic["SubnetId"] for nic in nics if nic.get("SubnetId")]
    subnet = response._get_param("SubnetId") or (named[0] if named else None)
    if zone or not subnet:
        return str(zone or "")
    return str(response.ec2_backend.get_subnet(subnet).availability_zone)


def _check_known(backend: Any, user_data: Any, kwargs: dict[str, Any]) -> None:
    """Refuse a key pair or type that does not exist, and user data that is too long."""
    if key := kwargs.get("key_name"):
        backend.describe_key_pairs(key_names=[key])
    wanted = kwargs["instance_type"]
    if not kwargs["is_instance_type_default"] and wanted not in INSTANCE_TYPES:
        raise refuse("value", wanted, "InstanceType")
    # User data is in base64: four characters for three bytes, the last ones padded.
    if user_data is not None and len(str(user_data)) * 3 // 4 > USER_DATA_LIMIT + 2:
        raise refuse("user-data", USER_DATA_LIMIT)


def _resolve_network(backend: Any, kwargs: dict[str, Any], counts: tuple[int, int]) -> Any:
    """Return the launch's subnet, and put it into moto's arguments.

    A request that names none gets a default subnet, in a zone that has the type.
    """
    nics = kwargs.get("nics") or []
    primary = next((nic for nic in nics if int(nic.get("DeviceIndex", 0)) == 0), None)
    named = (primary or {}).get("SubnetId") or kwargs.get("subnet_id")
    subnet = backend.get_subnet(named) if named else _default_subnet(backend, kwargs, counts)
    for rule in RULES:
        rule.check_subnet(subnet)
    _check_zone(backend.region_name, subnet.availability_zone, kwargs)
    if primary is None:
        kwargs["nics"] = nics = [{"DeviceIndex": 0}]
        primary = nics[0]
        kwargs["subnet_id"] = subnet.id
    else:
        primary["SubnetId"] = subnet.id
    primary.setdefault("DeleteOnTermination", True)
    return subnet


def _default_subnet(backend: Any, kwargs: dict[str, Any], counts: tuple[int, int]) -> Any:
    """Return the default subnet of the named zone, or of the first zone with enough capacity.

    `counts` are the smallest and the largest number of instances. A zone with room for the largest
    is preferred.
    """
    subnets = backend.get_default_subnets()
    zone, wanted = kwargs.get("placement"), kwargs["instance_type"]
    if zone and zone not in [one.name for one in backend.describe_availability_zones()]:
        raise refuse("zone-name", zone)
    if not subnets or (zone and zone not in subnets):
        raise refuse("no-subnets")
    if zone:
        return subnets[zone]
    offered = offered_zones(backend.region_name, wanted)
    candidates = [one for one in sorted(subnets) if one in offered] or sorted(subnets)
    for count in reversed(counts):
        for one in candidates:
            if capacity.has(wanted, one, count):
                return subnets[one]
    kind = "spot" if kwargs.get("instance_market_options") == "spot" else "any_zone"
    raise EC2ServerError(capacity.CODE, capacity.TEXTS[kind].format(wanted))


def _check_zone(region: str, zone: str, kwargs: dict[str, Any]) -> None:
    """Refuse a zone that does not offer the type. A request without a type passes."""
    wanted = kwargs["instance_type"]
    if kwargs.get("placement") not in (None, "", zone):
        raise refuse("subnet-zone", zone, kwargs["placement"])
    offered = offered_zones(region, wanted)
    if kwargs["is_instance_type_default"] or zone in offered:
        return
    raise refuse("type-not-offered", wanted, zone, ", ".join(offered) or "another region")
