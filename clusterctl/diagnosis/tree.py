"""A prefix tree of all ranks' stacks over all samples.

The tree is that of LLNL's STAT: ranks that do the same share a branch, and the few that differ
stand out. Calls on different lines are different branches in the user's code, but not in
libraries: a rank that waits in a library may be on any of its lines.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clusterctl.diagnosis.evidence import Frame, ProcessEvidence, Sample, ThreadStack
from clusterctl.diagnosis.frames import Activity, is_user, known_call, place_of
from clusterctl.domain.ranges import format_indices
from clusterctl.node.diagnosis.stacks import MOST_FRAMES
from clusterctl.node.facts.native import NativeCalls

# Of a set of ranks in a message.
MOST_CHARACTERS = 60
# A call of MPI in C, or in Fortran. Open MPI's own functions have the names of its profiling ones.
MPI_CALL = re.compile(r"P?MPI_[A-Z]\w+|p?mpi_[a-z_]+_")
# What a call of MPI jumps to: an optimiser may leave no frame of the call itself.
MPI_TARGETS = re.compile(r"(?i)(?:ompi_mpi|MPII|internal)_(init|finalize|abort)(?:_thread)?")
# Functions within MPI of which no name of a call follows.
MPI_INNER = re.compile(r"(?:ompi|mca|MPIR|MPID|MPIDI|MPIC|PMI\w*)_\w+")
INTERPRETER = re.compile(r"/(?:lib)?python[\d.]*(?:\.so[\d.]*)?$")
_NATIVE_SYMBOL = re.compile(r"(?:\+0x[0-9a-f]+|@+[\w.]+|\(.*\)|0x[0-9a-f]+)")


def main_thread(sample: Sample) -> tuple[Frame, ...]:
    """Return the calls of the main thread, the outermost first; empty without stacks.

    If it only waits for the end of another thread (`joined`), those of that thread follow.
    """
    main = _main(sample)
    thread = joined(sample)
    return main.frames + thread.frames if thread else main.frames


def _main(sample: Sample) -> ThreadStack:
    """Return the main thread. A thread that Python could not start leaves an entry in its list that
    has the main thread's name, and no calls."""
    mains = [stack for stack in sample.stacks if stack.thread == "MainThread"]
    return next((one for one in mains if one.frames), (*mains, *sample.stacks, ThreadStack())[0])


def joined(sample: Sample) -> ThreadStack | None:
    """Return the thread with the user's own code for whose end the main thread waits; None if it
    does not, or there is none. Of several it is one in a collective, else the first that was
    started: which, no stack shows."""
    inner = [one for one in _main(sample).frames[-2:] if one.file.endswith("/threading.py")]
    if not any(one.function in ("join", "Thread.join") for one in inner):
        return None
    own = [stack for stack in others(sample) if any(map(is_user, stack.frames))]
    works = [one for one in own if place_of(one.frames) is Activity.COLLECTIVE]
    return min(works or own, key=lambda one: one.os_thread_id, default=None)


def label(frame: Frame) -> str:
    """Return a call as text: the user's, a library's or a native one.

    Examples: `load data.py:17`, `quick_execute (execute.py)`, `futex_wait [libc.so.6]`.
    """
    name = frame.file.rpartition("/")[2]
    if frame.native:
        function = _NATIVE_SYMBOL.sub("", frame.function) or "?"
        if frame.line:
            return f"{function} {name}:{frame.line}"
        return f"{function} [{name}]" if name else function
    if is_user(frame):
        return f"{frame.function} {name}:{frame.line}"
    return f"{frame.function} ({name})" if name else frame.function


def mpi_call(function: str) -> str:
    """Return the call of MPI that a function is, or is jumped to from; empty for any other."""
    target = MPI_TARGETS.fullmatch(function)
    if target:
        return f"MPI_{target[1].capitalize()}"
    return function.lstrip("P") if MPI_CALL.fullmatch(function) else ""


def native_frames(process: ProcessEvidence) -> tuple[Frame, ...]:
    """Return the calls in C as frames, from the program's first own one to the call of MPI. Below
    the interpreter's own calls, those of Python are those of its last sample."""
    calls = process.native or NativeCalls()
    frames = [Frame(one.function, one.file, one.line, one.native) for one in calls.frames]
    inner = [at for at, one in enumerate(frames) if INTERPRETER.search(one.file)]
    if inner and all(one.native for one in frames):
        frames = [*main_thread(process.last), *frames[inner[-1] + 1 :]]
    own = [at for at, one in enumerate(frames) if one.function in ("main", "MAIN__", "<module>")]
    ends = [at for at, one in enumerate(frames) if mpi_call(one.function)]
    return tuple(frames[own[0] if own else 0 : (ends[0] if ends else len(frames)) + 1])


@functools.lru_cache(maxsize=16384)
def path_of(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """Return the labels of a stack. Calls below a collective are left out: they only wait."""
    for at, frame in enumerate(frames if place_of(frames) is not Activity.BUILD else ()):
        row = None if frame.native else known_call(frame)
        if row and row.place is Activity.COLLECTIVE:
            return tuple(map(label, frames[: at + 1]))
    return tuple(map(label, frames))


# States of processes that are worth a note, by the kernel's letter.
STATES = {
    "T": "stopped (state T)",
    "F": "frozen by its cgroup",
    "t": "held by a debugger (state t)",
    "D": "in the kernel, uninterruptible (state D)",
    "Z": "ended, its parent has not noticed (state Z)",
    "X": "ended",
}


def sample_path(sample: Sample) -> tuple[str, ...]:
    """Return the labels of a rank's stack in a sample, with its state at the end if in STATES.

    Without a stack the path is one label with the system call and the state.
    """
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
    """A call and the ranks that were in it at any sample.

    `moved` are those of them that were elsewhere at another sample. `ends` are the ranks for which
    it was the innermost call.
    """

    label: str
    ranks: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    children: dict[str, Branch] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return the branch and those below it for `--json`."""
        return {
            "call": self.label,
            "ranks": format_indices(self.ranks),
            "moved": format_indices(self.moved),
            "children": [child.as_data() for child in self.ordered()],
        }

    def ordered(self) -> list[Branch]:
        """Return the branches below this one, those with the most ranks first."""
        return sorted(self.children.values(), key=lambda one: (-len(one.ranks), one.label))


def merge(ranks: Iterable[ProcessEvidence]) -> Branch:
    """Return the tree of the ranks' stacks over all samples."""
    at: dict[tuple[str, ...], set[int]] = {}
    moved: set[int] = set()
    for process in ranks:
        if process.rank is None:
            continue
        paths = {sample_path(sample) for sample in process.samples}
        if process.native and process.native.frames:
            # It was read once, after the samples.
            paths = {path_of(native_frames(process))}
        for path in paths:
            at.setdefault(path, set()).add(process.rank)
        if len(paths) > 1:
            moved.add(process.rank)
    root = Branch("all ranks")
    for path, there in at.items():
        branch = root
        branch.ranks |= there
        for name in path[:MOST_FRAMES]:
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


def rank_set(ranks: Iterable[int]) -> str:
    """Return ranks as text, such as `0-30,32-63 (63)`, cut to about MOST_CHARACTERS."""
    listed = set(ranks)
    text = format_indices(listed)
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS].rpartition(",")[0] + ",…"
    return f"{text} ({len(listed)})" if len(listed) > 1 else text


def tree_lines(root: Branch, odd: frozenset[int] = frozenset()) -> list[str]:
    """Return the tree for a terminal, a line each. A branch is indented where ranks part.

    Branches with `odd` ranks only are marked.
    """
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
    """Return the threads other than the main one that have calls."""
    main = _main(sample)
    return tuple(one for one in sample.stacks if one.frames and one is not main)
