"""The proof that ranks on several nodes meet: one mpirun from the head node, a rank on each."""

from __future__ import annotations

import shlex

from clusterctl.jobs.mpirun import Binding, MpiLaunch, MpiRun, mpirun_argv

TIMEOUT_S = 300
PROGRAM = """\
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
assert hvd.size() == {ranks}, hvd.size()
assert float(hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0]) == {ranks}
"""


def meet_command(folder: str, version: str, ranks: int) -> str:
    """For the head node's shell, with the training environment in `folder` and its Open MPI.

    The hosts file is its input.
    """
    launch = MpiLaunch(
        mpirun=MpiRun(f"{folder}/bin/mpirun", version),
        hosts=ranks,
        ranks=ranks,
        binding=Binding.NONE,
        settings=(("mpi_yield_when_idle", "1"),),
        exports=(("TF_CPP_MIN_LOG_LEVEL", "2"),),
        program=(f"{folder}/bin/python", "-c", PROGRAM.format(ranks=ranks)),
    )
    line = shlex.join(["timeout", str(TIMEOUT_S), *mpirun_argv(launch)])
    return (
        'here=$(mktemp -d) && cd "$here" && cat >hosts && '
        f'{{ {line} </dev/null; status=$?; cd / && rm -rf "$here"; exit "$status"; }}'
    )
