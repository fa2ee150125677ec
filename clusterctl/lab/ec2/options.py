"""Options of a launch with few values, of which moto takes any; processors; instance profiles.

moto answers with IAM's error where there is no such profile, and gives it to the first instance
of a launch only.
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
        # moto associates the first one itself.
        if (name or arn) and instance.ami_launch_index:
            launch.backend.associate_iam_instance_profile(
                instance_id=instance.id,
                iam_instance_profile_name=name,
                iam_instance_profile_arn=arn,
            )


def install() -> None:
    modify = EC2Response.modify_instance_attribute

    def modify_instance_attribute(response: Any) -> ActionResult:
        """moto takes a change of what a power-off does for one of the security groups: to none."""
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
