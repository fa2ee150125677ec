"""From what was asked for and what the head node has to the job's exact line.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/launcher).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from clusterctl.domain.errors import ClusterctlError, NotEnoughGpus, UsageError
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.jobs.facts import HeadFacts, choose_environment
from clusterctl.jobs.mpirun import JOB_VARIABLE, MpiLaunch, mpirun_argv
from clusterctl.jobs.presets import DATA_FOLDER, TRAINER, Preset, choose_preset, trainer_arguments

EXAMPLES_FOLDER = "examples/horovod/tensorflow"


@dataclass(frozen=True)
class JobRequest:
    """What the user asked for. `script` is a program of theirs on the nodes."""

    ranks: int
    synthetic: bool = False
    preset: str = "auto"
    script: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobPlan:
    """A job as it will run: `argv` in the folder `workdir` of the head node."""

    job_id: str
    ranks: int
    preset: str
    synthetic: bool
    workdir: str
    argv: tuple[str, ...]

    @property
    def line(self) -> str:
        """The whole command line, as a shell reads it."""
        return shlex.join(self.argv)


def plan_job(
    request: JobRequest, facts: HeadFacts, hosts: HostsFile, job_id: str, more_gpus: str
) -> JobPlan:
    """The plan; `more_gpus` is the hint for who asks for more than there are.

    Raises UsageError, NotEnoughGpus, MissingTool, and ClusterctlError when there is no data.
    """
    check_ranks(request.ranks, hosts.slots, more_gpus)
    own_program = request.script is not None
    if not own_program and not request.synthetic and not facts.training_data:
        raise ClusterctlError(
            f"there is no training data in ~/{DATA_FOLDER} (no file named train-*)",
            f"put ImageNet's TFRecord files into ~/{DATA_FOLDER} on every node, "
            "or train with synthetic data: --synthetic (train_synthetic.sh)",
        )
    environment = choose_environment(facts, needs_horovod=not own_program)
    preset = choose_preset(request.preset, facts.nvidia_driver)
    paths = _search_paths(environment.mpirun.path, facts)
    launch = MpiLaunch(
        mpirun=environment.mpirun,
        hosts=len(hosts.entries),
        ranks=request.ranks,
        binding=preset.binding,
        settings=preset.settings,
        exports=(*preset.exports, *paths, (JOB_VARIABLE, job_id)),
        program=_program(request, environment.python, preset, facts),
    )
    return JobPlan(
        job_id=job_id,
        ranks=request.ranks,
        preset=preset.name,
        synthetic=request.synthetic,
        workdir=f"{facts.home}/{EXAMPLES_FOLDER}",
        argv=tuple(mpirun_argv(launch)),
    )


def check_ranks(ranks: int, slots: int, more_gpus: str) -> None:
    """Raises UsageError for less than one rank, NotEnoughGpus for more than there are slots."""
    if ranks < 1:
        raise UsageError(f"{ranks} GPUs make no sense", "ask for 1 or more")
    if ranks > slots:
        raise NotEnoughGpus(f"wanted {ranks} GPUs, there are {slots}", more_gpus)


def _search_paths(mpirun: str, facts: HeadFacts) -> list[tuple[str, str]]:
    # ssh gives the other hosts a bare PATH: what the head node has goes along.
    folder = mpirun.rpartition("/")[0]
    known = [part for part in facts.search_path.split(":") if part and part != folder]
    paths = [("PATH", ":".join([folder, *known]))]
    if facts.library_path:
        paths.append(("LD_LIBRARY_PATH", facts.library_path))
    return paths


def _program(request: JobRequest, python: str, preset: Preset, facts: HeadFacts) -> tuple[str, ...]:
    if request.script is not None:
        # No shell reads the line on the other hosts: ~ has to be a path by then.
        script = request.script
        script = facts.home + script[1:] if script.startswith("~/") else script
        return (python, script, *request.arguments)
    flags = trainer_arguments(
        preset,
        synthetic=request.synthetic,
        home=facts.home,
        gpu_memory_mib=facts.gpu_memory_mib,
    )
    return (python, "-W", "ignore", TRAINER, *flags, *request.arguments)
