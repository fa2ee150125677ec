"""Which network interfaces an instance type takes: decided from what is asked and what it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INTERFACE, EFA, EFA_ONLY = "interface", "efa", "efa-only"
KINDS = (INTERFACE, EFA, EFA_ONLY)


@dataclass(frozen=True)
class Wish:
    """One interface that a launch asks for; `asked` is the request's own entry."""

    asked: Any
    card: int
    device: int
    kind: str

    @property
    def primary(self) -> bool:
        return (self.card, self.device) == (0, 0)

    @property
    def fabric(self) -> bool:
        return self.kind in (EFA, EFA_ONLY)

    @property
    def takes_address(self) -> bool:
        return self.kind != EFA_ONLY and not self.asked.get("NetworkInterfaceId")


@dataclass(frozen=True)
class Refusal:
    code: str
    message: str


def read_wishes(asked: Sequence[Mapping[str, Any]]) -> list[Wish]:
    return [
        Wish(
            one,
            int(one.get("NetworkCardIndex") or 0),
            int(one.get("DeviceIndex") or 0),
            str(one.get("InterfaceType") or INTERFACE),
        )
        for one in asked
    ]


def check_layout(
    wishes: Sequence[Wish], instance_type: str, info: Mapping[str, Any]
) -> Refusal | None:
    """The first of EC2's rules that they break; `info` as DescribeInstanceTypes has it."""
    return (
        _check_each(wishes)
        or _check_together(wishes)
        or (_check_cards(wishes, instance_type, info["NetworkInfo"]) if info else None)
        or (_check_fabric(wishes, instance_type, info["NetworkInfo"]) if info else None)
    )


def _check_each(wishes: Sequence[Wish]) -> Refusal | None:
    for wish in wishes:
        if wish.kind not in KINDS:
            return Refusal(
                "InvalidParameterValue", f"Invalid value '{wish.kind}' for InterfaceType."
            )
        if wish.primary and wish.kind == EFA_ONLY:
            return Refusal(
                "InvalidParameterCombination",
                "The primary network interface cannot be an EFA-only network interface.",
            )
    return None


def _check_together(wishes: Sequence[Wish]) -> Refusal | None:
    if not any(wish.primary for wish in wishes):
        return Refusal(
            "InvalidParameterCombination",
            "When specifying network interfaces, you must include a device at index 0.",
        )
    if len({(wish.card, wish.device) for wish in wishes}) < len(wishes):
        return Refusal(
            "InvalidParameterValue", "Each network interface requires a unique device index."
        )
    if len(wishes) > 1 and any(wish.asked.get("AssociatePublicIpAddress") for wish in wishes):
        return Refusal(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with "
            "multiple network interfaces.",
        )
    return None


def _check_cards(
    wishes: Sequence[Wish], instance_type: str, network: Mapping[str, Any]
) -> Refusal | None:
    room = {
        card["NetworkCardIndex"]: card["MaximumNetworkInterfaces"]
        for card in network["NetworkCards"]
    }
    for card, count in sorted(Counter(wish.card for wish in wishes).items()):
        if card not in room:
            return Refusal(
                "InvalidParameterValue",
                f"Value ({card}) for parameter networkCardIndex is invalid. {instance_type} has "
                f"{len(room)} network cards.",
            )
        if count > room[card]:
            return Refusal(
                "AttachmentLimitExceeded",
                f"Interface count {count} exceeds the limit for {instance_type}",
            )
    return None


def _check_fabric(
    wishes: Sequence[Wish], instance_type: str, network: Mapping[str, Any]
) -> Refusal | None:
    fabric = [wish for wish in wishes if wish.fabric]
    if fabric and not network.get("EfaSupported"):
        return Refusal(
            "InvalidParameterCombination",
            f"{instance_type} instances do not support Elastic Fabric Adapters.",
        )
    kinds = {
        card["NetworkCardIndex"]: card.get("InterfaceTypes", KINDS)
        for card in network["NetworkCards"]
    }
    for wish in fabric:
        if wish.kind not in kinds[wish.card]:
            return Refusal(
                "InvalidParameterCombination",
                f"Network card {wish.card} of {instance_type} does not support the interface type "
                f"'{wish.kind}'.",
            )
    if any(count > 1 for count in Counter(wish.card for wish in fabric).values()):
        return Refusal(
            "InvalidParameterCombination",
            "Only one Elastic Fabric Adapter can be attached to a network card.",
        )
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if len(fabric) > most:
        return Refusal(
            "AttachmentLimitExceeded",
            f"EFA interface count {len(fabric)} exceeds the limit for {instance_type}",
        )
    return None
