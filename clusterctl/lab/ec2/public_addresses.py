"""Public addresses: those that an instance gets with its subnet, and elastic ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.utils import random_eip_association_id

from clusterctl.lab.ec2.completion import override
from clusterctl.lab.ec2.quotas import ELASTIC, value_of

ADDRESSABLE = ("running", "stopping", "stopped")


class Pool:
    """The addresses of a network, each for one at a time. One given back comes again last."""

    def __init__(self, network: IPv4Network) -> None:
        self._free = deque(str(address) for address in network.hosts())

    def take(self) -> str:
        """Raises LookupError when there is none."""
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        self._free.append(address)


def install(public: IPv4Network, changed: Callable[[], None] = lambda: None) -> None:
    """Addresses are of `public`; `changed` is called when an instance has another one."""
    pool = Pool(public)
    allocate = EC2Backend.allocate_address
    release = EC2Backend.release_address

    def check_auto_public_ip(nic: Any) -> None:
        """moto asks when it makes an interface, too: an instance gets its address later."""
        if nic.instance and not nic.public_ip and _is_auto(nic):
            nic.public_ip = _take(pool)
            changed()

    def stop(nic: Any) -> None:
        """An elastic address stays with a stopped instance."""
        if nic.public_ip and _elastic_of(nic) is None:
            pool.give_back(nic.public_ip)
            nic.public_ip = None

    def allocate_address(
        backend: Any, domain: str, address: str | None = None, tags: Any = None
    ) -> Any:
        if address:
            raise EC2ClientError("InvalidAddress.NotFound", f"Address {address} not found.")
        if len(backend.addresses) >= value_of(ELASTIC):
            raise EC2ClientError(
                "AddressLimitExceeded", "The maximum number of addresses has been reached."
            )
        return allocate(backend, "vpc", address=_take(pool), tags=tags)

    def release_address(
        backend: Any, address: str | None = None, allocation_id: str | None = None
    ) -> None:
        elastic = _find(backend, address, allocation_id)
        if elastic.association_id:
            raise EC2ClientError(
                "InvalidIPAddress.InUse", f"Address {elastic.public_ip} is in use."
            )
        release(backend, allocation_id=elastic.allocation_id)
        pool.give_back(elastic.public_ip)

    def associate_address(
        backend: Any,
        instance: Any = None,
        eni: Any = None,
        address: str | None = None,
        allocation_id: str | None = None,
        reassociate: bool = False,
    ) -> Any:
        elastic = _find(backend, address, allocation_id)
        nic = eni or _only_interface(instance)
        _check_addressable(nic.instance)
        if elastic.eni is nic:
            return elastic
        for there, name in ((elastic, elastic.allocation_id), (_elastic_of(nic), nic.id)):
            if there and there.association_id and not reassociate:
                raise EC2ClientError(
                    "Resource.AlreadyAssociated",
                    f"resource {name} is already associated with associate-id "
                    f"{there.association_id}",
                )
        if elastic.association_id:
            _part(elastic)
        if _elastic_of(nic):
            _part(_elastic_of(nic), for_another=True)
        nic.stop()  # its own address is another's from now on
        nic.public_ip = elastic.public_ip
        elastic.eni, elastic.instance = nic, nic.instance
        elastic.association_id = random_eip_association_id()
        changed()
        return elastic

    def disassociate_address(
        backend: Any, address: str | None = None, association_id: str | None = None
    ) -> None:
        if association_id:
            elastic = backend.address_by_association([association_id])[0]
        else:
            elastic = _find(backend, address, None)
        _part(elastic)
        changed()

    # moto shows an empty one where there is none.
    shown = vars(NetworkInterface)["association"].fget
    association = property(lambda nic: shown(nic) or None)
    NetworkInterface.association = association  # type: ignore[assignment,method-assign]
    override(NetworkInterface, check_auto_public_ip)
    override(NetworkInterface, stop)
    for method in (allocate_address, release_address, associate_address, disassociate_address):
        override(EC2Backend, method)


def settle(instance: Any) -> None:
    """Give the instance the public address that its state asks for, or take it away."""
    primary = instance.nics[0]
    if instance.state in ("pending", "running"):
        primary.check_auto_public_ip()
    elif instance.state in ("stopping", "stopped"):
        primary.stop()


def forget(instance: Any) -> None:
    """Before an instance is terminated: its elastic addresses are its owner's again."""
    for nic in instance.nics.values():
        if _elastic_of(nic):
            _part(_elastic_of(nic))


def _part(elastic: Any, for_another: bool = False) -> None:
    """End an association. A running instance that had an address of its own gets one again."""
    nic = elastic.eni
    elastic.eni = elastic.instance = elastic.association_id = None
    if nic is None:
        return
    nic.public_ip = None
    if nic.instance and nic.instance.state == "running" and not for_another:
        nic.check_auto_public_ip()


def _find(backend: Any, address: str | None, allocation_id: str | None) -> Any:
    for elastic in backend.addresses:
        if allocation_id and elastic.allocation_id == allocation_id:
            return elastic
        if address and elastic.public_ip == address:
            return elastic
    if allocation_id:
        raise EC2ClientError(
            "InvalidAllocationID.NotFound", f"The allocation ID '{allocation_id}' does not exist"
        )
    raise EC2ClientError("InvalidAddress.NotFound", f"Address {address} not found.")


def _only_interface(instance: Any) -> Any:
    if len(instance.nics) > 1:
        raise EC2ClientError(
            "InvalidInstanceID",
            f"There are multiple interfaces attached to instance '{instance.id}'. "
            "Please specify an interface ID for the operation instead.",
        )
    return instance.nics[0]


def _check_addressable(instance: Any) -> None:
    if instance and instance.state not in ADDRESSABLE:
        raise EC2ClientError(
            "InvalidInstanceID",
            f"The {instance.state} instance '{instance.id}' is not in a valid state for this "
            "operation.",
        )


def _elastic_of(nic: Any) -> Any:
    found = [one for one in nic.ec2_backend.addresses if one.eni is nic]
    return found[0] if found else None


def _is_auto(nic: Any) -> bool:
    """With several interfaces EC2 gives none."""
    wanted = str(nic.public_ip_auto_assign).lower() == "true"
    return wanted and nic.device_index == 0 and len(nic.instance.nics) == 1


def _take(pool: Pool) -> str:
    try:
        return pool.take()
    except LookupError:
        raise EC2ClientError(
            "InsufficientAddressCapacity", "Not enough available addresses to satisfy the request."
        ) from None
