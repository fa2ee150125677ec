"""The evidence prepared for the rules: ranks with their hosts, who waits, who moved, since when."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, NamedTuple

from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence, ProcessEvidence
from clusterctl.diagnosis.frames import STARTING, Activity
from clusterctl.diagnosis.hints import Hints
from clusterctl.diagnosis.hostchecks import has_no_room
from clusterctl.diagnosis.mapping import Placement, placed
from clusterctl.diagnosis.progress import (
    FEW_STEPS,
    LONGEST_ALONE_S,
    SILENT_STEPS,
    StepSigns,
    is_step,
    waits,
    with_own_log,
)
from clusterctl.diagnosis.ranks import (
    LONGEST_CHATTER,
    MOST_NAMED,
    TENSOR_BYTES,
    Ends,
    Rank,
    asks_user,
    format_ranks,
    is_working,
    only,
    ranks_in_words,
    sees_nothing,
    syscall_path,
    uses_processor,
    usual_size,
    works_alone,
)
from clusterctl.diagnosis.repeats import numbered_step
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count
from clusterctl.explain.engine import explain
from clusterctl.explain.explanation import Explanation
from clusterctl.explain.stalls import place_in_model, stalls
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.untrusted import MOST_RANKS

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
# A program in C computes if the kernel's part of its time is at most the first share, and that of
# each other rank, which asks for messages, at least the second.
COMPUTES, POLLS = 0.1, 0.3
# Bytes between ranks in a few seconds: more than processes without work send to say that they live.
EXCHANGED_BYTES = 4 << 10
# What main threads write is at least this share of the lines that they print: mpirun may mark each.
WRITTEN_SHARE = 0.25
# In the first seconds of a job, some ranks may not have been started yet.
STARTED_AFTER_S = 5.0
# The ranks of a job that is younger may not run yet.
STARTING_S = 30.0


@dataclass(frozen=True)
class Cause(Finding):
    """A finding with the ranks that it is about and the lines of evidence for it.

    `blocks`: it can be the reason why the job stands still. The first such finding is the verdict.
    """

    ranks: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    blocks: bool = True
    json_names: ClassVar = ("check", "severity", "host", "ranks", "message", "evidence", "hint")


class RankFinding(NamedTuple):
    """A finding about one rank, of which `combine` makes causes.

    In `what`, {s}, {is} and {has} stand for the endings and verbs that depend on the number of
    ranks.
    """

    check: str
    severity: Severity
    rank: Rank
    what: str
    evidence: tuple[str, ...]
    hint: str


def _computes(rank: Rank) -> bool:
    return rank.asking_share is not None and rank.asking_share <= COMPUTES


class Scene(StepSigns):
    """The evidence with the derived values that the rules share.

    `ranks` are those of the job, `gone` those that ended during the samples, `left_over` the ranks
    of other jobs and of jobs that have ended.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.hints = Hints(evidence)
        self.job: JobEvidence = with_own_log(evidence.job or JobEvidence())
        self.is_running = evidence.job is not None and self.job.state in (JobState.RUNNING, None)
        every = [
            Rank(one, host) for host in evidence.hosts for one in host.ranks if one.rank is not None
        ]
        ours = [one for one in every if (one.process.job_id or "") == self.job.job_id]
        ours = ours if self.is_running else []
        # A rank without the last sample of its host has ended meanwhile, and is in `gone`.
        last = {
            host.host: max((s.at_s for p in host.processes for s in p.samples), default=0.0)
            for host in evidence.hosts
        }
        gap = [b.at_s - a.at_s for one in ours for a, b in zip(one.samples, one.samples[1:])]
        spacing_s = max(gap, default=1.0)
        self.gone = [
            one for one in ours if one.samples and one.last.at_s < last[one.host.host] - spacing_s
        ]
        self.ranks = [one for one in ours if one not in self.gone]
        # A buffer may cut a log behind a colon, too, while a rank reads its workers' pipe.
        asks_in_pipe = self.prompt and not self.prompt.endswith(":")
        asks = any(
            one.reads_input
            or asks_user(one.last.syscall)
            or one.is_in_console
            or (asks_in_pipe and one.last.syscall.startswith("read pipe:["))
            for one in self.ranks
        )
        if asks:
            self.job = replace(self.job, log_is_cut=False)  # after a question
        known = {(one.host.host, one.process.pid) for one in ours}
        self.left_over = [one for one in every if (one.host.host, one.process.pid) not in known]

    @functools.cached_property
    def doubt(self) -> str:
        """Why nothing follows from the lines that show progress, as StepSigns tells it, or because
        no rank in Python has run meanwhile, or one in C has not: then something else may count.
        TensorFlow may print in a step, and in C who waits for a message runs."""
        found = super().doubt
        steps = {*map(numbered_step, self.job.log_added)} - {None}
        if found or not self.advances:
            return found
        still = [one for one in self.ranks if one.has_not_run]
        # Who waits for a file does not wait for what it has started.
        still = [
            one
            for one in still
            if syscall_path(one.last.syscall) or not any(map(is_working, one.children))
        ]
        apart = [one.number for one in still if not one.is_python and one.rests_apart]
        is_each = len(still) == len(self.ranks) and {one.place for one in still} != {Activity.GRAPH}
        if len(steps) < FEW_STEPS or not still or not (apart or is_each):
            return self._of_another_writer
        who = f"the main thread of {format_ranks(apart)} has not" if apart else "no main thread has"
        return f"its log has new steps, and {who} run meanwhile"

    @property
    def _of_another_writer(self) -> str:
        """Why the new lines about steps may be of a monitor, or of another program, in words: the
        main threads of all ranks, which may be in endless loops, and the processes at work that
        these have started wrote far less. It is empty if that is not known, or if TensorFlow may
        print in a step."""
        home = self.launcher[0].host if self.launcher else ""
        lines = [line for line in self.job.log_added if is_step(line)]
        # Elsewhere the looks at the processes are not those at the log.
        far = [one for one in self.ranks if one.host.host != home]
        whole = self.ranks and len(self.ranks) >= self.size
        in_step = {one.place for one in self.ranks} == {Activity.GRAPH}
        if not (home and whole) or in_step or len(lines) < (FEW_STEPS if far else 1):
            return ""
        written: list[float | None] = [one.own_written_bytes for one in far]
        for one in self.ranks:
            if one.works_in_thread:
                written.append(one.own_written_bytes)
            elif one not in far:
                written.append(self.job.written_bytes.get(str(one.process.pid)))
        # What ranks have started may train for them, if each waits for that. One that is ready to
        # run at all looks does not, nor does one that waits for a file or for other ranks.
        apart = any(
            one.was("R") or one.place is Activity.COLLECTIVE or syscall_path(one.last.syscall)
            for one in self.ranks
        )
        for process in (x for rank in self.ranks if not apart for x in rank.below):
            if process.role == "child" and uses_processor(process):
                written.append(process.last.written_bytes - process.samples[0].written_bytes)
        known = [one for one in written if one is not None]
        enough = sum(known) >= WRITTEN_SHARE * sum(map(len, lines))
        if enough or len(known) < len(written):
            return ""
        return "its log has new steps, and no main thread of its ranks has written them"

    @functools.cached_property
    def launcher(self) -> tuple[HostEvidence, ProcessEvidence] | None:
        """The job's mpirun with its host, if it was seen."""
        return next(
            (
                (host, one)
                for host in self.evidence.hosts
                for one in host.processes
                if one.role == "launcher" and (one.job_id or "") == self.job.job_id
            ),
            None,
        )

    @functools.cached_property
    def placement(self) -> Placement:
        """Where mpirun has placed the ranks, as far as it is known without seeing them."""
        variables = self.launcher[1].variables if self.launcher else {}
        log = [*self.job.log_first, *self.job.log]
        return placed(self.job.line, self.job.hosts, log, variables)

    @functools.cached_property
    def size(self) -> int:
        """The number of ranks that the job should have; 0 if unknown."""
        own = usual_size(one.process.size for one in self.ranks)
        size = self.job.size or own or self.placement.ranks
        return size if size <= MOST_RANKS else 0

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the job run."""
        return self.is_running and len(self.ranks) >= max(1, self.size)

    @functools.cached_property
    def by_number(self) -> dict[int, Rank]:
        return {one.number: one for one in self.ranks}

    @functools.cached_property
    def host_of(self) -> dict[int, HostEvidence]:
        """The host of each rank: where it runs, or else where mpirun has placed it.

        A rank of which neither is known is left out.
        """
        by_name = {name: one for one in self.evidence.hosts for name in one.names}
        found = {
            rank: by_name[name]
            for rank, name in self.placement.hosts.items()
            if name in by_name and (not self.size or rank < self.size)
        }
        return found | {one.number: one.host for one in (*self.gone, *self.ranks)}

    def hosts_of(self, ranks: Iterable[int]) -> list[str]:
        """Return the names of the hosts of these ranks, as far as they are known."""
        return sorted({self.host_of[rank].host for rank in ranks if rank in self.host_of})

    def on_hosts(self, ranks: Iterable[int]) -> str:
        """Return these ranks with their hosts, such as `ranks 0-3 on demo-[0-1]`."""
        ranks = list(ranks)
        hosts = self.hosts_of(ranks)
        return format_ranks(ranks) + (f" on {fold_hosts(hosts)}" if hosts else "")

    @functools.cached_property
    def hosts(self) -> list[HostEvidence]:
        """The hosts that the job uses, be it for its launcher; all hosts if that is unknown."""
        used = {one.host for one in self.host_of.values()}
        used |= {
            host.host
            for host in self.evidence.hosts
            if used and any((one.job_id or "") == self.job.job_id for one in host.processes)
        }
        return [one for one in self.evidence.hosts if one.host in used or not used]

    @functools.cached_property
    def host_at(self) -> dict[str, HostEvidence]:
        """The hosts by their addresses, without those that several have, as Docker's own."""
        found: dict[str, list[HostEvidence]] = {}
        for host in self.evidence.hosts:
            for address in host.addresses:
                found.setdefault(address, []).append(host)
        return {address: hosts[0] for address, hosts in found.items() if len(hosts) == 1}

    @functools.cached_property
    def silent(self) -> list[HostEvidence]:
        """The hosts that did not answer."""
        return [host for host in self.evidence.hosts if host.error]

    @property
    def silent_head(self) -> HostEvidence | None:
        """The head node, which has the job's record and output, if it did not answer."""
        return next((host for host in self.silent if host.index == 0), None)

    @functools.cached_property
    def waiting(self) -> list[Rank]:
        """The ranks that waited for others at every sample, in the same place."""
        return [one for one in self.ranks if one.waits and not one.moved]

    def unnumbered(self, host: HostEvidence) -> list[ProcessEvidence]:
        """Return the ranks on a host, perhaps of this job, whose numbers are not known."""
        jobs = ("", self.job.job_id)
        return [one for one in host.ranks if one.rank is None and (one.job_id or "") in jobs]

    @functools.cached_property
    def left(self) -> list[Rank]:
        """The ranks that have left their program, by their calls, or since Python has ended in them
        while libraries wait for other ranks. One whose Python has not begun yet has no interpreter
        either: so it has to be of the program that others run, and the job to be overdue or to have
        failed. Before, a rank may have done its part, and the others go on without it.
        """
        run = {one.process.argv[:1] for one in self.ranks if one.last.stacks}
        failed = any(one.fatal for one in self.explained.unknown)
        begun = failed or (self.has_made_steps and self.is_overdue)
        oldest_s = max((one.process.age_s for one in self.ranks), default=0.0)
        # In a job that has made steps, those that were started with the others have begun.
        begun_s = oldest_s - STARTED_AFTER_S if self.has_made_steps else STARTING_S
        return [
            one
            for one in self.ranks
            if one.place is Activity.ENDED
            or (begun and one.has_no_interpreter)
            and one.process.age_s >= min(STARTING_S, begun_s)
            and one.process.argv[:1] in run
        ]

    @functools.cached_property
    def computing(self) -> list[Rank]:
        """The few ranks of a program in C that compute while all others ask for messages."""
        if any(one.native.mpi for one in self.ranks if not one.is_python and _computes(one)):
            return []
        shares = {one.number: one.asking_share for one in self.ranks if not one.is_python}
        known = {number: share for number, share in shares.items() if share is not None}
        few = [one.number for one in self.ranks if one.number in known and _computes(one)]
        polling = [share for share in known.values() if share >= POLLS]
        if len(known) < len(self.ranks) or len(few) + len(polling) < len(known):
            return []
        return [one for one in self.ranks if one.number in few] if len(few) <= len(polling) else []

    def others_wait(self, suspects: Iterable[int]) -> bool:
        """Return whether all ranks except the suspects wait, and 9 of 10 did not move.

        At least one rank has to be left.
        """
        out = set(suspects)
        rest = [one for one in self.ranks if one.number not in out]
        still = sum(not one.moved for one in rest)
        return bool(rest) and all(one.waits for one in rest) and still >= 0.9 * len(rest)

    @property
    def no_rank_waits(self) -> bool:
        """Whether nobody waits for ranks that have left the program: no rank waits, and no step is
        overdue. One that is seen to work in the compiled steps of an evaluation waits for nobody.
        """
        waiting = [one for one in self.ranks if one.waits]
        alone = all(one.place is Activity.GRAPH and works_alone(one) for one in waiting)
        return alone and not self.is_overdue and self.stall is None

    @functools.cached_property
    def _lines(self) -> list[str]:
        """The first and the last lines of the log; only the last if they begin with the first."""
        first = self.job.log_first
        return [*(() if first == self.job.log[: len(first)] else first), *self.job.log]

    @functools.cached_property
    def whole_log(self) -> Explanation:
        """The known errors in all lines of the log."""
        return explain(["\n".join(self._lines)]) if self._lines else Explanation()

    @functools.cached_property
    def explained(self) -> Explanation:
        """The known errors that the job did not survive: fewer than two steps follow them."""
        steps = [at for at, line in enumerate(self._lines) if is_step(line)]
        cut = steps[-2] if len(steps) > 1 else 0
        # A stall report is over with the next step.
        ends = [one.last + 1 for one in stalls(self._lines) if steps and one.last < steps[-1]]
        cut = max([cut, *ends])
        if not cut:
            return self.whole_log
        # Empty lines in front keep the line numbers.
        late = explain(["\n" * cut + "\n".join(self._lines[cut:])])
        lead = self.whole_log.lead
        stall = lead and lead.signature.id.startswith("horovod.stall")
        # A job that has ended may have steps after its error: a rank's buffered output is written
        # when the rank ends. So the whole log counts if nothing was found after the last steps.
        return late if self.is_running or late.lead or late.unknown or stall else self.whole_log

    @functools.cached_property
    def is_ending(self) -> bool:
        """Whether the job has failed and not ended yet: no rank runs, all hosts were seen, and the
        log has an error."""
        begun = (
            self.is_running and self.size and (self.has_made_steps or self.job.age_s > STARTING_S)
        )
        if not begun or self.ranks or self.evidence.holes:
            return False
        if any(host.error or sees_nothing(host) for host in self.evidence.hosts):
            return False
        lead = self.explained.lead
        known = lead is not None and lead.signature.severity is ERROR
        return known or any(one.fatal for one in self.explained.unknown)

    def kernel_lines(self, host: HostEvidence) -> list[str]:
        """Return the kernel messages of a host since the start of the job."""
        since_s = self.since_start_s
        if since_s is None:
            return []
        return [
            one.text
            for one in host.known.kernel_log
            if one.age_s is not None and one.age_s <= since_s
        ]

    @functools.cached_property
    def first_to_end(self) -> tuple[int, ...]:
        """The rank that mpirun reports as the first to end, or nothing.

        It need not be the culprit: another rank's error may have ended it.
        """
        text = "\n".join(self.job.log)
        found = re.search(r"process rank (\d+) with PID", text) or re.search(
            r"Process name: \[[^\],]+,\s*(\d+)\]", text
        )
        return (int(found[1]),) if found else ()

    def rank_of_pid(self, host: HostEvidence, pid: int) -> int | None:
        """Return the rank of a process on a host; None if unknown.

        It is found among the processes that were seen, in mpirun's report of its end, or because it
        is the only rank that is missing on that host.
        """
        for one in (*self.ranks, *self.gone):
            if one.host.host == host.host and one.process.pid == pid:
                return one.number
        # Processes on two hosts may have the same pid, so mpirun's report has to name the host.
        reports = re.findall(
            rf"process rank (\d+) with PID {pid} on node (\S+)", "\n".join(self.job.log)
        )
        for rank, node in reports:
            if node in host.names:
                return int(rank)
        missing = [
            rank
            for rank, at in self.host_of.items()
            if at.host == host.host and rank not in self.by_number
        ]
        return missing[0] if len(missing) == 1 else None

    @functools.cached_property
    def _ends(self) -> Set[Ends]:
        """The TCP connections that the ranks have open."""
        return {(one.local, one.peer) for rank in self.ranks for one in rank.last.sockets}

    def works(self, rank: Rank, surely: bool = False) -> bool:
        """Whether a rank was seen to make progress.

        A program that is not Python has no calls to compare: it exchanged messages with another
        rank, or reads a file. What it tells other processes, that of a monitor for example, shows
        nothing.

        A thread beside the main one may send heartbeats, or read ahead, while the job hangs. So
        `surely` asks for more: that no main thread rests apart, and for more bytes than those of
        heartbeats. In memory these have to be of a rank whose other threads hardly run. Over TCP
        the main thread itself has to read or write as many, or to ask the kernel for them: in an
        endless loop it does not.
        """
        least = TENSOR_BYTES if surely else LONGEST_CHATTER
        alone = not surely or rank.runs_alone
        if (rank.process.shared_bytes or 0) > least and alone and not self._one_rests_apart:
            return True
        if rank.is_python:
            return rank.works_in_python(surely and not self.counts_to_total)
        if rank.reads_on:
            return True
        if not surely:
            return rank.exchanged_bytes(self._ends) > LONGEST_CHATTER
        itself = rank.grown("main_read_bytes") + rank.grown("main_written_bytes") >= TENSOR_BYTES
        itself |= (rank.asking_share or 0.0) > COMPUTES
        is_large = rank.tensor_bytes(self._ends) >= TENSOR_BYTES
        return itself and is_large and not self._one_rests_apart

    @functools.cached_property
    def _one_rests_apart(self) -> bool:
        return any(one.rests_apart for one in self.ranks)

    @functools.cached_property
    def exchanges(self) -> bool:
        """Whether each rank exchanged data with another one.

        Horovod's threads send short messages while the ranks stand still. So only bytes of large
        ones count, except in a job of torch, which has no such threads. Those of the program may
        send some while a main thread does not run at all.
        """
        if not self.is_running or not self.size or len(self.ranks) < self.size:
            return False
        still = [one for one in self.ranks if one.has_not_run]
        if not all(one.waits for one in still):
            return False
        if "-m torch.distributed.run" in self.job.line:
            least = TENSOR_BYTES if still else EXCHANGED_BYTES
            return all(one.exchanged_bytes(self._ends) >= least for one in self.ranks)
        sends = [one for one in self.ranks if one.tensor_bytes(self._ends) >= TENSOR_BYTES]
        # Ranks of one host exchange theirs in shared memory.
        hosts = {one.host.host for one in sends}
        return all(one in sends or (one.waits and one.host.host in hosts) for one in self.ranks)

    @functools.cached_property
    def moves(self) -> str:
        """What shows that ranks work, in a job of which no step was seen; empty if nothing does.

        Every rank works or waits for one that does. One rank that works while all others wait is
        no proof: it may be in a loop. It is one in a function that saves or evaluates.
        """
        if not self.is_running or not self.ranks or len(self.ranks) < self.size:
            return ""
        added = [line for line in self.job.log_added if line.strip()]
        if added and all(map(waits, added)):
            return ""
        working = [
            one
            for one in self.ranks
            if self.works(one, surely=True) or (one.is_python and self.exchanges)
        ]
        idle = [one for one in self.ranks if one not in working]
        # At a program's end, the others wait for the one that evaluates or saves.
        ends = any(map(works_alone, working))
        if not working or not all(x.waits or (ends and x in self.left) for x in idle):
            return ""
        is_long = self.since_step_s > LONGEST_ALONE_S
        if self.has_made_steps and self.silent_for_steps >= SILENT_STEPS:
            working = [one for one in working if works_alone(one) and not is_long]
        elif len(working) < len(self.ranks):
            # Before the first step, one sample in an import is enough: what comes next is short.
            starts = {*STARTING} if not is_long else set()
            # Without a step or a stall of Horovod it is not known for how long the others wait.
            waits_long = is_long and bool(self.signs or self.stall)
            working = [
                one
                for one in working
                if (works_alone(one) and not waits_long)
                or {*one.places} <= starts
                or (not self.has_made_steps and {*one.places} & starts)
                or not one.is_python
            ]
        if not working:
            return ""
        rest = len(self.ranks) - len(working)
        wait = f", and {count(rest, 'rank')} {'wait' if rest > 1 else 'waits'} for that"
        numbers = [one.number for one in working]
        places = {one.place.value for one in working if one.place is not Activity.UNKNOWN}
        where = f" {places.pop()}" if len(places) == 1 else ""
        return f"{format_ranks(numbers)} worked between the samples{where}{wait if rest else ''}"

    @functools.cached_property
    def since_start_s(self) -> float | None:
        """Seconds since the job was started: `taken_at` minus `started_at`; None if unknown."""
        try:
            taken, started = map(
                datetime.fromisoformat, (self.evidence.taken_at, self.job.started_at)
            )
            return (taken - started).total_seconds()
        except (ValueError, TypeError):
            return self.job.age_s or None

    def waited_for(self, ranks: Iterable[int]) -> str:
        """Return what the other ranks wait for these in, such as "allreduce `grad/conv1`"."""
        absent = self.stall.absent(self.size) if self.stall else {}
        tensors = list(dict.fromkeys(name for one in ranks for name in absent.get(one, ())))
        out = set(ranks)
        waiting = [one for one in self.waiting if one.number not in out]
        kinds: dict[str, list[int]] = {}
        for one in waiting:
            if one.waits_in:
                kinds.setdefault(one.waits_in, []).append(one.number)
        if tensors:
            only = next(iter(kinds)).rpartition(" ")[2] if len(kinds) == 1 else ""
            kind = (
                only
                if only in ("allreduce", "allgather", "broadcast")
                else next(
                    (word for word in ("allgather", "broadcast") if word in tensors[0].lower()),
                    "allreduce",
                )
            )
            more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
            where = place_in_model(tensors[0])
            return f"{kind} `{tensors[0]}`{f', {where},' if where else ''}{more}"
        if len(kinds) < 2:
            return next(iter(kinds), "a call that no stack shows")
        return " and ".join(f"{kind} ({format_ranks(at)})" for kind, at in kinds.items())


def numbered(evidence: Evidence) -> Evidence:
    """Return the evidence with numbers for the ranks whose environment could not be read.

    A launcher starts the ranks of a host in their order, so they have the numbers of those that
    are missing there, if these are as many. Otherwise their numbers stay unknown. If there is only
    one host, ranks whose host is not known are missing there.
    """
    scene = Scene(evidence)
    known = {one.number for one in (*scene.ranks, *scene.gone)}
    hosts: list[HostEvidence] = []
    host_of = scene.host_of
    if len(evidence.hosts) == 1:
        host_of = dict.fromkeys(range(scene.size), evidence.hosts[0]) | host_of
    for host in evidence.hosts:
        found = host
        blank = scene.unnumbered(host)
        of_host = [one for one, at in host_of.items() if at is host and one not in known]
        if blank and len(blank) == len(of_host):
            order = sorted(blank, key=lambda one: (-one.age_s, one.pid))
            number = {one.pid: rank for one, rank in zip(order, sorted(of_host))}
            named = (
                replace(one, rank=number[one.pid], job_id=scene.job.job_id)
                if one.pid in number
                else one
                for one in host.processes
            )
            note = f"the environment of {format_ranks(number.values())}: " + (
                "it is overwritten or not readable; they are numbered by the order of their start"
            )
            found = replace(host, processes=tuple(named), problems=(*host.problems, note))
        hosts.append(found)
    return replace(evidence, hosts=tuple(hosts))


def gdb_command(scene: Scene, rank: Rank) -> str:
    """Return the command that shows the calls of a rank in C. It holds the process for a moment."""
    gdb = f"gdb -p {rank.process.pid} -batch -ex 'thread apply all bt'"
    return scene.hints.on(rank.host, gdb)


def full_filesystems(scene: Scene) -> list[tuple[HostEvidence, str]]:
    """Return the full file systems of all hosts."""
    return [
        (host, system.path)
        for host in scene.evidence.hosts
        for system in host.known.filesystems
        if has_no_room(system)
    ]


def room_hint(scene: Scene) -> str:
    return scene.hints.steps(
        scene.hints.cluster("clusterctl disk NAME shows what fills it"),
        scene.hints.cluster("clusterctl clean-logs NAME removes logs and checkpoints"),
    )


def full_disk_finding(
    scene: Scene, rank: Rank, disk: str, where: str, shown: tuple[str, ...]
) -> RankFinding:
    """Return the finding about a rank on a full disk."""
    what = f"get{{s}} no further{where}: {disk} on that host is full"
    return RankFinding("disk.full", ERROR, rank, what, shown, room_hint(scene))


def combine(found: Iterable[RankFinding]) -> list[Cause]:
    """Make one cause of the same findings about several ranks."""
    groups: dict[tuple[str, Severity, str], tuple[list[Rank], list[str], list[str]]] = {}
    for check, severity, rank, what, shown, hint in found:
        ranks, lines, hints = groups.setdefault((check, severity, what), ([], [], []))
        ranks.append(rank)
        lines += shown
        hints.append(hint)
    causes = []
    for (check, severity, what), (ranks, lines, hints) in groups.items():
        verb = what.replace("{s}", "" if len(ranks) > 1 else "s")
        for one, many in (("{is}", "are"), ("{has}", "have")):
            verb = verb.replace(one, many if len(ranks) > 1 else one[1:-1])
        numbers = tuple(sorted(one.number for one in ranks))
        causes.append(
            Cause(
                check,
                severity,
                f"{ranks_in_words(ranks)} {verb}",
                only({rank.host.host for rank in ranks}),
                "; ".join([*dict.fromkeys(hints)][:MOST_NAMED]),
                ranks=numbers,
                evidence=tuple(dict.fromkeys(lines))[:8],
            )
        )
    return causes
