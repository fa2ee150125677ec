"""The commands in hints: those of a cluster, or of hosts without one."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from clusterctl.diagnosis.evidence import Evidence, HostEvidence

ON_NODE = re.compile(r"clusterctl run NAME --nodes \d+ ('[^']*')")


@dataclass(frozen=True)
class Hints:
    """Writes the steps of hints about this evidence. A step that needs a cluster is empty for hosts
    without one, and `steps` leaves it out."""

    evidence: Evidence

    @staticmethod
    def steps(*steps: str) -> str:
        return "; ".join(filter(None, steps)).removeprefix("then ")

    def cluster(self, text: str) -> str:
        """Return a step that needs a cluster, with its name for NAME."""
        return "" if self.evidence.source else text.replace("NAME", self.evidence.cluster or "NAME")

    @property
    def look(self) -> str:
        """The command that looks again, at the same job."""
        job = self.evidence.job
        return self.look_at(job.job_id if job and job.others else "")

    def look_at(self, job: str) -> str:
        """Return the command that looks at a job; without a name, at the one it would choose."""
        source = self.evidence.source
        known = [(host.index, x) for host in self.evidence.hosts for x in host.processes]
        on = {index for index, x in known if x.role == "launcher" and str(x.pid) == job}
        if on and 0 not in on:
            source = source or "--hosts FILE"  # a cluster's JOB by hand is one of the head node's
        words = ["clusterctl diagnose", source or self.evidence.cluster or "NAME"]
        if job:
            words += ["--launcher"] * bool(source) + [shlex.quote(job)]
        return " ".join(words)

    @property
    def cancel(self) -> str:
        job = self.evidence.job.job_id if self.evidence.job else ""
        source = self.evidence.source
        # `kill` finds a job by its launcher, and knows it apart by the group of its ranks.
        ours = [one for x in self.evidence.hosts for one in x.processes if one.job_id == job]
        groups = {one.group for one in ours if one.role == "rank"}
        launchers = [one for one in ours if one.role == "launcher" and str(one.pid) == job]
        is_known = len(launchers) == len(groups) == 1 and "" not in groups
        if source and is_known and "--slurm" not in source:
            return f"clusterctl kill {source} --launcher {job}"
        return self.cluster("clusterctl cancel NAME") or "end the job"

    def without_cluster(self, host: str, hint: str) -> str:
        """Return a hint for a node of cluster NAME as one for a host without one: with commands as
        the user would run them there, and without the steps that need a cluster."""

        def there(found: re.Match[str]) -> str:
            return self.on(HostEvidence(host=host), shlex.split(found[1])[0])

        steps = ON_NODE.sub(there, hint).split("; ")
        return self.steps(*(one for one in steps if "clusterctl" not in one))

    def on(self, host: HostEvidence, command: str) -> str:
        """Return the line that runs a shell command on one host, as the user would reach it."""
        if not self.evidence.source:
            return self.cluster(f"clusterctl run NAME --nodes {host.index} {shlex.quote(command)}")
        if self.evidence.as_root and not command.startswith("sudo "):
            command = f"sudo {command}"
        if self.evidence.source.startswith("--local"):
            return command
        login = f"{self.evidence.user}@" if self.evidence.user else ""
        key = re.search(r" -i .*", self.evidence.source)  # the last of the options
        return f"ssh{key[0] if key else ''} {shlex.quote(login + host.host)} {shlex.quote(command)}"
