"""The commands in hints: those of a cluster, or of hosts without one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from clusterctl.diagnosis.evidence import Evidence, HostEvidence


@dataclass(frozen=True)
class Hints:
    """Writes the steps of hints about this evidence. A step that needs a cluster is empty for hosts
    without one, and `steps` leaves it out."""

    evidence: Evidence

    @staticmethod
    def steps(*steps: str) -> str:
        return "; ".join(filter(None, steps))

    def cluster(self, text: str) -> str:
        """Return a step that needs a cluster, with its name for NAME."""
        return "" if self.evidence.source else text.replace("NAME", self.evidence.cluster or "NAME")

    @property
    def look(self) -> str:
        """The command that looks again."""
        return f"clusterctl diagnose {self.evidence.source or self.evidence.cluster or 'NAME'}"

    @property
    def cancel(self) -> str:
        return self.cluster("clusterctl cancel NAME") or "end the job"

    def on(self, host: HostEvidence, command: str) -> str:
        """Return the line that runs a shell command on one host, as the user would reach it."""
        if not self.evidence.source:
            return self.cluster(f"clusterctl run NAME --nodes {host.index} {shlex.quote(command)}")
        if self.evidence.as_root and not command.startswith("sudo "):
            command = f"sudo {command}"
        if self.evidence.source.startswith("--local"):
            return command
        login = f"{self.evidence.user}@" if self.evidence.user else ""
        return f"ssh {shlex.quote(login + host.host)} {shlex.quote(command)}"
