"""Options of launches: those with a fixed set of values, processors, and instance profiles.

moto takes any value for such an option. For an unknown instance profile it answers with IAM's error
instead of EC2's, and it gives a profile to the first instance of a launch only.
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_iam_instance_profiles
from werkzeug.exceptions import HTTPException

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.launch import PendingLaunch, Request, Rule, refuse

# Option -> the values that EC2 takes.
VALUES = {
    "InstanceInitiatedShutdownBehavior": ("stop", "terminate"),
    "MetadataOptions.HttpTokens": ("optional", "required"),
    "MetadataOptions.HttpEndpoint": ("enabled", "disabled"),
    "MetadataOptions.HttpProtocolIpv6": ("enabled", "disabled"),
    "MetadataOptions.InstanceMetadataTags": ("enabled", "disabled"),
}
HOP_LIMIT = "MetadataOptions.HttpPutResponseHopLimit"
HOPS = (1, 64)


class OptionRule(Rule):
    """Options have values that EC2 takes. Instances show their type's processors."""

    def check_request(self, request: Request) -> None:
        for path, known in VALUES.items():
            value = request.get(path)
            if value is not None and value not in known:
                name = path.rpartition(".")[2]
                raise refuse("InvalidParameterValue", f"Invalid value '{value}' for {name}.")
        hops = request.get(HOP_LIMIT)
        least, most = HOPS
        if hops is not None and not least <= int(hops) <= most:
            raise refuse(
                "InvalidParameterValue",
                f"Value ({hops}) for parameter HttpPutResponseHopLimit is invalid. "
                f"It must be between {least} and {most}.",
            )

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        info = launch.request.type_info.get("VCpuInfo", {})
        cores, asked = info.get("DefaultCores"), launch.request.get("CpuOptions") or {}
        if cores:
            instance.cpu_options = {
                "CoreCount": asked.get("CoreCount") or cores,
                "ThreadsPerCore": asked.get("ThreadsPerCore")
                or info.get("DefaultThreadsPerCore", 1),
            }


class ProfileRule(Rule):
    """The instance profile exists, and every instance gets it."""

    def check_request(self, request: Request) -> None:
        for kind in ("name", "arn"):
            wanted = request.get(f"IamInstanceProfile.{kind.capitalize()}")
            if wanted and not _exists(request, kind, wanted):
                said = "ARN" if kind == "arn" else "name"
                raise refuse(
                    "InvalidParameterValue",
                    f"Value ({wanted}) for parameter iamInstanceProfile.{kind} is invalid. "
                    f"Invalid IAM Instance Profile {said}",
                )

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        name, arn = (launch.request.get(f"IamInstanceProfile.{key}") for key in ("Name", "Arn"))
        # moto itself associates the profile with the first instance.
        if (name or arn) and instance.ami_launch_index:
            launch.backend.associate_iam_instance_profile(
                instance_id=instance.id,
                iam_instance_profile_name=name,
                iam_instance_profile_arn=arn,
            )


def install() -> None:
    """Make InstanceInitiatedShutdownBehavior an attribute that can be changed."""
    modify = EC2Response.modify_instance_attribute

    def modify_instance_attribute(response: Any) -> ActionResult:
        """Change what a power-off does. moto removes the instance's security groups instead."""
        name = "InstanceInitiatedShutdownBehavior"
        value = response._get_param(f"{name}.Value")
        if value is None:
            return modify(response)
        if value not in VALUES[name]:
            raise refuse("InvalidParameterValue", f"Invalid value '{value}' for {name}.")
        response.error_on_dryrun()
        instance = response.ec2_backend.get_instance(response._get_param("InstanceId"))
        instance.instance_initiated_shutdown_behavior = value
        return EmptyResult()

    override(EC2Response, modify_instance_attribute)


def _exists(request: Request, kind: str, wanted: str) -> bool:
    response = request.response
    try:
        filter_iam_instance_profiles(
            response.current_account,
            partition=response.partition,
            iam_instance_profile_arn=wanted if kind == "arn" else None,
            iam_instance_profile_name=wanted if kind == "name" else None,
        )
    except (ServiceException, HTTPException):
        return False
    return True
