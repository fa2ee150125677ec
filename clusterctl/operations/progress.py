"""What an operation tells while it works. Below the command line nothing prints."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from clusterctl.domain.findings import Finding


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


class Progress:
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
