"""Checks of a job before mpirun starts: pure functions from facts about the nodes to findings.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from clusterctl.domain.errors import ClusterctlError, CommandFailed, MissingTool, unquoted_home
from clusterctl.domain.findings import Finding, Severity, as_warning, errors, folded, in_order
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.releases import FIRST_WITHOUT_KERNELS, NAMES, RUNS_ON, SERIES, dotted
from clusterctl.domain.units import count, format_bytes
from clusterctl.jobs.mpirun import parse_mpirun_version
from clusterctl.jobs.plan import OTHER_LANGUAGE, JobPlan
from clusterctl.jobs.trainer import PARAMETERS, TRAINER, TrainerRun
from clusterctl.node.facts.gpus import capabilities
from clusterctl.node.facts.report import Fact, FactReport
from clusterctl.node.facts.results import output_error
from clusterctl.node.facts.software import versions
from clusterctl.node.facts.system import in_lab, login, system
from clusterctl.node.facts.training import (
    COMPILED,
    TrainingFiles,
    TrainingLog,
    script_error,
    session_folder_bytes,
    training_files,
    training_log,
)
from clusterctl.node.guard.notices import InterruptionNotice, notices
from clusterctl.node.record import pick


@dataclass(frozen=True)
class PreflightFacts:
    """What a job will meet on one node.

    `training` and `validation` are the data files' sizes in bytes by name. `records` has the number
    of records of those files that were counted, -1 for a file that ends within a record.
    `checkpoints` are steps, ascending, of a training of `model` with `images_per_step` of all ranks
    together (None if unknown). `free_bytes` is None if unknown. `versions` are by program or
    library. `script_error` is why Python could not read the user's program, `output_error` why the
    folder of --output cannot be fetched. `in_lab`: `cpus` are those of the machine that all hosts
    of the lab share. `capabilities` are the GPUs' compute capabilities, 90 for 9.0. `shell` is the
    login's, `sessions_bytes` is free where mpirun has its session folder.
    """

    host: str
    training: Mapping[str, int] = field(default_factory=dict)
    validation: Mapping[str, int] = field(default_factory=dict)
    data_error: str = ""
    records: Mapping[str, int] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    checkpoint_bytes: int = 0
    images_per_step: int | None = None
    model: str | None = None
    free_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    script_error: str = ""
    output_error: str = ""
    cpus: int | None = None
    in_lab: bool = False
    capabilities: tuple[int, ...] = ()
    notices: tuple[InterruptionNotice, ...] = ()
    shell: str = ""
    sessions_bytes: int | None = None


@dataclass(frozen=True)
class JobContext:
    """A job and its nodes, the head node first. `readers` are the nodes that have ranks.

    `callers_home` is the home folder on the user's machine; empty if the job is started on a node.
    """

    plan: JobPlan
    nodes: tuple[PreflightFacts, ...]
    readers: tuple[PreflightFacts, ...]
    callers_home: str

    @property
    def head(self) -> PreflightFacts:
        return self.nodes[0]


@dataclass(frozen=True)
class TrainerContext(JobContext):
    """A job that runs the trainer, and what its flags make the trainer do."""

    run: TrainerRun


class NotReady(ClusterctlError):
    """A job with findings that are errors. Nothing was started."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(
            f"training was not started: fix {count(len(errors(findings)), 'error')} first"
        )
        self.findings = tuple(findings)


def facts_to_read(plan: JobPlan, ships_script: bool = False) -> tuple[Fact, ...]:
    """Return the facts about each node of the job, for `facts_of_node`. `ships_script`: the program
    is not there yet."""
    local = plan.run.data_dir if plan.run and not is_remote(plan.run.data_dir) else None
    return (
        partial(training_files, folder=local),
        partial(training_log, folder=plan.log_dir),
        partial(versions, python=plan.python, mpirun=plan.argv[0]),
        partial(script_error, path="" if ships_script else plan.script_path),
        *((partial(output_error, path=plan.output, job=plan.job_id),) if plan.output else ()),
        *(system, in_lab, capabilities, notices, *LAUNCH_FACTS),
    )


def facts_of_node(host: str, report: FactReport) -> PreflightFacts:
    """Return the facts in a node's report. Raises CommandFailed if one could not be read."""
    for reading in report.failed():
        raise CommandFailed(host, f"looking at it failed: {reading.label}: {reading.error}")
    files = report.get(training_files) or TrainingFiles()
    log = report.get(training_log) or TrainingLog()
    machine, of_login = report.get(system), report.get(login)
    return pick(
        *(PreflightFacts, files, log),
        host=host,
        data_error=files.error,
        versions=report.get(versions) or {},
        script_error=report.get(script_error) or "",
        output_error=report.get(output_error) or "",
        cpus=machine.cpus if machine else None,
        in_lab=bool(report.get(in_lab)),
        capabilities=report.get(capabilities) or (),
        notices=report.get(notices) or (),
        shell=of_login.shell if of_login else "",
        sessions_bytes=report.get(session_folder_bytes),
    )


def is_remote(data_dir: str | None) -> bool:
    """Return whether the data are not on the nodes, but in a store such as s3:// or gs://."""
    return data_dir is not None and "://" in data_dir


def quote_hint(context: JobContext, option: str, path: str) -> str:
    """Return a hint if the user's shell expanded a ~ that was meant for the nodes; else empty."""
    home = context.callers_home.rstrip("/")
    return "" if home == context.plan.home else unquoted_home(path, home, option)


def findings_by_message(
    check_id: str,
    messages: Iterable[tuple[str, str]],
    hint: str,
    severity: Severity = Severity.ERROR,
) -> list[Finding]:
    """Make one finding of each message. `messages` are pairs of host and message.

    Hosts with the same message share a finding.
    """
    return [
        Finding(check_id, severity, message, fold_hosts(names), hint)
        for message, names in grouped((message, host) for host, message in messages).items()
    ]


TRAINERS_TENSORFLOW = r"2\."  # pattern of the versions of TensorFlow that the trainer runs with
# Names in messages of what has to have the same version on every node.
_NAMES = {
    "mpirun": "Open MPI",
    "python": "Python",
    "tensorflow": "TensorFlow",
    "horovod": "Horovod",
    "torch": "PyTorch",
    "nccl": "NCCL",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
}
# The first version of CUDA with code for compute capability 10.0 (its release notes).
_CUDA_OF_BLACKWELL = (12, 8)
_BLACKWELL = 100
INSTALL = "install the same on every node: clusterctl env install NAME"
UNSET = "a login file there sets it, such as ~/.bashrc: take it out, or a job gets it, too"


def misled_python(versions: Mapping[str, str]) -> str:
    """Return that Python works only without variables of the login, or an empty text."""
    variables = versions.get("python_variables")
    return f"its Python does not work with {variables}" if variables else ""


def notice_findings(host: str, found: Iterable[InterruptionNotice]) -> list[Finding]:
    """Return a warning if EC2 has given notice that it takes this node's machine back."""
    own = [one for one in found if one.host == host]
    certain = [one for one in own if one.action != "rebalance"]
    if not own:
        return []
    last = [*own, *certain][-1]
    text = f"EC2 has given notice: {last.action} at {last.time}; a job on it ends then"
    if not certain:
        text = f"EC2 is likely to take it back soon (notice of {last.time}), and a job ends with it"
    cluster, _, index = host.rpartition("-")
    hint = f"start jobs without it: clusterctl quarantine {cluster} {index}"
    return [Finding.warning("node.notice", text, "" if index == "0" else hint, host)]


LEAST_SESSIONS_BYTES = 1 << 20
# mpirun starts its daemons through the login shell, with lines that these do not read.
_OTHER_SHELLS = {"fish", "nu", "elvish", "xonsh", "pwsh"}


# What `launch_findings` is told.
LAUNCH_FACTS: tuple[Fact, ...] = (login, session_folder_bytes)


def launch_findings(host: str, shell: str, free: int | None) -> list[Finding]:
    """Check what mpirun needs of a node to start its daemon: a login shell that reads its lines,
    and bytes that are `free` for its session folder. `shell` is empty where no daemon starts."""
    found: list[Finding] = []
    name = posixpath.basename(shell)
    if name in _OTHER_SHELLS:
        text = f"the login shell is {name}: mpirun cannot start its daemon there"
        hint = "clusterctl run NAME 'sudo usermod -s /bin/bash $USER'"
        found.append(Finding.error("login.shell", text, hint, host))
    if free is not None and free < LEAST_SESSIONS_BYTES:
        text = (
            f"the folder for temporary files (TMPDIR, or /tmp) has {format_bytes(free)} left: "
            "mpirun has its session folder there"
        )
        hint = "make room there: clusterctl disk NAME"
        found.append(Finding.error("tmp.full", text, hint, host))
    return found


def _launch(node: PreflightFacts, is_head: bool) -> list[Finding]:
    return launch_findings(node.host, "" if is_head else node.shell, node.sessions_bytes)


def environment_findings(context: JobContext) -> list[Finding]:
    """Check that every node has the same versions as the head node, at the same paths."""
    paths = {"mpirun": context.plan.argv[0], "python": context.plan.python}
    own = context.plan.environment
    hint = f"{own} has to be the same on every node" if own else INSTALL
    missing = [
        (node.host, f"{path} does not start there")
        for node in context.nodes
        for key, path in paths.items()
        if key not in node.versions
    ]
    misled = [(node.host, misled_python(node.versions)) for node in context.nodes]
    other = [
        (node.host, text)
        for node in context.nodes[1:]
        if not paths.keys() - node.versions.keys()
        for text in _differences(node, context.head)
    ]
    built = [
        (node.host, text)
        for node in context.nodes
        for text in version_mismatches(node.versions, not context.plan.script_path)
    ]
    return [
        *findings_by_message("env.missing", missing, hint),
        *findings_by_message("env.variables", [one for one in misled if one[1]], UNSET),
        *findings_by_message("env.differs", other, hint),
        *findings_by_message("env.mismatch", built, hint),
    ]


def gpu_findings(context: JobContext) -> list[Finding]:
    """Check that the environment's CUDA has code for the GPUs, and TensorFlow kernels.

    Of the CUDA libraries, only those that are packages in the environment are known.
    """
    if context.plan.preset == "cpu":
        return []
    found: list[Finding] = []
    newest = _release_of(context.head) == "newest"
    own = context.plan.environment
    other = f"another environment than {own}: clusterctl env install NAME" if own else ""
    for check_id, severity, texts, hint in (
        ("env.gpus", Severity.ERROR, _without_code, INSTALL_NEWEST),
        ("env.gpus", Severity.ERROR, _too_old, _install_older(context)),
        ("env.kernels", Severity.INFO, _without_kernels, COMPILE if newest else INSTALL_NEWEST),
    ):
        messages = [(node.host, text) for node in context.readers for text in texts(node)]
        found += findings_by_message(check_id, messages, other or hint, severity)
    return found


INSTALL_NEWEST = "clusterctl env install NAME --tensorflow NEWEST"
COMPILE = "clusterctl env install NAME has them compiled when it makes the environment"


def _install_older(context: JobContext) -> str:
    """Return what to do for GPUs that are too old for the environment."""
    known = sorted(one for node in context.readers for one in node.capabilities)
    first, last = RUNS_ON["default"]
    if known and first <= known[0] and known[-1] <= last:
        return f"clusterctl env install NAME --tensorflow {NAMES['default']}"
    return "no environment runs on all these GPUs: launch nodes of one newer instance type"


def _release_of(node: PreflightFacts) -> str:
    """Return the release of `env install` with the node's TensorFlow; empty if it is another."""
    series = _series(node.versions.get("tensorflow", ""))
    return next((release for release, its in SERIES.items() if its == series), "")


def _without_code(node: PreflightFacts) -> Iterable[str]:
    highest = max(node.capabilities, default=0)
    cuda = node.versions.get("cuda", "")
    if highest >= _BLACKWELL and cuda and _numbers(cuda) < _CUDA_OF_BLACKWELL:
        yield f"the environment's CUDA {cuda} has no code for compute capability {dotted(highest)}"


def _too_old(node: PreflightFacts) -> Iterable[str]:
    lowest, release = min(node.capabilities, default=0), _release_of(node)
    # Of an environment of the user's own, for which TensorFlow may have been built, no more is
    # known.
    if lowest and release and node.versions.get("cuda") and lowest < RUNS_ON[release][0]:
        first = dotted(RUNS_ON[release][0])
        yield (
            f"TensorFlow {node.versions['tensorflow']} begins with compute capability {first}, "
            f"and a GPU has {dotted(lowest)}"
        )


def _without_kernels(node: PreflightFacts) -> Iterable[str]:
    highest, release = max(node.capabilities, default=0), _release_of(node)
    if release and FIRST_WITHOUT_KERNELS[release] <= highest <= RUNS_ON[release][1]:
        yield (
            f"TensorFlow {node.versions['tensorflow']} has no kernels for compute capability "
            f"{dotted(highest)}: the driver compiles them at their first use"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def script_findings(context: JobContext) -> list[Finding]:
    """Check that the user's program is on every node with ranks, and that Python can read it."""
    path = context.plan.script_path
    messages = [
        (node.host, f"cannot run {path}: {node.script_error}")
        for node in context.readers
        if node.script_error
    ]
    quote = quote_hint(context, "--script", path)
    hint = quote or "put it there on every node (clusterctl copy NAME FILE DIR)"
    if any(COMPILED in message for _, message in messages):
        hint = OTHER_LANGUAGE
    return findings_by_message("script.missing", messages, hint)


def output_findings(context: JobContext) -> list[Finding]:
    """Check that the folder that the program writes into can be fetched, and is not one of this
    machine's."""
    hint = quote_hint(context, "--output", context.plan.output)
    text = f"`fetch` will search for {context.plan.output} on the nodes"
    found = [Finding.warning("output.elsewhere", text, hint)] if hint else []
    errors = ((one.host, one.output_error) for one in context.readers)
    messages = [(host, f"--output: {error}") for host, error in errors if error]
    return [*found, *findings_by_message("output.unusable", messages, "name another folder")]


def _differences(node: PreflightFacts, head: PreflightFacts) -> Iterable[str]:
    for key, name in _NAMES.items():
        wanted, there = (_comparable(key, one.versions.get(key)) for one in (head, node))
        if wanted and there != wanted:
            what = f"{name} {there}" if there else f"no {name}"
            yield f"has {what}, {head.host} has {wanted}"


def _comparable(key: str, version: str | None) -> str | None:
    """Return the part of a version that has to be the same on every node; None if unknown."""
    if not version:
        return None
    if key == "python":
        return _series(version)  # extension modules work with all patch releases of a series
    if key != "mpirun":
        return version
    try:
        return parse_mpirun_version(version)
    except MissingTool:
        return version


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def version_mismatches(versions: Mapping[str, str], is_trainer: bool) -> Iterable[str]:
    """Yield what does not fit together in one node's environment.

    `is_trainer`: the job runs the trainer, not a program of the user's.
    """
    if "horovod_error" in versions:
        yield f"Horovod cannot be loaded: {versions['horovod_error'].rpartition('/')[2]}"
    tensorflow, built_for = versions.get("tensorflow"), versions.get("horovod_built_for")
    if tensorflow and built_for and _series(tensorflow) != _series(built_for):
        yield f"Horovod was built for TensorFlow {built_for}, and {tensorflow} is installed"
    if is_trainer and tensorflow and not re.match(TRAINERS_TENSORFLOW, tensorflow):
        yield f"the trainer needs TensorFlow 2, and {tensorflow} is installed"
    elif is_trainer and int(versions.get("keras", "2").partition(".")[0]) > 2:
        yield (
            f"the trainer needs Keras 2, and {versions['keras']} comes with TensorFlow {tensorflow}"
        )


def data_findings(context: TrainerContext) -> list[Finding]:
    """Check the data on the nodes. Data in a store such as S3 are not checked."""
    run = context.run
    if run.data_dir is None or is_remote(run.data_dir):
        return []
    unreadable = [
        (node.host, f"cannot read the training data: {node.data_error}")
        for node in context.readers
        if node.data_error
    ]
    text = f"there is no training data in {run.data_dir} (no file named train-*)"
    missing = [
        (node.host, text)
        for node in context.readers
        if not (node.data_error or node.training or run.evaluates_only)
    ]
    without = {host for host, _ in (*unreadable, *missing)}
    # A run that only evaluates does not read the training files.
    readers = [
        node for node in context.readers if node.host not in without and not run.evaluates_only
    ]
    hint = (
        f"compare the nodes: clusterctl data verify NAME {_quoted(context)}, and copy what differs"
    )
    return [
        *findings_by_message("data.missing", unreadable, _quote_data_dir(context) or UNREADABLE),
        *findings_by_message("data.missing", missing, _missing_hint(context)),
        *_damaged(context, readers, "train"),
        *findings_by_message("data.differs", _differing(readers), hint),
        *_validation(context),
        *_damaged(context, _evaluating(context), "validation"),
        *(_shards(readers[0], run) if readers else ()),
    ]


def records_of(sizes: Mapping[str, int], records: Mapping[str, int]) -> int | None:
    """Return the number of all records, as the trainer counts them; None if unknown.

    The formula is: records of the first file x (files - 1) + records of the last file.
    """
    names = sorted(sizes)
    if not names:
        return None
    first, last = records.get(names[0], -1), records.get(names[-1], -1)
    return None if first < 0 or last < 0 else first * (len(names) - 1) + last


UNREADABLE = "make it readable there; or name another folder: --data-dir"


def _quote_data_dir(context: TrainerContext) -> str:
    return quote_hint(context, "--data-dir", context.run.data_dir or "")


def _missing_hint(context: TrainerContext) -> str:
    quote = _quote_data_dir(context)
    if quote or _complete(context, "train"):
        return quote or _copy_hint(context)
    return (
        f"put ImageNet's TFRecord files into {context.run.data_dir} on every node, train-* and "
        "validation-* in one folder; or train with synthetic data: --synthetic (train_synthetic.sh)"
    )


def _damaged(
    context: TrainerContext, nodes: Sequence[PreflightFacts], subset: str
) -> list[Finding]:
    """Find nodes where files of a subset are missing or cut short."""
    incomplete = [(n.host, text) for n in nodes for text in _incomplete(_files(n, subset))]
    cut = [(n.host, text) for n in nodes for text in _cut_short(n, subset)]
    hint = _copy_hint(context, subset)
    # Nodes that all have the same damaged file do not differ.
    whole = "" if _complete(context, subset) else f"; {VERIFY}"
    return [
        *findings_by_message("data.incomplete", incomplete, hint),
        *findings_by_message("data.cut_short", cut, hint + whole),
    ]


VERIFY = "preprocess_imagenet.py --verify finds out whether FOLDER is damaged, too"


def _copy_hint(context: TrainerContext, subset: str = "train") -> str:
    """Return a hint to copy the data from the first node that has all of it, or else from here."""
    complete = _complete(context, subset)
    folder = _quoted(context)
    elsewhere = "or name another folder: --data-dir"
    # `copy --from` takes a node's index in the cluster. For train.sh, hosts are addresses instead.
    if complete and context.callers_home:
        index = complete[0].rpartition("-")[2]
        copy = f"clusterctl copy NAME --from {index} {folder} {folder}"
        return f"{complete[0]} has it all: {copy}; {elsewhere}"
    return f"copy the data to every node: clusterctl copy NAME FOLDER/ {folder}; {elsewhere}"


def _complete(context: TrainerContext, subset: str) -> list[str]:
    """Return the hosts that have all training files that the run reads, and all files of the
    subset."""
    needed = {subset} if context.run.evaluates_only else {subset, "train"}
    return [node.host for node in context.nodes if all(_is_whole(node, one) for one in needed)]


def _is_whole(node: PreflightFacts, subset: str) -> bool:
    files = _files(node, subset)
    return bool(files) and not [*_incomplete(files), *_cut_short(node, subset)]


def _files(node: PreflightFacts, subset: str) -> Mapping[str, int]:
    return node.validation if subset == "validation" else node.training


def _quoted(context: TrainerContext) -> str:
    """Return the data folder, quoted for a shell, with a slash for the folder's content."""
    folder = f"{context.run.data_dir}".rstrip("/") + "/"
    home = f"{context.plan.home}/"
    in_home = context.plan.home and folder.startswith(home)
    return shlex.quote(f"~/{folder[len(home) :]}" if in_home else folder)


def _incomplete(names: Collection[str]) -> Iterable[str]:
    """Yield what is wrong with the names of a set, such as train-00000-of-01024."""
    totals = sorted({name.rpartition("-")[2] for name in names})
    subset = next(iter(names), "").partition("-")[0]
    if len(totals) > 1:
        sets = " and ".join(f"{subset}-*-of-{total}" for total in totals[:2])
        yield f"files of several sets are mixed: {sets}"
    elif totals:
        yield from _numbering(subset, list(names), int(totals[0]))


def _numbering(subset: str, names: Sequence[str], total: int) -> Iterable[str]:
    numbers = sorted(int(name.split("-")[1]) for name in names)
    # The tutorial's resizer numbers files from 1, other tools number them from 0.
    first = 1 if numbers[0] > 0 and numbers[-1] == total else 0
    absent = sorted(set(range(first, first + total)) - set(numbers))
    if absent:
        example = f"{subset}-{absent[0]:05d}-of-{total:05d}"
        text = f"{len(names)} of {total} {subset} files {_are(len(names))} there: {example}"
        yield f"{text} is missing" if len(absent) == 1 else f"{text} and others are missing"
    elif len(numbers) > total:
        belong = "belongs" if total == 1 else "belong"
        yield f"{len(names)} {subset} files are there, {total} {belong} to the set"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _cut_short(node: PreflightFacts, subset: str) -> Iterable[str]:
    cut = (name for name in _files(node, subset) if node.records.get(name, 0) < 0)
    return (f"{name} ends within a record" for name in cut)


def _differing(nodes: Sequence[PreflightFacts]) -> Iterable[tuple[str, str]]:
    for node in nodes[1:]:
        head = nodes[0]
        text = _difference(node.training, head.training, head.host)
        if text:
            yield node.host, text


def _difference(there: Mapping[str, int], wanted: Mapping[str, int], host: str) -> str:
    """Return how a node's training files differ from another host's; empty if they do not."""
    names = sorted(n for n in {*there, *wanted} if there.get(n) != wanted.get(n))
    if not names:
        return ""
    name = names[0]
    if name not in there:
        text = f"{name} is missing"
    elif name not in wanted:
        text = f"{name} is not on {host}"
    else:
        text = f"{name} has {count(there[name], 'byte')}, on {host} {wanted[name]}"
    more = f", and {count(len(names) - 1, 'other file')}" if len(names) > 1 else ""
    return f"has other training data than {host}: {text}{more}"


def _evaluating(context: TrainerContext) -> Sequence[PreflightFacts]:
    """Return the nodes that evaluate: the head node after a training, or all nodes with ranks."""
    run = context.run
    if run.evaluates_only:
        return context.readers
    return [context.head] if context.plan.evaluation else []


def _validation(context: TrainerContext) -> list[Finding]:
    """Find the nodes that evaluate without validation files."""
    run = context.run
    without = [
        node.host
        for node in _evaluating(context)
        if not node.validation and not node.data_error and (node.training or run.evaluates_only)
    ]
    text = f"there is nothing to evaluate with in {run.data_dir} (no file named validation-*)"
    hint = "put the validation files next to the training files, or train only: --no-eval"
    if run.evaluates_only:
        hint = _copy_hint(context, "validation")
    return findings_by_message("data.validation", [(host, text) for host in without], hint)


def _shards(node: PreflightFacts, run: TrainerRun) -> Iterable[Finding]:
    """Check that the training files can be divided among the ranks."""
    files, ranks = len(node.training), run.ranks
    if run.evaluates_only or not files:
        return
    if files < ranks:
        yield Finding.error(
            "data.few_shards",
            f"{count(files, 'training file')} for {count(ranks, 'rank')}: each needs one",
            f"train on {count(files, 'GPU')}{' or fewer' if files > 1 else ''}, "
            "or make more files: utils/preprocess_imagenet.py --train_shards",
        )
    elif files % ranks:
        even = max(number for number in range(1, ranks) if files % number == 0)
        yield Finding.warning(
            "data.uneven_shards",
            f"{files} training files do not divide by {ranks} ranks: some read "
            f"{-(-files // ranks)} and some {files // ranks}, and those images count more",
            f"{even} ranks would read as many each" if even > 1 else "1 rank would read them all",
        )
    yield from _uneven(node)
    yield from _too_few_images(node, run)


def _too_few_images(node: PreflightFacts, run: TrainerRun) -> Iterable[Finding]:
    images = records_of(node.training, node.records)
    if images is not None and images < run.global_batch:
        yield Finding.error(
            "data.few_images",
            f"one step takes {count(run.batch_size, 'image')} for each of "
            f"{count(run.ranks, 'rank')}, and there {_are(images)} {images} in all",
            "lower the batch: -- --batch_size N",
        )


def _uneven(node: PreflightFacts) -> Iterable[Finding]:
    """Check that all files but the last have equally many records, as the trainer assumes."""
    names = sorted(node.training)
    counted = {name: node.records[name] for name in names[:-1] if node.records.get(name, -1) >= 0}
    if len(set(counted.values())) <= 1:
        return
    least, most = (pick(counted, key=lambda name: counted[name]) for pick in (min, max))
    yield Finding.warning(
        "data.uneven_records",
        f"{least} has {count(counted[least], 'record')} and {most} {counted[most]}: all files but "
        "the last should have as many, or epochs are counted wrong",
        "make the files again with utils/preprocess_imagenet.py",
    )


BYTES_PER_WEIGHT = 8  # of a checkpoint: each weight and its momentum, 4 bytes each


def log_findings(context: TrainerContext) -> list[Finding]:
    """Check what happens to the log folder: earlier checkpoints, disk space, steps to trace.

    Checkpoints are not deleted unless the user requests it, and a finished run is not trained
    again without notice.
    """
    run = context.run
    if run.evaluates_only:
        return list(_nothing_to_evaluate(context))
    records = records_of(context.head.training, context.head.records)
    found = [*_earlier_run(context, records), *_disk(context, records)]
    steps = run.steps(records) if run.trace_steps else None
    if run.trace_steps and steps is not None and run.trace_steps[0] >= steps:
        text = f"there is no step {run.trace_steps[0]} to trace: the last one is {steps - 1}"
        found.append(
            Finding.error("trace.too_late", text, "name earlier steps, such as --trace-steps 10:20")
        )
    if run.eval_interval and run.save_every is None and run.data_dir is not None:
        text = "--eval_interval evaluates 6 checkpoints at most, since they are saved by time"
        hint = "save by steps, which keeps all: -- --save_checkpoints_steps 0 (once an epoch)"
        found.append(Finding.warning("log.few_checkpoints", text, hint))
    return found


def _earlier_run(context: TrainerContext, records: int | None) -> Iterable[Finding]:
    """Check for the checkpoints of an earlier run, which this one resumes or deletes."""
    run, folder = context.run, context.plan.log_dir
    # Nodes without ranks delete nothing. A synthetic run never resumes.
    holders = [node for node in context.readers if node.checkpoints]
    if run.data_dir is None and not run.clears:
        return
    if not holders:
        if not run.clears:
            text = f"there is no checkpoint in {folder}: training begins at step 0"
            yield Finding.info("log.no_checkpoint", text, host=context.head.host)
        return
    if not (run.clears or context.head.checkpoints):
        # Rank 0 runs on the head node. It finds no checkpoint there, and would begin at step 0.
        hosts = fold_hosts([node.host for node in holders])
        text = f"there is no checkpoint in {folder}, but on {hosts}: a run resumes from rank 0's"
        hint = f"copy that folder to {context.head.host}, or start over: --clear"
        yield Finding.error("log.elsewhere", text, hint, context.head.host)
        return
    if not run.clears and context.head.model not in (None, run.model):
        text = f"{folder} holds a training of {context.head.model}, and this one is of {run.model}"
        hint = f"to resume it: -- --model {context.head.model}; {_KEEP}"
        yield Finding.error("log.other_model", text, hint, context.head.host)
        return
    if not run.clears and context.head.images_per_step not in (None, run.global_batch):
        yield _other_batch(context)
        return
    # Every node with ranks empties its log folder, so the most advanced checkpoint of all counts.
    last = max(node.checkpoints[-1] for node in (holders if run.clears else [context.head]))
    steps = run.steps(records) if run.data_dir is not None else None
    is_final = steps is not None and last >= steps
    if run.clears:
        severity = Severity.WARNING if context.plan.clears_on_purpose else Severity.ERROR
        hint = (
            "this run deletes it"
            if context.plan.clears_on_purpose
            else _offer(is_final, run.data_dir is None)
        )
        check_id = "log.finished" if is_final else "log.unfinished"
        messages = [(node.host, _what_is_there(node, folder, steps)) for node in holders]
        yield from findings_by_message(check_id, messages, hint, severity)
    elif is_final:
        what = f"the final step, {last}" if last == steps else _longer(last, steps)
        text = f"{folder} holds {what}: nothing is left to train"
        hint = "train longer (--epochs), or start over: --clear"
        yield Finding.warning("log.nothing_left", text, hint, context.head.host)
    else:
        of = f" of {steps}" if steps is not None else ""
        text = f"training resumes from step {last}{of} in {folder}, if that can be read"
        yield Finding.info("log.resumed", text, host=context.head.host)


_KEEP = "to keep it: -- --log_dir NAME; to delete it: --clear"


def _other_batch(context: TrainerContext) -> Finding:
    """Return the error that the trainer would not go on from the checkpoints."""
    run, there = context.run, context.head.images_per_step or 0
    each, left = divmod(there, run.ranks)
    text = (
        f"{context.plan.log_dir} holds a training with {there:,} images a step, and this one has "
        f"{run.global_batch:,} ({run.ranks} x {run.batch_size}): the trainer does not resume it"
    )
    go_on = f"-- --batch_size {each}" if not left else f"a number of GPUs that divides {there:,}"
    hint = f"to resume it: {go_on}; {_KEEP}"
    return Finding.error("log.other_batch", text, hint, context.head.host)


def _what_is_there(node: PreflightFacts, folder: str, steps: int | None) -> str:
    last = node.checkpoints[-1]
    size = f"{count(len(node.checkpoints), 'checkpoint')}, {format_bytes(node.checkpoint_bytes)}"
    if steps is not None and last > steps:
        return f"{folder} holds {_longer(last, steps)} ({size})"
    if steps is not None and last == steps:
        return f"{folder} holds a finished run: step {last} of {steps} ({size})"
    of = f" of {steps}" if steps is not None else ""
    return f"{folder} holds a run that got to step {last}{of} ({size})"


def _longer(last: int, steps: int | None) -> str:
    return f"a run of {count(last, 'step')}, more than the {steps} of this one"


def _offer(is_final: bool, is_synthetic: bool) -> str:
    if is_synthetic:
        return "leave --log_dir out: a synthetic run has a folder of its own; --clear deletes it"
    keep = "or keep it and write elsewhere: the trainer's --log_dir NAME"
    resume = "--resume only evaluates it" if is_final else "--resume goes on from it"
    return f"--clear deletes it and starts over; {resume}; {keep}"


def _nothing_to_evaluate(context: TrainerContext) -> Iterable[Finding]:
    if not context.head.checkpoints:
        text = f"there is no checkpoint in {context.plan.log_dir}"
        hint = "train first, or name the folder of a run: --log_dir NAME"
        yield Finding.error("log.no_checkpoint", text, hint, context.head.host)


def _disk(context: TrainerContext, records: int | None) -> list[Finding]:
    """Check that the disks have space for the checkpoints."""
    run = context.run
    savers = context.readers if run.local_ckpt else context.nodes[:1]
    each = PARAMETERS.get(run.model, 0) * BYTES_PER_WEIGHT
    messages = []
    for node in savers:
        # By time, a run deletes those that it or an earlier run has saved by time. Which of those
        # that are there these are is not known, so none counts as room.
        kept = 0 if run.clears or run.save_every is None else len(node.checkpoints)
        wanted = max(0, run.checkpoints(records) - kept)
        freed = node.checkpoint_bytes if run.clears else 0
        if node.free_bytes is not None and wanted * each > node.free_bytes + freed:
            need = "needs" if wanted == 1 else "need"
            text = f"{count(wanted, 'checkpoint')} of {run.model} {need}"
            room = f"{format_bytes(wanted * each)}, {format_bytes(node.free_bytes)} are free for"
            messages.append((node.host, f"{text} {room} {context.plan.log_dir}"))
    hint = (
        "remove old ones (clusterctl clean-logs NAME), write to a larger disk (-- --log_dir "
        "DIR), or save fewer (-- --save_checkpoints_steps N)"
    )
    return findings_by_message("disk.checkpoints", messages, hint)


def preflight(
    plan: JobPlan,
    nodes: Sequence[PreflightFacts],
    readers: Collection[str],
    force: bool = False,
    callers_home: str = "",
    besides: Sequence[Finding] = (),
) -> tuple[Finding, ...]:
    """Return the findings of all checks and the findings `besides`, errors first.

    `nodes` begin with the head node; `readers` are the hosts with ranks. `force` turns errors into
    warnings, except those about a run that would be deleted. `callers_home`: see JobContext.
    """
    with_ranks = tuple(node for node in nodes if node.host in readers)
    context = JobContext(plan, tuple(nodes), with_ranks, callers_home)
    found = [
        *besides,
        *(one for node in with_ranks for one in notice_findings(node.host, node.notices)),
        *flags_findings(plan),
        *folded([one for node in with_ranks for one in _launch(node, node is nodes[0])]),
        *environment_findings(context),
        *gpu_findings(context),
        *script_findings(context),
        *output_findings(context),
    ]
    if plan.run is not None:
        training = TrainerContext(plan, tuple(nodes), with_ranks, callers_home, plan.run)
        found += [*data_findings(training), *log_findings(training), *recipe_findings(training)]
    # Data that could not be restored: other options override these, --force does not.
    never = {"log.finished", "log.unfinished"} | (
        {"flags.refused"} if clears_unchecked_folder(plan) else set()
    )
    if force:
        found = [one if one.check in never else as_warning(one) for one in found]
    return in_order(found)


def clears_unchecked_folder(plan: JobPlan) -> bool:
    """Return whether the job would empty an unknown log folder that the user did not ask to empty.

    It is unknown, and was not checked, if the trainer's parser gave no answer.
    """
    return plan.run is None and "--clear_log" in plan.argv and not plan.clears_on_purpose


def flags_findings(plan: JobPlan) -> list[Finding]:
    """Return an error if the trainer's own parser refuses the flags."""
    own = "--force, with --clear or --resume" if clears_unchecked_folder(plan) else "--force"
    hint = (
        f"its flags: {TRAINER} --help; options of clusterctl come before --; "
        f"if the nodes' trainer is one of your own: {own}"
    )
    message = f"the trainer refuses its flags: {plan.refused}"
    return [Finding.error("flags.refused", message, hint)] if plan.refused else []


# Top-1 accuracy of ResNet-50 on ImageNet without LARC after 90 epochs, in percent, by the images of
# a step: Goyal et al., https://arxiv.org/abs/1706.02677, minibatch size against error (the paper
# has errors: 23.74, 24.79, 27.55 and 33.96 %; 5 epochs of warm-up, a rate that falls in steps).
TOP1_WITHOUT_LARC = {8_192: 76.3, 16_384: 75.2, 32_768: 72.5, 65_536: 66.0}
# Steps of more images cost accuracy without LARC, and of more than the second number too much.
LARC_HELPS_ABOVE = 16_384
NEEDS_LARC_ABOVE = 32_768


def recipe_findings(context: TrainerContext) -> list[Finding]:
    """Check that the accuracy is not lost to steps of too many images.

    Without LARC, a training in epochs is refused if a step takes more than 32,768 images, as on 256
    GPUs. With LARC, only the recipe's own limit counts. Synthetic data have no accuracy.
    """
    run, recipe = context.run, context.plan.recipe
    if not run.data_dir or run.evaluates_only:
        return []
    found, images = [], f"{run.global_batch:,} images a step ({run.ranks} x {run.batch_size})"
    if not run.uses_larc and run.global_batch > LARC_HELPS_ABOVE:
        refused = run.global_batch > NEEDS_LARC_ABOVE and run.epochs is not None
        known = [f"{top1} % with {size:,}" for size, top1 in TOP1_WITHOUT_LARC.items()]
        text = f"{images} without LARC cost accuracy: published top-1 is {', '.join(known)}"
        severity = Severity.ERROR if refused else Severity.WARNING
        hint = "--more-aug turns LARC on, or lower the batch: -- --batch_size N"
        hint += "; to lose that accuracy: --force" if refused else ""
        found.append(Finding("recipe.larc", severity, f"{text} (arXiv:1706.02677)", hint=hint))
    most = recipe.largest_step if recipe else 0
    if recipe and most and run.global_batch > most and run.epochs is not None:
        text = f"{images} are more than the {most:,} of the recipe {recipe.name}"
        size = max(1, most // run.ranks)
        hint = f"lower the batch: -- --batch_size {size}; or use fewer GPUs, or --force"
        found.append(Finding.error("recipe.batch", text, hint))
    return found


def crowding_findings(nodes: Sequence[PreflightFacts], ranks: Mapping[str, int]) -> list[Finding]:
    """Check that no node has more ranks than processors. `ranks` is by host.

    The lab's hosts share the processors of one machine, so their ranks are added up. Elsewhere the
    instance type or the slots of the hosts file are wrong.
    """
    in_lab = [node for node in nodes if node.in_lab and ranks.get(node.host)]
    total, cpus = sum(ranks[node.host] for node in in_lab), in_lab[0].cpus if in_lab else None
    if cpus and total > cpus:
        shared = count(cpus, "processor")
        text = f"{total} ranks share {shared}: all hosts of the lab run on this machine"
        hint = f"the run will be slow, and its speed means nothing; or use {cpus} ranks"
        return [Finding.warning("cpus.crowded", text, hint)]
    messages = [
        (node.host, f"{ranks[node.host]} ranks share {count(node.cpus, 'processor')}")
        for node in nodes
        if node.cpus and ranks.get(node.host, 0) > node.cpus
    ]
    hint = "take another instance type, or fewer ranks a node: slots in the hosts file"
    return findings_by_message("cpus.crowded", messages, hint, Severity.WARNING)
