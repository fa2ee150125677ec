"""Installs everything that completes moto, and connects it with the lab's hosts and faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

from clusterctl.lab import sessions
from clusterctl.lab.ec2 import (
    capacity,
    capacity_blocks,
    descriptions,
    filters,
    instance_types,
    interfaces,
    late,
    local_zones,
    metrics,
    network,
    objects,
    options,
    placement_groups,
    public_addresses,
    quotas,
    reservations,
    run_instances,
    speed,
    spot,
    volumes,
)
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts import images, instances, vpcs

# Checked in this order: a request that is wrong in itself is refused for that before it is refused
# for a quota or for missing capacity.
RULES = (
    options.OptionRule(),
    images.ArchitectureRule(),
    interfaces.InterfaceRule(),
    volumes.VolumeRule(),
    local_zones.LocalZoneRule(),
    options.ProfileRule(),
    spot.SpotRule(lambda: FAULTS.same_index),
    reservations.ReservationRule(),
    placement_groups.PlacementRule(),
    quotas.QuotaRule(),
    capacity.CapacityRule(),
)


def installers(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> list[Callable[[], None]]:
    """Return the functions that complete moto, one for each subject. Their order does not matter.

    CloudFormation's is called by `app`, when the first request comes.
    `inside` is the network of the default VPCs, `public` that of public addresses. `read_console`
    returns what an instance's host has printed, given the instance's id.
    """
    plain: tuple[Any, ...] = (
        *(capacity_blocks, descriptions, filters, images, instance_types, interfaces, local_zones),
        *(metrics, network, objects, options, placement_groups, reservations, sessions, speed),
        *(spot, volumes),
    )
    return [
        *(module.install for module in plain),
        lambda: capacity.install(FAULTS.capacity_left),
        lambda: instances.install(read_console),
        lambda: late.install(FAULTS.lag_s, lambda: FAULTS.reordered),
        lambda: public_addresses.install(public, instances.LabInstance.changed.set),
        lambda: quotas.install(FAULTS.quota),
        lambda: run_instances.install((vpcs.HostRule(inside), *RULES)),
        lambda: vpcs.install(inside),
    ]


def complete_moto(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> None:
    """Complete moto. Call this once per process, before the first request."""
    # moto reads these: the lab has its own images, and no account may use another one's buckets.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
    os.environ["MOTO_S3_ALLOW_CROSSACCOUNT_ACCESS"] = "false"
    for install in installers(inside, public, read_console):
        install()
