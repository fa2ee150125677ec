"""What speaks against a training run, found before mpirun starts. Pure: facts in, findings out.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.preflight.context import JobContext, NodeLook, together
from clusterctl.jobs.preflight.data import data_findings
from clusterctl.jobs.preflight.environment import environment_findings, script_findings
from clusterctl.jobs.preflight.log import log_findings
from clusterctl.jobs.presets import LARC_FROM, NEEDS_LARC_FROM

# These would delete what nobody gets back: they have options of their own, --force is none.
NEVER_FORCED = ("log.finished", "log.unfinished")


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
    found = [*besides, *environment_findings(context), *script_findings(context)]
    if plan.work is not None:
        found += [*data_findings(context), *log_findings(context), *recipe_findings(context)]
    return in_order(map(forced, found) if force else found)


def in_order(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings."""
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def forced(finding: Finding) -> Finding:
    """The finding for a user who knows better."""
    if finding.severity is not Severity.ERROR or finding.check_id in NEVER_FORCED:
        return finding
    return replace(finding, severity=Severity.WARNING)


def recipe_findings(context: JobContext) -> list[Finding]:
    """So large a batch does not converge with the recipe for a few nodes: a hint from 128 GPUs on,
    a warning at the tutorial's 256."""
    work = context.plan.work
    if not work or not work.data_dir or work.evaluates_only or work.uses_larc:
        return []
    if work.ranks < LARC_FROM:
        return []
    severity = Severity.INFO if work.ranks < NEEDS_LARC_FROM else Severity.WARNING
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
