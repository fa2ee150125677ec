"""What would be lost with a cluster's disks: jobs that run, and files that were not fetched."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from clusterctl.bootstrap.head_programs import FOLDER
from clusterctl.domain.cluster import Cluster, NodeState
from clusterctl.domain.errors import ClusterctlError, CommandTimeout, HostUnreachable
from clusterctl.domain.files import ClusterFolder, append_line
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.jobs.processes import all_of, list_processes
from clusterctl.node.jobs.folder import has_content
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.node.jobs.written import (
    OutputFiles,
    OutputFolder,
    Overview,
    Trees,
    find_output,
    overview,
)
from clusterctl.node.record import RecordError, from_json, to_json
from clusterctl.node.untrusted import text_in
from clusterctl.operations.access import Access
from clusterctl.operations.known_hosts import LearntHostKeys
from clusterctl.transport.call import NodeCall, call
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out, in_thread

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
    it is gone. `recorded` is false for a job that the head node has no record of: `fetch` does not
    know it.
    """

    host: str
    job_id: str
    path: str
    kind: str
    files: int
    size_bytes: int
    unread: tuple[str, ...] = ()
    lost_copy: str = ""
    recorded: bool = True


@dataclass(frozen=True)
class Losses:
    """What would be lost with the disks of a cluster, or of some of its nodes.

    `jobs` are the ids of jobs that run or are queued, but of no served model: ending that loses
    nothing. `runs` are a host and a command line each of what was started by hand: launchers of
    ranks, and Python programs. `unknown` has the reason for each host of which it is not known, and
    `unread` for each job. `off` are the hosts among `unknown` that cannot be reached.
    """

    jobs: tuple[str, ...] = ()
    runs: tuple[tuple[str, str], ...] = ()
    written: tuple[Written, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    off: frozenset[str] = frozenset()

    @property
    def things(self) -> frozenset[object]:
        """What would be lost, whatever its size: files grow while a job runs."""
        written = ((one.host, one.job_id, one.path, one.kind) for one in self.written)
        return frozenset((*self.jobs, *self.runs, *written, *self.unknown, *self.unread))

    def of_jobs(self, ids: Collection[str], hosts: Collection[str]) -> Losses:
        """Return what is lost with all that is kept of these jobs, which is on these hosts."""
        return Losses(
            unknown={host: reason for host, reason in self.unknown.items() if host in hosts},
            written=tuple(one for one in self.written if one.job_id in ids),
            unread={job: reason for job, reason in self.unread.items() if job in ids},
        )

    def findings(self, folder: ClusterFolder) -> tuple[Finding, ...]:
        """Return a warning for each, with the command that saves it."""
        name = folder.name
        found = [
            Finding.warning(
                "results.job",
                f"job {job} has not ended, and ends with the nodes",
                f"wait for it: clusterctl wait {name} {job}",
            )
            for job in self.jobs
        ]
        found += [
            Finding.warning(
                "results.run",
                f"a run that was started by hand has not ended, and ends with the node: {line}",
                "wait until it ends",
                host,
            )
            for host, line in self.runs
        ]
        # What `fetch` does not know has a command of its own for each folder.
        by_job = grouped(
            ((one.job_id, *(() if one.job_id and one.recorded else (one.host, one.path))), one)
            for one in self.written
        )
        found += [one for some in by_job.values() for one in _unsaved(some, folder)]
        found += [
            Finding.warning(
                "results.unknown",
                f"not known what is left there: {reason}",
                f"see why, and whether it can be reached: clusterctl doctor {name}",
                host,
            )
            for host, reason in self.unknown.items()
        ]
        found += [
            Finding.warning(
                "results.unknown",
                reason,
                f"save its program's folder: clusterctl copy {name} --from 0 "
                f"'~/.clusterctl/code/{job}' runs/{job}",
            )
            for job, reason in self.unread.items()
        ]
        return tuple(found)


def _unsaved(written: Sequence[Written], folder: ClusterFolder) -> Iterator[Finding]:
    """Yield the warnings for what one job has left, or a run that was started by hand on a node."""
    job, name = written[0].job_id, folder.name
    parts = []
    for (path, kind), some in grouped(((one.path, one.kind), one) for one in written).items():
        size = format_bytes(sum(one.size_bytes for one in some))
        files = sum(one.files for one in some)
        what = {"checkpoints": "checkpoints, ", "model": "a model, "}.get(kind, "")
        if files:
            parts.append(f"{what}{count(files, 'file')} of {size} in {path}")
    save = f"clusterctl fetch {name} {job} runs/{job}"
    is_recorded = written[0].recorded
    hint = "save them"
    if not (job and is_recorded):
        source = shlex.quote(f"{written[0].host}:{written[0].path}")
        save = f"scp -r -F {shlex.quote(str(folder.ssh_config))} {source} ."
        hint = "save them by scp; clusterctl does not learn of that, and names them again"
    by = f"job {job}" if job else "a run that was started by hand"
    by += "" if is_recorded else ", of which the head node has no record,"
    if parts:
        lost = next((one.lost_copy for one in written if one.lost_copy), "")
        gone = lost and f"and the copy in {lost} is gone or not whole"
        text = f"{by} left {'; '.join(parts)}, {gone or 'not fetched since they changed'}"
        hosts = _hosts(one for one in written if one.files)
        yield Finding.warning("results.unsaved", text, f"{hint}: {save}", hosts)
    unread = [one for one in written if one.unread]
    if unread:
        reasons = "; ".join(dict.fromkeys(text for one in unread for text in one.unread))
        text = f"not known what {by} left there: {reasons}"
        hint = f"make it readable there, then: {save}"
        yield Finding.warning("results.unknown", text, hint, _hosts(unread))


def _hosts(written: Iterable[Written]) -> str:
    return fold_hosts(list(dict.fromkeys(one.host for one in written)))


def known_without_asking(cluster: Cluster, folder: ClusterFolder) -> Losses | None:
    """Return what is known without asking a node: nothing is there, or the head node cannot be
    queried. None if it has to be queried."""
    heads = [node for node in cluster.nodes if node.index == 0]
    if not heads:
        others = fold_hosts([node.name for node in cluster.nodes])
        return Losses(unknown={others: f"the records of jobs went with {folder.name}-0"})
    if folder.launched and not LearntHostKeys(folder.known_hosts).recall(heads[0]):
        return Losses()  # it never became ready: no command has logged in to it, no job has run
    if heads[0].state is not NodeState.RUNNING:
        return Losses(unknown={heads[0].name: f"its instance is {heads[0].state.value}"})
    return None


def is_by_hand(one: NodeProcess) -> bool:
    """Return whether a process of `ProcessQuery(all_python=True)` is a run that a user started."""
    if len(one.argv) == 1 and one.argv[0].startswith("["):
        return False  # it has no command line any more: the kernel is just ending it
    # The programs of clusterctl's own are started with -IS, as those of another command, or with -I
    # from their folder on the head node.
    flags, program, *_ = (*one.argv[1:3], "", "")
    own = flags.startswith("-IS") or (flags == "-I" and f"/{FOLDER}/bin/" in program)
    return one.role == "launcher" or (one.role == "python" and not own)


@dataclass
class _Questions:
    """What nodes are asked, for at most `within_s` seconds each. `unknown` has the reason for each
    node that did not list its processes."""

    access: Access
    within_s: float
    unknown: dict[str, str] = field(default_factory=dict)

    def ask_head(self, lists_runs: bool) -> tuple[Overview, list[NodeProcess]]:
        head = self.access.head

        def both() -> tuple[Overview, list[NodeProcess]]:
            node_call = NodeCall(overview, None, LOOKING, self.within_s)
            report = call(self.access.connections, head, node_call)
            return report, self._runs_on(head) if lists_runs else []

        return _within(head.host, self.within_s, both)

    def ask(
        self, target: Target, trees: Trees
    ) -> tuple[tuple[OutputFiles, ...], list[NodeProcess]]:
        def both() -> tuple[tuple[OutputFiles, ...], list[NodeProcess]]:
            node_call = NodeCall(find_output, trees, LOOKING, self.within_s)
            files = call(self.access.connections, target, node_call)
            return files, self._runs_on(target)

        return _within(target.host, self.within_s, both)

    def _runs_on(self, target: Target) -> list[NodeProcess]:
        every = ProcessQuery(all_python=True)
        result = list_processes(self.access.connections, (target,), every)
        self.unknown.update((one.host, one.error.message) for one in result.failures if one.error)
        return [one for one in all_of(result) if is_by_hand(one)]


def find_losses(access: Access, within_s: float, hosts: Collection[str] | None = None) -> Losses:
    """Ask the nodes what would be lost: first the head node, then all others, for at most
    `within_s` seconds each.

    `hosts` are the nodes whose disks go; None are all. Jobs count only for all. With the head
    node's disk go the records, so that everything written counts then. A node that does not say is
    in `unknown`. A machine that never joined the cluster has nothing. Raises nothing of a node.
    """
    # A node that cannot be reached shows that before the time is over.
    access.connections.connect_timeout_s = within_s / 2
    access.connections.ask_again = False
    head = access.head
    is_whole = hosts is None
    if hosts is None or head.host in hosts:
        hosts = [target.host for target in access.all_targets]
    questions = _Questions(access, within_s)
    unknown = questions.unknown
    try:
        report, processes = questions.ask_head(head.host in hosts)
    except ClusterctlError as error:
        off = frozenset({head.host} if isinstance(error, HostUnreachable) else ())
        return Losses(unknown={head.host: error.message}, off=off)
    off_hosts: set[str] = set()
    reached: set[str] = set()  # of which a machine was reached, and does not say
    # Two machines may have one name: that of a node, and the one that it replaces.
    found = [(head.host, report.found)] if head.host in hosts else []
    trees = [tree for tree in report.trees if tree.hosts]
    others = [one for one in _joined(access, report) if one.host in hosts and one != head]

    def ask_other(target: Target) -> tuple[tuple[OutputFiles, ...], list[NodeProcess]]:
        here = trees_on(access, target, trees)
        return questions.ask(target, Trees(here, recorded=tuple(report.fetched)))

    for outcome in fan_out(ask_other, others).outcomes:
        if outcome.error:
            reasons = filter(None, [unknown.get(outcome.host), outcome.error.message])
            unknown[outcome.host] = "; ".join(dict.fromkeys(reasons))
            silent = isinstance(outcome.error, HostUnreachable)
            off_hosts |= {outcome.host} if silent else set()
            reached |= set() if silent else {outcome.host}
        files, there = outcome.value or ((), [])
        found.append((outcome.host, files))
        processes += there
    known = {one.id for one in report.jobs}
    by_hand = (one for one in processes if one.job_id not in known)
    return Losses(
        jobs=tuple(one.id for one in report.jobs if is_whole and not one.serves),
        runs=tuple((one.host, one.short_command) for one in by_hand),
        written=tuple(_at_risk(found, report, lost_copies(access.folder))),
        unknown=unknown,
        unread=report.unknown,
        off=frozenset(off_hosts - reached),
    )


def trees_on(
    access: Access, target: Target, trees: Iterable[OutputFolder]
) -> tuple[OutputFolder, ...]:
    """Return those of the folders that jobs may have written on this node."""
    nodes = zip(access.all_targets, access.cluster.nodes)
    names = {target.host, *(node.private_ip for one, node in nodes if one == target)}
    return tuple(tree for tree in trees if names & {*tree.hosts})


def _joined(access: Access, report: Overview) -> list[Target]:
    """Return the nodes whose machines have joined the cluster: the others have nothing."""
    learnt = LearntHostKeys(access.folder.known_hosts)
    return [
        target
        for target, node in zip(access.all_targets, access.cluster.nodes)
        if learnt.recall(node) or not report.joined or node.private_ip in report.joined
    ]


def _at_risk(
    found: Iterable[tuple[str, Iterable[OutputFiles]]], report: Overview, lost: Mapping[str, str]
) -> Iterator[Written]:
    """Yield what the hosts have that was not fetched, or cannot be read. `lost` is described at
    lost_copies."""
    for host, files in found:
        for one in files:
            digest = report.fetched.get(one.job, {}).get(host, {}).get(one.path)
            copy = lost.get(one.digest, "")
            amount = (0, 0) if digest == one.digest and not copy else (one.files, one.bytes)
            recorded = not one.job or one.job in report.fetched
            if amount[0] or one.unread:
                names = (host, one.job, one.path, one.kind)
                yield Written(*names, *amount, one.unread, copy, recorded)


@dataclass(frozen=True)
class FetchedCopy:
    """The folder of this machine into which files with these digests (OutputFiles) were fetched, or
    a fetch of them has `started`: what is there of them may be half of it."""

    folder: str
    digests: tuple[str, ...]
    started: bool = False


def note_copy(folder: ClusterFolder, copy: FetchedCopy) -> None:
    """Record into which folder of this machine files were, or are being, fetched. Raise OSError."""
    append_line(folder.fetched, to_json(copy))


def lost_copies(folder: ClusterFolder) -> dict[str, str]:
    """Return the digests of what was fetched into folders of this machine, each with the last of
    them, if all of these are gone, empty, or a later fetch into them broke off. What was fetched on
    another machine is not known here."""
    last: dict[str, str] = {}
    whole: dict[str, set[str]] = {}  # digests by folder
    for line in text_in(folder.fetched).splitlines():
        with contextlib.suppress(RecordError):  # cut short by a crash
            one = from_json(FetchedCopy, line)
            last.update(dict.fromkeys(one.digests, one.folder))
            there = whole.setdefault(one.folder, set())
            change = there.difference_update if one.started else there.update
            change(one.digests)
    kept = {some for one in whole if has_content(Path(one)) for some in whole[one]}
    return {digest: one for digest, one in last.items() if digest not in kept}


def _within(host: str, seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, or raise its ClusterctlError, or CommandTimeout if that takes
    longer than so many seconds. It then goes on in its thread, which ends with this program."""
    try:
        return in_thread(work, seconds)
    except TimeoutError:
        raise CommandTimeout(host, f"no answer within {format_duration(seconds)}") from None
