"""Rules on known errors in the job's log and in the kernel messages of its hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterctl.diagnosis.case import ERROR, INFO, WARNING, Cause, Scene, full_filesystems
from clusterctl.diagnosis.evidence import HostEvidence
from clusterctl.diagnosis.ranks import called, format_ranks
from clusterctl.domain.findings import Severity
from clusterctl.domain.units import format_duration
from clusterctl.explain.engine import explain
from clusterctl.explain.explanation import Explanation, LogFinding
from clusterctl.explain.failing import LineKind
from clusterctl.explain.signature import Role
from clusterctl.node.jobs.spec import AT_SHUTDOWN, JobState
from clusterctl.node.untrusted import whole

# An exception that need not be an error, of who sends that signal.
INTERRUPTED = "python.interrupted"
RANK_TEXT = 200  # characters that are compared
# The kernel keeps so much of a process's name; these are of Python, and of torch's data loaders.
LONGEST_NAME = 15
OF_PYTHON = ("python", "pt_")
LATELY_S = 3600.0  # in which a job may have run that is not found any more
# Ids of known log lines that a full disk or a full /dev/shm can cause.
NO_ROOM = {"system.no-space", "mpi.backing-file", "nccl.shm-full", "torch.shm", "system.bus-error"}


def first_error(scene: Scene) -> str:
    """Return the log's first error, known as a cause or not in the catalogue; else empty."""
    root, lead = root_error(scene), scene.explained.lead
    if lead and lead.signature.id == INTERRUPTED:
        root = lead
    unknown = next((one for one in scene.explained.unknown if one.fatal), None)
    if unknown and (root is None or unknown.line < root.line):
        return unknown.text
    return f"{root.text.strip()[:200]} ({root.cause})" if root else ""


def root_error(scene: Scene) -> LogFinding | None:
    """Return the known error in the log that is a cause, not a consequence; None without one."""
    lead = scene.explained.lead
    is_cause = lead and lead.signature.role is Role.ROOT and lead.signature.severity is ERROR
    return lead if is_cause else None


def kernels(scene: Scene) -> Iterator[Cause]:
    """Known errors in the kernel messages of the hosts since the job began: memory, GPUs, disks.
    Without a job those of memory and GPUs lately."""
    if scene.evidence.job is None:
        yield from _killed_lately(scene)
        for host in scene.evidence.hosts:
            # A line of unknown age may be of weeks ago.
            text = "\n".join(
                line.text
                for line in host.known.kernel_log
                if "NVRM: Xid" in line.text and line.age_s is not None and line.age_s <= LATELY_S
            )
            for one in explain([text]).of(Role.ROOT) if text else ():
                yield _of_kernel(scene, host, one, WARNING, False)
        return
    if scene.job.state is JobState.SUCCEEDED:
        return
    blocks = not scene.advances and scene.job.state is not JobState.CANCELLED
    for host in scene.hosts:
        lines = scene.kernel_lines(host)
        in_output = explain(["\n".join(lines)]) if lines else Explanation()
        for role in (Role.ROOT, Role.SYMPTOM):
            for one in in_output.of(role):
                severe = blocks and role is Role.ROOT and one.signature.severity is ERROR
                yield _of_kernel(scene, host, one, ERROR if severe else WARNING, severe)


def _killed_lately(scene: Scene) -> Iterator[Cause]:
    """What the kernels have killed for memory lately. A job that is not found may have ended so."""
    for host in scene.evidence.hosts:
        for one in reversed(host.known.kernel_log):
            killed = re.search(r"Killed process (\d{1,9}) \(([^)]{1,60})\)", one.text)
            if killed and one.age_s is not None and one.age_s <= LATELY_S:
                yield Cause(
                    "host.oom",
                    INFO,
                    f"the kernel of {called(host)} killed {killed[2]} (pid {killed[1]}) for want "
                    f"of memory {format_duration(one.age_s)} ago",
                    host.host,
                    "a job whose process it was has ended by that: fewer or smaller ranks on it",
                    evidence=(one.text[:300],),
                    blocks=False,
                )
                break


def _of_kernel(
    scene: Scene, host: HostEvidence, one: LogFinding, severity: Severity, blocks: bool
) -> Cause:
    """Return the cause of a known error in the kernel log, with the ranks that it hit."""
    check = one.signature.id
    ranks: tuple[int, ...] = ()
    message = f"the kernel of {called(host)}: {one.cause}"
    if "oom" in check:
        pids = re.findall(
            r"Killed process (\d{1,9})|[, ]pid=(\d{1,9})", "\n".join(scene.kernel_lines(host))
        )
        numbers = {scene.rank_of_pid(host, int(first or second)) for first, second in pids} - {None}
        if numbers:
            ranks = tuple(sorted(number for number in numbers if number is not None))
            check = "rank.oom"
            was = "were" if len(ranks) > 1 else "was"
            message = f"{format_ranks(ranks)} on {called(host)} {was} killed: {one.cause}"
        elif scene.advances and scene.is_whole:
            severity = INFO  # whatever it was, the job goes on without it
        elif blocks and _killed_others(scene, host):
            severity, blocks = WARNING, False
    gpu = one.values.get("gpu", "")
    index = _gpu_index(host, gpu)
    if index is not None:
        using = [r.number for r in scene.ranks if r.host is host and index in r.process.gpus]
        ranks = tuple(sorted(using))
        message += f" (GPU {index}{f', {format_ranks(ranks)}' if ranks else ''})"
    hint = one.remedy
    if scene.evidence.cluster:
        hint = hint.replace("NAME NODE", f"{scene.evidence.cluster} {host.index}")
    return Cause(check, severity, message, host.host, hint, ranks, (one.text[:300],), blocks)


def _killed_others(scene: Scene, host: HostEvidence) -> bool:
    """Return whether what the kernel of a host has killed for memory was hardly of the job: all its
    ranks run, and no program or script that runs there, nor a process of Python's, has that name.
    """
    names = re.findall(r"Killed process \d+ \(([^)]*)\)", "\n".join(scene.kernel_lines(host)))
    programs = {one.rpartition("/")[2] for process in host.processes for one in process.argv[:2]}
    own = (*(one[:LONGEST_NAME] for one in programs if one), *OF_PYTHON)
    return scene.is_whole and bool(names) and not any(name.startswith(own) for name in names)


def _gpu_index(host: HostEvidence, bus: str) -> int | None:
    """Return the index of a GPU by its PCI address in kernel messages; None if unknown.

    The kernel's `0000:00:1e` is nvidia-smi's `00000000:00:1e.0`.
    """
    for index, gpu in enumerate(host.gpus):
        known = gpu.bus.lower().rpartition(".")[0]
        if bus and known and known.endswith(bus.lower().removeprefix("pci:")):
            return index
    return None


def ended_by_cause(scene: Scene) -> Iterator[Cause]:
    """Why a job failed, if its log has the cause; also a job that had nothing left to train."""
    job = scene.job
    if job.state is JobState.SUCCEEDED:
        for line in job.log[-40:]:
            found = re.search(r"Nothing to train: (\S+) has all (\d+) steps", line)
            if found:
                yield Cause(
                    "log.nothing_left",
                    WARNING,
                    f"job {job.job_id} ended at once: the checkpoint {found[1]} has all "
                    f"{found[2]} steps, so that nothing was left to train",
                    hint="train longer (--epochs), or from scratch (--clear)",
                    evidence=(line.strip()[:300],),
                )
    if job.state is JobState.CANCELLED and job.reason.startswith("by watchdog"):
        # Each message begins with its time.
        said = [one.partition(" UTC: ")[2] for one in job.messages]
        verdicts = [one for one in said if re.match(r"no step for [^:;]+: ", one)]
        yield Cause(
            "job.cancelled",
            ERROR,
            f"job {job.job_id} was cancelled by its watchdog: {['it made no step', *verdicts][-1]}",
            hint=next((one for one in said if one.startswith("all observations")), ""),
        )
    root = root_error(scene)
    if not has_failed(scene) or not (root or scene.explained.unknown):
        return
    yield failure(scene, root)


def ended_unexplained(scene: Scene) -> Iterator[Cause]:
    """A job that failed, if its log has only consequences, or nothing that is known."""
    if has_failed(scene) and not (root_error(scene) or scene.explained.unknown):
        yield failure(scene, scene.explained.lead)


def has_failed(scene: Scene) -> bool:
    if scene.is_ending:
        return True
    ended = scene.evidence.job is not None and not scene.is_running
    return ended and scene.job.state not in (
        JobState.SUCCEEDED,
        JobState.CANCELLED,
        JobState.QUEUED,
    )


def failure(scene: Scene, one: LogFinding | None) -> Cause:
    """Return the cause of a job that failed; `one` is the known error in its log, if any."""
    job = scene.job
    status = f" with exit status {job.exit_status}" if job.exit_status is not None else ""
    begin = f"job {job.job_id} {job.state}{status}"
    if scene.is_ending:
        begin = f"no rank of job {job.job_id} runs, and it has not ended yet"
    begin += _restarted(scene) or _killed(scene)
    hint = scene.hints.cluster(f"clusterctl logs NAME {job.job_id}".strip())
    ranks = _ranks_that_say(scene, one) or scene.first_to_end
    at = scene.host_of.get(ranks[0]) if ranks else None
    by = ""
    if ranks and ranks == scene.first_to_end:
        by = f"; mpirun saw rank {ranks[0]} end first" + (f", on {called(at)}" if at else "")
    if one is None:
        unknown = scene.explained.unknown
        if unknown:
            text = f"{begin}: {unknown[0].text[:300]}{by}"
            shown = (f"line {unknown[0].line}: {unknown[0].text[:300]}",)
            own = whole(unknown[0].rank)
            if own is not None:
                ranks = (own,)
                at = scene.host_of.get(ranks[0])
            host = at.host if at else None
            if ranks and not by:
                text = f"{begin}: {format_ranks(ranks)}{f' on {called(at)}' if at else ''}: "
                text += unknown[0].text[:300]
            return Cause("log.exception", ERROR, text, host, hint, ranks, shown)
        text = f"{begin}{ENDS.get(job.exit_status or 0, '')}, and its log does not say why{by}"
        return Cause("job.failed", ERROR, text, at.host if at else None, hint, ranks)
    if one.ranks:
        ranks, by = tuple(sorted(one.ranks)), ""
        at = scene.host_of.get(ranks[0])
    # Who complains of another host is the victim of a rank there.
    peer = [host for host in scene.evidence.hosts if one.values.get("peer") in host.names]
    named = [host for host in scene.evidence.hosts if one.values.get("host") in host.names]
    if peer:
        named = peer
        there = tuple(rank for rank, host in scene.host_of.items() if host is peer[0])
        ranks = there if len(there) == 1 else ()
        who = f"{format_ranks(ranks)} on " if ranks else ""
        by = f"; at the other end was {who}{called(peer[0])}"
    at = named[0] if named else at
    full = full_filesystems(scene) if one.signature.id in NO_ROOM else []
    if full:
        [(at, path), *_] = full
        check = "shm.full" if path == "/dev/shm" else "disk.full"  # noqa: S108
        text = f"{begin}: {path} on {called(at)} is full"
        return Cause(check, ERROR, text, at.host, one.remedy, ranks, (one.text[:300],))
    only = ""
    if one.signature.role is Role.SYMPTOM:
        only = ", and its log has no cause of that"
    elif one.signature.role is Role.CONSEQUENCE:
        only = ", which is a consequence: its log does not have the cause"
    text = f"{begin}: {one.cause}{only}{by}"
    shown = (f"line {one.line}: {one.text[:300]}",)
    return Cause(one.signature.id, ERROR, text, at.host if at else None, one.remedy, ranks, shown)


# What an exit status of mpirun, as a shell gives it, says about its end. Open MPI also ends with
# the status of a rank that a signal has ended.
ENDS = {
    129: ": signal 1 (SIGHUP), as when the terminal or login of mpirun is closed",
    130: ": signal 2 (SIGINT), as of Ctrl-C",
    137: ": mpirun or a rank got signal 9 (SIGKILL), from a person, a program, or the kernel for "
    "want of memory",
    143: ": mpirun or a rank got signal 15 (SIGTERM), from a person, a program, or a shutdown",
    255: ": ssh and mpirun end so if a connection or a daemon is lost",
}


def _restarted(scene: Scene) -> str:
    """Return, in words, that the head node was restarted after the job began; else empty."""
    head = next((host for host in scene.evidence.hosts if host.index == 0), None)
    up_s, since_s = head.known.system.uptime_s if head else None, scene.since_start_s
    if head is None or up_s is None or since_s is None or up_s >= since_s:
        return ""
    return f"; {called(head)}, on which mpirun ran, was restarted {format_duration(up_s)} ago"


def _killed(scene: Scene) -> str:
    """Return, in words, that a job without a recorded end was killed; else empty."""
    if scene.job.state is not JobState.LOST or not scene.job.reason:
        return ""
    if AT_SHUTDOWN in scene.job.reason:
        reason = scene.job.reason.replace(AT_SHUTDOWN, "")
        return f"; its processes were killed ({reason}), as `clusterctl kill` or a shutdown does"
    return f"; {scene.job.reason}"


def _ranks_that_say(scene: Scene, one: LogFinding | None) -> tuple[int, ...]:
    """Return the ranks whose own logs have the error that ended the job; not more than half."""
    unknown = scene.explained.unknown
    text = (one.text if one else unknown[0].text if unknown else "").strip()[:RANK_TEXT]
    logs = scene.job.rank_logs
    numbers = (whole(rank) for rank, lines in logs.items() if any(text in one for one in lines))
    named = [rank for rank in numbers if text and rank is not None]
    return tuple(sorted(named)) if len(named) * 2 <= max(2, len(logs)) else ()


def logged(scene: Scene) -> Iterator[Cause]:
    """Errors in the log of a running job that makes no steps."""
    if not scene.is_running or scene.is_ending or scene.advances or not scene.is_quiet:
        return
    root = root_error(scene)
    if root and not root.signature.id.startswith("horovod.stall"):
        ranks = tuple(sorted(root.ranks))
        at = scene.host_of.get(ranks[0]) if ranks else None
        text = f"the log has: {root.cause}"
        shown = (f"line {root.line}: {root.text[:300]}",)
        host = at.host if at else None
        yield Cause(root.signature.id, ERROR, text, host, root.remedy, ranks, shown)
    lead = scene.whole_log.lead
    stall = lead and lead.signature.id.startswith("horovod.stall")
    if lead and not root and not stall and lead.signature.severity is ERROR:
        is_late = lead.line in [one.line for one in scene.explained.findings]
        where = "the log has" if is_late else "earlier in the log, and the job went on"
        text = f"{where}: {lead.cause}"
        shown = (f"line {lead.line}: {lead.text[:300]}",)
        yield Cause(lead.signature.id, INFO, text, None, lead.remedy, (), shown, blocks=False)
    unknown = [one for one in scene.explained.unknown if one.fatal]
    for one in () if root else unknown[:1]:
        is_exception = one.kind is LineKind.EXCEPTION
        what = "has an exception" if is_exception else "reports a failure"
        text = f"the log {what}, which is not in the catalogue: {one.text[:300]}"
        hint = scene.hints.cluster("clusterctl logs NAME")
        severity = ERROR if is_exception else WARNING
        yield Cause("log.exception", severity, text, hint=hint, evidence=(f"line {one.line}",))
