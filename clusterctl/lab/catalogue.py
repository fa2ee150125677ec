"""The catalogue and the rules of launches, in the order in which they have to be installed."""

from __future__ import annotations

from clusterctl.lab import (
    moto_capacity_blocks,
    moto_filter_values,
    moto_images,
    moto_interfaces,
    moto_launch,
    moto_options,
    moto_placement_groups,
    moto_profiles,
    moto_quotas,
    moto_reservations,
    moto_reserved_launches,
    moto_spot,
    moto_ssm_images,
    moto_volumes,
)


def install() -> None:
    """Before `moto_run_instances`, whose client tokens and capacity are around the rules.

    What is wrong with a request itself is said before what there is not enough of.
    """
    moto_filter_values.install()
    moto_launch.install()
    moto_options.install()
    moto_images.install()
    moto_ssm_images.install()
    moto_interfaces.install()
    moto_volumes.install()
    moto_profiles.install()
    moto_spot.install()
    moto_reservations.install()
    moto_reserved_launches.install()
    moto_capacity_blocks.install()
    moto_placement_groups.install()
    moto_quotas.install()
