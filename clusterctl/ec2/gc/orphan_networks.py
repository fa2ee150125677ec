"""Which networks no cluster is in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterctl.ec2.gc.resources import Resource
from clusterctl.ec2.gc.verdicts import YOUNG, Judged, Rules, Verdict, age_s


def judge_network(one: Resource, everything: Sequence[Resource], rules: Rules) -> Judged:
    """`everything` is all that was found, the clusters' things among it."""
    inside = set(one.vpc_ids)
    for other in everything:
        if other.region == one.region and other.network and other.network == one.network:
            inside.update(other.vpc_ids)
    users = {
        other.cluster
        for other in everything
        if other.region == one.region
        and other.cluster is not None
        and (inside & set(other.vpc_ids) or (other.network and other.network == one.network))
    }
    if users:
        return Judged(one, Verdict.IN_USE, f"used by {', '.join(sorted(users))}")
    if any(region == one.region for region, _ in rules.blind):
        return Judged(one, Verdict.KEPT, "what may be in it could not be looked at")
    if one.state == "DELETE_IN_PROGRESS":
        return Judged(one, Verdict.KEPT, "it is being deleted")
    if not inside and not one.state.startswith(("ROLLBACK", "CREATE_FAILED", "DELETE_FAILED")):
        return Judged(one, Verdict.KEPT, "it does not say which VPC is its own")
    age = age_s(one, rules.now)
    if age is not None and age < YOUNG.total_seconds():
        return Judged(one, Verdict.KEPT, "no cluster is in it, but it was made just now")
    if not rules.networks:
        return Judged(one, Verdict.KEPT, "no cluster is in it; --networks removes it")
    return Judged(one, Verdict.ORPHAN, "no cluster is in it")
