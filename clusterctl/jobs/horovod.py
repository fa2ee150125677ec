"""Horovod's settings as environment variables, and readers of its timeline and autotuner log.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import format_duration

# Files in the job's folder on the head node. Only rank 0 writes them, and it runs there.
TIMELINE = "timeline.json"
AUTOTUNE = "autotune.csv"
STEPS = "trace-steps-*.json.gz"  # written by the trainer for --trace-steps
STALL_CHECK_S = 60.0  # Horovod's default for HOROVOD_STALL_CHECK_TIME_SECONDS


@dataclass(frozen=True)
class Knobs:
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
        """Raise UsageError if Horovod would ignore the time of shutdown for that of the check."""
        shutdown, first = self.stall_shutdown_s, self.stall_check_s
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
        given = {k: f"{float(v):.12g}" for k, v in whole.items() if v is not None}
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
    the run ended before the autotuner had tried all its candidates.
    """

    fusion_threshold_mib: float
    cycle_time_ms: float
    hierarchical_allreduce: bool
    others: dict[str, bool]
    score: float
    tried: int
    finished: bool

    @property
    def options(self) -> list[str]:
        """Options of `clusterctl train` that give a run these parameters from its first step."""
        no = "" if self.hierarchical_allreduce else "no-"
        fusion = f"{self.fusion_threshold_mib:.6g}MiB"
        cycle = f"{self.cycle_time_ms:.6g}ms"
        found = ["--fusion-threshold", fusion, "--cycle-time", cycle]
        found.append(f"--{no}hierarchical-allreduce")
        for name in ("hierarchical_allgather", "torus_allreduce"):
            if self.others.get(name):
                found += ["-x", f"HOROVOD_{name.upper()}=1"]
        return found + ([] if self.others["cache_enabled"] else ["-x", "HOROVOD_CACHE_CAPACITY=0"])


def read_autotune(text: str) -> Tuned | None:
    """Return the best sample of an autotuner's log; None if the run ended before the first sample.

    When the autotuner has tried all candidates, it writes the best one again as the last line
    (parameter_manager.cc).
    """
    rows = []
    for row in csv.DictReader(text.splitlines(), skipinitialspace=True):
        try:
            rows.append({name: float(value) for name, value in row.items()})
        except (TypeError, ValueError):  # an incomplete line: the run was killed while it wrote
            continue
    if not rows:
        return None
    best = max(rows, key=lambda row: row["score"])
    finished = len(rows) > 1 and rows[-1] == best and best in rows[:-1]
    fusion, cycle, score = (best.pop(name) for name in _NUMBERS)
    switches = {name: bool(value) for name, value in best.items()}
    hierarchical = switches.pop("hierarchical_allreduce")
    return Tuned(fusion, cycle, hierarchical, switches, score, len(rows) - finished, finished)


_NUMBERS = ("tensor_fusion_threshold", "cycle_time_ms", "score")

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
_STEPS = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)


@dataclass
class SizeRow:
    """Totals of the tensors smaller than `below` bytes that are too large for the previous row.

    `below` is None in the last row, which has no limit. `seconds` by phase are sums over tensors.
    """

    below: int | None
    tensors: int = 0
    size_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Where the time of a job's communication went, as rank 0 recorded it.

    `phases` are the seconds in which at least one tensor was in that phase: the tensors of one
    fused buffer have the same span, which counts once. Phases overlap, except `none of these`.
    `waited_for` gives for each rank the seconds in which only that rank was missing, longest first.
    """

    span_s: float
    phases: dict[str, float]
    sizes: tuple[SizeRow, ...]
    waited_for: dict[str, float]


def read_timeline(chunks: Iterable[str]) -> Timeline:
    """Return the totals of a Chrome trace that Horovod wrote, also of one that is cut off.

    Raises UsageError if no operation in it ended. The format is that of Horovod's timeline.cc: a
    trace process for each tensor, times in microseconds. First comes a B event NEGOTIATE_OP, an X
    event for each rank that is ready, named by the rank, and an E event; then a B event OP with its
    phases nested in it, and an E event with the tensor's type and shape.
    """
    reading = _Reading()
    for record in _records(chunks):
        reading.take(record)
    if not reading.reduced:
        raise UsageError(
            "the timeline has no operation that ended", "let the job make some steps with it"
        )
    return reading.timeline()


def _records(chunks: Iterable[str]) -> Iterator[dict[str, Any]]:
    decoder, rest = json.JSONDecoder(), ""
    for chunk in chunks:
        text, at = rest + chunk, 0
        # An incomplete record raises ValueError: the next chunk completes it, or the trace is cut.
        with contextlib.suppress(ValueError):
            while (start := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                record, at = decoder.raw_decode(text, start)
                yield record
        rest = text[at:]


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

    def take(self, record: dict[str, Any]) -> None:
        """Add a record of the trace. Records of other kinds are ignored."""
        kind, pid, at = record.get("ph"), record.get("pid"), record.get("ts")
        if at is None or pid is None or kind not in ("B", "X", "E"):
            return
        self.first = self.first or at
        self._move(at)
        stack = self.open.setdefault(pid, [])
        if kind == "X":
            self.ready.setdefault(pid, []).append((str(record.get("name")), at))
        elif kind == "B":
            self._begin(pid, stack, str(record.get("name")), at)
        elif stack:
            self._end(pid, stack, at, record.get("args") or {})

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
        elif not phase and pid in self.agreed:
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
