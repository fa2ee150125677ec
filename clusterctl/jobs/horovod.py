"""Horovod's knobs: as variables, and what its timeline and its autotuner say of them.

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

# In the job's folder on the head node, where rank 0 is, which alone writes them.
TIMELINE = "timeline.json"
AUTOTUNE = "autotune.csv"
STEPS = "trace-steps-*.json.gz"  # the trainer's own
STALL_CHECK_S = 60.0  # Horovod's own


@dataclass(frozen=True)
class Knobs:
    """What is asked of Horovod; None: what the preset or Horovod says. `stall_check_s` of 0: none,
    `stall_shutdown_s` of 0: the job goes on."""

    fusion_threshold_bytes: int | None = None
    cycle_time_s: float | None = None
    hierarchical_allreduce: bool | None = None
    stall_check_s: float | None = None
    stall_shutdown_s: float | None = None
    autotune: bool = False
    timeline: bool = False

    def check(self) -> None:
        """Raise UsageError for a pair of times of which Horovod ignores one."""
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
        """The ranks' variables, those of the preset among them.

        To Horovod a parameter that has a variable is fixed, and is not tuned (operations.cc): so
        with `autotune` the preset's give way.
        """
        tuned = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_HIERARCHICAL_ALLREDUCE")
        kept = {k: v for k, v in preset.items() if not (self.autotune and k in tuned)}
        whole = {
            "HOROVOD_FUSION_THRESHOLD": self.fusion_threshold_bytes,
            # In milliseconds.
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


# An evaluation must not write over the training's.
OF_TRAINING = ("HOROVOD_TIMELINE", "HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG")


@dataclass(frozen=True)
class Tuned:
    """The best parameters that the autotuner tried. `score` is in bytes a microsecond, `tried`
    counts the samples. Not `finished`: the run ended before it had tried all."""

    fusion_threshold_mib: float
    cycle_time_ms: float
    hierarchical_allreduce: bool
    others: dict[str, bool]
    score: float
    tried: int
    finished: bool

    @property
    def options(self) -> list[str]:
        """`train`'s, with which the next run has them from its first step."""
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
    """The best of an autotuner's log; None where the run ended before its first sample.

    When it has tried all it writes the best once more, as the last line (parameter_manager.cc).
    """
    rows = []
    for row in csv.DictReader(text.splitlines(), skipinitialspace=True):
        try:
            rows.append({name: float(value) for name, value in row.items()})
        except (TypeError, ValueError):  # cut off within a line
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
    """The tensors of less than `below` bytes and not of the row before (None: no limit): how many
    were reduced, their bytes, and seconds in each phase, added up over the tensors."""

    below: int | None
    tensors: int = 0
    size_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Where the time of a job's communication went, by its rank 0.

    `phases` are seconds in which at least one tensor was in that phase: those of one fused buffer
    have the same span, which counts once. They overlap, but for `none of these`. `waited_for` has
    for each rank the seconds that all others waited for it alone, longest first.
    """

    span_s: float
    phases: dict[str, float]
    sizes: tuple[SizeRow, ...]
    waited_for: dict[str, float]


def read_timeline(chunks: Iterable[str]) -> Timeline:
    """What a trace says, whole or cut off. Raises UsageError where it has no operation.

    By Horovod's timeline.cc: a process for each tensor, times in microseconds. B NEGOTIATE_X, an
    X named by each rank when it is ready, E; then B X, with its phases nested, and an E that has
    the tensor's type and shape.
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
        with contextlib.suppress(ValueError):  # the rest comes with the next chunk, or never
            while (start := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                record, at = decoder.raw_decode(text, start)
                yield record
        rest = text[at:]


class _Reading:
    """A trace, record after record; phases are added up without keeping them."""

    def __init__(self) -> None:
        self.first = self.now = 0
        self.open: dict[int, list[tuple[str, int]]] = {}
        self.ready: dict[int, list[tuple[str, int]]] = {}
        # Of tensors that all ranks have agreed on: when, and microseconds in each phase.
        self.agreed: dict[int, tuple[int, Counter[str]]] = {}
        self.active: Counter[str] = Counter()
        self.union: Counter[str] = Counter()
        self.waited_for: Counter[str] = Counter()
        self.idle = self.reduced = 0
        self.sizes = [SizeRow(below) for below in (*_STEPS, None)]

    def take(self, record: dict[str, Any]) -> None:
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
        """To a later time. Threads write, so that a record may be late by a little."""
        step = max(0, at - self.now) if self.now else 0
        for phase, tensors in self.active.items():
            self.union[phase] += step if tensors else 0
        self.idle += 0 if any(self.active.values()) else step
        self.now = max(self.now, at)

    def _begin(self, pid: int, stack: list[tuple[str, int]], name: str, at: int) -> None:
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
        phase, began = stack.pop()
        if phase:
            self.active[phase] -= 1
        if phase == NEGOTIATE:
            self.agreed[pid] = at, Counter({NEGOTIATE: at - began})
            self.active[QUEUE] += 1
            before, last = (self.ready.pop(pid, []) * 2)[-2:] or [("", 0)] * 2
            self.waited_for[last[0]] += last[1] - before[1]
        elif phase and pid in self.agreed:
            self.agreed[pid][1][phase] += at - began
        elif not phase and not stack:
            self._reduced(_size(args), self.agreed.pop(pid, (0, {}))[1])

    def _reduced(self, size: int, micros: Mapping[str, int]) -> None:
        self.reduced += 1
        row = next(one for one in self.sizes if one.below is None or size < one.below)
        row.tensors += 1
        row.size_bytes += size
        for phase, spent in micros.items():
            row.seconds[phase] = row.seconds.get(phase, 0.0) + spent / 1e6

    def timeline(self) -> Timeline:
        phases = {phase: self.union[phase] / 1e6 for phase in PHASES}
        phases[NO_COMMUNICATION] = self.idle / 1e6
        sizes = tuple(row for row in self.sizes if row.tensors)
        waited = {rank: micros / 1e6 for rank, micros in self.waited_for.most_common() if rank}
        return Timeline((self.now - self.first) / 1e6, phases, sizes, waited)


def _phase(name: str) -> str:
    """Of an activity; empty for an operation itself."""
    return next((phase for start, phase in _STARTS if name.startswith(start)), "")


def _size(args: dict[str, Any]) -> int:
    """A tensor's bytes, of `float32` and `[7, 7, 3, 64]`."""
    bits = _BITS.search(str(args.get("dtype", "")))
    size = int(bits[1]) // 8 if bits else 1
    for length in re.findall(r"\d+", str(args.get("shape", ""))):
        size *= int(length)
    return size
