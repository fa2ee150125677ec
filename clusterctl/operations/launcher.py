"""What all that changes a cluster's machines needs: an account, what it tells, how it says no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import FanoutResult
from clusterctl.domain.units import count
from clusterctl.operations.costs import price_cache
from clusterctl.operations.folder import ClusterFolder

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.session import Clients


class Stage(Enum):
    """How far a node is, in the order they pass."""

    PENDING = "starting"
    CONSOLE = "waiting for its host key on the console"
    LOGIN = "waiting for SSH"
    CLOUD_INIT = "cloud-init"
    GPUS = "counting GPUs"
    CHECKED = "checked"
    PREPARE = "preparing"
    READY = "ready"
    FAILED = "failed"


class StepProgress:
    """Silent. The command line overrides what it shows; calls come from several threads.

    `done`: all that was asked for is done; an interrupt from now on leaves nothing.
    """

    done = False

    def step(self, text: str) -> None:
        """The next step of the work as a whole begins."""

    def finding(self, finding: Finding) -> None:
        """Something to know that does not stop the work."""

    def nodes(self, names: Sequence[str]) -> None:
        """These nodes are worked on from now on."""

    def node(self, name: str, stage: Stage, detail: str = "") -> None:
        """A node has come to a stage."""


class LaunchRefused(UsageError):
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
    progress: StepProgress = field(default_factory=StepProgress)
    proxy_command: tuple[str, ...] = ()
    timeout_s: float | None = None
    capacity_timeout_s: float = 0.0
    accept_new_host_keys: bool = False
    agree: Callable[[LaunchPlan], None] = lambda plan: None

    @property
    def name(self) -> str:
        """The cluster's name, which is its folder's."""
        return self.folder.path.name

    @property
    def home(self) -> Path:
        return self.folder.path.parent

    @property
    def prices(self) -> Path:
        return price_cache(self.home)


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
