"""All that completes moto, noun by noun."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network

from clusterctl.lab.ec2 import (
    capacity_blocks,
    cloudformation,
    console,
    dependencies,
    filters,
    images,
    instance_types,
    instances,
    interfaces,
    network,
    objects,
    options,
    placement_groups,
    public_addresses,
    quotas,
    reservations,
    reserved_launches,
    run_instances,
    sessions,
    spot,
    tags,
    visibility,
    volumes,
)
from clusterctl.lab.ec2.capacity import CapacityRule
from clusterctl.lab.ec2.profiles import ProfileRule

# What is wrong with a request itself is said before what there is not enough of.
RULES = (
    options.OptionRule(),
    images.ArchitectureRule(),
    interfaces.InterfaceRule(),
    volumes.VolumeRule(),
    ProfileRule(),
    spot.SpotRule(),
    reserved_launches.ReservationRule(),
    placement_groups.PlacementRule(),
    quotas.QuotaRule(),
    CapacityRule(),
)


def installers(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> list[Callable[[], None]]:
    """One for each noun, in any order.

    `inside` is the network of the default VPCs, `public` that of public addresses; `read_console`
    gives what the host of an instance id has printed.
    """
    return [
        capacity_blocks.install,
        cloudformation.install,
        lambda: console.install(read_console),
        dependencies.install,
        filters.install,
        images.install,
        instance_types.install,
        instances.install,
        interfaces.install,
        lambda: network.install(inside),
        objects.install,
        options.install,
        placement_groups.install,
        lambda: public_addresses.install(public),
        quotas.install,
        reservations.install,
        reserved_launches.install,
        lambda: run_instances.install(inside, RULES),
        sessions.install,
        spot.install,
        tags.install,
        visibility.install,
        volumes.install,
    ]


def complete_moto(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> None:
    """Once per process, before the first request."""
    for install in installers(inside, public, read_console):
        install()
