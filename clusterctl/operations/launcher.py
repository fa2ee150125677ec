"""What all that changes a cluster's machines needs, and how it says no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.errors import UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.operations.costs import price_cache
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.progress import Progress

if TYPE_CHECKING:
    from clusterctl.ec2.plan import LaunchPlan
    from clusterctl.ec2.session import Clients


class Refused(UsageError):
    """A launch that could not work, or must not cost what it would. Nothing was created."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        super().__init__(f"{name} is not launched: {count(len(errors), 'thing')} to mend first")
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Launcher:
    """The account, the cluster's folder, and how long to wait: for nodes to get ready, and for
    machines where EC2 has none. No `timeout_s`: as large as the machines need.

    `accept_new_host_keys`: where a host key is to be had nowhere else, take what the node shows.
    `agree` is asked before the first step of a plan that launches or starts machines, and raises
    where its user says no.
    """

    clients: Clients
    folder: ClusterFolder
    progress: Progress = field(default_factory=Progress)
    proxy_command: tuple[str, ...] = ()
    timeout_s: float | None = None
    capacity_timeout_s: float = 0.0
    accept_new_host_keys: bool = False
    agree: Callable[[LaunchPlan], None] = lambda plan: None

    @property
    def home(self) -> Path:
        return self.folder.path.parent

    @property
    def prices(self) -> Path:
        return price_cache(self.home)
