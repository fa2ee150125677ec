"""Public addresses: those that instances get when they are launched, and elastic ones."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.utils import random_eip_association_id

from clusterctl.lab.ec2 import local_zones
from clusterctl.lab.ec2.completion import LAB, around, override
from clusterctl.lab.ec2.launch import refuse
from clusterctl.lab.ec2.quotas import ELASTIC, value_of

# States in which an instance can be associated with an elastic address.
ADDRESSABLE = ("running", "stopping", "stopped")


@override(NetworkInterface)
def check_auto_public_ip(nic: Any) -> None:
    """Give the interface an address if it is to have one.

    moto also calls this when it makes an interface. That is too early: it has no instance yet.
    """
    if not nic.instance or nic.public_ip or nic.device_index or len(nic.instance.nics) > 1:
        return  # EC2 gives none to an instance with several interfaces
    if str(nic.public_ip_auto_assign).lower() == "true":
        nic.public_ip = _take()
        LAB.address_changed()


@override(NetworkInterface)
def stop(nic: Any) -> None:
    """Remove the address. An elastic address stays with a stopped instance."""
    if nic.public_ip and _elastic_of(nic) is None:
        LAB.addresses.append(nic.public_ip)
        nic.public_ip = None


@around(EC2Backend)
def allocate_address(
    allocate: Any, backend: Any, domain: str, address: str | None = None, tags: Any = None
) -> Any:
    if address:
        raise refuse("address", address)
    if len(backend.addresses) >= value_of(ELASTIC):
        raise refuse("addresses-quota")
    return allocate(backend, "vpc", address=_take(), tags=tags)


@around(EC2Backend)
def release_address(
    release: Any, backend: Any, address: str | None = None, allocation_id: str | None = None
) -> None:
    elastic = _find(backend, address, allocation_id)
    if elastic.association_id:
        raise refuse("address-in-use", elastic.public_ip)
    release(backend, allocation_id=elastic.allocation_id)
    LAB.addresses.append(elastic.public_ip)


@override(EC2Backend)
def associate_address(
    backend: Any,
    instance: Any = None,
    eni: Any = None,
    address: str | None = None,
    allocation_id: str | None = None,
    reassociate: bool = False,
) -> Any:
    elastic = _find(backend, address, allocation_id)
    if instance and not eni and len(instance.nics) > 1:
        raise refuse("several-interfaces", instance.id)
    nic = eni or instance.nics[0]
    if nic.instance and nic.instance.state not in ADDRESSABLE:
        raise refuse("not-addressable", nic.instance.state, nic.instance.id)
    vpc_id, gateways = nic.subnet.vpc_id, list(backend.internet_gateways.values())
    if not any(one.vpc and one.vpc.id == vpc_id for one in gateways):
        raise refuse("no-gateway", vpc_id)
    local_zones.check_group(elastic, nic)
    if elastic.eni is nic:
        return elastic
    for there, name in ((elastic, elastic.allocation_id), (_elastic_of(nic), nic.id)):
        if there and there.association_id and not reassociate:
            raise refuse("associated", name, there.association_id)
    if elastic.association_id:
        _disassociate(elastic)
    if _elastic_of(nic):
        _disassociate(_elastic_of(nic), for_another=True)
    nic.stop()  # gives its own address back
    nic.public_ip = elastic.public_ip
    elastic.eni, elastic.instance = nic, nic.instance
    elastic.association_id = random_eip_association_id()
    LAB.address_changed()
    return elastic


@override(EC2Backend)
def disassociate_address(
    backend: Any, address: str | None = None, association_id: str | None = None
) -> None:
    if association_id:
        elastic = backend.address_by_association([association_id])[0]
    else:
        elastic = _find(backend, address, None)
    _disassociate(elastic)
    LAB.address_changed()


def update(instance: Any) -> None:
    """Give the instance its public address, or remove it, as its state requires."""
    primary = instance.nics[0]
    if instance.state in ("pending", "running"):
        primary.check_auto_public_ip()
    elif instance.state in ("stopping", "stopped"):
        primary.stop()


def forget(instance: Any) -> None:
    """Disassociate the elastic addresses of an instance that is about to be terminated."""
    for nic in instance.nics.values():
        if _elastic_of(nic):
            _disassociate(_elastic_of(nic))


def _disassociate(elastic: Any, for_another: bool = False) -> None:
    """End an association. A running instance that launched with its own address gets a new one.

    `for_another`: the instance is about to get another elastic address instead.
    """
    nic = elastic.eni
    elastic.eni = elastic.instance = elastic.association_id = None
    if nic is None:
        return
    nic.public_ip = None
    if nic.instance and nic.instance.state == "running" and not for_another:
        nic.check_auto_public_ip()


def _find(backend: Any, address: str | None, allocation_id: str | None) -> Any:
    """Return an elastic address by its allocation id or by itself. Raise EC2ClientError."""
    for elastic in backend.addresses:
        if allocation_id and elastic.allocation_id == allocation_id:
            return elastic
        if address and elastic.public_ip == address:
            return elastic
    if allocation_id:
        raise refuse("allocation", allocation_id)
    raise refuse("address", address)


def _elastic_of(nic: Any) -> Any:
    found = [one for one in nic.ec2_backend.addresses if one.eni is nic]
    return found[0] if found else None


def _take() -> str:
    if not LAB.addresses:
        raise refuse("no-free-address")
    return LAB.addresses.popleft()
