"""What speaks against the data of a training run: missing, incomplete, too few files, other files.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.jobs.preflight.context import JobContext, NodeLook, is_remote, quote_hint, together
from clusterctl.jobs.work import Work


def data_findings(context: JobContext) -> list[Finding]:
    """Of local data alone: what TensorFlow reads from elsewhere was not looked at."""
    work = context.plan.work
    if work is None or work.data_dir is None or is_remote(work.data_dir):
        return []
    missing = [(node.host, text) for node in context.readers for text in _missing(node, work)]
    without = {host for host, _ in missing}
    # An evaluation reads the validation files alone.
    readers = [
        node for node in context.readers if node.host not in without and not work.evaluates_only
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
        *(_shards(readers[0], work) if readers else ()),
    ]


def records_of(sizes: Mapping[str, int], records: Mapping[str, int]) -> int | None:
    """All records, as the trainer counts: those of the first x (files - 1) + those of the last."""
    names = sorted(sizes)
    if not names:
        return None
    first, last = records.get(names[0], -1), records.get(names[-1], -1)
    return None if first < 0 or last < 0 else first * (len(names) - 1) + last


def _missing(node: NodeLook, work: Work) -> Iterable[str]:
    if node.data_error:
        yield f"cannot read the training data: {node.data_error}"
    elif not node.training and not work.evaluates_only:
        yield f"there is no training data in {work.data_dir} (no file named train-*)"


def _missing_hint(context: JobContext) -> str:
    work = context.plan.work
    assert work and work.data_dir
    quote = quote_hint(context, "--data-dir", work.data_dir)
    if quote or _complete(context):
        return quote or _copy_hint(context)
    return (
        f"put ImageNet's TFRecord files into {work.data_dir} on every node, train-* and "
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
    evaluates_only = context.plan.work is not None and context.plan.work.evaluates_only
    sets = [(n, n.validation if evaluates_only else n.training) for n in context.nodes]
    return [n.host for n, files in sets if files and not [*_incomplete(files), *_cut_short(n)]]


def _quoted(context: JobContext) -> str:
    """The data folder as a shell takes it; its slash at the end means what is in it."""
    work = context.plan.work
    folder = f"{work.data_dir if work else ''}".rstrip("/") + "/"
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
    work = context.plan.work
    assert work
    if work.evaluates_only:
        return context.readers
    return [context.head] if context.plan.evaluation else []


def _validation(context: JobContext) -> list[Finding]:
    work = context.plan.work
    assert work
    without = [
        node.host
        for node in _evaluating(context)
        if not node.validation and not node.data_error and (node.training or work.evaluates_only)
    ]
    text = f"there is nothing to evaluate with in {work.data_dir} (no file named validation-*)"
    hint = "put the validation files beside the training files, or train only: --no-eval"
    if work.evaluates_only:
        hint = _copy_hint(context)
    return together("data.validation", [(host, text) for host in without], hint)


def _shards(node: NodeLook, work: Work) -> Iterable[Finding]:
    files, ranks = len(node.training), work.ranks
    if work.evaluates_only or not files:
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
    yield from _too_few_images(node, work)


def _too_few_images(node: NodeLook, work: Work) -> Iterable[Finding]:
    images = records_of(node.training, node.records)
    if images is not None and images < work.global_batch:
        yield Finding(
            "data.few_images",
            Severity.ERROR,
            f"one step takes {count(work.batch_size, 'image')} for each of "
            f"{count(work.ranks, 'rank')}, and there {_are(images)} {images} in all",
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
