"""The network interfaces of a launch: where EFA goes, and who gets a public address. Pure.

Layout: AWS's guide "Maximize network bandwidth on EC2 instances with multiple network cards"
(efa-acc-inst-types): an ordinary primary interface, and one EFA-only interface on every card.
EFA-only interfaces take no IP address.
"""

from __future__ import annotations

from typing import Any

from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.machines import MachineType


def efa_wanted(machine: MachineType, nodes: int, asked: bool | None) -> bool:
    """EFA serves traffic between nodes: a single one has no use for it."""
    if asked is None:
        return machine.efa_interfaces > 0 and nodes > 1
    return asked and machine.efa_interfaces > 0


def efa_cards(machine: MachineType) -> tuple[int, ...]:
    """The network cards that get an EFA.

    Where EC2 does not say which take one: with one fewer than cards, card 0 has none (p6-b300).
    """
    cards = machine.efa_cards or tuple(range(machine.network_cards))
    if not machine.efa_cards and machine.efa_interfaces == machine.network_cards - 1:
        cards = cards[1:]
    return cards[: machine.efa_interfaces]


def layout(
    machine: MachineType, efa: bool, subnet_id: str | None, group_id: Any, public: bool
) -> list[dict[str, Any]]:
    """NetworkInterfaces of RunInstances. A public address is asked for on a lone interface only.

    EC2 refuses AssociatePublicIpAddress beside a second interface, even as False.
    """
    common: dict[str, Any] = {"Groups": [group_id], "DeleteOnTermination": True}
    if subnet_id:
        common["SubnetId"] = subnet_id
    cards = efa_cards(machine) if efa else ()
    primary = {"DeviceIndex": 0, **common}
    if len(cards) > 1 or (cards and 0 not in cards):
        more = [card for card in cards if card or _takes_two(machine)]
        if 0 in cards and 0 not in more:
            primary["InterfaceType"] = "efa"
        return [{**primary, "NetworkCardIndex": 0}, *(_efa_only(card, common) for card in more)]
    if cards:
        primary["InterfaceType"] = "efa"
    return [{**primary, "AssociatePublicIpAddress": public}]


def several(machine: MachineType, efa: bool) -> bool:
    """Whether nodes have more than one interface, and so no public address of their own."""
    return len(layout(machine, efa, None, "", public=False)) > 1


def interfaces_needed(machine: MachineType, nodes: int, spec: ClusterSpec) -> int:
    """How many so many more nodes of a cluster take of the region's network interfaces."""
    efa = efa_wanted(machine, spec.nodes, spec.efa)
    return nodes * len(layout(machine, efa, None, "", public=False))


def _takes_two(machine: MachineType) -> bool:
    return not machine.card_interfaces or machine.card_interfaces[0] > 1


def _efa_only(card: int, common: dict[str, Any]) -> dict[str, Any]:
    # The primary interface is device 0 of card 0.
    return {
        "DeviceIndex": 0 if card else 1,
        "NetworkCardIndex": card,
        "InterfaceType": "efa-only",
        **common,
    }
