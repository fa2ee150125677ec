"""Commands that `env install` runs on the head node to try the training environment, such as
bootstrap/shell/ranks.py.

The first is an allreduce with one rank on each node, as a smoke test. The second makes a few steps
of the trainer, so that the GPU driver compiles the kernels that TensorFlow lacks for its GPUs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.bootstrap.training import ranks_check
from clusterctl.jobs import nccl
from clusterctl.jobs.head_facts import HeadFacts, shared_network
from clusterctl.jobs.mpirun import MpiLaunch, MpiRun, mpirun_argv
from clusterctl.jobs.plan import EXAMPLES_FOLDER, node_exports
from clusterctl.jobs.trainer import TRAINER, Preset

TIMEOUT_S = 300
# Compiling all kernels takes half an hour; this is twice that.
KERNELS_TIMEOUT_S = 3600


def _launch(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> MpiLaunch:
    """Return a launch of the environment's Python on each host, with a job's variables."""
    mpirun = f"{folder}/bin/mpirun"
    return MpiLaunch(
        mpirun=MpiRun(mpirun, version),
        hosts=len(hosts),
        ranks=len(hosts),
        settings=(("mpi_yield_when_idle", "1"),),
        exports=(*preset.exports_for(1), *node_exports(mpirun, preset, facts)),
        program=(f"{folder}/bin/python", "-W", "ignore"),
        network=shared_network(hosts, facts),
    )


def allreduce_command(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> str:
    """Return the command for the head node's shell that runs the allreduce.

    `folder` has the training environment, `version` is that of its Open MPI. The command reads the
    hosts file on its stdin. On GPUs, its stdout has NCCL's messages about the network that it uses.
    """
    launch = _launch(folder, version, hosts, preset, facts)
    # One GPU of each node is enough.
    more = (*nccl.DEBUG, ("CUDA_VISIBLE_DEVICES", "0")) if preset.on_gpus else ()
    program = (*launch.program, "-c", ranks_check(), str(launch.ranks))
    argv = mpirun_argv(replace(launch, exports=(*launch.exports, *more), program=program))
    line = shlex.join(["timeout", str(TIMEOUT_S), *argv])
    return (
        'here=$(mktemp -d) && cd "$here" && cat >hosts && '
        f'{{ {line} </dev/null; status=$?; cd / && rm -rf "$here"; exit "$status"; }}'
    )


def kernels_command(folder: str, version: str, preset: Preset, facts: HeadFacts) -> str:
    """Return the command that makes a few steps on one GPU, to fill the driver's kernel cache."""
    launch = _launch(folder, version, ["localhost"], preset, facts)
    trainer = f"{facts.home}/{EXAMPLES_FOLDER}/{TRAINER}"
    flags = ("--synthetic", "--num_batches", "3", "-b", "32", "--use_larc")
    log_dir = f"{facts.home}/.cache/clusterctl/kernels-log"
    program = (*launch.program, trainer, *flags, "--log_dir", log_dir)
    argv = mpirun_argv(replace(launch, program=program, on_head_only=True))
    return shlex.join(["timeout", str(KERNELS_TIMEOUT_S), *argv])
