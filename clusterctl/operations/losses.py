"""What would be lost with a cluster's disks: jobs that run, and files that were not fetched."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import ClusterctlError, CommandTimeout
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.jobs.processes import all_of, list_processes
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.jobs.written import OutputFiles, Overview, Trees, look, overview
from clusterctl.operations.access import Access
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.known_hosts import LearntHostKeys
from clusterctl.transport.call import call
from clusterctl.transport.fanout import fan_out, in_thread
from clusterctl.transport.target import Target

LOOKING = "looking for results"  # in messages
T = TypeVar("T")


class ResultsAtRisk(ClusterctlError):
    """Something would be lost, or it is not known whether. `findings` say what."""

    def __init__(self, message: str, hint: str, findings: Sequence[Finding]) -> None:
        super().__init__(message, hint)
        self.findings = findings


@dataclass(frozen=True)
class Written:
    """Files in a folder of a node that a job wrote, and that were not fetched since they changed.

    `job_id` is empty for a run that was started by hand. `kind` is checkpoints, model or files.
    """

    host: str
    job_id: str
    path: str
    kind: str
    files: int
    size_bytes: int


@dataclass(frozen=True)
class Losses:
    """What would be lost with the disks of a cluster.

    `jobs` are the ids of jobs that run or are queued, but of no served model: ending that loses
    nothing. `launchers` are the command lines of runs that were started by hand. `unknown` has the
    reason for each host of which it is not known, and `unread` for each job.
    """

    jobs: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    written: tuple[Written, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def findings(self, folder: ClusterFolder) -> tuple[Finding, ...]:
        """Return a warning for each, with the command that saves it."""
        name = folder.path.name
        found = [
            Finding.warning(
                "down.job",
                f"job {job} has not ended, and ends with the nodes",
                f"wait for it: clusterctl wait {name} {job}",
            )
            for job in self.jobs
        ]
        found += [
            Finding.warning("down.run", f"a run that was started by hand has not ended: {line}")
            for line in self.launchers
        ]
        by_job: dict[tuple[str, ...], list[Written]] = {}
        for one in self.written:
            # Without a job each folder has a command of its own, which saves it.
            key = (one.job_id,) if one.job_id else ("", one.host, one.path)
            by_job.setdefault(key, []).append(one)
        found += [_unsaved(some, folder) for some in by_job.values()]
        found += [
            Finding.warning(
                "down.unknown",
                f"{host}: not known what is left there: {reason}",
                f"if it can be started or reached again: clusterctl status {name}",
            )
            for host, reason in self.unknown.items()
        ]
        found += [
            Finding.warning(
                "down.unknown",
                reason,
                f"save its program's folder: clusterctl copy {name} --from 0 "
                f"'~/.clusterctl/code/{job}' runs/{job}",
            )
            for job, reason in self.unread.items()
        ]
        return tuple(found)


def _unsaved(written: Sequence[Written], folder: ClusterFolder) -> Finding:
    """Return the warning for what one job has left, or a run that was started by hand on a node."""
    job, name = written[0].job_id, folder.path.name
    by_place: dict[tuple[str, str], list[Written]] = {}
    for one in written:
        by_place.setdefault((one.path, one.kind), []).append(one)
    parts = []
    for (path, kind), some in by_place.items():
        size = format_bytes(sum(one.size_bytes for one in some))
        what = f"{count(sum(one.files for one in some), 'file')} of {size} in {path}"
        parts.append({"checkpoints": "checkpoints, ", "model": "a model, "}.get(kind, "") + what)
    save = f"clusterctl fetch {name} {job} runs/{job}"
    if not job:
        source = shlex.quote(f"{written[0].host}:{written[0].path}")
        save = f"scp -r -F {shlex.quote(str(folder.ssh_config))} {source} ."
    by = f"job {job}" if job else "a run that was started by hand"
    hosts = fold_hosts(list(dict.fromkeys(one.host for one in written)))
    return Finding.warning(
        "down.unsaved",
        f"{hosts}: {by} left {'; '.join(parts)}, not fetched since they changed",
        f"save them: {save}",
    )


def never_ready(folder: ClusterFolder, head: Node) -> bool:
    """Return whether the cluster was launched from this folder and its head node never became
    ready: then no command has ever logged in to it, and no job has run."""
    return folder.launched and not LearntHostKeys(folder.known_hosts).recall(head)


def known_without_asking(cluster: Cluster | None, folder: ClusterFolder) -> Losses | None:
    """Return what is known without asking a node: nothing is there, or the head node cannot be
    asked. None if it has to be queried."""
    heads = [node for node in cluster.nodes if node.index == 0] if cluster else []
    if not heads:
        return Losses(unknown={f"{folder.path.name}-0": "there is no such instance any more"})
    if never_ready(folder, heads[0]):
        return Losses()
    if heads[0].state is not NodeState.RUNNING:
        return Losses(unknown={heads[0].name: f"its instance is {heads[0].state.value}"})
    return None


def find_losses(access: Access, within_s: float) -> Losses:
    """Ask the nodes what would be lost, for at most `within_s` seconds.

    A head node that does not say is in `unknown`; so is another node on which ranks may have
    written. Raises nothing of a node.
    """
    until = time.monotonic() + within_s
    access.connections.connect_timeout_s = within_s
    access.connections.ask_again = False
    head = access.head

    def ask_head() -> tuple[Overview, tuple[str, ...], dict[str, str]]:
        requested = (access.connections, head, overview, None)
        report = call(*requested, doing=LOOKING, timeout_s=within_s)
        running = list_processes(access.connections, (head,), ProcessQuery())
        by_job = {one.id for one in report.jobs}
        of_none = [one for one in all_of(running) if one.job_id not in by_job]
        lines = [one.short_command for one in of_none if one.role == "launcher"]
        silent = {one.host: one.error.message for one in running.failures if one.error}
        return report, tuple(lines), silent

    try:
        report, launchers, unknown = _within(head.host, within_s, ask_head)
    except ClusterctlError as error:
        return Losses(unknown={head.host: error.message})
    found = {head.host: report.found}
    trees = [tree for tree in report.trees if tree.hosts]
    named = {host for tree in trees for host in tree.hosts}
    others = [target for target in access.all_targets if target.host in named]

    def ask_other(target: Target) -> tuple[OutputFiles, ...]:
        left = max(0.1, until - time.monotonic())
        here = Trees(tuple(tree for tree in trees if target.host in tree.hosts))

        def find_there() -> tuple[OutputFiles, ...]:
            requested = (access.connections, target, look, here)
            return call(*requested, doing=LOOKING, timeout_s=left)

        return _within(target.host, left, find_there)

    for outcome in fan_out(ask_other, others).outcomes:
        if outcome.error:
            unknown[outcome.host] = outcome.error.message
        found[outcome.host] = outcome.value or ()
    return Losses(
        jobs=tuple(one.id for one in report.jobs if not one.serves),
        launchers=launchers,
        written=tuple(
            Written(host, one.job, one.path, one.kind, one.files, one.bytes)
            for host, there in found.items()
            for one in there
            if report.fetched.get(one.job, {}).get(host, {}).get(one.path) != one.digest
        ),
        unknown=unknown,
        unread=report.unknown,
    )


def _within(host: str, seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its ClusterctlError, or CommandTimeout if that takes
    longer than so many seconds. It then goes on in its thread, which ends with this program."""
    try:
        return in_thread(work, seconds)
    except TimeoutError:
        raise CommandTimeout(host, f"no answer within {format_duration(seconds)}") from None
