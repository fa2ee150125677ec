"""`clusterctl train NAME GPUS`: a Horovod job, detached."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.following import fetched, follow_to_end
from clusterctl.cli.params import (
    Duration,
    LocalPath,
    NodePath,
    Size,
    credentials_option,
    dry_run_option,
    json_option,
    preset_option,
    rank_options,
)
from clusterctl.cli.program_arguments import ProgramCommand, Typed, split
from clusterctl.domain.errors import ClusterctlError, NotEnoughGpus, NotFound, UsageError
from clusterctl.domain.findings import folded
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count
from clusterctl.jobs.trainer import RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.copy.report import TransferReport
    from clusterctl.copy.request import CopyRequest
    from clusterctl.ec2.instances import Instance
    from clusterctl.ec2.session import Clients
    from clusterctl.jobs.job_file import JobFile
    from clusterctl.jobs.plan import JobPlan, JobRequest
    from clusterctl.jobs.script_mode import ScriptMode
    from clusterctl.operations.access import Access
    from clusterctl.operations.train import Retries, StartedJob, TrainingPlan

recipe_option = click.option(
    "--recipe",
    type=click.Choice(list(RECIPES)),
    help="tutorial: the trainer's settings of the tutorial, the default; fast: those for speed "
    "(docs/training.md#recipes).",
)


# By these names other launchers have the number of ranks as an option.
_GPUS = re.compile(r"--?(gpus?|np|n|num[-_]gpus|num[-_]proc(esses)?)")


# What is not for a job file: the trainer's options (empty), and what the file has a key for.
_NOT_WITH_JOB_FILE = {
    **dict.fromkeys(("synthetic", "data_dir", "epochs", "more_aug", "no_eval", "clear"), ""),
    **dict.fromkeys(("resume", "recipe", "trace_steps"), ""),
    "gpus": "instance_count",
    "arguments": "hyperparameters",
    "script": "entry_point",
    "per_host": "processes_per_host of distribution's mpi",
    "channels": "channels",
    "input_mode": "input_mode",
    "hyperparameters": "hyperparameters",
}

_TYPED = "clusterctl.typed"  # key in the context's meta: the command line's parts


class Gpus(click.ParamType):
    """The number of GPUs. A program in its place is recognized."""

    name = "integer"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if str(value).endswith(".py"):
            self.fail(f"{value} is no number of GPUs; did you mean GPUS --script {value}?")
        if str(value).startswith("-") and ctx.params.get("job_file"):
            self.fail(f"{value}: the program's arguments are hyperparameters, in the job file")
        if str(value).startswith("-"):
            self.fail(f"GPUS is missing, which comes before the program's arguments: 2 -- {value}")
        return int(click.INT.convert(value, param, ctx))


def correct_gpus(typed: Typed) -> bool:
    """Make GPUS of an option such as --gpus 2, and return whether there was one."""
    for at, word in enumerate(typed.arguments):
        name, _, value = word.partition("=")
        number = value or "".join(typed.arguments[at + 1 : at + 2])
        if name in typed.unknown and _GPUS.fullmatch(name) and number.isdigit():
            del typed.arguments[at : at + (1 if value else 2)]
            if not any(one.isdigit() for one in typed.words):
                typed.words.append(number)
            return True
    return False


def correct_script(typed: Typed) -> bool:
    """Make --script of a program among the program's arguments, and return whether one was
    there."""
    arguments = typed.arguments
    if arguments[:1] and re.fullmatch(r"python[\d.]*", arguments[0]):
        arguments = arguments[1:]
    others = [one for one in typed.options if re.match("--(script|job-file)(=|$)", one)]
    if others or not (arguments and arguments[0].endswith(".py")):
        return False
    typed.options += ["--script", arguments[0]]
    typed.arguments = arguments[1:]
    return True


class TrainCommand(ProgramCommand):
    """A command whose help lists its options in groups; those in no group come last."""

    # Title and parameters of each group.
    GROUPS = (
        ("What is trained", "synthetic data_dir epochs more_aug no_eval clear resume script"),
        (
            "How it runs",
            "launcher environment per_host preset recipe variables mpi_args trace_steps",
        ),
        (
            "A script-mode program (docs/script-mode.md)",
            "job_file channels input_mode hyperparameters model_dir credentials",
        ),
        (
            "Horovod (docs/tuning.md)",
            "fusion_threshold_bytes cycle_time_s hierarchical_allreduce autotune timeline "
            "stall_check_s stall_shutdown_s",
        ),
    )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        typed = ctx.meta[_TYPED] = split(self, args)
        if not ctx.resilient_parsing and correct_script(typed):
            line = typed.line(ctx.command_path)
            raise UsageError("the trainer takes no program", f"did you mean --script: {line}")
        return rest

    def misplaced(self, path: str, typed: Typed, option: str) -> UsageError:
        script_mode = {"--channel", "--hyperparameter", "--model-dir"} & set(typed.options)
        if correct_gpus(typed):
            correct_script(typed)
            return UsageError(
                f"no such option: {option}", f"GPUS is a word of its own: {typed.line(path)}"
            )
        if "--job-file" in typed.options:
            return UsageError(
                f"no such option: {option}", "the program's arguments are hyperparameters in YAML"
            )
        if script_mode:
            return UsageError(
                f"no such option: {option}",
                f"a script-mode program has hyperparameters as its arguments: --hyperparameter "
                f"{option.lstrip('-')}=VALUE",
            )
        correct_script(typed)
        if not any(word.isdigit() for word in typed.words):
            typed.words.append("GPUS")
        return super().misplaced(path, typed, option)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        records = {one.name: one.get_help_record(ctx) for one in options}
        groups = [
            (title, [records.pop(name) for name in names.split()]) for title, names in self.GROUPS
        ]
        for title, found in [*groups, ("Options", [*records.values()])]:
            with formatter.section(title):
                formatter.write_dl([record for record in found if record])


@cluster_command(cls=TrainCommand)
@click.argument("gpus", type=Gpus(), required=False)
@click.argument("arguments", nargs=-1, type=NodePath())
@click.option("--synthetic", is_flag=True, help="Train on one image of noise: no data set needed.")
@click.option(
    "--data-dir",
    type=NodePath(),
    metavar="DIR",
    help="TFRecord files of ImageNet on the nodes, or s3://; default: ~/data/tf-imagenet.",
)
@click.option("--epochs", type=click.IntRange(1), metavar="E", help="Default: the tutorial's 90.")
@click.option(
    "--more-aug",
    is_flag=True,
    help="LARC and more augmentation, as the tutorial for 128 GPUs and more. From there on the "
    "warm-up is 10 epochs, below it 5.",
)
@click.option("--no-eval", is_flag=True, help="Do not evaluate on the head node afterwards.")
@click.option(
    "--clear", is_flag=True, help="Delete the checkpoints of an earlier run: start from scratch."
)
@click.option("--resume", is_flag=True, help="Go on from the checkpoints of an earlier run.")
@click.option(
    "--script",
    type=NodePath(),
    metavar="PATH",
    help="Run this Python program, not the trainer. 'mine.py' is here, and its folder is shipped; "
    "what begins with '~/' (quoted) or '/' is on the nodes.",
)
@click.option(
    "--launcher",
    type=click.Choice(["mpirun", "torchrun"]),
    default="mpirun",
    show_default=True,
    help="What starts the ranks of a --script; torchrun for PyTorch's own distributed programs.",
)
@click.option(
    "--env",
    "environment",
    type=NodePath(),
    metavar="DIR",
    help="A virtual environment of yours that all nodes have in DIR, '~/mine' (quoted) or "
    "/opt/mine: its mpirun and python run.",
)
@click.option(
    "--processes-per-host",
    "per_host",
    type=click.IntRange(1),
    metavar="N",
    help="So many ranks on each node, not one for each of its GPUs.",
)
@click.option(
    "--job-file",
    type=LocalPath(),
    metavar="YAML",
    help="All of that in a file, in the words of SageMaker's estimator; GPUS is left out.",
)
@click.option(
    "--channel",
    "channels",
    multiple=True,
    type=NodePath(),
    metavar="NAME=SOURCE",
    help="Data for the --script in SM_CHANNEL_NAME: s3://, a path here, or a quoted '~/' of the "
    "nodes.",
)
@click.option(
    "--input-mode",
    type=click.Choice(["File", "Pipe"]),
    default="File",
    show_default=True,
    help="File: channels are there before the --script starts; Pipe: they are streams.",
)
@click.option(
    "--hyperparameter",
    "hyperparameters",
    multiple=True,
    type=NodePath(),
    metavar="NAME=VALUE",
    help="Give the --script --NAME VALUE, and SM_HP_NAME.",
)
@click.option(
    "--model-dir",
    metavar="DIR",
    help="Copy what the --script leaves in SM_MODEL_DIR there when it has ended: s3://, or here.",
)
@credentials_option(
    "s3:// channels: with the nodes' instance profile, this machine's keys, or none."
)
@preset_option
@recipe_option
@rank_options
@click.option(
    "--trace-steps",
    default="",
    metavar="START:STOP",
    help="Record what the GPU does in these steps of the trainer, STOP not among them.",
)
@click.option(
    "--fusion-threshold",
    "fusion_threshold_bytes",
    type=Size(),
    metavar="SIZE",
    help="Gather gradients into buffers of so much, such as 32MiB; 0: none.",
)
@click.option(
    "--cycle-time",
    "cycle_time_s",
    type=Duration(none=True, unit="ms"),
    metavar="TIME",
    help="Horovod's cycle time, such as 5ms.",
)
@click.option(
    "--hierarchical-allreduce/--no-hierarchical-allreduce",
    default=None,
    help="Hierarchical allreduce: within each node first, then between nodes.",
)
@click.option("--autotune", is_flag=True, help="Let Horovod find the best of these three.")
@click.option(
    "--timeline", is_flag=True, help="Record where the gradients' time goes, and show it."
)
@click.option(
    "--stall-check",
    "stall_check_s",
    type=Duration(none=True),
    metavar="TIME",
    help="Name ranks that others wait for after so long, 60s if not given; 0: never.",
)
@click.option(
    "--stall-shutdown",
    "stall_shutdown_s",
    type=Duration(none=True),
    metavar="TIME",
    help="End the job when ranks were waited for so long; never, if not given.",
)
@click.option(
    "--watchdog",
    "watchdog_s",
    type=Duration(unit="m"),
    metavar="TIME",
    help="Diagnose the job on the head node when it has made no step for so long, such as 5m.",
)
@click.option("--watchdog-cancel", is_flag=True, help="With --watchdog: cancel the job.")
@click.option(
    "--output",
    "output_folder",
    type=NodePath(),
    metavar="FOLDER",
    help="A folder of the nodes that the program writes into; `fetch` copies it here.",
)
@click.option("-d", "--detach", is_flag=True, help="Return once the job runs, or is queued.")
@click.option("--queue", is_flag=True, help="After the jobs that are there, one after another.")
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Start again from the last checkpoint when a node is lost, up to N times.",
)
@click.option(
    "--min-gpus", type=click.IntRange(1), metavar="G", help="With --retries: at least G GPUs."
)
@dry_run_option
@click.option("-v", "--verbose", is_flag=True, help="Print the mpirun lines that run.")
@click.option("--force", is_flag=True, help="Even while another job runs, or checks fail.")
@json_option("Training", "The job as JSON; its log goes to stderr.")
def train(app: AppContext, name: str, **given: Any) -> int:
    """Train on GPUS of the GPUs of cluster NAME, or on all; the head node's are used first.

    \b
    clusterctl train demo 32 --synthetic
    clusterctl train demo 32 --data-dir '~/data/tf-imagenet' --detach
    clusterctl train demo 256 --more-aug --epochs 90
    clusterctl train demo 32 --recipe fast
    clusterctl train demo 8 --synthetic -- --batch_size 128 --num_batches 200
    clusterctl train demo 32 -x NCCL_DEBUG=INFO --mpi-arg --report-bindings
    clusterctl train demo 256 --detach --watchdog 5m --watchdog-cancel

    What follows -- goes to the trainer. The job runs detached on the head node: Ctrl-C or a lost
    connection ends the following, not the job. The exit status is the job's.
    """
    options = _TrainOptions(**given)
    _check_options(options)
    job = None
    if options.job_file:
        from clusterctl.jobs.job_file import read_job_file

        job = read_job_file(options.job_file)
        if job.ignored:
            output.note(f"left to the cluster: {', '.join(job.ignored)}")
    mode = _script_mode(options, job)
    sources = [one.source for one in mode.channels] if mode else []
    if "credentials" in _typed() and not any(one.startswith("s3://") for one in sources):
        raise UsageError("--credentials is for channels from s3://: there is none", "leave it out")
    return _train(app, name, options, job, mode, _request(options, job, mode is not None))


@dataclass(frozen=True)
class _TrainOptions:
    """The options of one `train` command."""

    gpus: int | None
    arguments: tuple[str, ...]
    synthetic: bool
    data_dir: str | None
    epochs: int | None
    more_aug: bool
    no_eval: bool
    clear: bool
    resume: bool
    script: str | None
    launcher: str
    environment: str | None
    per_host: int | None
    job_file: Path | None
    channels: tuple[str, ...]
    input_mode: str
    hyperparameters: tuple[str, ...]
    model_dir: str | None
    credentials: str
    preset: str
    recipe: str | None
    variables: tuple[str, ...]
    mpi_args: tuple[str, ...]
    trace_steps: str
    fusion_threshold_bytes: int | None
    cycle_time_s: float | None
    hierarchical_allreduce: bool | None
    autotune: bool
    timeline: bool
    stall_check_s: float | None
    stall_shutdown_s: float | None
    watchdog_s: float | None
    watchdog_cancel: bool
    output_folder: str | None
    detach: bool
    queue: bool
    retries: int
    min_gpus: int | None
    dry_run: bool
    verbose: bool
    force: bool
    as_json: bool

    @property
    def model_folder(self) -> Path | None:
        """The folder here of a --model-dir that is no s3:// URI: the model is fetched after the
        job's end."""
        is_url = (self.model_dir or "s3://").startswith("s3://")
        return None if is_url else Path(str(self.model_dir))

    @property
    def again(self) -> Retries:
        from clusterctl.operations.train import Retries

        return Retries(self.retries, self.min_gpus)


def _check_options(given: _TrainOptions) -> None:
    """Raise UsageError for options that exclude or need each other."""
    from clusterctl.operations.fetch import check_place

    if given.queue and given.force:
        raise UsageError("--queue waits for other jobs, --force does not", "leave one out")
    typed = _typed()
    named = [one for one in typed if given.job_file and one in _NOT_WITH_JOB_FILE]
    if named:
        because = "it runs your program, not the trainer"
        instead = "an argument of the program is one of the file's hyperparameters"
        if key := _NOT_WITH_JOB_FILE[named[0]]:
            because, instead = "the file has it", f"in the job file it is {key}"
        raise UsageError(
            f"{typed[named[0]]} cannot be combined with --job-file: {because}",
            f"leave it out; {instead}",
        )
    if "input_mode" in typed and not given.channels:
        raise UsageError("--input-mode is for channels", "leave it out, or --channel NAME=SOURCE")
    # Without GPUS, all are taken, whose number is not known yet.
    gpus = given.min_gpus if given.gpus is None else given.gpus
    given.again.check(gpus or 0)
    if given.watchdog_cancel and not given.watchdog_s:
        raise UsageError("--watchdog-cancel needs a time", "say how long: --watchdog 5m")
    if given.model_folder:
        check_place(given.model_folder)


def _typed() -> dict[str, str]:
    """Return what is on the command line: names of parameters, and as they are written there."""
    context = click.get_current_context()
    return {
        str(one.name): one.opts[0] if isinstance(one, click.Option) else one.human_readable_name
        for one in context.command.params
        if context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
    }


def _script_mode(given: _TrainOptions, job: JobFile | None) -> ScriptMode | None:
    """Return how a script-mode program runs; None for others. Raises UsageError."""
    from clusterctl.jobs.script_mode import ScriptMode, parse_channel, parse_hyperparameters

    model_url = "" if given.model_folder else given.model_dir or ""
    if job:
        mode = replace(job.mode, model_url=model_url) if given.model_dir else job.mode
    elif given.channels or given.hyperparameters or given.model_dir:
        mode = ScriptMode(
            tuple(parse_channel(text, given.input_mode) for text in given.channels),
            parse_hyperparameters(given.hyperparameters),
            model_url,
            "pytorch" if given.launcher == "torchrun" else "tensorflow",
        )
    else:
        return None
    if given.min_gpus:
        raise UsageError(
            "--min-gpus: a script-mode program needs as many hosts as it began with",
            "leave it out: --retries then waits until all nodes are there again",
        )
    return _streams(mode, given.credentials)


def _request(given: _TrainOptions, job: JobFile | None, script_mode: bool) -> JobRequest:
    from clusterctl.jobs.horovod import HorovodTuning
    from clusterctl.jobs.mpirun import mpirun_arguments, parse_variable
    from clusterctl.jobs.plan import JobRequest, clears_or_resumes
    from clusterctl.node.record import pick

    variables, mpi_args = given.variables, given.mpi_args
    if job:
        variables, mpi_args = (*job.variables, *variables), (*job.mpi_arguments, *mpi_args)
    return pick(
        *(JobRequest, job, given),
        ranks=given.gpus or 0,
        more_augmentation=given.more_aug,
        evaluate=not given.no_eval,
        clears=clears_or_resumes(given.clear, given.resume),
        variables=tuple(parse_variable(text, os.environ) for text in variables),
        mpi_arguments=mpirun_arguments(mpi_args),
        torchrun=given.launcher == "torchrun",
        script_mode=script_mode,
        output=given.output_folder,
        tuning=pick(HorovodTuning, given),
    )


def _train(
    app: AppContext,
    name: str,
    options: _TrainOptions,
    job: JobFile | None,
    mode: ScriptMode | None,
    request: JobRequest,
) -> int:
    """Check and start the job, follow it unless it is detached, and return the exit status."""
    from clusterctl.ec2.health import health_findings
    from clusterctl.operations.train import live_hosts, plan_training

    status = app.status(name)
    output.findings(folded(status.findings))
    with app.access(status.cluster) as access:
        with _ways_out(access, options.gpus, (app.clients, status.instances)):
            if options.gpus is None:
                hosts = live_hosts(access)
                request = replace(request, ranks=job.ranks(hosts, name) if job else hosts.slots)
                options.again.check(request.ranks)
            plan = plan_training(access, request, options.force, mode)
        health = health_findings(app.clients.ec2, status.instances)
        plan = replace(plan, findings=(*health, *plan.findings))
        if options.dry_run:
            _show_plan(plan, options.as_json)
        plan.check()
        output.findings(plan.findings)
        if options.dry_run:
            return 0
        for line in [_in_short(access, plan), *(plan.job.lines if options.verbose else ())]:
            output.note(line)
        started = _start(app, access, plan, options, status.instances)
        _show_started(started)
        if not options.detach:
            return _follow(access, started, options)
        if options.as_json:
            output.data({"job_id": started.job.job_id, **_lines(started.job)})
        output.print_job_commands(name, started.job.job_id)
        _note_model(name, started, options.model_folder)
        return 0


def _start(
    app: AppContext,
    access: Access,
    plan: TrainingPlan,
    options: _TrainOptions,
    instances: Sequence[Instance],
) -> StartedJob:
    from clusterctl.cli.copy.options import CopyOptions
    from clusterctl.ec2.money.prices import find_prices, list_prices
    from clusterctl.operations.train import machines_of, start_training

    if options.watchdog_s:
        from clusterctl.operations.watchdog import prepare

        is_lab = bool(app.settings.lab)
        plan = plan.watched(prepare(access, options.watchdog_s, options.watchdog_cancel, is_lab))
    how = "queue" if options.queue else "force" if options.force else "refuse"
    priced = (app.clients, instances)
    machines = machines_of(instances, find_prices(*priced), list_prices(*priced))
    shown = CopyOptions(credentials=options.credentials, quiet=options.as_json)

    def copy_channel(name: str, request: CopyRequest) -> TransferReport:
        from clusterctl.cli.copy.view import copy_for_job

        output.note(f"channel {name}: {request.sources[0]}")
        return copy_for_job(app, access, access.targets, request, shown)

    return start_training(access, plan, how, machines, options.again, copy_channel)


def _follow(access: Access, started: StartedJob, options: _TrainOptions) -> int:
    """Follow the job to its end, fetch its model, and return the exit status."""
    job, folder, as_json = started.job, options.model_folder, options.as_json
    ended = follow_to_end(access, job.job_id, job.preset, as_json, last_read=started.started.job)
    if ended == output.INTERRUPTED:
        _note_model(access.cluster.name, started, folder)
        return ended
    if folder:
        if fetched(access, job.job_id, folder, "its model", model=True):
            output.note(f"its model, record and logs are in {folder}")
        else:
            # The model was requested: a job that succeeded is not all of it.
            ended = ended or 1
    if (options.autotune or options.timeline or options.trace_steps) and not as_json:
        _show_tuning(access, job.job_id)
    return ended


def _note_model(name: str, started: StartedJob, place: Path | None) -> None:
    """Print how the model comes to the folder of --model-dir, if this command does not wait for the
    job."""
    if place:
        job_id, folder = started.job.job_id, shlex.quote(str(place))
        output.note(f"  its model: clusterctl fetch {name} {job_id} {folder}")


@contextlib.contextmanager
def _ways_out(
    access: Access, gpus: int | None, priced: tuple[Clients, Sequence[Instance]]
) -> Iterator[None]:
    """Add to a NotEnoughGpus of the block the same command with all GPUs that are there, and what
    a further node costs, if that is known."""
    from clusterctl.ec2.money.costs import format_usd
    from clusterctl.ec2.money.prices import list_prices
    from clusterctl.operations.train import live_hosts

    try:
        yield
    except NotEnoughGpus as few:
        context, there = click.get_current_context(), live_hosts(access).slots
        typed = context.meta[_TYPED]
        if gpus:
            typed.words = [str(there) if word == str(gpus) else word for word in typed.words]
            line = typed.line(context.command_path)
            few.hint = few.hint.replace(f"take {there}, or", f"take {there}: {line}; or", 1)
        usd = list_prices(*priced).get(access.cluster.head.instance_type)
        few.hint += f" (on demand {format_usd(usd)} an hour for each)" if usd else ""
        raise


def _streams(mode: ScriptMode, credentials: str) -> ScriptMode:
    """Return the mode with streams that read S3 without a signature, for a public bucket.

    Raises UsageError for temporary credentials (`mine`): they may expire before a stream ends.
    """
    streams = [one for one in mode.channels if one.is_stream and one.source.startswith("s3://")]
    if not streams or credentials == "profile":
        return mode
    if credentials == "mine":
        raise UsageError(
            f"channel {streams[0].name}: a stream outlives temporary credentials",
            "fetch it first (--input-mode File), or give the nodes a role: clusterctl up NAME "
            "--instance-profile new",
        )
    unsigned = (
        replace(one, options={**one.options, "unsigned": True}) if one in streams else one
        for one in mode.channels
    )
    return replace(mode, channels=tuple(unsigned))


def _show_tuning(access: Access, job_id: str) -> None:
    """Show the tuning of a job. An error is only printed: the job's exit status counts."""
    from clusterctl.cli.tuning import show_tuning
    from clusterctl.jobs.detached import find_job

    try:
        show_tuning(access, find_job(access.connections, access.head, job_id), Path())
    except NotFound as error:
        output.note(f"no trace: {error.message}")
    except ClusterctlError as error:
        output.note(f"no trace: {error.message}; try again: clusterctl tuning NAME {job_id}")


def _in_short(access: Access, plan: TrainingPlan) -> str:
    """Return `2 ranks on demo-[0-1]: train_imagenet_resnet_hvd.py on synthetic data (…)`."""
    from clusterctl.jobs.trainer import TRAINER

    job = plan.job
    filled = zip(access.targets, plan.hosts.fill(job.ranks, job.per_host))
    where = fold_hosts([target.host for target, ranks in filled if ranks])
    data = "synthetic data" if job.synthetic else job.run.data_dir if job.run else "data"
    what = output.one_line(str(plan.code or job.script_path or f"{TRAINER} on {data}"))
    then = f", then an evaluation on {access.head.host}" if job.evaluation else ""
    recipe = f", recipe {job.recipe.name}" if job.recipe else ""
    return f"{count(job.ranks, 'rank')} on {where}: {what} (preset {job.preset}{recipe}){then}"


def _show_plan(plan: TrainingPlan, as_json: bool) -> None:
    job = plan.job
    if as_json:
        recipe = {"recipe": job.recipe.as_data()} if job.recipe else {}
        about = {"workdir": job.workdir, "preset": job.preset, "gpus": job.ranks, **recipe}
        found = plan.findings
        servers = {"tf_config": plan.tf_config} if plan.tf_config else {}
        output.data({**_lines(job), **about, **servers, "findings": found})
        return
    for line in job.lines:
        output.line(line)
    if job.recipe:
        output.line(f"# {job.recipe}")  # a comment, as the lines may be given to a shell
    if plan.tf_config:
        output.line(f"TF_CONFIG of the chief: {json.dumps(plan.tf_config)}")


def _lines(job: JobPlan) -> dict[str, str]:
    return {"line": job.line, "evaluation": job.evaluation_line}


def _show_started(started: StartedJob) -> None:
    for file, hosts in started.kept:
        output.note(f"note: ~/{file} was changed on {hosts} and stays as it is there")
    after = started.started.after
    when = f"waits for job {after[-1]}, {count(len(after), 'job')} before it" if after else "runs"
    output.note(f"job {started.job.job_id} {when} on the head node")
