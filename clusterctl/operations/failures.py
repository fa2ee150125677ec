"""Nodes that did not get ready: all of them in one error."""

from __future__ import annotations

from typing import Any

from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import FanoutResult
from clusterctl.domain.units import count


def check_all(cluster: Cluster, result: FanoutResult[Any]) -> None:
    """Raises ClusterctlError naming every node that failed; those with one trouble together."""
    errors: dict[str, ClusterctlError] = {}
    hosts: dict[str, list[str]] = {}
    for outcome in result.failures:
        assert outcome.error is not None
        errors.setdefault(outcome.error.message, outcome.error)
        hosts.setdefault(outcome.error.message, []).append(outcome.host)
    if errors:
        reasons = [_paragraph(hosts[message], error) for message, error in errors.items()]
        raise ClusterctlError(
            f"{len(result.failures)} of {count(len(result.outcomes), 'node')} of {cluster.name} "
            f"{'is' if len(result.failures) == 1 else 'are'} not ready:{''.join(reasons)}",
            f"what runs costs money: run `up` again to go on, or clusterctl down {cluster.name}",
        )


def _paragraph(hosts: list[str], error: ClusterctlError) -> str:
    hint = f"\nhint: {error.hint}" if error.hint else ""
    text = f"{fold_hosts(hosts)}: {error.message}{hint}"
    return "\n  " + text.replace("\n", "\n    ")
