"""What completes moto, noun by noun, and how it is tied to the lab's hosts and faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import IPv4Network

from clusterctl.lab import sessions
from clusterctl.lab.ec2 import (
    capacity,
    capacity_blocks,
    cloudformation,
    filters,
    instance_types,
    interfaces,
    metrics,
    network,
    objects,
    options,
    placement_groups,
    public_addresses,
    quotas,
    reservations,
    run_instances,
    spot,
    volumes,
)
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts import images, instances, vpcs

# What moto knows of other services runs things on this machine.
SERVED = ("AWS::EC2::", "AWS::S3::", "AWS::IAM::", "AWS::SSM::")
# What is wrong with a request itself is said before what there is not enough of.
RULES = (
    options.OptionRule(),
    images.ArchitectureRule(),
    interfaces.InterfaceRule(),
    volumes.VolumeRule(),
    options.ProfileRule(),
    spot.SpotRule(),
    reservations.ReservationRule(),
    placement_groups.PlacementRule(),
    quotas.QuotaRule(),
    capacity.CapacityRule(),
)


def installers(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> list[Callable[[], None]]:
    """One for each noun, in any order.

    `inside` is the network of the default VPCs, `public` that of public addresses; `read_console`
    gives what the host of an instance id has printed.
    """
    return [
        lambda: capacity.install(FAULTS.capacity_left),
        capacity_blocks.install,
        lambda: cloudformation.install(SERVED),
        filters.install,
        images.install,
        instance_types.install,
        lambda: instances.install(read_console),
        interfaces.install,
        metrics.install,
        network.install,
        objects.install,
        options.install,
        placement_groups.install,
        lambda: public_addresses.install(public, instances.LabInstance.changed.set),
        lambda: quotas.install(FAULTS.quota),
        reservations.install,
        lambda: run_instances.install((vpcs.HostRule(inside), *RULES)),
        sessions.install,
        spot.install,
        volumes.install,
        lambda: vpcs.install(inside),
    ]


def complete_moto(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> None:
    """Once per process, before the first request."""
    # Read by moto. The lab has its own images, and an account's buckets are closed to the others.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    os.environ["MOTO_S3_ALLOW_CROSSACCOUNT_ACCESS"] = "false"
    for install in installers(inside, public, read_console):
        install()
