"""Options of a launch that take a few values only; moto takes any."""

from __future__ import annotations

from clusterctl.lab.moto_launch import Request, Rule, add_rule, refuse

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


def install() -> None:
    add_rule(OptionRule())
