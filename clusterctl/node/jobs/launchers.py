"""The ranks of all launchers: which environment variables have rank, size, local rank and job.

A program inherits the variables of what started it, so several rows may fit a process: the first
one counts. Slurm is the last, since the tasks of `srun` may start any of the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Optional, Sequence

from clusterctl.node.untrusted import MOST_RANKS, whole

Environ = Mapping[bytes, bytes]


@dataclass(frozen=True)
class LauncherKind:
    """A row of the table. A process is a rank of it if it has all variables in `needs` and a number
    in `rank`. Of `size`, `local_rank` the first that is there counts; `job` together are the same
    for all ranks of a job, and for no other job's.
    """

    name: str
    rank: bytes
    size: tuple[bytes, ...]
    local_rank: tuple[bytes, ...]
    job: tuple[bytes, ...] = ()
    needs: tuple[bytes, ...] = ()


class RankIdentity(NamedTuple):
    """What the environment of a rank contains. `job` is empty if nothing distinguishes the jobs."""

    launcher: str
    rank: int
    size: Optional[int]
    local_rank: Optional[int]
    job: str


_AGREED = (b"MASTER_ADDR", b"MASTER_PORT")
_OF_GLOO = (b"HOROVOD_GLOO_RENDEZVOUS_ADDR", b"HOROVOD_GLOO_RENDEZVOUS_PORT")
LAUNCHERS = (
    # torchrun, and what is built on it: `accelerate launch`.
    LauncherKind(
        "torchrun",
        b"RANK",
        (b"WORLD_SIZE",),
        (b"LOCAL_RANK",),
        (b"TORCHELASTIC_RUN_ID", *_AGREED),
        (b"TORCHELASTIC_RUN_ID",),
    ),
    # Version 4 and 5; also mpi4py and Horovod under it.
    LauncherKind(
        "Open MPI",
        b"OMPI_COMM_WORLD_RANK",
        (b"OMPI_COMM_WORLD_SIZE",),
        (b"OMPI_COMM_WORLD_LOCAL_RANK",),
        (b"PMIX_NAMESPACE",),
    ),
    # Also MVAPICH and, with `srun --mpi=pmi2`, Slurm.
    LauncherKind(
        "MPICH or Intel MPI",
        b"PMI_RANK",
        (b"PMI_SIZE",),
        (b"MPI_LOCALRANKID", b"PMI_LOCAL_RANK", b"SLURM_LOCALID"),
        (b"PMI_JOBID",),
    ),
    # `horovodrun --gloo`, which starts each rank itself.
    LauncherKind(
        "horovodrun",
        b"HOROVOD_RANK",
        (b"HOROVOD_SIZE",),
        (b"HOROVOD_LOCAL_RANK",),
        _OF_GLOO,
        _OF_GLOO,
    ),
    # deepspeed's launcher, torch.distributed.launch, and what sets these by hand.
    LauncherKind(
        "torch",
        b"RANK",
        (b"WORLD_SIZE",),
        (b"LOCAL_RANK",),
        _AGREED,
        (b"WORLD_SIZE", b"LOCAL_RANK", *_AGREED),
    ),
    # A batch script has SLURM_PROCID, too, but is no step.
    LauncherKind(
        "srun",
        b"SLURM_PROCID",
        (b"SLURM_STEP_NUM_TASKS", b"SLURM_NTASKS"),
        (b"SLURM_LOCALID",),
        (b"SLURM_JOB_ID", b"SLURM_STEP_ID"),
        (b"SLURM_STEP_ID",),
    ),
)
BY_HAND = "torch"
SLURM = "srun"
# What the proxies of MPICH's and Intel MPI's hydra have on their command lines: the address of
# their mpiexec, which is the same on all hosts.
_CONTROL = re.compile(
    r"--control-port[ =](\S+)|--upstream-host[ =](\S+) .*--upstream-port[ =](\d+)"
)

# What starts daemons on other hosts.
REMOTE_SHELLS = {"ssh", "rsh", "srun", "qrsh", "blaunch"}

# The daemons of Open MPI 5 have the namespace 0 of their mpirun, its ranks the namespace 1.
_NAMESPACE = re.compile(r"ess_base_nspace (\S+)@0")


def rank_identity(environ: Environ) -> RankIdentity | None:
    """Return what the environment of a process has of its rank; None if it is no rank."""
    for row in LAUNCHERS:
        rank = number_in(environ, (row.rank,))
        if rank is None or not all(name in environ for name in row.needs):
            continue
        size = number_in(environ, row.size)
        if row.name == SLURM and (size is None or size < 2):
            continue  # a single task: a shell, or what starts the ranks
        local = number_in(environ, row.local_rank)
        parts = [environ.get(name, b"").decode(errors="replace") for name in row.job]
        return RankIdentity(row.name, rank, size, local, ":".join(parts) if all(parts) else "")
    return None


def job_of_daemon(argv: Sequence[str]) -> str:
    """Return what identifies the job in the command line of a hydra proxy, of Open MPI's prted, or
    of the ssh that starts one; empty in any other."""
    line = " ".join(argv).replace('"', "")
    found = _CONTROL.search(line)
    if found:
        return found[1] or f"{found[2]}:{found[3]}"
    of_prted = _NAMESPACE.search(line)
    return f"{of_prted[1]}@1" if of_prted else ""


def number_in(environ: Environ, names: Sequence[bytes]) -> int | None:
    """Return the number of a rank, or of ranks, in the first of these variables that has one."""
    numbers = (whole(environ.get(name, b""), MOST_RANKS) for name in names)
    return next((one for one in numbers if one is not None), None)
