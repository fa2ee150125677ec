"""What speaks against a training run's log folder: a run that is there already, a full disk.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes
from clusterctl.jobs.preflight.context import JobContext, NodeLook, together
from clusterctl.jobs.preflight.data import records_of

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
    work = context.plan.work
    assert work
    if work.evaluates_only:
        return list(_nothing_to_evaluate(context))
    records = records_of(context.head.training, context.head.records)
    return [*_earlier_run(context, records), *_disk(context, records)]


def _earlier_run(context: JobContext, records: int | None) -> Iterable[Finding]:
    work, folder = context.plan.work, context.plan.log_dir
    assert work
    # On nodes without ranks nothing is deleted. A synthetic run goes on from nothing.
    holders = [node for node in context.readers if node.checkpoints]
    if work.data_dir is None and not work.clears:
        return
    if not holders:
        if not work.clears:
            text = f"there is no checkpoint in {folder}: training begins at step 0"
            yield Finding("log.no_checkpoint", Severity.INFO, text, context.head.host)
        return
    if not (work.clears or context.head.checkpoints):
        # Rank 0 is there, and would begin at step 0.
        hosts = fold_hosts([node.host for node in holders])
        text = f"there is no checkpoint in {folder}, but on {hosts}: only rank 0's are gone on from"
        hint = f"copy that folder to {context.head.host}, or train anew: --clear"
        yield Finding("log.elsewhere", Severity.ERROR, text, context.head.host, hint)
        return
    # What is deleted is deleted everywhere.
    last = max(node.checkpoints[-1] for node in (holders if work.clears else [context.head]))
    steps = work.steps(records) if work.data_dir is not None else None
    is_final = steps is not None and last >= steps
    if work.clears:
        severity = Severity.WARNING if context.plan.clears_on_purpose else Severity.ERROR
        hint = "" if context.plan.clears_on_purpose else _offer(is_final, work.data_dir is None)
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
    work = context.plan.work
    assert work
    savers = context.readers if work.local_ckpt else context.nodes[:1]
    each = int(MILLION_WEIGHTS.get(work.model, 0) * 1e6) * BYTES_PER_WEIGHT
    said = []
    for node in savers:
        kept = 0 if work.clears else len(node.checkpoints)
        wanted = max(0, work.checkpoints(records) - kept)
        freed = node.checkpoint_bytes if work.clears else 0
        if node.free_bytes is not None and wanted * each > node.free_bytes + freed:
            need = "needs" if wanted == 1 else "need"
            text = f"{count(wanted, 'checkpoint')} of {work.model} {need}"
            room = f"{format_bytes(wanted * each)}, {format_bytes(node.free_bytes)} are free for"
            said.append((node.host, f"{text} {room} {context.plan.log_dir}"))
    hint = (
        "save fewer (--save_checkpoints_steps), remove old ones (clusterctl clean-logs NAME), "
        "or write to a larger disk: --log_dir"
    )
    return together("disk.checkpoints", said, hint)
