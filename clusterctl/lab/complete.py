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
    completion,
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
from clusterctl.lab.ec2.completion import LAB
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts import images, instances, vpcs

# Checked in this order: a request that is wrong in itself is refused for that before it is refused
# for a quota or for missing capacity.
RULES = (
    vpcs.HostRule(),
    options.OptionRule(),
    images.ArchitectureRule(),
    interfaces.InterfaceRule(),
    volumes.VolumeRule(),
    local_zones.LocalZoneRule(),
    options.ProfileRule(),
    spot.SpotRule(),
    reservations.ReservationRule(),
    placement_groups.PlacementRule(),
    quotas.QuotaRule(),
    capacity.CapacityRule(),
)
# One for each subject, installed in any order. `app` installs CloudFormation's when the first
# request comes.
MODULES: tuple[Any, ...] = (
    *(capacity, capacity_blocks, descriptions, filters, images, instance_types, instances),
    *(interfaces, late, local_zones, metrics, network, objects, options, placement_groups),
    *(public_addresses, quotas, reservations, run_instances, sessions, speed, spot, volumes, vpcs),
)


def complete_moto(
    inside: IPv4Network, public: IPv4Network, read_console: Callable[[str], str]
) -> None:
    """Complete moto. Call this once per process, before the first request.

    `inside` is the network of the default VPCs, `public` that of public addresses. `read_console`
    returns what an instance's host has printed, given the instance's id.
    """
    # moto reads these: the lab has its own images, and no account may use another one's buckets.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
    os.environ["MOTO_S3_ALLOW_CROSSACCOUNT_ACCESS"] = "false"
    for module in MODULES:
        completion.install(module)
    run_instances.RULES[:] = RULES
    LAB.capacity_left, LAB.quota, LAB.lag_s = FAULTS.capacity_left, FAULTS.quota, FAULTS.lag_s
    LAB.reordered, LAB.same_index = lambda: FAULTS.reordered, lambda: FAULTS.same_index
    LAB.read_console, LAB.inside = read_console, inside
    LAB.address_changed = instances.LabInstance.changed.set
    LAB.addresses.extend(str(address) for address in public.hosts())
