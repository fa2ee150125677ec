"""Network interfaces of launches: network cards, EFA, and which options go together.

moto keeps an instance's interfaces by their device index only, so that one of two on different
cards is lost. It gives secondary interfaces addresses that the subnet does not count as used, and
it invents a security group if the named one does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_network_interfaces import Attachment, NetworkInterface
from moto.ec2.models.instances import Instance

from clusterctl.lab.ec2.completion import around, setup
from clusterctl.lab.ec2.launch import PendingLaunch, Request, Rule, current_request, refuse

# An interface's key in moto's table is its card * KEYS_PER_CARD + its device index, so the primary
# one keeps moto's key, 0. No card has as many device indices as this.
KEYS_PER_CARD = 256
INTERFACE, EFA, EFA_ONLY = "interface", "efa", "efa-only"
KINDS = (INTERFACE, EFA, EFA_ONLY)


@dataclass(frozen=True)
class RequestedInterface:
    """One network interface that a launch requests. `entry` is its entry in the request."""

    entry: Any
    card: int
    device: int
    kind: str

    @property
    def primary(self) -> bool:
        return (self.card, self.device) == (0, 0)

    @property
    def takes_address(self) -> bool:
        """Whether it gets an address from the subnet: no EFA-only or existing interface does."""
        return self.kind != EFA_ONLY and not self.entry.get("NetworkInterfaceId")


InterfaceRequests = Sequence[RequestedInterface]
# Number of a network card -> its description.
Cards = Mapping[int, Mapping[str, Any]]


def read_interfaces(entry: Sequence[Mapping[str, Any]]) -> InterfaceRequests:
    return [
        RequestedInterface(
            one,
            int(one.get("NetworkCardIndex") or 0),
            int(one.get("DeviceIndex") or 0),
            str(one.get("InterfaceType") or INTERFACE),
        )
        for one in entry
    ]


class InterfaceRule(Rule):
    """The requested interfaces fit together, the type, the subnets and their free addresses."""

    def check_request(self, request: Request) -> None:
        requests = read_interfaces(request.get("NetworkInterfaces", []))
        if not requests:
            return
        for name, what in (
            ("SubnetId", "subnet ID"),
            ("SecurityGroupIds", "security groups"),
            ("SecurityGroups", "security groups"),
            ("PrivateIpAddress", "private IP address"),
        ):
            if request.get(name):
                raise refuse("both-levels", what)
        check_layout(requests, request.instance_type, request.type_info)

    def check_launch(self, launch: PendingLaunch) -> None:
        requests = read_interfaces(launch.request.get("NetworkInterfaces", []))
        _check_networks(launch, requests)
        each = sum(one.takes_address for one in requests) if requests else 1
        if launch.count * each > launch.subnet.available_ip_address_count:
            raise refuse("no-addresses", launch.subnet.id)

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        for spec in launch.request.get("TagSpecifications", []):
            if spec.get("ResourceType") == "network-interface":
                tags = {tag["Key"]: tag["Value"] for tag in spec.get("Tags", [])}
                for nic in instance.nics.values():
                    nic.add_tags(tags)


@around(Instance)
def prep_nics(prepare: Any, instance: Any, nic_spec: list[Any], **others: Any) -> None:
    requests = read_interfaces(nic_spec if current_request() else [])
    if not requests:
        prepare(instance, nic_spec, **others)
        return
    primary = next(one for one in requests if one.primary)
    prepare(instance, [primary.entry], **others)
    instance.nics[0].interface_type = primary.kind
    for requested in requests:
        if requested is not primary:
            nic: Any = _existing_or_new(instance.ec2_backend, instance, requested)
            instance.attach_eni(nic, requested.card * KEYS_PER_CARD + requested.device)
            nic.device_index, nic.network_card_index = requested.device, requested.card
            nic.secondary = True


@around(Attachment, "__init__")
def init_attachment(attach: Any, attachment: Any, nic: Any) -> None:
    attach(attachment, nic)
    attachment.network_card_index = getattr(nic, "network_card_index", 0)


@around(Instance)
def terminate(end: Any, instance: Any) -> Any:
    """Free the interfaces that are not deleted with the instance for another attachment."""
    before = end(instance)
    for nic in instance.nics.values():
        if nic.id in instance.ec2_backend.enis:
            nic.instance = nic.attachment_id = nic.attach_time = None
            nic.status = "available"
    return before


@setup
def _show_own_groups() -> None:
    """Have an instance's security groups be those of its primary interface, unlike moto."""
    own = property(lambda nic: list(_groups_of_instance(nic) or nic._group_set))
    NetworkInterface.group_set = own  # type: ignore[method-assign,assignment]


@around(EC2Backend)
def modify_network_interface_attribute(
    change: Any, backend: Any, eni_id: str, group_ids: list[str], *more: Any, **named: Any
) -> None:
    groups = [backend.get_security_group_from_id(id) for id in group_ids]
    change(backend, eni_id, group_ids, *more, **named)
    nic = backend.enis[eni_id]
    if groups and _groups_of_instance(nic):
        nic.instance.security_groups = groups


def _groups_of_instance(nic: Any) -> list[Any]:
    attached = nic.instance and not getattr(nic, "secondary", False)
    return list(nic.instance.security_groups) if attached else []


def _existing_or_new(
    backend: Any, instance: Any, requested: RequestedInterface
) -> NetworkInterface:
    entry = requested.entry
    if entry.get("NetworkInterfaceId"):
        found: NetworkInterface = backend.get_network_interface(entry["NetworkInterfaceId"])
        return found
    subnet = backend.get_subnet(entry.get("SubnetId") or instance.subnet_id)
    made: NetworkInterface = backend.create_network_interface(
        subnet,
        subnet.get_available_subnet_ip(instance) if requested.takes_address else None,
        device_index=requested.device,
        group_ids=list(entry.get("Groups") or []),
        delete_on_termination=entry.get("DeleteOnTermination") is True,
        description=entry.get("Description"),
    )
    made.interface_type = requested.kind
    if not requested.takes_address:
        # moto gives an address to every interface.
        made.private_ip_address, made.private_ip_addresses = None, []
        made.private_dns_name = ""
    return made


def _check_networks(launch: PendingLaunch, requests: InterfaceRequests) -> None:
    """Check that interfaces are in the instance's zone, and groups in the VPC of their subnet."""
    named = launch.request.get("SecurityGroupIds", [])
    pairs = [(launch.subnet, id) for id in named]
    for requested in requests:
        subnet_id = requested.entry.get("SubnetId")
        subnet = launch.backend.get_subnet(subnet_id) if subnet_id else launch.subnet
        if subnet.availability_zone != launch.zone:
            raise refuse("zones-of-interfaces")
        pairs += [(subnet, id) for id in requested.entry.get("Groups") or []]
    for subnet, id in pairs:
        group = launch.backend.get_security_group_from_id(id)
        if group is not None and group.vpc_id != subnet.vpc_id:
            raise refuse("networks-differ", id, subnet.id)


def check_layout(requests: InterfaceRequests, instance_type: str, info: Mapping[str, Any]) -> None:
    """Raise EC2's error for the first of its rules that the interfaces break.

    `info` is the type's entry in DescribeInstanceTypes; empty for an unknown type.
    """
    for requested in requests:
        if requested.kind not in KINDS:
            raise refuse("value", requested.kind, "InterfaceType")
        if requested.primary and requested.kind == EFA_ONLY:
            raise refuse("efa-only-primary")
    if not any(requested.primary for requested in requests):
        raise refuse("no-primary")
    if len({(requested.card, requested.device) for requested in requests}) < len(requests):
        raise refuse("device-twice")
    if len(requests) > 1 and any(
        requested.entry.get("AssociatePublicIpAddress") for requested in requests
    ):
        raise refuse("public-with-several")
    if info:
        cards = {card["NetworkCardIndex"]: card for card in info["NetworkInfo"]["NetworkCards"]}
        for card, count in sorted(Counter(requested.card for requested in requests).items()):
            if card not in cards:
                raise refuse("card", card, instance_type, len(cards))
            if count > cards[card]["MaximumNetworkInterfaces"]:
                raise refuse("interface-count", count, instance_type)
        _check_fabric(requests, instance_type, info["NetworkInfo"], cards)


def _check_fabric(
    requests: InterfaceRequests, instance_type: str, network: Mapping[str, Any], cards: Cards
) -> None:
    fabric = [requested for requested in requests if requested.kind != INTERFACE]
    if fabric and not network.get("EfaSupported"):
        raise refuse("no-efa", instance_type)
    for requested in fabric:
        if requested.kind not in cards[requested.card].get("InterfaceTypes", KINDS):
            raise refuse("card-kind", requested.card, instance_type, requested.kind)
    if any(count > 1 for count in Counter(requested.card for requested in fabric).values()):
        raise refuse("efa-on-card")
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if len(fabric) > most:
        raise refuse("efa-count", len(fabric), instance_type)
