"""What `env install` tries on the head node: an allreduce of a rank on each node as a smoke test,
and a few steps of the trainer, so that the driver compiles the kernels which TensorFlow lacks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.bootstrap.training import ranks_check
from clusterctl.jobs import nccl
from clusterctl.jobs.mpirun import Binding, MpiLaunch, MpiRun, mpirun_argv
from clusterctl.jobs.plan import EXAMPLES_FOLDER, HeadFacts, node_exports, shared_network
from clusterctl.jobs.trainer import TRAINER, Preset

TIMEOUT_S = 300
# Half an hour for all of them; twice that, to be sure.
KERNELS_TIMEOUT_S = 3600


def _launch(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> MpiLaunch:
    """Of the environment's Python on each of the hosts, with a job's variables."""
    mpirun = f"{folder}/bin/mpirun"
    return MpiLaunch(
        mpirun=MpiRun(mpirun, version),
        hosts=len(hosts),
        ranks=len(hosts),
        binding=Binding.NONE,
        settings=(("mpi_yield_when_idle", "1"),),
        exports=(*preset.exports, *node_exports(mpirun, preset, facts)),
        program=(f"{folder}/bin/python", "-W", "ignore"),
        network=shared_network(hosts, facts),
    )


def allreduce_command(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> str:
    """For the head node's shell, with the training environment in `folder` and its Open MPI.

    The hosts file of these addresses is its input. On GPUs NCCL says on stdout which network it
    takes.
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
    """A few steps of the trainer on one GPU: what it uses is in the driver's cache after that."""
    launch = _launch(folder, version, ["localhost"], preset, facts)
    trainer = f"{facts.home}/{EXAMPLES_FOLDER}/{TRAINER}"
    flags = ("--synthetic", "--num_batches", "3", "-b", "32", "--use_larc")
    log_dir = f"{facts.home}/.cache/clusterctl/kernels-log"
    program = (*launch.program, trainer, *flags, "--log_dir", log_dir)
    argv = mpirun_argv(replace(launch, program=program, alone=True))
    return shlex.join(["timeout", str(KERNELS_TIMEOUT_S), *argv])
