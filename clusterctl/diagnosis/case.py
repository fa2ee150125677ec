"""The evidence prepared for the rules: ranks with their hosts, who waits, who moved, since when."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence, Set, Sized
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from clusterctl.diagnosis.evidence import (
    Evidence,
    Frame,
    HostEvidence,
    JobEvidence,
    ProcessEvidence,
    Sample,
    Socket,
)
from clusterctl.diagnosis.frames import (
    WAITING,
    Activity,
    collective_of,
    deciding_call,
    is_user,
    known_call,
    name_of,
    place_of,
)
from clusterctl.diagnosis.hints import Hints
from clusterctl.diagnosis.hostchecks import SHM, has_no_room
from clusterctl.diagnosis.mapping import Placement, placed
from clusterctl.diagnosis.native import Native, native_of
from clusterctl.diagnosis.tree import label, main_thread, sample_path
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count, format_duration
from clusterctl.explain.engine import Explanation, explain
from clusterctl.explain.stalls import Stall, place_in_model, stalls

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
# A job is called stuck if it wrote no new step or line for this many seconds, and for this many of
# its usual intervals between steps. Before that it may be in a long step.
STUCK_AFTER_S = 10.0
STUCK_AFTER_STEPS = 4
# A step that was recorded this recently, or within the usual time of so many steps, shows that the
# job makes steps.
ADVANCED_WITHIN_S = 2.0
ADVANCED_WITHIN_STEPS = 1.5
# So many lines about steps that the time of a job's start matters little in their mean.
MOST_OF_A_LOG = 20
# So many times between lines about steps tell what is usual: nine of ten are not longer. Several
# ranks may print each step at once, and a hang that has passed is one long time among many.
FEW_TIMES, USUAL_PART = 5, 0.9
# A share needs so many seconds of processor time: the kernel counts hundredths.
BUSY_S = 0.1
# A program in C computes if the kernel's part of its time is at most the first share, and that of
# each other rank, which asks for messages, at least the second.
COMPUTES, ASKS = 0.1, 0.3
# Bytes between ranks in a few seconds: more than processes without work send to say that they live.
EXCHANGED_BYTES = 4 << 10
# The messages by which idle threads of Horovod coordinate are no longer than this. What a
# connection carried beyond so many bytes in each of its segments is of larger messages: tensors.
LONGEST_CHATTER, TENSOR_BYTES = 512, 64 << 10
# Between two looks, who reads data or writes a checkpoint gets further in a file than this. Who
# tries again may log each time that it does.
READ_BYTES = 64 << 10
# A main thread at work uses so much of the time a processor. One that tries again and again uses
# less.
WORKS_SHARE = 0.1
# A rank that saves or evaluates alone for longer than this is not called healthy for that.
LONGEST_ALONE_S = 600.0
# A job that printed steps and has been silent for so many of them is never healthy.
SILENT_STEPS = 10
# In the first seconds of a job, some ranks may not have been started yet.
STARTED_AFTER_S = 5.0
# The ranks of a job that is younger may not run yet.
STARTING_S = 30.0
# So few ranks on several hosts are named with their hosts.
MOST_NAMED = 3
RUNNING, QUEUED = "running", "queued"
_STEP = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch)s?\b\W*\d|(?:images?|img|samples?|it|tokens?)/s(?:ec)?\b"
    r"|\bs/(?:it|step)\b|^\s*\d+(?:/\d+)?\s+[\[\d.=>-]"
)
# Log lines that are no sign of progress.
_COMPLAINT = re.compile(
    r"(?i)error|exception|traceback|warn|fail|stall|cannot|can't|unable|missing ranks|\bready ranks"
    r"|\d+: \[|no space|retry|trying again|time(?:d)?[ -]?out|hang|hung"
)
# The same for lines that say that a program waits. A line of a step may say how long it waited.
_WAITS = re.compile(
    r"(?i)\bwait|heartbeat|\bstill\b|alive|polling|\battempt|\bnot (?:ready|yet)|\bsleep|\bpending"
    r"|\breconnect|\bback(?:ing)?[ -]?off\b|\bretr(?:y|ies)\b|\btrying again"
)
_MEASURES = re.compile(r"(?i)loss|acc|/s\b")


# The two ends of a TCP connection: the local address with its port, and the peer's.
Ends = tuple[str, str]


@dataclass(frozen=True)
class Cause(Finding):
    """A finding with the ranks that it is about and the lines of evidence for it.

    `blocks`: it can be the reason why the job stands still. The first such finding is the verdict.
    """

    ranks: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    blocks: bool = True


@dataclass(frozen=True)
class Rank:
    """A rank's process with its host.

    Samples are its snapshots, usually three. `places` is what the main thread did at each.
    """

    process: ProcessEvidence
    host: HostEvidence

    @property
    def number(self) -> int:
        return -1 if self.process.rank is None else self.process.rank

    @functools.cached_property
    def samples(self) -> tuple[Sample, ...]:
        return self.process.samples

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample()

    @functools.cached_property
    def places(self) -> tuple[Activity, ...]:
        return tuple(_place(sample, self.is_python) for sample in self.samples)

    @functools.cached_property
    def place(self) -> Activity:
        """What the rank did at all samples; UNKNOWN if that changed."""
        return self.places[0] if len(set(self.places)) == 1 else Activity.UNKNOWN

    @functools.cached_property
    def states(self) -> str:
        """The kernel's letters of all samples, such as `SSS`."""
        return "".join(sample.state for sample in self.samples)

    def was(self, state: str) -> bool:
        """Return whether the process was in that state at every sample."""
        return bool(self.states) and set(self.states) == {state}

    @functools.cached_property
    def native(self) -> Native:
        """What its calls in C tell."""
        return native_of(self.process)

    @property
    def waits_in(self) -> str:
        """What it waits in for other ranks, such as `Horovod's allreduce`; empty if unknown."""
        frames = main_thread(self.last)
        kind = collective_of(frames)
        if kind or self.place not in WAITING:
            return kind
        deciding = deciding_call(frames)
        row = deciding and known_call(deciding)
        if not row:
            return ""
        return f"the start of {row.library}" if row.place is Activity.INIT else row.library

    @property
    def is_python(self) -> bool:
        """Whether it runs Python, whose calls py-spy reads. Those of other programs it does not."""
        return any(one.stacks for one in self.samples) or "python" in " ".join(
            self.process.argv[:1]
        )

    @functools.cached_property
    def works_in_python(self) -> bool:
        """Whether a rank of Python was seen to make progress: see `Scene.works`.

        It was in other calls, and left a step, got on in a file, or used the processor: a loop that
        only tries again is in other calls, too.
        """
        seen = [place for place, one in zip(self.places, self.samples) if main_thread(one)]
        left = any(a in (*WAITING, Activity.IMPORT) and a != b for a, b in zip(seen, seen[1:]))
        used_s = self.grown("main_cpu_s")
        # On a busy host it gets less, and is ready to run at all looks.
        uses = used_s > 0 and (used_s >= WORKS_SHARE * self.span_s or self.was("R"))
        return len(seen) > 1 and self.moved and (left or self.gets_on or uses)

    def exchanged_bytes(self, others: Set[Ends]) -> int:
        """Return the bytes that its busiest connection to one of these ranks' sockets carried
        between the looks. Bytes that the rank has not taken do not count."""
        return max((_carried(*looks) for looks in self._connections(others)), default=0)

    def tensor_bytes(self, others: Set[Ends]) -> int:
        """Return how many bytes of large messages its busiest connection carried at least."""
        return max((_in_large_messages(*looks) for looks in self._connections(others)), default=0)

    def _connections(self, others: Set[Ends]) -> Iterator[tuple[Socket, Socket]]:
        """Yield its connections to these sockets, each at the first and at the last look."""
        looks = [{(one.local, one.peer): one for one in look.sockets} for look in self.samples]
        for (local, peer), last in looks[-1].items() if len(looks) > 1 else ():
            first = looks[0].get((local, peer))
            if first and (peer, local) in others:
                yield first, last

    @functools.cached_property
    def asking_share(self) -> float | None:
        """The kernel's part of the main thread's processor time between the looks; None if it is
        not known, or too little.

        Who waits for a message in MPI over TCP asks the kernel for it again and again. Who computes
        does not.
        """
        used_s = self.grown("main_cpu_s")
        if self.last.main_system_s is None or used_s < BUSY_S:
            return None
        return self.grown("main_system_s") / used_s

    @functools.cached_property
    def waits(self) -> bool:
        """Whether the rank waited for others at every sample, or may have."""
        return bool(self.places) and all(
            place in WAITING and sample.state in "RS"
            for place, sample in zip(self.places, self.samples)
        )

    @functools.cached_property
    def moved(self) -> bool:
        """Whether its stack changed between samples, or its position in a file."""
        # A look at which the stack could not be read shows no other call.
        seen = [one for one in self.samples if main_thread(one)] or self.samples
        if len({sample_path(sample) for sample in seen}) > 1:
            return True
        positions: dict[str, int] = {}
        for sample in self.samples:
            for file in sample.files:
                if positions.setdefault(file.path, file.position) != file.position:
                    return True
        return False

    @property
    def gets_on(self) -> bool:
        """Whether it got further in a file between the first and the last sample."""
        first = {one.path: one.position for one in self.samples[0].files} if self.samples else {}
        return any(
            one.position - first.get(one.path, one.position) > READ_BYTES for one in self.last.files
        )

    @functools.cached_property
    def shared_frames(self) -> tuple[Frame, ...]:
        """The calls that all samples share, the outermost first; their lines may differ."""
        stacks = [main_thread(sample) for sample in self.samples]
        if not stacks or not all(stacks):
            return ()
        shared: list[Frame] = []
        for frames in zip(*stacks):
            if len({(one.function, one.file) for one in frames}) > 1:
                break
            shared.append(frames[-1])
        return tuple(shared)

    @property
    def user_call(self) -> Frame | None:
        """The innermost call of the user's own code that all samples share; None without one."""
        return next((one for one in reversed(self.shared_frames) if is_user(one)), None)

    @functools.cached_property
    def span_s(self) -> float:
        """Seconds between the first and the last sample."""
        return self.samples[-1].at_s - self.samples[0].at_s if self.samples else 0.0

    def grown(self, name: str) -> float:
        """Return how much a counter in the samples grew from the first to the last."""
        if not self.samples:
            return 0.0
        grown: float = (getattr(self.last, name) or 0.0) - (getattr(self.samples[0], name) or 0.0)
        return max(0.0, grown)


def _carried(first: Socket, last: Socket) -> int:
    taken = last.received_bytes - last.receive_queue_bytes
    taken -= first.received_bytes - first.receive_queue_bytes
    return max(0, last.acked_bytes - first.acked_bytes) + max(0, taken)


def _in_large_messages(first: Socket, last: Socket) -> int:
    """Return the bytes in messages longer than LONGEST_CHATTER, at least; 0 if not known."""
    if not last.sent_segments and not last.received_segments:
        return 0
    sent = last.acked_bytes - first.acked_bytes
    sent -= LONGEST_CHATTER * (last.sent_segments - first.sent_segments)
    came = last.received_bytes - first.received_bytes
    came -= LONGEST_CHATTER * (last.received_segments - first.received_segments)
    return max(sent, came)


def _place(sample: Sample, is_python: bool) -> Activity:
    """Return what the main thread did in a sample, from its stack.

    Without a stack, a Python whose main thread sleeps in futex, epoll or poll is assumed to wait
    for others. In other programs those may be locks of their own, and who waits in MPI polls.
    """
    place = place_of(main_thread(sample))
    if not is_python:
        return place
    sleeps = sample.state == "S" and sample.syscall.startswith(("futex", "epoll", "poll", "ppoll"))
    return Activity.GRAPH if place is Activity.UNKNOWN and sleeps else place


def called(host: HostEvidence) -> str:
    """Return a host's name and address, such as `demo-1 (10.0.3.7)`."""
    return f"{host.host} ({host.address})" if host.address else host.host


def sees_nothing(host: HostEvidence) -> bool:
    """Return whether the processes of a host that answered could not be read."""
    return any(text.startswith("processes:") for text in host.problems)


def _complains(line: str) -> bool:
    """Return whether a log line says that something is wrong, or that a program waits."""
    return _waits(line) or bool(_COMPLAINT.search(line))


def _waits(line: str) -> bool:
    """Return whether a log line says that a program waits, or tries again."""
    return bool(_WAITS.search(line)) and not _MEASURES.search(line)


# Several rules ask for each line of the log.
@functools.lru_cache(maxsize=8192)
def is_step(line: str) -> bool:
    """Return whether a log line is about a step of a training."""
    return bool(_STEP.search(line)) and not _complains(line)


def were(things: Sized) -> str:
    """Return `was` or `were`."""
    return "was" if len(things) == 1 else "were"


def ranks_in_words(ranks: Sequence[Rank]) -> str:
    """Return ranks in words: `rank 5 on demo-1 (10.0.3.7) GPU 1`, `ranks 8-15 on 2 hosts`."""
    numbers = [one.number for one in ranks]
    hosts = list(dict.fromkeys(called(one.host) for one in ranks))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    if len(ranks) <= MOST_NAMED and len(hosts) > 1:
        return " and ".join(f"rank {one.number} on {called(one.host)}" for one in ranks)
    if len(ranks) > 1:
        return f"ranks {format_indices(numbers)} on {where}"
    gpus = ranks[0].process.gpus if ranks[0].host.gpus else ()
    gpu = f" GPU {format_indices(gpus)}" if gpus else ""
    return f"rank {numbers[0]} on {where}{gpu}"


class RankFinding(NamedTuple):
    """A finding about one rank, of which `combine` makes causes.

    In `what`, {s}, {is} and {has} stand for the endings and verbs that depend on the number of
    ranks.
    """

    check_id: str
    severity: Severity
    rank: Rank
    what: str
    evidence: tuple[str, ...]
    hint: str


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the numbers of ranks as `rank 5` or `ranks 8-15`."""
    listed = list(ranks)
    return f"{'ranks' if len(listed) > 1 else 'rank'} {format_indices(listed)}"


def process_line(process: ProcessEvidence) -> str:
    """Return a line of evidence about a process: its pid, its states, and what it waits in."""
    last = process.samples[-1] if process.samples else Sample()
    parts = [f"pid {process.pid}", f"state {''.join(one.state for one in process.samples)}"]
    parts += [f"in {last.syscall}"] if last.syscall and last.syscall != "running" else []
    parts += [f"wchan {last.wait_channel}"] if last.wait_channel else []
    return ", ".join(parts)


def rank_lines(rank: Rank) -> tuple[str, ...]:
    """Return the evidence of where a rank is: its process, and the innermost calls of its stack."""
    frames = main_thread(rank.last)
    stack = " > ".join(label(frame) for frame in frames[-4:])
    line = f"rank {rank.number}: {process_line(rank.process)}"
    lines = (line, f"rank {rank.number}: {stack}") if stack else (line,)
    return (*lines, *(f"rank {rank.number}: {one}" for one in rank.native.lines))


def syscall_path(syscall: str) -> str:
    """Return the path in a system call such as `read /data/train-00017`; else empty."""
    found = re.match(r"\w+ (/.*)", syscall)
    return found[1] if found else ""


# Names of functions in which one rank works, and the others wait for it.
_SAVES = re.compile(r"(?i)save|checkpoint|export")
_EVALUATES = re.compile(
    r"(?i)evaluat|validat|^(?:eval|valid|test|predict|infer)(?:_|$)|_(?:eval|val)$"
)


def _was_in(rank: Rank, names: re.Pattern[str]) -> bool:
    return any(names.search(name_of(frame)) for one in rank.samples for frame in main_thread(one))


def is_saving(rank: Rank) -> bool:
    """Return whether a rank was in a function that saves or evaluates, judged by its name."""
    return _was_in(rank, _SAVES) or _was_in(rank, _EVALUATES)


def saves_with_progress(rank: Rank) -> bool:
    """Return whether a rank is in a checkpoint or an evaluation, and may work meanwhile.

    The kernel's counters of bytes are those of the whole process. They include the sockets of
    Horovod's and MPI's threads, which exchange bytes while the rank stands still.
    """
    grows = rank.grown("written_bytes") > 0 or rank.grown("read_bytes") > 0
    return works_alone(rank) or (is_saving(rank) and grows)


def works_alone(rank: Rank) -> bool:
    """Return whether a rank is in a checkpoint or an evaluation, and was seen to work.

    One that tries again and again to save is in other calls, too, but gets no further in a file.
    """
    works = rank.is_python and rank.works_in_python
    return works and (_was_in(rank, _EVALUATES) or (is_saving(rank) and rank.gets_on))


def full_disk_of(rank: Rank) -> str:
    """Return the full file system on which a rank has files or its working folder; else empty."""
    mounts = {one.path: has_no_room(one) for one in rank.host.filesystems}
    used = {rank.process.cwd, *(file.path for one in rank.samples for file in one.files)}
    used |= {syscall_path(sample.syscall) for sample in rank.samples}
    for path in sorted(filter(None, used)):
        mount = max((one for one in mounts if _is_below(path, one)), key=len, default="")
        if mounts.get(mount) and mount != SHM:
            return mount
    return ""


def _is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder.rstrip("/") + "/")


class Scene:
    """The evidence with the derived values that the rules share.

    `ranks` are those of the job, `gone` those that ended during the samples, `left_over` the ranks
    of other jobs and of jobs that have ended.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.hints = Hints(evidence)
        self.job: JobEvidence = evidence.job or JobEvidence()
        self.is_running = evidence.job is not None and self.job.state in (RUNNING, "")
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
        known = {(one.host.host, one.process.pid) for one in ours}
        self.left_over = [one for one in every if (one.host.host, one.process.pid) not in known]

    @functools.cached_property
    def placement(self) -> Placement:
        """Where mpirun has placed the ranks, as far as it is known without seeing them."""
        launchers = [
            one
            for host in self.evidence.hosts
            for one in host.processes
            if one.role == "launcher" and (one.job_id or "") == self.job.job_id
        ]
        variables = launchers[0].variables if launchers else {}
        log = [*self.job.log_first, *self.job.log]
        return placed(self.job.line, self.job.hosts, log, variables)

    @functools.cached_property
    def size(self) -> int:
        """The number of ranks that the job should have; 0 if unknown."""
        seen = max((one.process.size or 0 for one in self.ranks), default=0)
        return self.job.size or seen or self.placement.ranks

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

    @functools.cached_property
    def hosts(self) -> list[HostEvidence]:
        """The hosts that the job uses; all hosts if that is unknown."""
        used = {one.host for one in self.host_of.values()}
        return [one for one in self.evidence.hosts if one.host in used or not used]

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

    @functools.cached_property
    def computing(self) -> list[Rank]:
        """The few ranks of a program in C that compute while all others ask for messages."""
        shares = {one.number: one.asking_share for one in self.ranks if not one.is_python}
        known = {number: share for number, share in shares.items() if share is not None}
        few = [number for number, share in known.items() if share <= COMPUTES]
        asks = [share for share in known.values() if share >= ASKS]
        if len(known) < len(self.ranks) or len(few) + len(asks) < len(known):
            return []
        return [one for one in self.ranks if one.number in few] if len(few) <= len(asks) else []

    def others_wait(self, suspects: Iterable[int]) -> bool:
        """Return whether all ranks except the suspects wait, and 9 of 10 did not move.

        At least one rank has to be left.
        """
        out = set(suspects)
        rest = [one for one in self.ranks if one.number not in out]
        still = sum(not one.moved for one in rest)
        return bool(rest) and all(one.waits for one in rest) and still >= 0.9 * len(rest)

    @functools.cached_property
    def stall(self) -> Stall | None:
        """Horovod's last stall report; None without one, or if the job went on after it."""
        reports = stalls(self.job.log)
        if not reports:
            return None
        after = self.job.log[reports[-1].last + 1 :]
        went_on = [line for line in after if line.strip() and not _complains(line)]
        return None if went_on and self.is_running else reports[-1]

    @functools.cached_property
    def stalled_s(self) -> float:
        """Seconds that the stall has lasted at least, from all reports since the job last went on.

        It is 0 without a stall.
        """
        first = last = self.stall
        for one in reversed(stalls(self.job.log)):
            after = self.job.log[one.last + 1 : first.at if first and one is not first else None]
            if any(line.strip() and not _complains(line) for line in after):
                break
            first = one
        if not first or not last:
            return 0.0
        return first.after_s + last.seconds_since(first) + (self.job.log_silent_s or 0.0)

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
            one.text for one in host.kernel_log if one.age_s is not None and one.age_s <= since_s
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
        said = re.findall(
            rf"process rank (\d+) with PID {pid} on node (\S+)", "\n".join(self.job.log)
        )
        for rank, node in said:
            if node in host.names:
                return int(rank)
        missing = [
            rank
            for rank, at in self.host_of.items()
            if at.host == host.host and rank not in self.by_number
        ]
        return missing[0] if len(missing) == 1 else None

    @functools.cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the last run in the trainer's metrics."""
        rows = [row for row in self.job.metrics if isinstance(row.get("time"), (int, float))]
        run = rows[-1].get("run") if rows else None
        return [row for row in rows if row.get("run") == run]

    @functools.cached_property
    def gaps_s(self) -> list[float]:
        """The seconds between the rows of the trainer's metrics."""
        times = [float(row["time"]) for row in self.rows]
        return [b - a for a, b in zip(times, times[1:]) if b > a]

    @functools.cached_property
    def step_times(self) -> list[tuple[float, str]]:
        """How many seconds ago the last lines about steps were written, the oldest first, with the
        last of the lines that were written together. Empty if that is not known."""
        found, end = [], len(self.job.log)
        for at_s, lines in reversed(self.job.log_writes):
            steps = [line for line in self.job.log[max(0, end - lines) : end] if is_step(line)]
            end -= lines
            if steps:
                found.append((at_s, steps[-1]))
            if end <= 0:
                break
        return found[::-1]

    @functools.cached_property
    def rhythm_s(self) -> float:
        """The usual time in seconds from a step, or a row of several, to the next; 0 if unknown.

        It is the median of the metrics' rows. Without them it is what most lines about steps took
        lately; if their times are not known, the mean since the job's start, for which it takes
        many of them.
        """
        gaps = self.gaps_s
        if len(gaps) >= 2:
            # A job that has become slower has a new usual time.
            return max(statistics.median(gaps), statistics.median(gaps[-3:]))
        times = [at_s for at_s, _ in self.step_times]
        gaps = [a - b for a, b in zip(times, times[1:]) if a > b]
        if len(gaps) >= FEW_TIMES:
            most = sorted(gaps)[int(USUAL_PART * (len(gaps) - 1))]
            return max(most, statistics.median(gaps[-3:]))
        steps = float(sum(is_step(line) for line in self.job.log))
        bytes_here = sum(len(line) + 1 for line in self.job.log)
        if steps < MOST_OF_A_LOG or self.job.log_silent_s is None or not self.job.age_s:
            return 0.0
        # The evidence has the end of a long log.
        steps *= max(1.0, self.job.log_bytes / bytes_here)
        return max(0.0, self.job.age_s - self.job.log_silent_s) / steps

    @functools.cached_property
    def quiet_s(self) -> float | None:
        """Seconds since the last sign of a step in metrics and log; None if neither can tell.

        A trainer that writes rows of metrics shows its steps there, whatever else its log says.
        """
        said = [self.job.metrics_silent_s] if self.rows else []
        last = next((line for line in reversed(self.job.log) if line.strip()), "")
        counts = is_step(last) if self.rows else not _complains(last)
        if self.job.log_silent_s is not None and counts and not self.stall:
            said.append(self.job.log_silent_s)
        known = [one for one in said if one is not None]
        return min(known) if known else None

    @property
    def patience_s(self) -> float:
        """Seconds without a step after which the job is called stuck."""
        return max(STUCK_AFTER_S, STUCK_AFTER_STEPS * self.rhythm_s)

    @functools.cached_property
    def is_quiet(self) -> bool:
        """Whether the job has made no step for longer than `patience_s`, or none that is known."""
        if self.stall or self.quiet_s is None:
            return True
        return self.quiet_s >= self.patience_s

    @functools.cached_property
    def has_made_steps(self) -> bool:
        """Whether the job has made steps, as its rows and its log show."""
        return bool(self.rows) or any(map(is_step, self.job.log))

    @functools.cached_property
    def advances(self) -> str:
        """What shows that the job makes steps, in words; empty if nothing does."""
        if not self.is_running:
            return ""
        added = [line for line in self.job.log_added if is_step(line)]
        if added:
            return f"{count(len(added), 'step')} {were(added)} printed during the diagnosis"
        # However slow its steps are, ten minutes without one are too long.
        within_s = max(ADVANCED_WITHIN_S, min(ADVANCED_WITHIN_STEPS * self.rhythm_s, 600.0))
        silent_s = self.job.metrics_silent_s
        if self.rows and silent_s is not None and silent_s <= within_s:
            last = self.rows[-1]
            step = f"step {last['step']}" if "step" in last else "a row of metrics"
            return f"{step} was recorded {format_duration(silent_s)} ago{self._often('rows')}"
        last_line = next((line for line in reversed(self.job.log) if line.strip()), "")
        silent_s = self.job.log_silent_s
        if silent_s is not None and silent_s <= within_s and is_step(last_line) and not self.stall:
            return f"a step was printed {format_duration(silent_s)} ago{self._often('lines')}"
        return ""

    def _often(self, what: str) -> str:
        return f", {what} come every {format_duration(self.rhythm_s)}" if self.rhythm_s else ""

    @functools.cached_property
    def _ends(self) -> Set[Ends]:
        """The TCP connections that the ranks have open."""
        return {(one.local, one.peer) for rank in self.ranks for one in rank.last.sockets}

    def works(self, rank: Rank) -> bool:
        """Whether a rank was seen to make progress.

        A program that is not Python has no calls to compare: it exchanged messages with another
        rank. What it tells other processes, that of a monitor for example, shows nothing.
        """
        if rank.is_python:
            return rank.works_in_python
        return rank.exchanged_bytes(self._ends) > LONGEST_CHATTER

    @functools.cached_property
    def exchanges(self) -> bool:
        """Whether each rank exchanged data with another one.

        Horovod's threads send short messages while the ranks stand still. So only bytes of large
        ones count, except in a job of torch, which has no such threads.
        """
        if not self.is_running or not self.size or len(self.ranks) < self.size:
            return False
        if "-m torch.distributed.run" in self.job.line:
            return all(one.exchanged_bytes(self._ends) >= EXCHANGED_BYTES for one in self.ranks)
        return all(one.tensor_bytes(self._ends) >= TENSOR_BYTES for one in self.ranks)

    @functools.cached_property
    def moves(self) -> str:
        """What shows that ranks work, in a job of which no step was seen; empty if nothing does.

        Every rank works or waits for one that does. One rank that works while all others wait is
        no proof: it may be in a loop. It is one in a function that saves or evaluates.
        """
        if not self.is_running or not self.ranks or len(self.ranks) < self.size:
            return ""
        added = [line for line in self.job.log_added if line.strip()]
        if added and all(map(_waits, added)):
            return ""
        working = [one for one in self.ranks if self.exchanges or self.works(one)]
        if not working or not all(one in working or one.waits for one in self.ranks):
            return ""
        if self.has_made_steps and self.silent_for_steps >= SILENT_STEPS:
            is_long = (self.quiet_s or 0.0) > LONGEST_ALONE_S
            working = [one for one in working if works_alone(one) and not is_long]
        elif len(working) < len(self.ranks):
            working = [
                one
                for one in working
                if works_alone(one) or one.place is Activity.IMPORT or not one.is_python
            ]
        if not working:
            return ""
        rest = len(self.ranks) - len(working)
        wait = f", and {count(rest, 'rank')} {'wait' if rest > 1 else 'waits'} for that"
        numbers = [one.number for one in working]
        places = {one.place.value for one in working if one.place is not Activity.UNKNOWN}
        where = f" {places.pop()}" if len(places) == 1 else ""
        return f"{format_ranks(numbers)} worked between the samples{where}{wait if rest else ''}"

    @property
    def is_stuck(self) -> bool | None:
        """Whether the job stands still, by its log and metrics alone; None if they cannot tell."""
        if not self.is_running:
            return None
        if self.advances:
            return False
        is_silent = self.silent_for_steps >= SILENT_STEPS and self.is_quiet
        return True if self.stall or (self.has_made_steps and is_silent) else None

    @property
    def silent_for_steps(self) -> float:
        """For how many of its usual steps the job has shown none; 0 if that is not known."""
        if self.quiet_s is None or not self.rhythm_s:
            return 0.0
        return self.quiet_s / self.rhythm_s

    @property
    def since(self) -> str:
        """How long the job has made no step, such as ` for 214 s`; empty if unknown."""
        if self.stall:
            return f" for {format_duration(self.stalled_s)}"
        if self.job.metrics_silent_s is not None and self.rows:
            return f" for {format_duration(self.job.metrics_silent_s)}"
        return f" for {format_duration(self.quiet_s)}" if self.quiet_s and self.is_quiet else ""

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


def gdb_command(scene: Scene, rank: Rank) -> str:
    """Return the command that shows the calls of a rank in C. It holds the process for a moment."""
    gdb = f"gdb -p {rank.process.pid} -batch -ex 'thread apply all bt'"
    return scene.hints.on(rank.host, gdb)


def full_filesystems(scene: Scene) -> list[tuple[HostEvidence, str]]:
    """Return the full file systems of all hosts."""
    return [
        (host, system.path)
        for host in scene.evidence.hosts
        for system in host.filesystems
        if has_no_room(system)
    ]


def room_hint(scene: Scene) -> str:
    return scene.hints.steps(
        scene.hints.cluster("clusterctl disk NAME says what fills it"),
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
        hosts = {rank.host.host for rank in ranks}
        numbers = tuple(sorted(one.number for one in ranks))
        causes.append(
            Cause(
                check,
                severity,
                f"{ranks_in_words(ranks)} {verb}",
                hosts.pop() if len(hosts) == 1 else None,
                "; ".join([*dict.fromkeys(hints)][:MOST_NAMED]),
                ranks=numbers,
                evidence=tuple(dict.fromkeys(lines))[:8],
            )
        )
    return causes
