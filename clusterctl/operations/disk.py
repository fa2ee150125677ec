"""How full the nodes' disks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.diagnostics.disk import COMMAND, TIMEOUT_S, DiskUsage, disk_findings, parse_df
from clusterctl.diagnostics.program import read_each
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import FanoutResult
from clusterctl.operations.access import Access


@dataclass(frozen=True)
class DiskReport:
    """Each node's file systems, and what is worth a word."""

    nodes: FanoutResult[list[DiskUsage]]
    findings: tuple[Finding, ...]

    @property
    def exit_status(self) -> int:
        """255 if a node could not be asked, 1 if a finding is an error, else 0."""
        if self.nodes.failures:
            return 255
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))


def disk(access: Access, indices: Sequence[int] | None = None) -> DiskReport:
    """Ask these nodes, or all. One outcome per node."""
    result = access.connections.run_all(access.select(indices), COMMAND, timeout_s=TIMEOUT_S)
    nodes = read_each(result, parse_df)
    findings = [
        finding
        for usages in nodes.values
        for usage in usages
        for finding in disk_findings(usage, access.cluster.name)
    ]
    return DiskReport(nodes, tuple(findings))
