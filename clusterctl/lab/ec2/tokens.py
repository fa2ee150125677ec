"""Client tokens: the same request with the same token is the same launch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError

LONGEST = 64


class Tokens:
    """What each client token launched, by account, region, and zone where the request names one.

    It is kept as long as the backend, whatever becomes of the instances.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def once(self, response: Any, launch: Callable[[], ActionResult]) -> ActionResult:
        """A launch, or the answer to an earlier one. Only what succeeds uses a token up."""
        token = response._get_param("ClientToken")
        if not token:
            return launch()
        if len(token) > LONGEST or not token.isascii():
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Invalid value for ClientToken: at most {LONGEST} ASCII characters.",
            )
        key = (_zone(response), token)
        request = json.dumps({**response.params, "DryRun": None}, sort_keys=True, default=str)
        # One after the other: of two at the same time the second gets the first one's answer.
        with self._lock:
            # On the backend, one per account and region: moto's reset forgets them with the rest.
            seen = vars(response.ec2_backend).setdefault("client_tokens", {})
            if key not in seen:
                seen[key] = (request, launch())
            first_request, result = seen[key]
        if request != first_request:
            raise EC2ClientError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        return result


def _zone(response: Any) -> str:
    """A token counts once per zone where the zone or a subnet is named, else once per region."""
    zone = response._get_param("Placement.AvailabilityZone")
    nics = response._get_param("NetworkInterfaces", [])
    named = [nic["SubnetId"] for nic in nics if nic.get("SubnetId")]
    subnet = response._get_param("SubnetId") or (named[0] if named else None)
    if zone or not subnet:
        return str(zone or "")
    return str(response.ec2_backend.get_subnet(subnet).availability_zone)
