"""What speaks against a training run, found before mpirun starts: facts in, findings out.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.domain.errors import ClusterctlError, MissingTool, unquoted_home
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes
from clusterctl.jobs.mpirun import parse_mpirun_version
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.trainer import LARC_FROM, NEEDS_LARC_FROM, TRAINER, TrainerRun


@dataclass(frozen=True)
class NodeLook:
    """What `node/jobs/preflight.py` saw on one node. Files by name with their bytes; steps
    ascending.

    `records` of the files that were counted, -1 for one that ends within a record. `script_error`
    is why Python could not read the user's own program. `in_lab`: its `cpus` are those of the
    machine that all hosts of the lab run on.
    """

    host: str
    training: Mapping[str, int] = field(default_factory=dict)
    validation: Mapping[str, int] = field(default_factory=dict)
    data_error: str = ""
    records: Mapping[str, int] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    checkpoint_bytes: int = 0
    free_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    script_error: str = ""
    cpus: int | None = None
    in_lab: bool = False


@dataclass(frozen=True)
class JobContext:
    """A job and its nodes, the head node first. `readers`: those of them that have ranks.

    `callers_home`: the home folder on the machine where the job was asked for, if that is no node.
    """

    plan: JobPlan
    nodes: tuple[NodeLook, ...]
    readers: tuple[NodeLook, ...]
    callers_home: str = ""

    @property
    def head(self) -> NodeLook:
        return self.nodes[0]


class NotReady(ClusterctlError):
    """A job that could not do what it is for. Nothing was started."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(
            f"nothing is trained: {count(len(errors(findings)), 'thing')} to mend first"
        )
        self.findings = tuple(findings)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep a job from being started."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def question(plan: JobPlan) -> dict[str, Any]:
    """What to ask every node of the job."""
    local = plan.run.data_dir if plan.run and not is_remote(plan.run.data_dir) else None
    return {
        "python": plan.python,
        "mpirun": plan.argv[0],
        "data_dir": local,
        "log_dir": plan.log_dir,
        "script": plan.script_path,
    }


def is_remote(data_dir: str | None) -> bool:
    """Whether TensorFlow reads it from elsewhere: s3://, gs://."""
    return data_dir is not None and "://" in data_dir


def quote_hint(context: JobContext, option: str, path: str) -> str:
    """What to do about a ~ that the caller's shell made their own home of; empty: it did not."""
    home = context.callers_home.rstrip("/")
    return "" if home == context.plan.home else unquoted_home(path, home, option)


def parse_look(host: str, answer: Mapping[str, Any]) -> NodeLook:
    """A node's answer, as a value."""
    return NodeLook(
        host=host,
        training=answer["training"],
        validation=answer["validation"],
        data_error=answer["data_error"],
        records=answer["records"],
        checkpoints=tuple(answer["checkpoints"]),
        checkpoint_bytes=answer["checkpoint_bytes"],
        free_bytes=answer["free_bytes"],
        versions=answer["versions"],
        script_error=answer["script_error"],
        cpus=answer["cpus"],
        in_lab=answer["in_lab"],
    )


def together(
    check_id: str,
    said: Iterable[tuple[str, str]],
    hint: str = "",
    severity: Severity = Severity.ERROR,
) -> list[Finding]:
    """One finding per message, with all hosts of which it holds."""
    hosts: dict[str, list[str]] = {}
    for host, message in said:
        hosts.setdefault(message, []).append(host)
    return [
        Finding(check_id, severity, message, fold_hosts(names), hint)
        for message, names in hosts.items()
    ]


TRAINERS_TENSORFLOW = r"2\."
_NAMES = {
    "mpirun": "Open MPI",
    "python": "Python",
    "tensorflow": "TensorFlow",
    "horovod": "Horovod",
    "torch": "PyTorch",
}
INSTALL = "install the same on every node: clusterctl env install NAME"


def environment_findings(context: JobContext) -> list[Finding]:
    """Every node has to have what the head node has, at the same place."""
    paths = {"mpirun": context.plan.argv[0], "python": context.plan.python}
    own = context.plan.environment
    hint = f"{own} has to be the same on every node" if own else INSTALL
    missing = [
        (node.host, f"{path} does not start there")
        for node in context.nodes
        for key, path in paths.items()
        if key not in node.versions
    ]
    other = [
        (node.host, text)
        for node in context.nodes[1:]
        if not paths.keys() - node.versions.keys()
        for text in _differences(node, context.head)
    ]
    built = [
        (node.host, text)
        for node in context.nodes
        for text in built_otherwise(node.versions, not context.plan.script_path)
    ]
    return [
        *together("env.missing", missing, hint),
        *together("env.differs", other, hint),
        *together("env.mismatch", built, hint),
    ]


def script_findings(context: JobContext) -> list[Finding]:
    """A program of the user's own has to be on every node with ranks."""
    path = context.plan.script_path
    said = [
        (node.host, f"cannot run {path}: {node.script_error}")
        for node in context.readers
        if node.script_error
    ]
    return together("script.missing", said, _script_hint(context))


def _script_hint(context: JobContext) -> str:
    quote = quote_hint(context, "--script", context.plan.script_path)
    return quote or "put it there on every node (clusterctl copy NAME FILE DIR)"


def _differences(node: NodeLook, head: NodeLook) -> Iterable[str]:
    for key, name in _NAMES.items():
        wanted, there = (_comparable(key, one.versions.get(key)) for one in (head, node))
        if wanted and there != wanted:
            what = f"{name} {there}" if there else f"no {name}"
            yield f"has {what}, {head.host} has {wanted}"


def _comparable(key: str, version: str | None) -> str | None:
    if not version:
        return None
    if key == "python":
        return _series(version)  # its patch release does not matter to what was built for it
    if key != "mpirun":
        return version
    try:
        return parse_mpirun_version(version)
    except MissingTool:
        return version


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def built_otherwise(versions: Mapping[str, str], is_trainer: bool) -> Iterable[str]:
    """What does not fit together in one environment."""
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


def data_findings(context: JobContext) -> list[Finding]:
    """Of local data alone: what TensorFlow reads from elsewhere was not looked at."""
    run = context.plan.run
    if run is None or run.data_dir is None or is_remote(run.data_dir):
        return []
    missing = [(node.host, text) for node in context.readers for text in _missing(node, run)]
    without = {host for host, _ in missing}
    # An evaluation reads the validation files alone.
    readers = [
        node for node in context.readers if node.host not in without and not run.evaluates_only
    ]
    incomplete = [(node.host, text) for node in readers for text in _incomplete(node.training)]
    incomplete += [
        (node.host, text) for node in _evaluating(context) for text in _incomplete(node.validation)
    ]
    cut = [(node.host, text) for node in readers for text in _cut_short(node)]
    hint = (
        f"compare the nodes: clusterctl data verify NAME {_quoted(context)}, and copy what differs"
    )
    return [
        *together("data.missing", missing, _missing_hint(context)),
        *together("data.incomplete", incomplete, _copy_hint(context)),
        *together("data.cut_short", cut, hint),
        *together("data.differs", _differing(readers), hint),
        *_validation(context),
        *(_shards(readers[0], run) if readers else ()),
    ]


def records_of(sizes: Mapping[str, int], records: Mapping[str, int]) -> int | None:
    """All records, as the trainer counts: those of the first x (files - 1) + those of the last."""
    names = sorted(sizes)
    if not names:
        return None
    first, last = records.get(names[0], -1), records.get(names[-1], -1)
    return None if first < 0 or last < 0 else first * (len(names) - 1) + last


def _missing(node: NodeLook, run: TrainerRun) -> Iterable[str]:
    if node.data_error:
        yield f"cannot read the training data: {node.data_error}"
    elif not node.training and not run.evaluates_only:
        yield f"there is no training data in {run.data_dir} (no file named train-*)"


def _missing_hint(context: JobContext) -> str:
    run = context.plan.run
    assert run and run.data_dir
    quote = quote_hint(context, "--data-dir", run.data_dir)
    if quote or _complete(context):
        return quote or _copy_hint(context)
    return (
        f"put ImageNet's TFRecord files into {run.data_dir} on every node, train-* and "
        "validation-* in one folder; or train with synthetic data: --synthetic (train_synthetic.sh)"
    )


def _copy_hint(context: JobContext) -> str:
    """The copy from the first node that has all of it; where none has, from here."""
    complete, folder, elsewhere = (
        _complete(context),
        _quoted(context),
        "or name another folder: --data-dir",
    )
    # On a node, where train.sh runs, hosts have no such names.
    if complete and context.callers_home:
        index = complete[0].rpartition("-")[2]
        copy = f"clusterctl copy NAME --from {index} {folder} {folder}"
        return f"{complete[0]} has it all: {copy}; {elsewhere}"
    return f"copy the data to every node: clusterctl copy NAME FOLDER/ {folder}; {elsewhere}"


def _complete(context: JobContext) -> list[str]:
    """The nodes that have all files of the set that is read."""
    evaluates_only = context.plan.run is not None and context.plan.run.evaluates_only
    sets = [(n, n.validation if evaluates_only else n.training) for n in context.nodes]
    return [n.host for n, files in sets if files and not [*_incomplete(files), *_cut_short(n)]]


def _quoted(context: JobContext) -> str:
    """The data folder as a shell takes it; its slash at the end means what is in it."""
    run = context.plan.run
    folder = f"{run.data_dir if run else ''}".rstrip("/") + "/"
    home = f"{context.plan.home}/"
    in_home = context.plan.home and folder.startswith(home)
    return shlex.quote(f"~/{folder[len(home) :]}" if in_home else folder)


def _incomplete(names: Collection[str]) -> Iterable[str]:
    totals = sorted({name.rpartition("-")[2] for name in names})
    subset = next(iter(names), "").partition("-")[0]
    if len(totals) > 1:
        sets = " and ".join(f"{subset}-*-of-{total}" for total in totals[:2])
        yield f"files of several sets are mixed: {sets}"
    elif totals:
        yield from _numbering(subset, list(names), int(totals[0]))


def _numbering(subset: str, names: Sequence[str], total: int) -> Iterable[str]:
    numbers = sorted(int(name.split("-")[1]) for name in names)
    # The tutorial's own resizer counts from 1.
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


def _cut_short(node: NodeLook) -> Iterable[str]:
    return (f"{name} ends within a record" for name, found in node.records.items() if found < 0)


def _differing(nodes: Sequence[NodeLook]) -> Iterable[tuple[str, str]]:
    for node in nodes[1:]:
        head = nodes[0]
        text = _difference(node.training, head.training, head.host)
        if text:
            yield node.host, text


def _difference(there: Mapping[str, int], wanted: Mapping[str, int], host: str) -> str:
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


def _evaluating(context: JobContext) -> Sequence[NodeLook]:
    """The nodes that evaluate: the head node after a training; all with ranks where none is."""
    run = context.plan.run
    assert run
    if run.evaluates_only:
        return context.readers
    return [context.head] if context.plan.evaluation else []


def _validation(context: JobContext) -> list[Finding]:
    run = context.plan.run
    assert run
    without = [
        node.host
        for node in _evaluating(context)
        if not node.validation and not node.data_error and (node.training or run.evaluates_only)
    ]
    text = f"there is nothing to evaluate with in {run.data_dir} (no file named validation-*)"
    hint = "put the validation files beside the training files, or train only: --no-eval"
    if run.evaluates_only:
        hint = _copy_hint(context)
    return together("data.validation", [(host, text) for host in without], hint)


def _shards(node: NodeLook, run: TrainerRun) -> Iterable[Finding]:
    files, ranks = len(node.training), run.ranks
    if run.evaluates_only or not files:
        return
    if files < ranks:
        yield Finding(
            "data.few_shards",
            Severity.ERROR,
            f"{count(files, 'training file')} for {count(ranks, 'rank')}: each needs one",
            hint=f"train on {count(files, 'GPU')}{' or fewer' if files > 1 else ''}, "
            "or make more files: utils/preprocess_imagenet.py --train_shards",
        )
    elif files % ranks:
        yield Finding(
            "data.uneven_shards",
            Severity.WARNING,
            f"{files} training files do not divide by {ranks} ranks: some read "
            f"{-(-files // ranks)} and some {files // ranks}, and those images count more",
            hint=_nearest_hint(_nearest(files, ranks)),
        )
    yield from _uneven(node)
    yield from _too_few_images(node, run)


def _too_few_images(node: NodeLook, run: TrainerRun) -> Iterable[Finding]:
    images = records_of(node.training, node.records)
    if images is not None and images < run.global_batch:
        yield Finding(
            "data.few_images",
            Severity.ERROR,
            f"one step takes {count(run.batch_size, 'image')} for each of "
            f"{count(run.ranks, 'rank')}, and there {_are(images)} {images} in all",
            hint="lower the batch: the trainer's --batch_size",
        )


def _nearest_hint(ranks: int) -> str:
    return "1 rank would read them all" if ranks == 1 else f"{ranks} ranks would read as many each"


def _nearest(files: int, ranks: int) -> int:
    return max(number for number in range(1, ranks + 1) if files % number == 0)


def _uneven(node: NodeLook) -> Iterable[Finding]:
    names = sorted(node.training)
    counted = {name: node.records[name] for name in names[:-1] if node.records.get(name, -1) >= 0}
    if len(set(counted.values())) <= 1:
        return
    least, most = (pick(counted, key=lambda name: counted[name]) for pick in (min, max))
    yield Finding(
        "data.uneven_records",
        Severity.WARNING,
        f"{least} has {count(counted[least], 'record')} and {most} {counted[most]}: all files but "
        "the last should have as many, or epochs are counted wrong",
        hint="make the files anew with utils/preprocess_imagenet.py",
    )


# Weights, in millions. A checkpoint holds each with its momentum, in 4 bytes.
MILLION_WEIGHTS = {
    "resnet18": 11.7,
    "resnet34": 21.8,
    "resnet50": 25.6,
    "resnet101": 44.6,
    "resnet152": 60.2,
}
BYTES_PER_WEIGHT = 8


def log_findings(context: JobContext) -> list[Finding]:
    """A run's checkpoints are never deleted unasked, nor is a finished run silently "trained"."""
    run = context.plan.run
    assert run
    if run.evaluates_only:
        return list(_nothing_to_evaluate(context))
    records = records_of(context.head.training, context.head.records)
    found = [*_earlier_run(context, records), *_disk(context, records)]
    steps = run.steps(records) if run.trace_steps else None
    if run.trace_steps and steps is not None and run.trace_steps[0] >= steps:
        text = f"there is no step {run.trace_steps[0]} to trace: the last one is {steps - 1}"
        found.append(Finding("trace.too_late", Severity.ERROR, text, hint="--trace-steps 10:20"))
    return found


def _earlier_run(context: JobContext, records: int | None) -> Iterable[Finding]:
    run, folder = context.plan.run, context.plan.log_dir
    assert run
    # On nodes without ranks nothing is deleted. A synthetic run goes on from nothing.
    holders = [node for node in context.readers if node.checkpoints]
    if run.data_dir is None and not run.clears:
        return
    if not holders:
        if not run.clears:
            text = f"there is no checkpoint in {folder}: training begins at step 0"
            yield Finding("log.no_checkpoint", Severity.INFO, text, context.head.host)
        return
    if not (run.clears or context.head.checkpoints):
        # Rank 0 is there, and would begin at step 0.
        hosts = fold_hosts([node.host for node in holders])
        text = f"there is no checkpoint in {folder}, but on {hosts}: only rank 0's are gone on from"
        hint = f"copy that folder to {context.head.host}, or train anew: --clear"
        yield Finding("log.elsewhere", Severity.ERROR, text, context.head.host, hint)
        return
    # What is deleted is deleted everywhere.
    last = max(node.checkpoints[-1] for node in (holders if run.clears else [context.head]))
    steps = run.steps(records) if run.data_dir is not None else None
    is_final = steps is not None and last >= steps
    if run.clears:
        severity = Severity.WARNING if context.plan.clears_on_purpose else Severity.ERROR
        hint = "" if context.plan.clears_on_purpose else _offer(is_final, run.data_dir is None)
        check_id = "log.finished" if is_final else "log.unfinished"
        said = [(node.host, _what_is_there(node, folder, steps)) for node in holders]
        yield from together(check_id, said, hint, severity)
    elif is_final:
        what = f"the final step, {last}" if last == steps else _longer(last, steps)
        text = f"{folder} holds {what}: nothing is left to train"
        hint = "train longer (--epochs), or anew: --clear"
        yield Finding("log.nothing_left", Severity.WARNING, text, context.head.host, hint)
    else:
        of = f" of {steps}" if steps is not None else ""
        text = f"training goes on from step {last}{of} in {folder}"
        yield Finding("log.resumed", Severity.INFO, text, context.head.host)


def _what_is_there(node: NodeLook, folder: str, steps: int | None) -> str:
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
    beside = "or keep it and write elsewhere: the trainer's --log_dir NAME"
    resume = "--resume only evaluates it" if is_final else "--resume goes on from it"
    return f"--clear deletes it and trains anew; {resume}; {beside}"


def _nothing_to_evaluate(context: JobContext) -> Iterable[Finding]:
    if not context.head.checkpoints:
        text = f"there is no checkpoint in {context.plan.log_dir}"
        hint = "train first, or name the folder of a run: --log_dir NAME"
        yield Finding("log.no_checkpoint", Severity.ERROR, text, context.head.host, hint)


def _disk(context: JobContext, records: int | None) -> list[Finding]:
    run = context.plan.run
    assert run
    savers = context.readers if run.local_ckpt else context.nodes[:1]
    each = int(MILLION_WEIGHTS.get(run.model, 0) * 1e6) * BYTES_PER_WEIGHT
    said = []
    for node in savers:
        kept = 0 if run.clears else len(node.checkpoints)
        wanted = max(0, run.checkpoints(records) - kept)
        freed = node.checkpoint_bytes if run.clears else 0
        if node.free_bytes is not None and wanted * each > node.free_bytes + freed:
            need = "needs" if wanted == 1 else "need"
            text = f"{count(wanted, 'checkpoint')} of {run.model} {need}"
            room = f"{format_bytes(wanted * each)}, {format_bytes(node.free_bytes)} are free for"
            said.append((node.host, f"{text} {room} {context.plan.log_dir}"))
    hint = (
        "save fewer (--save_checkpoints_steps), remove old ones (clusterctl clean-logs NAME), "
        "or write to a larger disk: --log_dir"
    )
    return together("disk.checkpoints", said, hint)


def preflight(
    plan: JobPlan,
    nodes: Sequence[NodeLook],
    readers: Collection[str],
    force: bool = False,
    callers_home: str = "",
    besides: Sequence[Finding] = (),
) -> tuple[Finding, ...]:
    """All that there is to say, with what is known `besides`. `nodes` begin with the head node;
    `readers` have ranks.

    `force` makes warnings of errors, but not of those about a run that would be deleted.
    `callers_home`: of the machine where the job was asked for, if that is no node.
    """
    with_ranks = tuple(node for node in nodes if node.host in readers)
    context = JobContext(plan, tuple(nodes), with_ranks, callers_home)
    found = [
        *besides,
        *flags_findings(plan),
        *environment_findings(context),
        *script_findings(context),
    ]
    if plan.run is not None:
        found += [*data_findings(context), *log_findings(context), *recipe_findings(context)]
    never = {"log.finished", "log.unfinished"} | ({"flags.refused"} if blind(plan) else set())
    return in_order(forced(one, never) for one in found) if force else in_order(found)


def blind(plan: JobPlan) -> bool:
    """Return whether it empties a log folder unasked of which nobody knows where it is."""
    return plan.run is None and "--clear_log" in plan.argv and not plan.clears_on_purpose


def flags_findings(plan: JobPlan) -> list[Finding]:
    """Return what the trainer's own parser has against the flags."""
    own = "--force, with --clear or --resume" if blind(plan) else "--force"
    hint = f"its flags: {TRAINER} --help; if the nodes' trainer is one of your own: {own}"
    said = f"the trainer: {plan.refused}"
    return [Finding("flags.refused", Severity.ERROR, said, hint=hint)] if plan.refused else []


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings."""
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def forced(finding: Finding, never: Collection[str]) -> Finding:
    """Return the finding for a user who knows better: no error, unless it is one of `never`.

    Those would delete what nobody gets back: they have options of their own, --force is none.
    """
    if finding.severity is not Severity.ERROR or finding.check_id in never:
        return finding
    return replace(finding, severity=Severity.WARNING)


def recipe_findings(context: JobContext) -> list[Finding]:
    """So large a batch does not converge with the recipe for a few nodes: a hint from 128 GPUs on,
    a warning at the tutorial's 256."""
    run = context.plan.run
    if not run or not run.data_dir or run.evaluates_only or run.uses_larc:
        return []
    if run.ranks < LARC_FROM:
        return []
    severity = Severity.INFO if run.ranks < NEEDS_LARC_FROM else Severity.WARNING
    message = f"from {LARC_FROM} GPUs on, the tutorial trains with LARC and more augmentation"
    return [Finding("recipe.larc", severity, message, hint="do so: --more-aug")]


def crowding_findings(nodes: Sequence[NodeLook], ranks: Mapping[str, int]) -> list[Finding]:
    """More ranks than processors take turns. `ranks`: by host. The lab's hosts have one machine's
    processors together; elsewhere the instance type or the hosts file's slots are wrong."""
    in_lab = [node for node in nodes if node.in_lab and ranks.get(node.host)]
    total, cpus = sum(ranks[node.host] for node in in_lab), in_lab[0].cpus if in_lab else None
    if cpus and total > cpus:
        shared = count(cpus, "processor")
        text = f"{total} ranks share {shared}: all hosts of the lab run on this machine"
        hint = f"expect a slow run, whose speed means nothing; or take {cpus}"
        return [Finding("cpus.crowded", Severity.WARNING, text, hint=hint)]
    said = [
        (node.host, f"{ranks[node.host]} ranks share {count(node.cpus, 'processor')}")
        for node in nodes
        if node.cpus and ranks.get(node.host, 0) > node.cpus
    ]
    hint = "take another instance type, or fewer ranks a node: slots in the hosts file"
    return together("cpus.crowded", said, hint, Severity.WARNING)
