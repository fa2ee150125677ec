"""Options of launches: processors and instance profiles.

For an unknown instance profile moto answers with IAM's error instead of EC2's. It gives a profile
to the first instance of a launch only, and it describes an instance with the profile that it had
before another took its place.
"""

from __future__ import annotations

import base64
import contextlib
from datetime import timedelta
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import EmptyResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles, random_iam_instance_profile_association_id
from werkzeug.exceptions import HTTPException

from clusterctl.lab.ec2.completion import around, guard
from clusterctl.lab.ec2.launch import PendingLaunch, Request, Rule, refuse

# EC2 knows a new instance profile only so long after IAM has made it; on AWS it is about ten times
# as long (pull request 2037 of hashicorp/terraform).
KNOWN_AFTER_S = 1.0


class OptionRule(Rule):
    """Instances show their type's processors."""

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        info = launch.request.type_info.get("VCpuInfo", {})
        cores, cpu = info.get("DefaultCores"), launch.request.get("CpuOptions") or {}
        if cores:
            instance.cpu_options = {
                "CoreCount": cpu.get("CoreCount") or cores,
                "ThreadsPerCore": cpu.get("ThreadsPerCore") or info.get("DefaultThreadsPerCore", 1),
            }


class ProfileRule(Rule):
    """The instance profile exists and has a role, and every instance gets it."""

    def check_request(self, request: Request) -> None:
        _check_profile(request.response)

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        name, arn = (launch.request.get(f"IamInstanceProfile.{key}") for key in ("Name", "Arn"))
        # moto itself associates the profile with the first instance.
        if (name or arn) and instance.ami_launch_index:
            launch.backend.associate_iam_instance_profile(
                instance_id=instance.id,
                iam_instance_profile_name=name,
                iam_instance_profile_arn=arn,
            )


@around(EC2Response)
def modify_instance_attribute(modify: Any, response: Any) -> Any:
    """Change user data, and what a power-off does. moto removes the security groups instead."""
    names = ("UserData", "InstanceInitiatedShutdownBehavior")
    data, behavior = (response._get_param(f"{name}.Value") for name in names)
    if data is None and behavior is None:
        return modify(response)
    instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
    if behavior is not None:
        instance.instance_initiated_shutdown_behavior = behavior
    else:
        # The clients encode a value of bytes, and moto has decoded it.
        instance.user_data = Base64EncodedString(base64.b64encode(data).decode())
    return EmptyResult()


@guard(EC2Response)
def associate_iam_instance_profile(response: Any) -> None:
    _check_profile(response)
    instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
    if instance.state not in ("running", "stopped"):
        raise refuse("not-running-or-stopped", instance.id)


@around(EC2Response)
def replace_iam_instance_profile_association(exchange: Any, response: Any) -> Any:
    _check_profile(response)
    result = exchange(response)
    made = result.result["IamInstanceProfileAssociation"]
    made.association_id = random_iam_instance_profile_association_id()
    made.instance.iam_instance_profile = {
        "Arn": made.iam_instance_profile.arn,
        "Id": made.association_id,
    }
    return result


def _check_profile(response: Any) -> None:
    """Refuse a request with an instance profile that EC2 does not know, or that has no role."""
    for kind in ("name", "arn"):
        wanted = response._get_param(f"IamInstanceProfile.{kind.capitalize()}")
        profile: Any = None
        if wanted:
            with contextlib.suppress(ServiceException, HTTPException):
                profile = filter_iam_instance_profiles(
                    response.current_account,
                    partition=response.partition,
                    iam_instance_profile_arn=wanted if kind == "arn" else None,
                    iam_instance_profile_name=wanted if kind == "name" else None,
                )
        known_at = utcnow() - timedelta(seconds=KNOWN_AFTER_S)
        if wanted and not (profile and profile.create_date <= known_at):
            form = "ARN" if kind == "arn" else "name"
            raise refuse("profile", wanted, kind, form)
        if profile and not profile.roles:
            raise refuse("no-roles", profile.arn)
