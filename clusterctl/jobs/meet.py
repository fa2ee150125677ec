"""The proof that ranks on several nodes meet: one mpirun from the head node, a rank on each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clusterctl.jobs import nccl
from clusterctl.jobs.facts import HeadFacts
from clusterctl.jobs.mpirun import Binding, MpiLaunch, MpiRun, mpirun_argv
from clusterctl.jobs.plan import search_paths
from clusterctl.jobs.presets import Preset

TIMEOUT_S = 300
PROGRAM = """\
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
assert hvd.size() == {ranks}, hvd.size()
assert float(hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0]) == {ranks}
"""


def meet_command(folder: str, version: str, ranks: int, preset: Preset, facts: HeadFacts) -> str:
    """For the head node's shell, with the training environment in `folder` and its Open MPI.

    The hosts file is its input. On GPUs NCCL says on stdout which network it takes.
    """
    mpirun = f"{folder}/bin/mpirun"
    debug: Sequence[tuple[str, str]] = nccl.DEBUG if preset.on_gpus else ()
    launch = MpiLaunch(
        mpirun=MpiRun(mpirun, version),
        hosts=ranks,
        ranks=ranks,
        binding=Binding.NONE,
        settings=(("mpi_yield_when_idle", "1"),),
        exports=(*preset.exports, *debug, *search_paths(mpirun, preset, facts)),
        program=(f"{folder}/bin/python", "-c", PROGRAM.format(ranks=ranks)),
    )
    line = shlex.join(["timeout", str(TIMEOUT_S), *mpirun_argv(launch)])
    return (
        'here=$(mktemp -d) && cd "$here" && cat >hosts && '
        f'{{ {line} </dev/null; status=$?; cd / && rm -rf "$here"; exit "$status"; }}'
    )
