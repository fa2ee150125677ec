"""Runs as a rank of mpirun: times MPI's allreduce where OSU's micro-benchmarks are not installed.

It calls Open MPI's library with ctypes and needs no compiler: Open MPI's MPI_COMM_WORLD and the
other constants are addresses of symbols. Rank 0 prints the same lines as osu_allreduce: size in
bytes, time in microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)  # in bytes
LASTS_S = 0.5  # for each size
MOST_ROUNDS = 1000
# If one allreduce takes longer, its size is not measured again, and no larger one is tried.
LONGEST_S = 1.0


def main() -> None:
    """Print the times. The argument is the folder of mpirun's installation."""
    for path in (f"{sys.argv[1]}/lib/libmpi.so", f"{sys.argv[1]}/lib64/libmpi.so", "libmpi.so.40"):
        with contextlib.suppress(OSError):
            mpi = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            break
    else:
        sys.exit("Open MPI's library libmpi.so is not there")
    names = ("comm_world", "float", "double", "op_sum")
    world, single, double, plus = (
        ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in names
    )
    mpi.MPI_Wtime.restype = ctypes.c_double
    mpi.MPI_Init(None, None)
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))

    def seconds(size: int, times: int) -> float:
        """Return the mean time of an allreduce of `size` bytes, as rank 0 measures it."""
        ours, sums = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        mpi.MPI_Barrier(world)
        began = mpi.MPI_Wtime()
        for _ in range(times):
            mpi.MPI_Allreduce(ours, sums, ctypes.c_int(size // 4), single, plus, world)
        took = ctypes.c_double((mpi.MPI_Wtime() - began) / times)
        # All ranks need the same time: it decides how many rounds they make.
        mpi.MPI_Bcast(ctypes.byref(took), ctypes.c_int(1), double, ctypes.c_int(0), world)
        return took.value

    for size in SIZES:
        took = seconds(size, 1)  # warm-up: it also opens connections
        last = took > LONGEST_S
        if not last:
            took = seconds(size, 2)
            took = seconds(size, max(2, min(MOST_ROUNDS, int(LASTS_S / took))))
        if not rank.value:
            print(size, f"{took * 1e6:.2f}", flush=True)
        if last:
            break
    mpi.MPI_Finalize()
