"""What every check before a launch looks at."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec, Market
from clusterctl.ec2.launch.observe import Catalogue, Observed


@dataclass(frozen=True)
class Case:
    """What every check looks at. `missing` nodes are to be launched."""

    spec: ClusterSpec
    seen: Observed
    catalogue: Catalogue
    missing: int
    market: Market


def error(check_id: str, message: str, hint: str) -> Finding:
    """What keeps a launch from being tried."""
    return Finding(check_id, Severity.ERROR, message, hint=hint)
