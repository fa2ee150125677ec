"""One prefix tree of all ranks' stacks, over all samples; and what it means to be where one is.

After LLNL's STAT: ranks that do the same share a branch, and the few that differ stand out. Lines
of the user's own code are told apart, those of libraries are not: who waits in a library waits in
it on any of its lines.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from clusterctl.diagnosis.evidence import Frame, ProcessEvidence, Sample, ThreadStack
from clusterctl.domain.ranges import format_indices


class Activity(Enum):
    """Where a main thread is, as far as it matters to the other ranks."""

    COLLECTIVE = "in a collective"
    INIT = "in hvd.init"
    GRAPH = "in a compiled step"
    DATA = "waiting for its next batch"
    IMPORT = "importing modules"
    ENDED = "at its end"
    USER = "in its own code"
    LIBRARY = "in a library"
    UNKNOWN = "where no stack shows"


# Others that are there wait for a rank that is not. A compiled step may hold the collective.
WAITING = (Activity.COLLECTIVE, Activity.INIT, Activity.GRAPH)
_COLLECTIVES = re.compile(
    r"(?:horovod_|_?grouped_|_)?(allreduce|allgather|broadcast|alltoall|reducescatter|barrier|join)\w*"
)
# How TensorFlow starts what it has compiled, and how it fetches a result of that.
_GRAPH = {"quick_execute", "_call_tf_sessionrun", "_numpy", "TF_SessionRun_wrapper", "async_wait"}
_NATIVE_SYMBOL = re.compile(r"(?:\+0x[0-9a-f]+|@+[\w.]+|\(.*\)|0x[0-9a-f]+)")


def is_user(frame: Frame) -> bool:
    """Whether the user, not a library, wrote it."""
    return not frame.native and _user_file(frame.file)


@functools.lru_cache(maxsize=4096)
def _user_file(path: str) -> bool:
    installed = ("/site-packages/", "/dist-packages/", "/lib/python", "<")
    return bool(path) and not any(part in path for part in installed[:3]) and path[0] != "<"


def main_thread(sample: Sample) -> tuple[Frame, ...]:
    """The calls of the main thread, outermost first."""
    for stack in sample.stacks:
        if stack.thread == "MainThread":
            return stack.frames
    return sample.stacks[0].frames if sample.stacks else ()


@functools.lru_cache(maxsize=16384)
def place_of(frames: tuple[Frame, ...]) -> Activity:
    """What a main thread with these calls is doing."""
    python = [frame for frame in frames if not frame.native]
    if not python:
        return Activity.UNKNOWN
    inner = python[-1]
    if any("importlib" in frame.file for frame in python[-12:]):
        return Activity.IMPORT
    # Python waits for the other threads of a program that is over, and runs what it left to do.
    if python[0].function in ("_shutdown", "_python_exit", "_run_exitfuncs"):
        return Activity.ENDED
    if "/horovod/" in inner.file and inner.function in ("init", "shutdown"):
        return Activity.INIT if inner.function == "init" else Activity.ENDED
    if _is_collective(inner):
        return Activity.COLLECTIVE
    if inner.function in _GRAPH:
        near = python[-4:-1]
        return Activity.COLLECTIVE if any(map(_is_op, near)) else Activity.GRAPH
    if any(frame.function in ("iterator_get_next", "_next_internal") for frame in python[-3:]):
        return Activity.DATA
    return Activity.USER if is_user(inner) else Activity.LIBRARY


def _is_op(frame: Frame) -> bool:
    return frame.function.startswith("horovod_")


def _is_collective(frame: Frame) -> bool:
    if _is_op(frame):
        return True
    in_horovod = "/horovod/" in frame.file and "/torch/" in frame.file
    return in_horovod and (
        frame.function == "synchronize" or bool(_COLLECTIVES.fullmatch(frame.function))
    )


def collective_of(frames: Sequence[Frame]) -> str:
    """`allreduce`, where a frame names it."""
    for frame in reversed(frames):
        found = _COLLECTIVES.fullmatch(frame.function)
        if found and (_is_op(frame) or "/horovod/" in frame.file):
            return found[1]
    return ""


def label(frame: Frame) -> str:
    """`load data.py:17`, `quick_execute (execute.py)`, `futex_wait [libc.so.6]`."""
    name = frame.file.rpartition("/")[2]
    if frame.native:
        function = _NATIVE_SYMBOL.sub("", frame.function) or "?"
        return f"{function} [{name}]" if name else function
    if is_user(frame):
        return f"{frame.function} {name}:{frame.line}"
    return f"{frame.function} ({name})" if name else frame.function


@functools.lru_cache(maxsize=16384)
def path_of(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """The labels of a stack; what is below a collective is how it waits, and is left out."""
    labels = []
    for frame in frames:
        labels.append(label(frame))
        if _is_collective(frame):
            break
    return tuple(labels)


STATES = {
    "T": "stopped (state T)",
    "t": "held by a debugger (state t)",
    "D": "in the kernel, uninterruptible (state D)",
    "Z": "ended, its parent has not noticed (state Z)",
    "X": "ended",
}


def sample_path(sample: Sample) -> tuple[str, ...]:
    """Where a rank was at that look; a state or an error where there is no stack."""
    frames = main_thread(sample)
    if sample.state in STATES:
        where = f" {sample.wait_channel}" if sample.wait_channel and sample.state == "D" else ""
        return (*path_of(frames), STATES[sample.state] + where)
    if not frames:
        call = f" in {sample.syscall}" if sample.syscall else ""
        return (f"no stack{call} ({sample.state})",)
    return path_of(frames)


@dataclass
class Branch:
    """A call and the ranks that were in it at any look. `moved`: those that were elsewhere, too.

    `ends` are the ranks for which it was the innermost call.
    """

    label: str
    ranks: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    children: dict[str, Branch] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "call": self.label,
            "ranks": format_indices(self.ranks),
            "moved": format_indices(self.moved),
            "children": [child.as_data() for child in self.ordered()],
        }

    def ordered(self) -> list[Branch]:
        """The branches below, those of most ranks first."""
        return sorted(self.children.values(), key=lambda one: (-len(one.ranks), one.label))


def merge(ranks: Iterable[ProcessEvidence]) -> Branch:
    """The tree of these ranks over all their samples."""
    at: dict[tuple[str, ...], set[int]] = {}
    moved: set[int] = set()
    for process in ranks:
        if process.rank is None:
            continue
        paths = {sample_path(sample) for sample in process.samples}
        for path in paths:
            at.setdefault(path, set()).add(process.rank)
        if len(paths) > 1:
            moved.add(process.rank)
    root = Branch("all ranks")
    for path, there in at.items():
        branch = root
        branch.ranks |= there
        for name in path:
            branch = branch.children.setdefault(name, Branch(name))
            branch.ranks |= there
        branch.ends |= there
    _mark(root, moved)
    return root


def _mark(branch: Branch, moved: set[int]) -> None:
    waiting = [branch]
    while waiting:
        one = waiting.pop()
        one.moved = one.ranks & moved
        waiting += one.children.values()


def rank_set(ranks: Iterable[int], most: int = 60) -> str:
    """`0-30,32-63 (63)`, cut where it is too long for a line."""
    listed = set(ranks)
    text = format_indices(listed)
    if len(text) > most:
        text = text[:most].rpartition(",")[0] + ",…"
    return f"{text} ({len(listed)})" if len(listed) > 1 else text


def tree_lines(root: Branch, odd: frozenset[int] = frozenset()) -> list[str]:
    """The tree for a terminal: calls that all ranks of a branch share are in one column."""
    lines: list[str] = [f"ranks {rank_set(root.ranks)}"]
    waiting = [(child, 0, child.ranks != root.ranks) for child in reversed(root.ordered())]
    while waiting:
        branch, depth, splits = waiting.pop()
        margin = "  " * (depth + 1)
        if splits:
            marks = [f"moved: {format_indices(branch.moved)}"] if branch.moved else []
            marks += ["<- differs"] if branch.ranks and branch.ranks <= odd else []
            text = "; ".join([f"ranks {rank_set(branch.ranks)}", *marks])
            lines.append(f"{margin}+ {text}")
            depth, margin = depth + 1, margin + "  "
        lines.append(margin + branch.label)
        inner = branch.ordered()
        splits = len(inner) > 1 or bool(branch.ends and inner)
        if splits and branch.ends:
            lines.append(f"{margin}+ ranks {rank_set(branch.ends)}: here")
        waiting += [
            (child, depth, splits or child.ranks != branch.ranks) for child in reversed(inner)
        ]
    return lines


def others(sample: Sample) -> tuple[ThreadStack, ...]:
    """The threads that are not the main one, of those that have Python calls."""
    main = main_thread(sample)
    return tuple(one for one in sample.stacks if one.frames and one.frames is not main)
