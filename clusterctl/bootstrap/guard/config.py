"""What the guards of a cluster are told, from what its owner asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.bootstrap.trust import NodeIdentity
from clusterctl.domain.spec import Limits
from clusterctl.node.guard.settings import GuardSettings, Worker

__all__ = ["GuardSettings", "Worker", "first_settings", "joined_settings", "lifetime_s"]


def lifetime_s(limits: Limits, hourly_usd: float | None) -> float | None:
    """For how long new machines may run in all, from `max_hours` and `budget_usd`; None: no end.

    `hourly_usd` is the whole cluster's. A budget without a price sets no time: the caller says
    so.
    """
    times = []
    if limits.max_hours is not None:
        times.append(limits.max_hours * 3600)
    if limits.budget_usd is not None and hourly_usd:
        times.append(limits.budget_usd / hourly_usd * 3600)
    return min(times) if times else None


def first_settings(
    cluster: str,
    limits: Limits,
    hourly_usd: float | None = None,
    spot: bool = False,
    at_power_off: str = "",
) -> GuardSettings:
    """For the user data, which is the same for all nodes and knows no addresses yet."""
    return GuardSettings(
        cluster,
        lifetime_s=lifetime_s(limits, hourly_usd),
        idle_s=None if limits.idle_minutes is None else limits.idle_minutes * 60,
        spot=spot,
        at_power_off=at_power_off,
    )


def joined_settings(
    first: GuardSettings,
    index: int,
    user: str,
    members: Sequence[NodeIdentity],
    ends_at: float | None = None,
) -> GuardSettings:
    """For a node that is part of its cluster. `members` as `prepare` has them, the head first.

    `ends_at` replaces the lifetime: the moment (Unix time) at which the whole cluster ends.
    """
    workers = tuple(Worker(member.name, member.private_ip) for member in members[1:])
    return GuardSettings(
        first.cluster,
        index=index,
        lifetime_s=None if ends_at is not None else first.lifetime_s,
        ends_at=ends_at,
        idle_s=first.idle_s,
        spot=first.spot,
        at_power_off=first.at_power_off,
        user=user,
        workers=workers if index == 0 else (),
    )
