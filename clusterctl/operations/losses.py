"""What would be lost with a cluster's disks: jobs that run, and files that were not fetched."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import ClusterctlError, CommandTimeout
from clusterctl.domain.files import append_line
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.jobs.processes import all_of, list_processes
from clusterctl.node.jobs.folder import has_content, text_in
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.jobs.written import OutputFiles, Overview, Trees, look, overview
from clusterctl.node.record import RecordError, from_json, to_json
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
    `unread` has paths there of what cannot be read, with the reasons; then there may be no file
    that was not fetched. `lost_copy` is the folder of this machine into which they were fetched, if
    it is gone.
    """

    host: str
    job_id: str
    path: str
    kind: str
    files: int
    size_bytes: int
    unread: tuple[str, ...] = ()
    lost_copy: str = ""


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
        found += [one for some in by_job.values() for one in _unsaved(some, folder)]
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


def _unsaved(written: Sequence[Written], folder: ClusterFolder) -> Iterator[Finding]:
    """Yield the warnings for what one job has left, or a run that was started by hand on a node."""
    job, name = written[0].job_id, folder.path.name
    by_place: dict[tuple[str, str], list[Written]] = {}
    for one in written:
        by_place.setdefault((one.path, one.kind), []).append(one)
    parts = []
    for (path, kind), some in by_place.items():
        size = format_bytes(sum(one.size_bytes for one in some))
        files = sum(one.files for one in some)
        what = {"checkpoints": "checkpoints, ", "model": "a model, "}.get(kind, "")
        if files:
            parts.append(f"{what}{count(files, 'file')} of {size} in {path}")
    save = f"clusterctl fetch {name} {job} runs/{job}"
    if not job:
        source = shlex.quote(f"{written[0].host}:{written[0].path}")
        save = f"scp -r -F {shlex.quote(str(folder.ssh_config))} {source} ."
    by = f"job {job}" if job else "a run that was started by hand"
    if parts:
        lost = next((one.lost_copy for one in written if one.lost_copy), "")
        why = f"and the copy in {lost} is gone" if lost else "not fetched since they changed"
        hosts = _hosts(one for one in written if one.files)
        text = f"{hosts}: {by} left {'; '.join(parts)}, {why}"
        yield Finding.warning("down.unsaved", text, f"save them: {save}")
    unread = [one for one in written if one.unread]
    if unread:
        reasons = "; ".join(dict.fromkeys(text for one in unread for text in one.unread))
        text = f"{_hosts(unread)}: not known what {by} left there: {reasons}"
        yield Finding.warning("down.unknown", text, f"make it readable there, then: {save}")


def _hosts(written: Iterable[Written]) -> str:
    return fold_hosts(list(dict.fromkeys(one.host for one in written)))


def never_ready(folder: ClusterFolder, head: Node) -> bool:
    """Return whether the cluster was launched from this folder and its head node never became
    ready: then no command has ever logged in to it, and no job has run."""
    return folder.launched and not LearntHostKeys(folder.known_hosts).recall(head)


def known_without_asking(cluster: Cluster | None, folder: ClusterFolder) -> Losses | None:
    """Return what is known without asking a node: nothing is there, or the head node cannot be
    queried. None if it has to be queried."""
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
    lost = lost_copies(access.folder)

    def at_risk(host: str, one: OutputFiles) -> Written:
        digest = report.fetched.get(one.job, {}).get(host, {}).get(one.path)
        copy = lost.get(one.digest, "")
        amount = (0, 0) if digest == one.digest and not copy else (one.files, one.bytes)
        return Written(host, one.job, one.path, one.kind, *amount, one.unread, copy)

    written = (at_risk(host, one) for host, there in found.items() for one in there)
    return Losses(
        jobs=tuple(one.id for one in report.jobs if not one.serves),
        launchers=launchers,
        written=tuple(one for one in written if one.files or one.unread),
        unknown=unknown,
        unread=report.unknown,
    )


@dataclass(frozen=True)
class FetchedCopy:
    """The folder of this machine into which files with these digests (OutputFiles) were fetched."""

    folder: str
    digests: tuple[str, ...]


def note_copy(folder: ClusterFolder, copy: FetchedCopy) -> None:
    """Record into which folder of this machine files were fetched. Raise OSError."""
    append_line(folder.fetched, to_json(copy))


def lost_copies(folder: ClusterFolder) -> dict[str, str]:
    """Return the digests of what was fetched into folders of this machine all of which are gone or
    empty, each with the last of them. What was fetched on another machine is not known here."""
    copies: dict[str, list[str]] = {}
    for line in text_in(folder.fetched).splitlines():
        with contextlib.suppress(RecordError):  # cut short by a crash
            one = from_json(FetchedCopy, line)
            for digest in one.digests:
                copies.setdefault(digest, []).append(one.folder)
    is_there = {one: has_content(Path(one)) for some in copies.values() for one in some}
    return {digest: some[-1] for digest, some in copies.items() if not any(map(is_there.get, some))}


def _within(host: str, seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its ClusterctlError, or CommandTimeout if that takes
    longer than so many seconds. It then goes on in its thread, which ends with this program."""
    try:
        return in_thread(work, seconds)
    except TimeoutError:
        raise CommandTimeout(host, f"no answer within {format_duration(seconds)}") from None
