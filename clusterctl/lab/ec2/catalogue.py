"""The catalogue and the rules of launches, in the order in which they have to be installed."""

from __future__ import annotations

from clusterctl.lab.ec2 import (
    capacity_blocks,
    filter_values,
    images,
    interfaces,
    launch,
    options,
    placement_groups,
    profiles,
    quotas,
    reservations,
    reserved_launches,
    spot,
    ssm_images,
    volumes,
)


def install() -> None:
    """Before `moto_run_instances`, whose client tokens and capacity are around the rules.

    What is wrong with a request itself is said before what there is not enough of.
    """
    filter_values.install()
    launch.install()
    options.install()
    images.install()
    ssm_images.install()
    interfaces.install()
    volumes.install()
    profiles.install()
    spot.install()
    reservations.install()
    reserved_launches.install()
    capacity_blocks.install()
    placement_groups.install()
    quotas.install()
