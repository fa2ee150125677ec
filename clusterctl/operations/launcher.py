"""Shared parts of the operations that launch or start nodes: settings, progress and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.findings import Finding, errors
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.results import FanoutResult
from clusterctl.domain.timeouts import Timeouts
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.session import Clients


class Stage(Enum):
    """A stage of getting a node ready, in this order. The value is the text shown to the user."""

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
    """Receives the progress of an operation, and shows nothing.

    The command line overrides the methods, which are called from several threads. `done` is set
    once all the work is done: an interrupt after that leaves nothing unfinished. `awake_before` has
    the ids of the instances that ran before the first launch or start; None until then.
    """

    done = False
    awake_before: frozenset[str] | None = None

    def step(self, text: str) -> None:
        """Note that the next step of the whole operation begins."""

    def finding(self, finding: Finding) -> None:
        """Note a finding that does not stop the operation."""

    def nodes(self, names: Sequence[str]) -> None:
        """Note which nodes `node` will report on."""

    def node(self, name: str, stage: Stage, detail: str = "") -> None:
        """Note that a node has reached a stage. `detail` is why it failed."""


class LineProgress(StepProgress):
    """Reports each step, and each stage of a node, as a line. Its threads wait for each other."""

    def __init__(self, say: Callable[[str], None], show: Callable[[Finding], None]) -> None:
        self._say, self._show, self._lock = say, show, threading.Lock()

    def step(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def finding(self, finding: Finding) -> None:
        with self._lock:
            self._show(finding)

    def node(self, name: str, stage: Stage, detail: str = "") -> None:
        self.step(f"{name}: {stage.value}" + (f": {detail}" if detail else ""))


class LaunchRefused(ClusterctlError):
    """A launch that cannot work or would cost more than is allowed. Nothing was created.

    `findings` are all findings of the checks, warnings included.
    """

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        wrong = errors(findings)
        done = "launched"
        if all(finding.check == "limits.passed" for finding in wrong):
            done = "changed"
        super().__init__(f"{name} is not {done}: fix {count(len(wrong), 'error')} first")
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Launcher:
    """The account, the cluster's folder and the options of an operation that launches nodes.

    `proxy_command` is the ProxyCommand for SSH, which the unprivileged lab needs. `timeout_s` is
    how long nodes may take to get ready; None chooses it by their types (see `ready_within_s`).
    `capacity_timeout_s` is how long to wait for EC2 to have machines. With `accept_new_host_keys`,
    a host key that no other source has is taken from the node itself. `approve` is called before
    the first step of a plan that launches or starts nodes, and raises if the user declines.
    """

    clients: Clients
    folder: ClusterFolder
    progress: StepProgress = field(default_factory=StepProgress)
    proxy_command: tuple[str, ...] = ()
    timeout_s: float | None = None
    capacity_timeout_s: float = 0.0
    accept_new_host_keys: bool = False
    approve: Callable[[LaunchPlan], None] = lambda plan: None
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def name(self) -> str:
        """The cluster's name, which is the name of its folder."""
        return self.folder.name

    @property
    def home(self) -> Path:
        """The folder that holds the folders of all clusters."""
        return self.folder.home


def check_all(cluster: Cluster, result: FanoutResult[Any]) -> None:
    """Raise ClusterctlError naming every node that failed. Nodes with the same error share a line.

    The exit status is 1, whatever that of the nodes' errors.
    """
    alike = grouped((one.error.message, one) for one in result.failures if one.error)
    if alike:
        reasons = ""
        for message, (first, *_) in alike.items():
            hint = f"\nhint: {first.error.hint}" if first.error and first.error.hint else ""
            text = f"{fold_hosts([one.host for one in alike[message]])}: {message}{hint}"
            reasons += "\n  " + text.replace("\n", "\n    ")
        raise ClusterctlError(
            f"{len(result.failures)} of {count(len(result.outcomes), 'node')} of {cluster.name} "
            f"{'is' if len(result.failures) == 1 else 'are'} not ready:{reasons}",
            f"what runs costs money: run `up` again to go on, or clusterctl down {cluster.name}",
        )
