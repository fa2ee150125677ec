"""What the calls of a rank in C, C++ or Fortran tell, and which ranks are worth being stopped."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from clusterctl.diagnosis.evidence import Frame, ProcessEvidence
from clusterctl.diagnosis.tree import MPI_INNER, label, mpi_call, native_frames
from clusterctl.domain.units import format_duration
from clusterctl.node.facts.native import NativeCalls

# Which argument of MPI's calls is the other rank, and which the communicator, counted from 0.
PEERS = {
    **dict.fromkeys(("MPI_Recv", "MPI_Send", "MPI_Ssend", "MPI_Rsend", "MPI_Bsend"), (3, 5)),
    "MPI_Probe": (0, 2),
}
WORLD = "MPI_COMM_WORLD"
# How the C library names its own copy of a function: __GI___wait4, __libc_pause.
_ALIAS = re.compile(r"^(?:__GI_)?_{2,}(?:libc_)?(?=[a-z])")
# Of so many ranks of a job the calls are read.
MOST = 8


@dataclass(frozen=True)
class Native:
    """The calls in C of a rank. `mpi` is its call of MPI, such as `MPI_Recv`, `caller` the call
    that made it, or the innermost one outside of MPI. `peer` is the rank that it waits for, and
    None unless debug information tells it."""

    calls: NativeCalls = NativeCalls()
    frames: tuple[Frame, ...] = ()

    @functools.cached_property
    def mpi(self) -> str:
        return mpi_call(self.frames[-1].function) if self.frames else ""

    @property
    def is_outside(self) -> bool:
        """Whether its calls were read, and are not within MPI."""
        within = any(MPI_INNER.fullmatch(one.function) for one in self.frames)
        return bool(self.frames) and not self.mpi and not within

    @property
    def is_unnamed(self) -> bool:
        """Whether it is in no function of the program's own that is known, other than `main`: a
        compiler may have merged others into that."""
        own = [one.function for one in self.frames if ".so" not in one.file]
        return {*own} <= {"", "_start", "main", "MAIN__"}

    @property
    def caller(self) -> Frame | None:
        """The innermost call of a program's own, or of which there is no better one."""
        outer = self.frames[:-1] if self.mpi else self.frames
        with_source = [one for one in outer if one.line and not one.file.startswith("./")]
        own = [one for one in outer if one.file and ".so" not in one.file]
        return next(reversed(with_source or own or list(outer)), None)

    @functools.cached_property
    def peer(self) -> int | None:
        """A number is a rank of the job only in MPI_COMM_WORLD, and a negative one is none."""
        if self.mpi not in PEERS:
            return None
        number, communicator = PEERS[self.mpi]
        named = self.calls.call.rstrip(")").partition("(")[2].split(", ")
        value = self.calls.arguments.get(str(number), -1)
        is_world = named[communicator : communicator + 1] == [WORLD]
        return value if is_world and value >= 0 else None

    @property
    def where(self) -> str:
        """Where it is, such as `in MPI_Recv from main ring.c:7`; empty if that was not read."""
        if not self.frames:
            return ""
        at = label(self.caller) if self.caller else ""
        if not self.mpi:
            after = self.frames[self.frames.index(self.caller) + 1 :] if self.caller else ()
            within = next((one.function for one in after if one.function), "")
            within = _ALIAS.sub("", re.split(r"[@(]", within)[0])
            return f"in {within}, called at {at}" if within else f"in {at}"
        peer = ", peer not known" if self.mpi in PEERS and self.peer is None else ""
        return f"in {self.mpi}{f', called at {at}' if at else ''}{peer}"

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of evidence: the calls, and what reading them cost."""
        if not self.frames:
            return ()
        cost = (
            f"read by {self.calls.source}, which held it for {format_duration(self.calls.held_s)}"
        )
        shown = " > ".join(label(one) for one in self.frames[-4:])
        return (f"{shown} ({cost})", *((self.calls.call,) if self.calls.call else ()))


def native_of(process: ProcessEvidence) -> Native:
    """Return what the calls of a process in C tell."""
    return Native(process.native, native_frames(process)) if process.native else Native()
