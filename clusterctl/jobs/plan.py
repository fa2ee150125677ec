"""From what was asked for and what the head node has to the job's exact lines.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from clusterctl.domain.errors import NotEnoughGpus, UsageError
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.jobs.facts import Environment, HeadFacts, choose_environment
from clusterctl.jobs.mpirun import JOB_VARIABLE, MpiLaunch, Variable, mpirun_argv
from clusterctl.jobs.presets import (
    DATA_FOLDER,
    EFA,
    KERNELS,
    KERNELS_BYTES,
    TRAINER,
    Preset,
    TrainerOptions,
    choose_preset,
    evaluation_flags,
    training_flags,
)
from clusterctl.jobs.work import (
    Contradiction,
    Work,
    check_clearing,
    clearing,
    read_work,
    switch,
    twins,
    value,
)

# How the names of interfaces begin that have the same address on every host.
NO_CARDS = ("lo", "docker", "br-", "virbr", "lxcbr", "lxdbr", "podman", "cni")
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
EXAMPLES_FOLDER = "examples/horovod/tensorflow"
JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


def new_job_id() -> str:
    """Return a name for a job, `20261120-154501-3f2a` in UTC: it sorts by time, and is safe in a
    path and on a command line."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_job_id(text: str) -> str:
    """Return the id itself. Raises UsageError."""
    if not JOB_ID.fullmatch(text):
        raise UsageError(f"not the id of a job: {text!r}", "see `clusterctl logs NAME --list`")
    return text


@dataclass(frozen=True)
class JobRequest:
    """What the user asked for. `script` is a program of theirs on the nodes, relative to the folder
    that the job runs in.

    `clears`: empty the log folder first (True), go on from what it holds (False), or empty it
    where it holds no checkpoint (None). `mpi_arguments` are options for mpirun, as its words.
    """

    ranks: int
    synthetic: bool = False
    preset: str = "auto"
    script: str | None = None
    arguments: tuple[str, ...] = ()
    data_dir: str | None = None
    epochs: int | None = None
    more_augmentation: bool = False
    evaluate: bool = True
    clears: bool | None = None
    variables: tuple[Variable, ...] = ()
    mpi_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobPlan:
    """A job as it will run: `argv`, then `evaluation`, in the folder `workdir` of the head node.

    `script` is the path of a program of the user's own, and `work` is None then; as it was given,
    a relative one is below `workdir`. `home` is that of the nodes. `clears_on_purpose`: the user
    asked for an empty log folder in so many words. `destination`: of a copy (preset `copy`).
    """

    job_id: str
    ranks: int
    preset: str
    synthetic: bool
    workdir: str
    argv: tuple[str, ...]
    evaluation: tuple[str, ...] = ()
    python: str = ""
    work: Work | None = None
    clears_on_purpose: bool = False
    script: str = ""
    home: str = ""
    variables: tuple[Variable, ...] = ()
    mpi_arguments: tuple[str, ...] = ()
    destination: str = ""

    @property
    def line(self) -> str:
        """The command line that trains or copies, as a shell reads it."""
        return shlex.join(self.argv)

    @property
    def evaluation_line(self) -> str:
        """The one that evaluates on the head node afterwards; empty where nothing does."""
        return shlex.join(self.evaluation)

    @property
    def lines(self) -> tuple[str, ...]:
        """Both, in the order in which they run; the second only when the first succeeded."""
        return (self.line, self.evaluation_line) if self.evaluation else (self.line,)

    @property
    def log_dir(self) -> str:
        """The absolute path of the trainer's log folder; empty for a program of the user's own."""
        if not self.work:
            return ""
        # The trainer makes the home folder of a ~, too.
        return posixpath.join(self.workdir, _in_home(self.work.log_dir, self.home, None))

    @property
    def script_path(self) -> str:
        """The absolute path of the user's own program; empty where the trainer runs."""
        return posixpath.join(self.workdir, self.script) if self.script else ""


def plan_job(
    request: JobRequest, facts: HeadFacts, hosts: HostsFile, job_id: str, more_gpus: str
) -> JobPlan:
    """The plan; `more_gpus` is the hint for who asks for more than there are.

    Raises UsageError, NotEnoughGpus, MissingTool.
    """
    check_ranks(request.ranks, hosts.slots, more_gpus)
    check_request(request)
    environment = choose_environment(facts, needs_horovod=request.script is None)
    preset = choose_preset(request.preset, facts.nvidia_driver, facts.efa > 0)
    exports: dict[str, str | None] = {
        **dict(preset.exports),
        **dict(node_exports(environment.mpirun.path, preset, facts)),
        **{one.name: None if one.private else one.value for one in request.variables},
        JOB_VARIABLE: job_id,
    }
    launch = MpiLaunch(
        mpirun=environment.mpirun,
        hosts=len(hosts.entries),
        ranks=request.ranks,
        binding=preset.binding,
        settings=preset.settings,
        exports=tuple(exports.items()),
        program=_program(request, environment.python, preset, facts),
        arguments=request.mpi_arguments,
        network=shared_network([entry.host for entry in hosts.entries], facts),
    )
    work = read_work(launch.program, request.ranks) if request.script is None else None
    return JobPlan(
        job_id=job_id,
        ranks=request.ranks,
        preset=preset.name,
        synthetic=request.synthetic,
        workdir=f"{facts.home}/{EXAMPLES_FOLDER}",
        argv=tuple(mpirun_argv(launch)),
        evaluation=_evaluation(request, launch, work, environment, preset, facts, hosts),
        python=environment.python,
        work=work,
        clears_on_purpose=bool(_clearing(request)),
        script="" if request.script is None else _in_home(request.script, facts.home, None),
        home=facts.home,
        variables=request.variables,
        mpi_arguments=request.mpi_arguments,
    )


def check_ranks(ranks: int, slots: int, more_gpus: str) -> None:
    """Raises UsageError for less than one rank, NotEnoughGpus for more than there are slots."""
    if ranks < 1:
        raise UsageError(f"{ranks} GPUs make no sense", "ask for 1 or more")
    if ranks > slots:
        raise NotEnoughGpus(
            f"wanted {ranks} GPUs, {'there is' if slots == 1 else 'there are'} {slots}", more_gpus
        )


def check_request(request: JobRequest) -> None:
    """Raises UsageError for options that speak of different runs, Contradiction among them."""
    for_real_data = {
        "--data-dir": request.data_dir is not None,
        "--more-aug": request.more_augmentation,
    }
    for_the_trainer = {
        "--synthetic": request.synthetic,
        "--epochs": request.epochs is not None,
        "--clear": request.clears is True,
        "--resume": request.clears is False,
        "--no-eval": not request.evaluate,
        **for_real_data,
    }
    if request.script is not None:
        _refuse("--script", "it runs your program, not the trainer", for_the_trainer)
        if not request.script.strip():
            raise UsageError("--script names no program", "--script '~/mine.py'")
    else:
        check_clearing(request.clears, request.arguments)
    if request.synthetic:
        _refuse("--synthetic", "it reads no images", for_real_data)
        _refuse(
            "--synthetic", "such runs keep no checkpoints", {"--resume": request.clears is False}
        )
    if request.script is None and "--synthetic" in request.arguments and not request.synthetic:
        raise UsageError("--synthetic comes before --", "clusterctl train NAME GPUS --synthetic")


def _refuse(option: str, because: str, others: dict[str, bool]) -> None:
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise Contradiction(f"{given[0]} goes with no {option}: {because}", "leave one of them out")


def node_exports(mpirun: str, preset: Preset, facts: HeadFacts) -> list[tuple[str, str]]:
    """The ranks' PATH and LD_LIBRARY_PATH, for EFA with what NCCL needs; where kernels are kept."""
    # ssh gives the other hosts a bare PATH: what the head node has goes along.
    folder = mpirun.rpartition("/")[0]
    known = [part for part in facts.search_path.split(":") if part and part != folder]
    paths = [("PATH", ":".join([folder, *known]))]
    libraries = [*(facts.efa_libraries if preset is EFA else ()), facts.library_path]
    if any(libraries):
        paths.append(("LD_LIBRARY_PATH", ":".join(filter(None, libraries))))
    if preset.on_gpus:
        paths.append(("CUDA_CACHE_PATH", f"{facts.home}/{KERNELS}"))
        paths.append(("CUDA_CACHE_MAXSIZE", str(KERNELS_BYTES)))
    return paths


def _program(request: JobRequest, python: str, preset: Preset, facts: HeadFacts) -> tuple[str, ...]:
    if request.script is not None:
        return (python, _in_home(request.script, facts.home, None), *request.arguments)
    flags = training_flags(preset, _options(request, facts), facts.gpu_memory_mib)
    return _trainer(python, flags, request.arguments)


def _trainer(python: str, flags: list[str], arguments: tuple[str, ...]) -> tuple[str, ...]:
    # Where the user says --fp16, a --nofp16 of ours would be a contradiction.
    kept = [word for word in flags if not any(twin in arguments for twin in twins(word))]
    return (python, "-W", "ignore", TRAINER, *kept, *arguments)


def _clearing(request: JobRequest) -> bool | None:
    """What the user says of the log folder: by our options, or by the trainer's."""
    return clearing(request.arguments) if request.clears is None else request.clears


def _evaluation(
    request: JobRequest,
    launch: MpiLaunch,
    work: Work | None,
    environment: Environment,
    preset: Preset,
    facts: HeadFacts,
    hosts: HostsFile,
) -> tuple[str, ...]:
    """On the head node alone: only its rank 0 has the checkpoints."""
    if work is None or work.data_dir is None or work.evaluates_only or not request.evaluate:
        return ()
    flags = evaluation_flags(preset, _options(request, facts), facts.gpu_memory_mib)
    program = _trainer(environment.python, flags, request.arguments)
    here = replace(launch, ranks=head_slots(facts, hosts), program=program, alone=True)
    return tuple(mpirun_argv(here))


def head_slots(facts: HeadFacts, hosts: HostsFile) -> int:
    """The head node's slots in the hosts file, by any of its names; else its GPUs, or 1."""
    names = {*LOCAL_NAMES, facts.hostname, *facts.addresses}
    for entry in hosts.entries:
        if entry.host in names:
            return entry.slots
    return max(1, facts.gpus)


def shared_network(hosts: Iterable[str], facts: HeadFacts) -> str:
    """The head node's IPv4 subnet, widened until all hosts are in it: those of a VPC's subnets.

    Empty where it is not certain: hosts that are known by name only, or a bridge of the head node
    in the same network.
    """
    try:
        addresses = [ipaddress.IPv4Address(host) for host in hosts if host not in LOCAL_NAMES]
        there = [(name, ipaddress.IPv4Interface(address)) for name, address in facts.interfaces]
    except ValueError:
        return ""
    others = [interface.network for name, interface in there if name.startswith(NO_CARDS)]
    cards = [interface for name, interface in there if not name.startswith(NO_CARDS)]
    ours = [card for card in cards if card.ip in addresses]
    near = [card for card in cards if any(address in card.network for address in addresses)]
    for card in [*ours, *near, *cards][:1]:
        network = card.network
        while not all(address in network for address in addresses):
            network = network.supernet()
        if network.prefixlen and not any(map(network.overlaps, others)):
            return str(network)
    return ""


def _options(request: JobRequest, facts: HeadFacts) -> TrainerOptions:
    data_dir = request.data_dir or f"{facts.home}/{DATA_FOLDER}/"
    counts_steps = value(request.arguments, "--num_batches") is not None
    return TrainerOptions(
        ranks=request.ranks,
        data_dir=None if request.synthetic else _in_home(data_dir, facts.home, facts.home),
        epochs=request.epochs,
        counts_steps=counts_steps and request.epochs is None,
        more_augmentation=request.more_augmentation,
        clears=_clearing(request) is not False and not switch(request.arguments, "eval"),
    )


def _in_home(path: str, home: str, base: str | None) -> str:
    """No shell reads the line on the other hosts: ~ has to be a path by then.

    What is relative is below `base`, where there is one; a URL is as it is.
    """
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    if base is None or path.startswith("/") or "://" in path:
        return path
    return f"{base}/{path}"
