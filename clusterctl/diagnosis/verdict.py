"""The conclusions from the evidence: the verdict, the findings, and what was checked and is well.

A rule is a function of a Scene that yields causes (see `rules`). RULES are in the order in which
their causes become the verdict: what is stuck itself comes before what waits for it, and what was
observed before what is inferred. If several causes are possible, the message names them and what
would tell them apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.diagnosis.case import ERROR, INFO, Cause, Scene, gdb_command
from clusterctl.diagnosis.evidence import NAMED, Evidence, HostEvidence
from clusterctl.diagnosis.frames import STARTING
from clusterctl.diagnosis.hints import Hints
from clusterctl.diagnosis.progress import SILENT_STEPS, is_step, were
from clusterctl.diagnosis.ranks import Rank, called, format_ranks, is_saving, sees_nothing
from clusterctl.diagnosis.rules.activity import (
    apart,
    at_rest,
    differing,
    ended_ranks,
    held_up,
    odd_ranks,
    scripts,
)
from clusterctl.diagnosis.rules.hosts import (
    clocks,
    host_facts,
    hostnames,
    limits,
    other_users,
    quarantined,
)
from clusterctl.diagnosis.rules.libraries import ras, stalled
from clusterctl.diagnosis.rules.liveness import (
    abandoned,
    daemons,
    left_over,
    may_follow_lost_host,
    missing_ranks,
    processes,
    silent_hosts,
    sizes,
    unstarted,
)
from clusterctl.diagnosis.rules.logs import (
    NO_ROOM,
    ended_by_cause,
    ended_unexplained,
    kernels,
    logged,
)
from clusterctl.diagnosis.rules.native import awaited, collectives, cycles, standing
from clusterctl.diagnosis.rules.network import broken_links, unanswered, unreached
from clusterctl.diagnosis.rules.slowness import (
    idle_cards,
    slow_links,
    slowed_down,
    stragglers,
    throttled,
)
from clusterctl.diagnosis.rules.torch import recorded
from clusterctl.diagnosis.tree import label, rank_set
from clusterctl.domain.findings import NOT_KNOWN, STATUSES, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_duration
from clusterctl.jobs.processes import hidden_users_text
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import to_data

# Findings whose message says who waits for whom.
NAMES_THE_WAIT = ("rank.skipped", "rank.missed", "rank.apart")
BAD_DISK = ("disk.full", "shm.full", "mount.dead", "disk.readonly")
# What PyTorch says at the end of a job whose collective has timed out.
OF_WATCHDOG = re.compile(r"ProcessGroupNCCL|\b[Ww]atchdog|DistBackendError")
# Findings that tell what a rank waits for, better than that it is elsewhere than the others.
HELD = (
    *("rank.io", "disk.full", "rank.uninterruptible", "rank.unstarted"),
    *("rank.stopped", "rank.traced", "rank.exited", "rank.exception", "rank.left"),
)
# Limits that a rank has reached, or has alone, which may be why it does not go on.
REACHED = ("rank.descriptors", "rank.threads", "rank.memory", "rank.limit")
# Findings that are inferred from what is not there: damaged evidence does not bear them.
INFERRED = ("rank.missing", "ranks.none", "ranks.leftover", "launcher.", "daemon.")
# A job that is younger and printed no step may still be at its start.
YOUNG_S = 60.0
HEALTHY, UNKNOWN, IDLE = "healthy", "unknown", "idle"
HAS_ENDED = "a job by hand that has ended leaves only its log, read it: clusterctl explain FILE"


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis. `verdict` is a sentence; `clean` is what was checked and is well.

    `check` is that of the finding that the verdict is made from, or one of `healthy`, `unknown`,
    `idle`, `queued`, `starting` and `ended`. `unseen` is what was not looked at, and
    `next_step` what would settle it, if the verdict is `unknown` or `idle`.
    """

    verdict: str
    check: str
    findings: tuple[Cause, ...] = ()
    clean: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    next_step: str = ""

    @property
    def severity(self) -> Severity:
        return max((one.severity for one in self.findings), key=STATUSES.__getitem__, default=INFO)

    @property
    def exit_status(self) -> int:
        """The command's exit status, as of monitoring plugins: 0 healthy, 1 warning, 2 error, 3 not
        known. That it is not known counts more than a warning about something else."""
        known = STATUSES[self.severity]
        if self.check == UNKNOWN:
            return max(known, NOT_KNOWN) if known < STATUSES[ERROR] else known
        return NOT_KNOWN if self.check == IDLE and not known else known

    def as_data(self) -> dict[str, Any]:
        """Return the diagnosis for `--json`."""
        lead = self.findings[0] if self.findings else None
        about = lead if lead and lead.check == self.check else None
        return {
            "verdict": self.verdict,
            "check": self.check,
            "severity": self.severity.value,
            "host": about.host if about else None,
            "ranks": list(about.ranks) if about else [],
            "findings": to_data(self.findings),
            "clean": list(self.clean),
            "not_seen": list(self.unseen),
            "next": self.next_step,
            "exit_status": self.exit_status,
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Draw the conclusions from the evidence."""
    return _with_hidden(evidence, _with_others(evidence, _diagnose(evidence)))


def _with_others(evidence: Evidence, found: Diagnosis) -> Diagnosis:
    """Return the diagnosis with the running jobs that were not looked at: if nobody has chosen one,
    all is well only if all are."""
    job = evidence.job
    runs = job is not None and job.state in (JobState.RUNNING, None)
    if not job or not runs or job.is_chosen or not job.others or found.exit_status:
        return found
    names = ", ".join(one or "one started by hand" for one in job.others[:4])
    which = f"{count(len(job.others), 'other job')} ({names})"
    verdict = f"{found.verdict}; {which} there {were(job.others)} not diagnosed"
    step = Hints(evidence).look_at(next(filter(None, job.others), "JOB"))
    return replace(found, verdict=verdict, check=UNKNOWN, next_step=step)


def _with_hidden(evidence: Evidence, found: Diagnosis) -> Diagnosis:
    """Return the diagnosis with a finding on the users whose processes the login could not read:
    with them, nothing is called healthy."""
    hosts = [host for host in evidence.hosts if host.hidden]
    if not hosts:
        return found
    message = hidden_users_text({host.host: host.hidden for host in hosts})
    source = evidence.source or "--hosts FILE"  # of a cluster, there is no --sudo
    hint = f"show all users' jobs: clusterctl diagnose {source} --sudo"
    hidden = Cause("processes.hidden", INFO, message, hint=hint, blocks=False)
    found = replace(found, findings=(*found.findings, hidden))
    if found.check == UNKNOWN or found.severity is ERROR:
        return found
    return replace(found, verdict=f"{found.verdict}; {message}", check=UNKNOWN)


def _diagnose(evidence: Evidence) -> Diagnosis:
    scene = Scene(evidence)
    found = [cause for rule in RULES for cause in rule(scene)]
    if evidence.holes:
        found = [one for one in found if not one.check.startswith(INFERRED)]
    found = _folded(scene, found)
    blockers = [one for one in found if one.blocks and one.severity is not INFO]
    if not blockers and not scene.is_running:
        blockers = [one for one in found if one.severity is not INFO]
    lead = min(blockers, key=lambda one: -STATUSES[one.severity], default=None)
    holes = scene.evidence.holes
    if lead and (holes or scene.doubt) and lead.severity is not ERROR:
        lead = None  # a warning beside what was not seen does not say what the job does
    rest = [one for one in found if one is not lead]
    rest.sort(key=lambda one: -STATUSES[one.severity])
    clean = tuple(_clean(scene, found))
    if lead is None:
        check, words = _without_cause(scene, rest)
        is_open = check == UNKNOWN
        unseen = holes or (tuple(not_seen(scene)) if is_open else ())
        settles = _settles(scene) if is_open else ""
        if check == IDLE and evidence.source:
            settles = HAS_ENDED
        return Diagnosis(words, check, tuple(rest), () if holes else clean, unseen, settles)
    lead = _whole(scene, lead, rest)
    return Diagnosis(lead.message, lead.check, (lead, *rest), clean)


def _folded(scene: Scene, found: list[Cause]) -> list[Cause]:
    """Merge findings that another one explains into that one, as its evidence."""
    kept = list(found)
    for one in found:
        if one.check in ("rank.skipped", "rank.missed"):
            into = [x for x in kept if x.ranks and {*one.ranks} <= {*x.ranks} and x is not one]
            into = [x for x in into if x.check.startswith(("rank.", "disk.", "host."))]
        elif one.check in NO_ROOM | {"disk.full"} and not one.ranks:
            into = [x for x in kept if x.check == "disk.full" and x.ranks]
            into = [x for x in into if not one.host or one.host == x.host]
        elif one.check in ("rank.io", "rank.blocked", "rank.uninterruptible"):
            # A child between fork and exec looks like a second process of its rank.
            into = [x for x in kept if x.check in ("mount.dead", "rank.uninterruptible")]
            into = [x for x in into if {*one.ranks} <= {*x.ranks} and x is not one]
        elif one.check in ("rank.apart", "rank.straggler"):
            into = [x for x in kept if x.check in (*HELD, "mpi.standing") and x.ranks]
            into = [x for x in into if {*one.ranks} <= {*x.ranks}]
        elif one.check == "log.exception":
            by = ["torch.missing", "torch.mismatch"] if OF_WATCHDOG.search(one.message) else []
            into = [x for x in kept if x.check in ("rank.exception", *by)]
        elif not scene.is_running and may_follow_lost_host(one):
            into = [x for x in kept if x.check == "host.off" and x.blocks]
        else:
            continue
        if into:
            at = kept.index(into[0])
            shown = tuple(dict.fromkeys((*into[0].evidence, *one.evidence)))
            severity = max(one.severity, into[0].severity, key=STATUSES.__getitem__)
            if _is_of_saving(scene, into[0]):
                severity = into[0].severity  # Horovod reports a stall of each longer evaluation
            kept[at] = replace(into[0], severity=severity, evidence=shown)
            kept.remove(one)
    return kept


def _is_of_saving(scene: Scene, found: Cause) -> bool:
    """Return whether a finding is about ranks at work in a function that saves or evaluates."""
    ranks = [scene.by_number[rank] for rank in found.ranks if rank in scene.by_number]
    return found.check == "rank.busy" and bool(ranks) and all(map(is_saving, ranks))


def _whole(scene: Scene, lead: Cause, rest: list[Cause]) -> Cause:
    """Add to the verdict's finding what other ranks wait for, and what is wrong with its host."""
    message, shown = lead.message, list(lead.evidence)
    blocked = (
        scene.is_running
        and not scene.advances
        and lead.check.startswith(("rank.", "disk.", "mount."))
    )
    waiting = [one for one in scene.waiting if one.number not in lead.ranks]
    if blocked and lead.ranks and waiting and lead.check not in NAMES_THE_WAIT:
        what = scene.waited_for(lead.ranks)
        who = f"{len(waiting)} ranks wait" if waiting[1:] else f"rank {waiting[0].number} waits"
        message += f"; {who} for it in {what}{scene.since}"
    for one in rest:
        if one.check in REACHED and one.ranks == lead.ranks:
            message += f"; {one.message}"
        same = one.host and one.host == lead.host and not one.ranks
        if same and one.check in BAD_DISK and lead.check != one.check:
            message += f"; {one.message}"
    absent = scene.stall.absent(scene.size) if scene.stall else {}
    for rank in lead.ranks:
        if rank in absent:
            shown.append(f"Horovod: missing rank {rank}: {', '.join(absent[rank][:6])}")
    return replace(lead, message=message, evidence=tuple(shown))


def _without_cause(scene: Scene, rest: list[Cause]) -> tuple[str, str]:
    """Return the check id and the verdict if no finding blocks the job."""
    job = scene.job
    name = f"job {job.job_id}" if job.job_id else "the job"
    addition = "; see the warnings" if any(one.severity is not INFO for one in rest) else ""
    if scene.evidence.holes:
        hole = scene.evidence.holes[0]
        is_what = "damaged" if _is_damaged(hole, scene) else "missing"
        missing = f"a part of the evidence is {is_what}: {hole}"
        return UNKNOWN, f"what {name} does is not known: {missing}{addition}"
    if scene.evidence.job is None:
        if scene.silent and not rest:
            host = scene.silent[0]
            why = f"{called(host)} gave no evidence: {host.error}"
            return UNKNOWN, f"whether a job runs is not known: {why}"
        if scene.evidence.source:
            return IDLE, f"no job was found on these hosts ({scene.evidence.source}){addition}"
        where = f"runs on {scene.evidence.cluster}, and none is recorded"
        return IDLE, f"no job with ranks {where}{addition}"
    if not scene.is_running:
        if job.state is JobState.QUEUED:
            listing = scene.hints.cluster("clusterctl jobs NAME")
            return "queued", f"{name} waits for its turn: {listing}{addition}"
        age = f" after {format_duration(job.age_s)}" if job.age_s else ""
        if job.state is JobState.SUCCEEDED:
            return HEALTHY, f"{name} ended well{age}{addition}"
        if job.state is JobState.CANCELLED:
            return "ended", f"{name} was cancelled{age}{addition}"
        return UNKNOWN, f"{name} {job.state}{age}, and nothing observed explains it{addition}"
    whole = _seen(scene)
    if scene.advances and not scene.doubt:
        return HEALTHY, f"{name} is healthy: {scene.advances}; {whole}{addition}"
    if scene.moves:
        check = "starting" if _is_starting(scene) else HEALTHY
        return check, f"{name} is {check}: {scene.moves}; {whole}{addition}"
    return UNKNOWN, f"it is not known whether {name} is stuck: {_open(scene)}; {whole}{addition}"


def _is_starting(scene: Scene) -> bool:
    """Return whether a young job was seen to start: by calls of a rank, or by its log, which has no
    step yet."""
    young = not scene.has_made_steps and scene.job.age_s < YOUNG_S
    starts = any({*one.places} & {*STARTING} for one in scene.ranks)
    return young and (starts or scene.job.log_silent_s is not None)


def _is_damaged(hole: str, scene: Scene) -> bool:
    """Return whether a part was read and makes no sense; else there was no time to read it."""
    return hole in scene.evidence.problems or "unexpected value: " in hole


def _seen(scene: Scene) -> str:
    """Return how many ranks were found, in words."""
    seen = len(scene.by_number)
    blank = sum(len(scene.unnumbered(host)) for host in scene.evidence.hosts)
    more = f"{count(blank, 'process')} of unknown rank"
    if not seen:
        return f"{more} {'were' if blank > 1 else 'was'} found" if blank else "no rank was found"
    if scene.size and seen < scene.size:
        return f"{seen} of its {scene.size} ranks were found{f', and {more}' if blank else ''}"
    whole = "all " if scene.size and seen > 1 else ""
    return f"{whole}{count(seen, 'rank')} {'were' if seen > 1 else 'was'} found"


def _open(scene: Scene) -> str:
    """Return what was seen of a job of which neither a step nor a cause was seen."""
    silence = "no step was observed"
    if scene.doubt:
        silence = scene.doubt
    elif scene.silent_for_steps >= SILENT_STEPS:
        silence = (
            f"it has shown no step{scene.since}, and one came every "
            f"{format_duration(scene.rhythm_s)} before"
        )
    elif scene.since:
        silence = f"it has shown no step{scene.since}"
    elif scene.silent_head and not scene.job.log and not scene.rows:
        silence = f"its output was not read: {called(scene.silent_head)}, which has it, is silent"
    elif scene.job.log and not (scene.has_made_steps or scene.job.log_is_older):
        early = any(map(is_step, scene.job.log_first))
        silence = "the end of its log has no steps" if early else "it prints no steps"
    if scene.ranks and len(scene.ranks) == len(scene.waiting):
        return (
            f"{silence}, and its ranks wait in {scene.waited_for(())}: a long step, or ranks that "
            "wait for each other"
        )
    places: dict[str, list[int]] = {}
    for one in scene.ranks:
        does = f"wait{{s}} in {one.waits_in}" if one.waits_in else _does(one)
        places.setdefault(does, []).append(one.number)
    doing = ", ".join(
        f"{format_ranks(at)} {does.replace('{s}', '' if at[1:] else 's')}"
        for does, at in [*places.items()][:3]
    )
    return f"{silence}{f'; {doing}' if doing else ''}"


def _does(rank: Rank) -> str:
    call = rank.user_call
    if rank.place in STARTING:
        return rank.place.value
    if call:
        return f"in {label(call)}"
    if rank.native.where:
        return rank.native.where
    if not rank.is_python:
        return f"in {rank.last.syscall or 'a call that is not known'}"
    return rank.place.value


def not_seen(scene: Scene) -> Iterator[str]:
    """Yield what the diagnosis could not look at, in words."""
    for host in scene.silent:
        yield f"{called(host)}, which gave no evidence: {host.error}"
    for host in scene.hosts:
        pids = ", ".join(str(one.pid) for one in scene.unnumbered(host)[:6])
        if pids:
            yield f"which ranks processes {pids} on {called(host)} are: their environment is blank"
    native = [one for one in scene.ranks if not one.is_python and not one.native.frames]
    if native:
        failed = {one.process.native.error for one in native if one.process.native} - {""}
        reason = (
            "; ".join(sorted(failed))
            or "no Python programs, and not among the few that are stopped"
        )
        yield f"the calls of {format_ranks([one.number for one in native])}: {reason}"
    hosts = Counter(one.host.host for one in scene.ranks)
    near = [
        one.number
        for one in scene.ranks
        if not one.is_python and one.process.shared_bytes is None and hosts[one.host.host] > 1
    ]
    if near:
        send = "send" if near[1:] else "sends"
        yield f"what {format_ranks(near)} {send} through memory: only Open MPI's can be read"
    dark = [one for one in scene.ranks if one.is_python and not one.last.stacks]
    if dark:
        why = dark[0].last.stack_error
        yield f"the stacks of {format_ranks([one.number for one in dark])}{why and f': {why}'}"
    job = scene.evidence.job or scene.job  # without what a rank wrote into a log of its own
    if job.log_is_shared:
        yield f"its log, {job.log_name}: another job writes into it, too"
    elif job.log_is_older and not scene.rows:
        yield "what its log had before: that may be an earlier job's, or its lines come late"
    elif not job.log and not scene.rows:
        what = "it has written nothing" if job.log_silent_s is not None else "none was found"
        yield f"its log and its metrics: {what}"
    if any(one.is_python for one in scene.ranks) or not scene.ranks:
        yield "what its libraries do below Python"


def _settles(scene: Scene) -> str:
    """Return what would tell what is not known."""
    look, holes = scene.hints.look, scene.evidence.holes
    if any(_is_damaged(one, scene) for one in holes):
        return f"diagnose again, and save it again: {look} --save FILE"
    if holes or scene.evidence.job is None:
        return f"diagnose again: {look}; on a busy host it may take several tries"
    again = f"diagnose again in a minute ({look} --tree): a new step in its log shows progress"
    again += "; equal calls by themselves prove nothing, since a slow job makes them, too"
    if scene.evidence.source and not (scene.job.log or scene.rows or scene.job.log_name):
        again += "; a log is found if the job writes to a file"
    native = next((one for one in scene.ranks if not one.is_python and not one.native.frames), None)
    if native:
        again += f"; the calls of rank {native.number}, which is held meanwhile: "
        again += gdb_command(scene, native)
    return again


# The order decides which cause becomes the verdict, among those of equal severity.
RULES: tuple[Callable[[Scene], Iterable[Cause]], ...] = (
    silent_hosts,
    processes,
    daemons,
    abandoned,
    broken_links,
    unreached,
    unanswered,
    kernels,
    sizes,
    missing_ranks,
    unstarted,
    ended_ranks,
    odd_ranks,
    held_up,
    cycles,
    awaited,
    collectives,
    standing,
    differing,
    scripts,
    stalled,
    apart,
    at_rest,
    ras,
    ended_by_cause,
    recorded,
    left_over,
    ended_unexplained,
    host_facts,
    logged,
    hostnames,
    throttled,
    stragglers,
    slow_links,
    idle_cards,
    slowed_down,
    limits,
    other_users,
    clocks,
    quarantined,
)


def _clean(scene: Scene, found: list[Cause]) -> Iterator[str]:
    """Yield what was checked and is well, in words."""
    checks = {one.check for one in found}
    hosts = scene.evidence.hosts
    answered = [host for host in hosts if not host.error]

    def on(read: list[HostEvidence]) -> str:
        """Name the hosts of which something is known, unless these are all."""
        return f" on {fold_hosts([host.host for host in read])}" * (len(read) < len(hosts))

    if answered and len(answered) == len(hosts):
        yield f"{count(len(hosts), 'host')} answered"
    if scene.is_running and scene.ranks and not checks & {"rank.missing", "ranks.none"}:
        every = f"rank{'s' if len(scene.by_number) > 1 else ''} {rank_set(scene.by_number)}"
        is_whole = len(scene.ranks) == scene.size
        if is_whole:
            yield f"{every}: all there" if scene.ranks[1:] else f"{every} is there"
        if not any(check.startswith("rank.") for check in checks):
            yield "no rank is stopped or dead" if is_whole else f"{every}: none is stopped or dead"
    launched = scene.is_running and scene.launcher
    if launched and not any(check.startswith(("launcher", "daemon")) for check in checks):
        name = launched[1].launcher_name
        # Slurm's daemons are root's, and are not looked at.
        has_daemons = name in NAMED and name != "srun"
        with_daemons = f"{name} and its daemons" if has_daemons else name
        yield with_daemons + on([host for host in answered if not sees_nothing(host)])
    if scene.is_running and scene.job.log and not scene.stall:
        yield "no stall report of Horovod is open"
    facts = (
        ("filesystems", BAD_DISK, "disks, /dev/shm and mounts"),
        ("gpus", ("gpu.", "xid."), "GPUs"),
        ("system", ("host.name",), "hostnames"),
    )
    for fact, bad, words in facts:
        read = [host for host in answered if host.facts.get(fact)]
        broken = any(check.startswith(bad) for check in checks)
        if read and not broken:
            yield words + on(read)
    read = [host for host in answered if host.clock_offset_s is not None]
    if read and "clock.skew" not in checks:
        yield "clocks" + on(read)
    if any(sees_nothing(host) or host.hidden for host in hosts):
        return
    if answered and len(answered) == len(hosts) and not scene.left_over:
        yield "no rank of another job of this user"
