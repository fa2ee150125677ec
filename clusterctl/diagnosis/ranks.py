"""A rank with its host: what it does, whether it works, and both in words."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from clusterctl.diagnosis.evidence import Frame, HostEvidence, ProcessEvidence, Sample, Socket
from clusterctl.diagnosis.frames import (
    STARTING,
    WAITING,
    Activity,
    collective_of,
    deciding_call,
    is_user,
    known_call,
    name_of,
    place_of,
)
from clusterctl.diagnosis.hostchecks import SHM, has_no_room
from clusterctl.diagnosis.native import Native, native_of
from clusterctl.diagnosis.tree import joined, label, main_thread, sample_path
from clusterctl.domain.ranges import format_indices
from clusterctl.node.diagnosis.partners import READS
from clusterctl.node.jobs.processes import SHELLS

# A share needs so many seconds of processor time: the kernel counts hundredths.
BUSY_S = 0.1
# The messages by which idle threads of Horovod coordinate are no longer than this. What a
# connection carried beyond so many bytes in each of its segments is of larger messages: tensors.
LONGEST_CHATTER, TENSOR_BYTES = 512, 64 << 10
# Between two looks, who reads data or writes a checkpoint gets further in a file than this. Who
# tries again may log each time that it does.
READ_BYTES = 64 << 10
# A main thread at work uses so much of the time a processor. One that tries again and again uses
# less.
WORKS_SHARE = 0.1
# Who sleeps uses less of a processor. A thread that sends runs more often between the looks.
RESTS, FEW_RUNS = 0.05, 10
FEW_LOOKS = 3
# One that naps at more of the glances than this only asks whether it may go on.
NAPS_SHARE = 0.1
# On a busy host it is ready to run at more than this share of the glances.
READY_SHARE = 0.8
# System calls, if any is known, of a program that waits for messages by asking again and again.
POLLING_CALLS = {
    *("", "running", "sched_yield", "poll", "ppoll", "select", "pselect6"),
    *("epoll_wait", "epoll_pwait", "epoll_pwait2"),
}
# So few ranks on several hosts are named with their hosts.
MOST_NAMED = 3


_TERMINAL = re.compile(r"/dev/(?:pts/|tty|console)")
# Python's own loops that ask the user.
_CONSOLE = re.compile(r"/(?:cmd|pdb|code)\.py$")

# What py-spy prints about a process without Python: it has ended there, or has not begun.
NO_INTERPRETER = "Failed to find a python interpreter"

# The two ends of a TCP connection: the local address with its port, and the peer's.
Ends = tuple[str, str]


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

    @property
    def gpus(self) -> list[int]:
        """The GPUs that it was seen to use, as nvidia-smi numbers and lists them."""
        cards = enumerate(self.host.gpus)
        return [at for at, one in cards if any(x.pid == self.process.pid for x in one.processes)]

    @property
    def children(self) -> list[ProcessEvidence]:
        """The processes that it has started, as far as they were seen."""
        return [one for one in self.host.processes if one.parent == self.process.pid]

    @property
    def below(self) -> list[ProcessEvidence]:
        """Its children, and the processes that these have started."""
        found = [*self.children]
        for above in found:
            below = (one for one in self.host.processes if one.parent == above.pid)
            found += [one for one in below if one not in found]
        return found

    @functools.cached_property
    def samples(self) -> tuple[Sample, ...]:
        return self.process.samples

    @property
    def last(self) -> Sample:
        return self.process.last

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
        kind = collective_of(frames) if place_of(frames) is not Activity.BUILD else ""
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

    @property
    def has_no_interpreter(self) -> bool:
        """Whether no Python was found in it at any sample, although it is started as one."""
        found = [NO_INTERPRETER in one.stack_error for one in self.samples]
        return bool(found) and self.is_python and all(found)

    @property
    def shell_script(self) -> str:
        """The name of the shell script that it still is, or its shell; else empty."""
        shell, *words = [one.rpartition("/")[2] for one in self.process.argv[:2]] or [""]
        if shell.lstrip("-") not in SHELLS:
            return ""
        return words[0] if words and not words[0].startswith("-") else shell

    def works_in_python(self, surely: bool = False) -> bool:
        """Whether a rank of Python was seen to make progress: see `Scene.works`.

        It left a step, got on in a file that it reads or saves, or was in other calls and used the
        processor without naps. A loop that only tries again may do that, too, and log it: so
        `surely` only who starts, saves or evaluates makes progress by that.
        """
        read = [place for place, one in zip(self.places, self.samples) if main_thread(one)]
        left = any(a in (*WAITING, *STARTING) and a != b for a, b in zip(read, read[1:]))
        gets_on = self.gets_on and (self.own_read_bytes > READ_BYTES or is_saving(self))
        uses = self.uses_processor and not self.naps and self.is_in_other_calls
        uses = uses and (not surely or is_saving(self) or bool({*read} & {*STARTING}))
        return len(read) > 1 and (left or gets_on or uses)

    @property
    def works_in_thread(self) -> bool:
        """Whether its main thread only waits for the end of another one, whose calls count."""
        return joined(self.last) is not None

    @functools.cached_property
    def used_s(self) -> float:
        """The processor time of its main thread between the looks, or of all threads if it works in
        another one."""
        return self.grown("cpu_s" if self.works_in_thread else "main_cpu_s")

    @property
    def own_read_bytes(self) -> float:
        """What its main thread has read between the looks, or all threads if it works in another
        one. Others may read ahead while it hangs."""
        return self.grown("read_bytes" if self.works_in_thread else "main_read_bytes")

    @property
    def own_written_bytes(self) -> float | None:
        """The same of what it has written; None if that is not known, or of fewer than three looks,
        which are too short to see what is written now and then."""
        if self.last.main_written_bytes is None or len(self.samples) < FEW_LOOKS:
            return None
        return self.grown("written_bytes" if self.works_in_thread else "main_written_bytes")

    @property
    def has_not_run(self) -> bool:
        """Whether its main thread got no processor between the looks, and works in no other. One
        that keeps its processor does not get it again, but uses it."""
        runs = {one.main_runs for one in self.samples}
        is_known = len(self.samples) > 1 and None not in runs and not self.works_in_thread
        return is_known and len(runs) == 1 and not self.grown("main_cpu_s")

    @property
    def reads_input(self) -> bool:
        """Whether it reads what its launcher writes: that is its standard input."""
        above = {one.pid for one in self.host.processes if one.role in ("launcher", "daemon")}
        partners = [one for one in self.process.partners if one.waiter in (0, self.process.pid)]
        # What it reads from a socket is an answer of its launcher: MPI's start.
        return self.last.syscall.startswith("read pipe:") and any(
            one.pid in above for one in partners
        )

    @property
    def runs_alone(self) -> bool:
        """Whether its other threads are known to rest: what it sends is the main thread's."""
        runs = [one.other_runs for one in self.samples if one.other_runs is not None]
        is_known = len(self.samples) > 1 and len(runs) == len(self.samples)
        used_s = self.grown("cpu_s") - self.grown("main_cpu_s")
        # Of a thread that has ended, the runs are lost.
        return is_known and 0 <= runs[-1] - runs[0] <= FEW_RUNS and used_s < RESTS * self.span_s

    @property
    def naps(self) -> bool:
        """Whether its main thread naps, as one that asks from time to time whether it may go on."""
        glances = self.process.glances
        return glances.count("z") > NAPS_SHARE * len(glances)

    @property
    def uses_processor(self) -> bool:
        """Whether its main thread used a processor. On a busy host it gets less of one, and is
        ready to run at all looks."""
        used_s, glances = self.used_s, self.process.glances
        ready = self.was("R") or glances.count("R") > READY_SHARE * len(glances)
        return used_s > 0 and (used_s >= WORKS_SHARE * self.span_s or ready)

    def exchanged_bytes(self, others: Set[Ends]) -> int:
        """Return the bytes that its busiest connection to one of these ranks' sockets carried
        between the looks. Bytes that the rank has not taken do not count."""
        return max((_carried(*looks) for looks in self._connections(others)), default=0)

    def tensor_bytes(self, others: Set[Ends]) -> int:
        """Return how many bytes of large messages its busiest connection carried at least."""
        return max((_in_large_messages(*looks) for looks in self._connections(others)), default=0)

    def _connections(self, others: Set[Ends]) -> Iterator[tuple[Socket, Socket]]:
        """Yield its connections to these sockets, each at the first and at the last look."""
        before = self.samples[0].sockets if len(self.samples) > 1 else ()
        firsts = {(one.local, one.peer): one for one in before}
        for last in self.last.sockets:
            first = firsts.get((last.local, last.peer))
            if first and (last.peer, last.local) in others:
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
        """Whether its stack changed between samples, or its position in a file that no other thread
        alone reads or writes. A library may save in threads of its own."""
        if self.is_in_other_calls:
            return True
        own = self.grown("main_read_bytes") + self.grown("main_written_bytes")
        if self.last.main_read_bytes is not None and not (own or is_saving(self)):
            return False
        positions: dict[str, int] = {}
        for sample in self.samples:
            for file in sample.files:
                if positions.setdefault(file.path, file.position) != file.position:
                    return True
        return False

    @functools.cached_property
    def is_in_other_calls(self) -> bool:
        """Whether its stack changed between samples. A look at which it could not be read shows no
        other call."""
        read = [one for one in self.samples if main_thread(one)] or self.samples
        return len({sample_path(sample) for sample in read}) > 1

    @property
    def gets_on(self) -> bool:
        """Whether it got further in a file between the first and the last sample."""
        first = {one.path: one.position for one in self.samples[0].files} if self.samples else {}
        return any(
            one.position - first.get(one.path, one.position) > READ_BYTES for one in self.last.files
        )

    @property
    def turns_in_file(self) -> bool:
        """Whether it went to another place in a file between the first and the last sample."""
        first = {one.path: one.position for one in self.samples[0].files} if self.samples else {}
        return any(first.get(one.path, one.position) != one.position for one in self.last.files)

    @property
    def reads_ahead(self) -> bool:
        """Whether another thread got further in a file and read: the main one may wait for that."""
        return self.gets_on and self.grown("read_bytes") - self.own_read_bytes > READ_BYTES

    @property
    def rests_apart(self) -> bool:
        """Whether its main thread slept at all looks in a call that no message ends, or in one that
        is not known, or naps: what the rank sends then is another thread's."""
        return self.naps or not any(
            one.state == "R"
            or " tcp " in one.syscall
            or one.syscall.partition(" ")[0] in POLLING_CALLS - {""}
            for one in self.samples
        )

    @property
    def reads_on(self) -> str:
        """The file in which it got further from each look to the next, and read not twice as much,
        by its main thread: who reads a file again has read more than the whole of it."""
        looks = [{one.path: one.position for one in look.files} for look in self.samples]
        for path in set.intersection(*map(set, looks)) if len(looks) > 1 else ():
            at = [one[path] for one in looks]
            further = all(b - a > READ_BYTES for a, b in zip(at, at[1:]))
            if further and 0.5 <= self.own_read_bytes / (at[-1] - at[0]) <= 2.0:
                return path
        return ""

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
    def is_in_console(self) -> bool:
        """Whether it is in pdb, or in another of Python's consoles."""
        return any(_CONSOLE.search(one.file) for one in self.shared_frames)

    @property
    def user_call(self) -> Frame | None:
        """The innermost call of the user's own code that all samples share; None without one."""
        return next((one for one in reversed(self.shared_frames) if is_user(one)), None)

    @functools.cached_property
    def span_s(self) -> float:
        """Seconds between the first and the last sample."""
        return self.last.at_s - self.samples[0].at_s if self.samples else 0.0

    def grown(self, name: str) -> float:
        """Return how much a counter grew from the first sample to the last; 0 if unknown."""
        if not self.samples:
            return 0.0
        first, last = (getattr(one, name) for one in (self.samples[0], self.last))
        return 0.0 if first is None or last is None else max(0.0, last - first)


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
    came = last.received_bytes - last.receive_queue_bytes
    came -= first.received_bytes - first.receive_queue_bytes
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


def uses_processor(process: ProcessEvidence) -> bool:
    """Return whether a process was seen to use a processor, or to be ready to."""
    first, last = process.samples[0] if process.samples else process.last, process.last
    uses = last.cpu_s - first.cpu_s >= RESTS * (last.at_s - first.at_s) > 0
    return uses or {one.state for one in process.samples} == {"R"}


def is_working(process: ProcessEvidence, least: float = 0) -> bool:
    """Return whether a process was seen to use a processor, or to be ready to, or to move more than
    the `least` bytes."""
    if not process.samples:
        return False
    first, last = process.samples[0], process.last
    moved = last.read_bytes + last.written_bytes - first.read_bytes - first.written_bytes
    return uses_processor(process) or moved > least


def called(host: HostEvidence) -> str:
    """Return a host's name and address, such as `demo-1 (10.0.3.7)`."""
    is_name = host.address in ("", host.host)
    return host.host if is_name else f"{host.host} ({host.address})"


def sees_nothing(host: HostEvidence) -> bool:
    """Return whether the processes of a host that answered could not be read."""
    return any(map(says_nothing, host.problems))


def says_nothing(problem: str) -> bool:
    """Return whether a problem of a host is that its processes could not be read."""
    return problem.startswith("processes:")


def usual_size(sizes: Iterable[int | None]) -> int:
    """Return the number of ranks of a job by what most ranks have as that; 0 if none leads."""
    most = Counter(filter(None, sizes)).most_common(2)
    return most[0][0] if len({times for _, times in most}) == len(most) > 0 else 0


def ranks_in_words(ranks: Sequence[Rank]) -> str:
    """Return ranks in words: `rank 5 on demo-1 (10.0.3.7) GPU 1`, `ranks 8-15 on 2 hosts`."""
    numbers = [one.number for one in ranks]
    hosts = list(dict.fromkeys(called(one.host) for one in ranks))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    if len(ranks) <= MOST_NAMED and len(hosts) > 1:
        return " and ".join(f"rank {one.number} on {called(one.host)}" for one in ranks)
    if len(ranks) > 1:
        return f"ranks {format_indices(numbers)} on {where}"
    gpu = f" GPU {format_indices(ranks[0].gpus)}" if ranks[0].gpus else ""
    return f"rank {numbers[0]} on {where}{gpu}"


def only(names: Collection[str]) -> str | None:
    """Return the name if it is the only one."""
    return next(iter(names)) if len(names) == 1 else None


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the numbers of ranks as `rank 5` or `ranks 8-15`."""
    listed = list(ranks)
    return f"{'ranks' if len(listed) > 1 else 'rank'} {format_indices(listed)}"


def process_line(process: ProcessEvidence) -> str:
    """Return a line of evidence about a process: its pid, its states, and what it waits in."""
    last = process.last
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


def asks_user(call: str) -> bool:
    """Return whether a system call waits for what is typed on a terminal."""
    return call.startswith(READS) and bool(_TERMINAL.match(syscall_path(call)))


# Names of functions in which one rank works, and the others wait for it.
_SAVES = re.compile(r"(?i)save|checkpoint|export")
_EVALUATES = re.compile(r"(?i)evaluat|validat")
# The same for the user's own functions: a library may call a value so.
_OWN = re.compile(rf"{_EVALUATES.pattern}|^(?:eval|valid|test|predict|infer)(?:_|$)|_(?:eval|val)$")


def _was_in(rank: Rank, names: re.Pattern[str]) -> bool:
    calls = (*(frame for one in rank.samples for frame in main_thread(one)), *rank.native.frames)
    own = _OWN if names is _EVALUATES else names
    return any((own if is_user(one) else names).search(name_of(one)) for one in calls)


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
    works = rank.is_python and rank.works_in_python()
    return works and (_was_in(rank, _EVALUATES) or (is_saving(rank) and rank.gets_on))


def full_disk_of(rank: Rank) -> str:
    """Return the full file system on which a rank has files or its working folder; else empty."""
    mounts = {one.path: has_no_room(one) for one in rank.host.known.filesystems}
    used = {rank.process.cwd, *(file.path for one in rank.samples for file in one.files)}
    used |= {syscall_path(sample.syscall) for sample in rank.samples}
    for path in sorted(filter(None, used)):
        above = (one for one in mounts if f"{path}/".startswith(f"{one.rstrip('/')}/"))
        mount = max(above, key=len, default="")
        if mounts.get(mount) and mount != SHM:
            return mount
    return ""
