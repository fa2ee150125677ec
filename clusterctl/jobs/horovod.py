"""Horovod's settings as environment variables, and readers of its timeline and autotuner log.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count, format_duration

# Files in the job's folder on the head node. Only rank 0 writes them, and it runs there.
TIMELINE = "timeline.json"
AUTOTUNE = "autotune.csv"
STEPS = "trace-steps-*.json.gz"  # written by the trainer for --trace-steps
STALL_CHECK_S = 60.0  # Horovod's default for HOROVOD_STALL_CHECK_TIME_SECONDS


@dataclass(frozen=True)
class HorovodTuning:
    """The user's settings for Horovod. None leaves a setting to the preset or to Horovod.

    A `stall_check_s` of 0 turns the stall check off; with a `stall_shutdown_s` of 0 a stalled job
    is never shut down.
    """

    fusion_threshold_bytes: int | None = None
    cycle_time_s: float | None = None
    hierarchical_allreduce: bool | None = None
    stall_check_s: float | None = None
    stall_shutdown_s: float | None = None
    autotune: bool = False
    timeline: bool = False

    def check(self) -> None:
        """Raise UsageError for times that Horovod would ignore: it reads whole seconds, and no time
        of shutdown before that of the check."""
        shutdown, first = self.stall_shutdown_s, self.stall_check_s
        for option, given in (("--stall-check", first), ("--stall-shutdown", shutdown)):
            if given and given % 1:
                raise UsageError(
                    f"{option} {given:g}s: Horovod reads whole seconds only",
                    f"{option} {math.ceil(given)}s",
                )
        first = STALL_CHECK_S if first is None else first
        if shutdown and not first:
            raise UsageError("--stall-shutdown needs the check that --stall-check 0 turns off")
        if shutdown and shutdown < first:
            raise UsageError(
                f"--stall-shutdown {format_duration(shutdown)} comes before the check, after "
                f"{format_duration(first)}: Horovod would ignore it",
                f"give a shorter time to check after: --stall-check {max(1, int(shutdown // 2))}s",
            )

    def environment(self, preset: dict[str, str], job_folder: str) -> dict[str, str]:
        """Return the environment variables for the ranks: the preset's, overridden by these.

        Horovod does not tune a parameter whose variable is set (operations.cc), so with `autotune`
        the preset's values of tunable parameters are left out.
        """
        tuned = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_HIERARCHICAL_ALLREDUCE")
        kept = {k: v for k, v in preset.items() if not (self.autotune and k in tuned)}
        whole = {
            "HOROVOD_FUSION_THRESHOLD": self.fusion_threshold_bytes,
            # Horovod reads milliseconds.
            "HOROVOD_CYCLE_TIME": None if self.cycle_time_s is None else self.cycle_time_s * 1000,
            "HOROVOD_HIERARCHICAL_ALLREDUCE": self.hierarchical_allreduce,
            "HOROVOD_STALL_CHECK_DISABLE": 1 if self.stall_check_s == 0 else None,
            "HOROVOD_STALL_CHECK_TIME_SECONDS": self.stall_check_s or None,
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": self.stall_shutdown_s,
        }
        # Horovod reads 1e+12 as 1.
        given = {
            k: f"{v:.12g}" if isinstance(v, float) and v % 1 else str(int(v))
            for k, v in whole.items()
            if v is not None
        }
        files: dict[str, str] = {}
        if self.autotune:
            files = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": f"{job_folder}/{AUTOTUNE}"}
        if self.timeline:
            files["HOROVOD_TIMELINE"] = f"{job_folder}/{TIMELINE}"
        return {**kept, **given, **files}


# Left out of an evaluation's variables: it would overwrite the files of the training.
TRAINING_ONLY_VARIABLES = ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG")


@dataclass(frozen=True)
class Tuned:
    """The best parameters that the autotuner tried.

    `score` is in bytes per microsecond, `tried` is the number of samples. `finished` is False if
    the run ended before the autotuner had tried all its candidates. `switches` has the settings
    that are on or off, as far as this Horovod logs them. `unread` is the number of the log's lines
    that are no sample, such as an incomplete one.
    """

    fusion_threshold_mib: float
    cycle_time_ms: float
    switches: dict[str, bool]
    score: float
    tried: int
    finished: bool
    unread: int = 0
    json_names = (
        *("fusion_threshold_mib", "cycle_time_ms", "switches", "score", "tried", "finished"),
        *("unread", "options"),
    )

    @property
    def options(self) -> list[str]:
        """Options of `clusterctl train` that give a run these parameters from its first step."""
        fusion = f"{self.fusion_threshold_mib:.6g}MiB"
        cycle = f"{self.cycle_time_ms:.6g}ms"
        found = ["--fusion-threshold", fusion, "--cycle-time", cycle]
        if "hierarchical_allreduce" in self.switches:
            no = "" if self.switches["hierarchical_allreduce"] else "no-"
            found.append(f"--{no}hierarchical-allreduce")
        for name in ("hierarchical_allgather", "torus_allreduce"):
            if self.switches.get(name):
                found += ["-x", f"HOROVOD_{name.upper()}=1"]
        cached = self.switches.get("cache_enabled", True)
        return found + ([] if cached else ["-x", "HOROVOD_CACHE_CAPACITY=0"])


_NUMBERS = ("tensor_fusion_threshold", "cycle_time_ms", "score")


def read_autotune(text: str) -> Tuned | None:
    """Return the best sample of an autotuner's log; None if the run ended before the first sample.

    When the autotuner has tried all candidates, it writes the best one again as the last line
    (parameter_manager.cc). Raises UsageError if the log has no header.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    names = [name.strip() for name in lines[0].split(",")]
    lacks = [name for name in _NUMBERS if name not in names]
    if lacks:
        raise UsageError(
            f"the autotuner's log has no column {lacks[0]}: its first line is {lines[0][:80]!r}",
            "that line names the columns; Horovod writes it when the job starts",
        )
    found = [_sample(names, line) for line in lines[1:]]
    rows = [row for row in found if row]
    if not rows:
        return None
    best = max(rows, key=lambda row: row["score"])
    finished = len(rows) > 1 and rows[-1] == best and best in rows[:-1]
    fusion, cycle, score = (best[name] for name in _NUMBERS)
    switches = {name: bool(value) for name, value in best.items() if name not in _NUMBERS}
    unread = len(found) - len(rows)
    return Tuned(fusion, cycle, switches, score, len(rows) - finished, finished, unread)


def _sample(names: list[str], line: str) -> dict[str, float]:
    """Return the numbers of a line; empty if it lacks one, has more, or has one not finite."""
    try:
        numbers = [float(cell) for cell in line.split(",")]
    except ValueError:
        return {}
    good = len(numbers) == len(names) and all(map(math.isfinite, numbers))
    return dict(zip(names, numbers)) if good else {}


NEGOTIATE, WAIT, QUEUE, COPY, TRANSFER = "negotiate", "wait for data", "queue", "copy", "allreduce"
PHASES = (NEGOTIATE, WAIT, QUEUE, COPY, TRANSFER)
NO_COMMUNICATION = "none of these"
_STARTS = (
    ("NEGOTIATE_", NEGOTIATE),
    ("WAIT_FOR_", WAIT),
    ("QUEUE", QUEUE),
    ("INIT_", QUEUE),
    ("MEMCPY_", COPY),
    ("NCCL_", TRANSFER),
    ("MPI_", TRANSFER),
    ("GLOO_", TRANSFER),
    ("CCL_", TRANSFER),
)
_BITS = re.compile(r"(\d+)$")
_BETWEEN = re.compile(r"[\s,\[\]]*")
# Where the next record may begin after one that cannot be read.
_NEXT = re.compile(r"\n|\}\s*,\s*(?=\{)")
# Characters, far more than Horovod writes for one record. What is no record within so many is
# broken: what is nearer to the end of a piece may be completed by the next piece.
LONGEST_RECORD = 1 << 16
# The kinds of events in Chrome's trace format ("Trace Event Format", its only specification).
_KINDS = frozenset("BEXiIPCnbestfNODMVvRca(),")
_STEPS = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)


@dataclass
class SizeRow:
    """Totals of the tensors smaller than `below` bytes that are too large for the previous row.

    `below` is None in the last row, which has no limit. `seconds` by phase are sums over tensors.
    """

    below: Optional[int]
    tensors: int = 0
    size_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Where the time of a job's communication went, as rank 0 recorded it.

    `phases` are the seconds in which at least one tensor was in that phase: the tensors of one
    fused buffer have the same span, which counts once. Phases overlap, except `none of these`.
    `waited_for` gives for each rank the seconds in which only that rank was missing, longest first.
    `unread` is the number of places with something that cannot be read, and `unread_at` the first
    one's place in characters; the totals lack what was there.
    """

    span_s: float
    phases: dict[str, float]
    sizes: tuple[SizeRow, ...]
    waited_for: dict[str, float]
    unread: int = 0
    unread_at: int = 0


def read_timeline(chunks: Iterable[str]) -> Timeline:
    """Return the totals of a Chrome trace that Horovod wrote, also of one that is cut or damaged.

    After a record that cannot be read it goes on at the next one. It needs memory for a chunk and a
    record, and time in proportion to the length.

    Raises UsageError if no operation in it ended. The format is that of Horovod's timeline.cc: a
    trace process for each tensor, times in microseconds. First comes a B event NEGOTIATE_OP, an X
    event for each rank that is ready, named by the rank, and an E event; then a B event OP with its
    phases nested in it, and an E event with the tensor's type and shape.
    """
    reading, records = _Reading(), _Records()
    for record in records.read(chunks):
        if not reading.take(record):
            records.lose()
    if not reading.reduced:
        lost = f", and {count(records.lost, 'place')} in it cannot be read" if records.lost else ""
        raise UsageError(
            f"the timeline has no operation that ended{lost}", "let the job make some steps with it"
        )
    return replace(reading.timeline(), unread=records.lost, unread_at=records.first_lost)


class _Records:
    """Reads a trace record by record, and counts the places where it cannot.

    `first_lost` is the first such place, in characters.
    """

    def __init__(self) -> None:
        self.lost = self.first_lost = 0
        # Characters before the text that is read now, and in it before the current record.
        self._before = self._at = 0
        self._decoder = json.JSONDecoder()

    def read(self, chunks: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the records in the trace's text."""
        rest = ""
        for chunk in chunks:
            text = rest + chunk
            end = yield from self._decode(text, len(text) - LONGEST_RECORD)
            rest = text[end:]
            self._before += end
        yield from self._decode(rest, len(rest))

    def lose(self) -> None:
        """Count the record that was yielded last, or what cannot be read in its place, as lost."""
        self.lost += 1
        self.first_lost = self.first_lost or self._before + self._at

    def _decode(self, text: str, until: int) -> Generator[dict[str, Any], None, int]:
        """Yield the records that begin before `until`. Return where the first other one begins."""
        at, lost = 0, False
        while True:
            start = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            self._at = start
            if start >= until:
                return start
            try:
                record, at = self._decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict):
                lost = False
                yield record
            else:
                if not lost:
                    self.lose()
                lost = True
                following = _NEXT.search(text, start, start + LONGEST_RECORD)
                at = following.end() if following else min(start + LONGEST_RECORD, len(text))


class _Reading:
    """Adds up a trace record by record, without keeping the records."""

    def __init__(self) -> None:
        self.first = self.now = 0
        self.open: dict[int, list[tuple[str, int]]] = {}
        self.ready: dict[int, list[tuple[str, int]]] = {}
        # By tensor, once all ranks are ready to reduce it: when that was, and the microseconds in
        # each phase.
        self.agreed: dict[int, tuple[int, Counter[str]]] = {}
        self.active: Counter[str] = Counter()
        self.union: Counter[str] = Counter()
        self.waited_for: Counter[str] = Counter()
        self.idle = self.reduced = 0
        self.sizes = [SizeRow(below) for below in (*_STEPS, None)]

    def take(self, record: dict[str, Any]) -> bool:
        """Add a record of the trace. Return False if it is damaged, or does not follow the others.

        Records of other kinds are ignored.
        """
        kind, pid, at = record.get("ph"), record.get("pid"), record.get("ts")
        name, args = record.get("name", ""), record.get("args") or {}
        if kind not in ("B", "X", "E"):
            return isinstance(kind, str) and kind in _KINDS
        if type(at) is not int or type(pid) is not int or at < 0:
            return False
        if not (isinstance(name, str) and isinstance(args, dict)) or (kind != "E" and not name):
            return False
        self.first = self.first or at
        self._move(at)
        follows = True
        # The trace may begin in the middle of an operation, whose first records it lacks.
        known = pid in self.open
        stack = self.open.setdefault(pid, [])
        if kind == "X":
            self.ready.setdefault(pid, []).append((name, at))
        elif kind == "B":
            if _phase(name) == NEGOTIATE:
                follows = not self._abandon(pid, stack)
            self._begin(pid, stack, name, at)
        elif stack:
            self._end(pid, stack, at, args)
        else:
            follows = not known
        return follows

    def _abandon(self, pid: int, stack: list[tuple[str, int]]) -> bool:
        """End what a tensor's operation before left open, since the records of its end are lost.

        Return whether there was anything.
        """
        waits = pid in self.agreed and not stack
        for phase, _ in stack:
            self.active[phase] -= 1 if phase else 0
        self.active[QUEUE] -= 1 if waits else 0
        self.agreed.pop(pid, None)
        left = bool(stack or waits)
        stack.clear()
        return left

    def _move(self, at: int) -> None:
        """Advance the clock. Several threads write the trace, so a record may be slightly late."""
        step = max(0, at - self.now) if self.now else 0
        for phase, tensors in self.active.items():
            self.union[phase] += step if tensors else 0
        self.idle += 0 if any(self.active.values()) else step
        self.now = max(self.now, at)

    def _begin(self, pid: int, stack: list[tuple[str, int]], name: str, at: int) -> None:
        """Begin an operation or one of its phases."""
        phase = _phase(name)
        stack.append((phase, at))
        if phase:
            self.active[phase] += 1
        if phase == NEGOTIATE:
            self.ready[pid] = []
        elif len(stack) == 1 and pid in self.agreed:  # not an activity within the operation
            agreed, micros = self.agreed[pid]
            micros[QUEUE] += at - agreed
            self.active[QUEUE] -= 1

    def _end(self, pid: int, stack: list[tuple[str, int]], at: int, args: dict[str, Any]) -> None:
        """End the innermost phase of a tensor, or its operation."""
        phase, began = stack.pop()
        if phase:
            self.active[phase] -= 1
        if phase == NEGOTIATE:
            self.agreed[pid] = at, Counter({NEGOTIATE: at - began})
            self.active[QUEUE] += 1
            # The last rank to be ready and the one before it. Doubling the list makes them the same
            # for a single rank, so that the wait is 0.
            before, last = (self.ready.pop(pid, []) * 2)[-2:] or [("", 0)] * 2
            self.waited_for[last[0]] += last[1] - before[1]
        elif phase and pid in self.agreed:
            self.agreed[pid][1][phase] += at - began
        elif not phase and not stack:
            self._reduced(_size(args), self.agreed.pop(pid, (0, {}))[1])

    def _reduced(self, size: int, micros: Mapping[str, int]) -> None:
        """Add a reduced tensor to the row of its size."""
        self.reduced += 1
        row = next(one for one in self.sizes if one.below is None or size < one.below)
        row.tensors += 1
        row.size_bytes += size
        for phase, spent in micros.items():
            row.seconds[phase] = row.seconds.get(phase, 0.0) + spent / 1e6

    def timeline(self) -> Timeline:
        """Return the totals of the records so far."""
        phases = {phase: self.union[phase] / 1e6 for phase in PHASES}
        phases[NO_COMMUNICATION] = self.idle / 1e6
        sizes = tuple(row for row in self.sizes if row.tensors)
        waited = {rank: micros / 1e6 for rank, micros in self.waited_for.most_common() if rank}
        return Timeline((self.now - self.first) / 1e6, phases, sizes, waited)


def _phase(name: str) -> str:
    """Return the phase of an activity; empty for an operation such as ALLREDUCE itself."""
    return next((phase for start, phase in _STARTS if name.startswith(start)), "")


def _size(args: dict[str, Any]) -> int:
    """Return a tensor's bytes from its type and shape, such as `float32` and `[7, 7, 3, 64]`."""
    bits = _BITS.search(str(args.get("dtype", "")))
    size = int(bits[1]) // 8 if bits else 1
    for length in re.findall(r"\d+", str(args.get("shape", ""))):
        size *= int(length)
    return size
