"""What becomes of a thing with our tags, and by what rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from clusterctl.ec2.gc.resources import Kind, Resource

# A launch makes its key and group minutes before its instances; deadlines have their delays too.
YOUNG = timedelta(minutes=15)

# Region and name: one name in two regions is two clusters.
ClusterId = tuple[str, str]
ThingId = tuple[str, Kind, str]


class Verdict(Enum):
    """ORPHAN goes. KEPT is shown and stays. IN_USE is as it should be."""

    ORPHAN = "orphan"
    KEPT = "kept"
    IN_USE = "in use"


@dataclass(frozen=True)
class Rules:
    """By what to judge. `here` are the clusters with a folder on this machine, `busy` those among
    them on which a command is at work, `unsettled` those whose launch has an unknown outcome.
    `blind` are kinds that could not be looked at in a region. `alone_since` is since when things
    have been seen that have no date and no use; None takes all of them for old. `cluster` limits
    everything to that name and spares nothing of it; `older_than_s` also condemns instances that
    are up, whoever's; `networks` unused ones.
    """

    now: datetime
    here: frozenset[ClusterId] = frozenset()
    busy: frozenset[ClusterId] = frozenset()
    unsettled: frozenset[ClusterId] = frozenset()
    blind: frozenset[tuple[str, Kind]] = frozenset()
    alone_since: Mapping[ThingId, datetime] | None = None
    cluster: str | None = None
    older_than_s: float | None = None
    networks: bool = False


@dataclass(frozen=True)
class Judged:
    """One thing, what is to become of it, and why."""

    resource: Resource
    verdict: Verdict
    why: str


def thing_id(one: Resource) -> ThingId:
    return one.region, one.kind, one.id


def age_s(one: Resource, now: datetime) -> float | None:
    """None where EC2 does not say."""
    return (now - one.made_at).total_seconds() if one.made_at else None
