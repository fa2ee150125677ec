"""Runs on each node, started by mpirun: one rank of a user's own program.

    PROGRAM ARGUMENTS...    becomes that program, on its share of the node's processors

mpirun binds nothing, because it does not know which GPU a rank uses. The rank is taken to use the
GPU of its local rank, as Horovod's and PyTorch's programs do. The only rank of its node may
use all GPUs, and keeps all processors.
"""

from __future__ import annotations

import os
import sys

from clusterctl.node.affinity import bind_near_gpu


def main() -> None:
    bind_near_gpu(single_uses_all=True)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
