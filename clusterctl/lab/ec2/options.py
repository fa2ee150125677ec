"""Options of a launch with few values, of which moto takes any; the processors of an instance."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.responses import EC2Response

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.launch import LabLaunch, Request, Rule, refuse

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

    def mark(self, launch: LabLaunch, instance: Any) -> None:
        info = launch.request.type_info.get("VCpuInfo", {})
        cores, asked = info.get("DefaultCores"), launch.request.get("CpuOptions") or {}
        if cores:
            instance.cpu_options = {
                "CoreCount": asked.get("CoreCount") or cores,
                "ThreadsPerCore": asked.get("ThreadsPerCore")
                or info.get("DefaultThreadsPerCore", 1),
            }


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
