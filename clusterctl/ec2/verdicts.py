"""What becomes of a thing with our tags, and by what rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from clusterctl.ec2.resources import Resource

# A launch makes its key and group minutes before its instances; deadlines have their delays too.
YOUNG = timedelta(minutes=15)

# Region and name: one name in two regions is two clusters.
ClusterId = tuple[str, str]


class Verdict(Enum):
    """ORPHAN goes. KEPT is shown and stays. IN_USE is as it should be."""

    ORPHAN = "orphan"
    KEPT = "kept"
    IN_USE = "in use"


@dataclass(frozen=True)
class Rules:
    """By what to judge. `here` are the clusters with a folder on this machine, `busy` those among
    them on which a command is at work. `cluster` limits everything to that name and spares nothing
    of it; `older_than_s` also condemns instances that are up, whoever's; `networks` unused ones.
    """

    now: datetime
    here: frozenset[ClusterId] = frozenset()
    busy: frozenset[ClusterId] = frozenset()
    cluster: str | None = None
    older_than_s: float | None = None
    networks: bool = False


@dataclass(frozen=True)
class Judged:
    """One thing, what is to become of it, and why."""

    resource: Resource
    verdict: Verdict
    why: str


def age_s(one: Resource, now: datetime) -> float | None:
    """None where EC2 does not say."""
    return (now - one.made_at).total_seconds() if one.made_at else None
