"""The conclusions from the evidence: the verdict, the findings, and what was checked and is well.

A rule is a function of a Scene that yields causes. RULES are in the order in which their causes
become the verdict: what is stuck itself comes before what waits for it, and what was observed
before what is inferred. If several causes are possible, the message names them and what would tell
them apart.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.diagnosis import nccl
from clusterctl.diagnosis.case import (
    FULL_BYTES,
    STARTED_AFTER_S,
    Cause,
    Rank,
    Scene,
    called,
    combine,
    who,
)
from clusterctl.diagnosis.evidence import Evidence, HostEvidence, ProcessEvidence, Sample
from clusterctl.diagnosis.tree import Activity, label, main_thread, others, rank_set
from clusterctl.domain.findings import Severity
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.explain.engine import Explanation, LogFinding, explain
from clusterctl.explain.signature import Role

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
STATUSES = {INFO: 0, WARNING: 1, ERROR: 2}
HEALTHY, QUEUED = "healthy", "queued"
# From this difference between clocks on, logs are hard to compare. (TLS and S3 fail at 15 min.)
SKEW_S = 2.0
FEW_DESCRIPTORS = 64  # that a rank has left
# A link is slow if at least MOVED_BYTES were sent over it, for SENDING_SHARE of the time, if its
# round trip is ROUND_TRIP_S or more, and if both speed and round trip are TIMES_SLOWER times worse
# than on another link. Shorter round trips prove nothing: Linux delays acknowledgements by 40 ms.
MOVED_BYTES, SENDING_SHARE, ROUND_TRIP_S, TIMES_SLOWER = 64 << 10, 0.25, 0.05, 8
# With at least GLANCES glances: a straggler works in WORKS_SHARE of them, the other ranks on
# average in RESTS_SHARE at most.
GLANCES, WORKS_SHARE, RESTS_SHARE = 15, 0.6, 0.3
# The same for samples: a straggler is at its own work in BUSY_SHARE of them, and the other ranks
# wait in WAIT_SHARE of theirs.
BUSY_SHARE, WAIT_SHARE = 0.75, 0.5
SLOWED = 1.5  # how many times slower the last steps of a job have to be


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis. `verdict` is a sentence; `clean` is what was checked and is well.

    `check_id` is that of the finding that the verdict is made from, or one of `healthy`, `unknown`,
    `idle`, `queued`, `starting` and `ended`.
    """

    verdict: str
    check_id: str
    findings: tuple[Cause, ...] = ()
    clean: tuple[str, ...] = ()

    @property
    def severity(self) -> Severity:
        return max((one.severity for one in self.findings), key=STATUSES.__getitem__, default=INFO)

    @property
    def exit_status(self) -> int:
        """The command's exit status: 2 for errors, 1 for warnings, else 0."""
        return STATUSES[self.severity]

    def as_data(self) -> dict[str, Any]:
        """Return the diagnosis for `--json`."""
        lead = self.findings[0] if self.findings else None
        about = lead if lead and lead.check_id == self.check_id else None
        return {
            "verdict": self.verdict,
            "check": self.check_id,
            "severity": self.severity.value,
            "host": about.host if about else None,
            "ranks": list(about.ranks) if about else [],
            "findings": [
                {
                    "check": one.check_id,
                    "severity": one.severity.value,
                    "host": one.host,
                    "ranks": list(one.ranks),
                    "message": one.message,
                    "evidence": list(one.evidence),
                    "hint": one.hint,
                }
                for one in self.findings
            ],
            "clean": list(self.clean),
        }


def diagnose(evidence: Evidence) -> Diagnosis:
    """Draw the conclusions from the evidence."""
    case = Scene(evidence)
    found = [cause for rule in RULES for cause in rule(case)]
    found = _folded(case, found)
    blockers = [one for one in found if one.blocks and one.severity is not INFO]
    if not blockers and not case.is_running:
        blockers = [one for one in found if one.severity is not INFO]
    lead = min(blockers, key=lambda one: -STATUSES[one.severity], default=None)
    rest = [one for one in found if one is not lead]
    rest.sort(key=lambda one: -STATUSES[one.severity])
    clean = tuple(_clean(case, found))
    if lead is None:
        check, words = _without_cause(case, rest)
        return Diagnosis(words, check, tuple(rest), clean)
    lead = _whole(case, lead, rest)
    return Diagnosis(lead.message, lead.check_id, (lead, *rest), clean)


def _folded(case: Scene, found: list[Cause]) -> list[Cause]:
    """Merge findings that another one explains into that one, as its evidence."""
    kept = list(found)
    for one in found:
        if one.check_id in ("rank.skipped", "rank.missed"):
            into = [x for x in kept if x.ranks and {*one.ranks} <= {*x.ranks} and x is not one]
            into = [x for x in into if x.check_id.startswith(("rank.", "disk.", "host."))]
        elif one.check_id in _NO_ROOM | {"disk.full"} and not one.ranks:
            into = [x for x in kept if x.check_id == "disk.full" and x.ranks]
            into = [x for x in into if not one.host or one.host == x.host]
        elif one.check_id in ("rank.io", "rank.blocked"):
            # A child between fork and exec looks like a second process of its rank.
            into = [x for x in kept if x.check_id == "rank.uninterruptible"]
            into = [x for x in into if {*one.ranks} <= {*x.ranks}]
        elif not case.is_running and _is_of_link(one):
            into = [x for x in kept if x.check_id == "host.off" and x.blocks]
        else:
            continue
        if into:
            at = kept.index(into[0])
            shown = tuple(dict.fromkeys((*into[0].evidence, *one.evidence)))
            worse = max(one.severity, into[0].severity, key=STATUSES.__getitem__)
            kept[at] = replace(into[0], severity=worse, evidence=shown)
            kept.remove(one)
    return kept


def _is_of_link(one: Cause) -> bool:
    """Return whether the finding may be a consequence of a host that went down."""
    return one.check_id.startswith(("ssh.", "mpi.", "prrte.", "net", "job.failed"))


def _whole(case: Scene, lead: Cause, rest: list[Cause]) -> Cause:
    """Add to the verdict's finding what other ranks wait for, and what is wrong with its host."""
    message, shown = lead.message, list(lead.evidence)
    blocked = case.is_running and not case.advances and lead.check_id.startswith(("rank.", "disk."))
    waiting = [one for one in case.waiting if one.number not in lead.ranks]
    if blocked and lead.ranks and waiting and "wait" not in message:
        what = case.waited_for(lead.ranks)
        message += f"; {_ranks_wait(waiting)} in {what}{case.since}"
    for one in rest:
        same = one.host and one.host == lead.host and not one.ranks
        if same and one.check_id in ("disk.full", "mount.dead") and lead.check_id != one.check_id:
            message += f"; {one.message}"
    absent = case.stall.absent(case.size) if case.stall else {}
    for rank in lead.ranks:
        if rank in absent:
            shown.append(f"Horovod: missing rank {rank}: {', '.join(absent[rank][:6])}")
    return replace(lead, message=message, evidence=tuple(shown))


def _ranks_wait(waiting: list[Rank]) -> str:
    if len(waiting) == 1:
        return f"rank {waiting[0].number} waits for it"
    return f"{len(waiting)} ranks wait for it"


def _without_cause(case: Scene, rest: list[Cause]) -> tuple[str, str]:
    """Return the check id and the verdict if no finding blocks the job."""
    job = case.job
    name = f"job {job.job_id}" if job.job_id else "the job"
    beside = "; see the warnings" if any(one.severity is not INFO for one in rest) else ""
    if case.evidence.job is None:
        return "idle", f"no job runs on {case.cluster}, and none has run{beside}"
    if not case.is_running:
        if job.state == QUEUED:
            return QUEUED, f"{name} waits for its turn: clusterctl jobs {case.cluster}{beside}"
        age = f" after {format_duration(job.age_s)}" if job.age_s else ""
        if job.state == "succeeded":
            return HEALTHY, f"{name} ended well{age}{beside}"
        if job.state == "cancelled":
            return "ended", f"{name} was cancelled{age}{beside}"
        return "ended", f"{name} {job.state}{age}, and nothing that was seen says why{beside}"
    whole = f"all {case.size} ranks are there" if case.size else "no rank was seen"
    if case.advances:
        return HEALTHY, f"{name} is healthy: {case.advances}, and {whole}{beside}"
    places = Counter(one.place for one in case.ranks)
    if case.ranks and (places[Activity.IMPORT] or job.age_s < 60):
        what = places.most_common(1)[0][0].value if places else ""
        return "starting", f"{name} is starting: {whole}, most of them {what}{beside}"
    if case.ranks and len(case.ranks) == len(case.waiting):
        return "unknown", (
            f"nothing is wrong with any rank or host that was seen: {whole} and wait in "
            f"{case.waited_for(())}{case.since}. That is a long step, or ranks that wait for each "
            "other: Horovod reports the second after one or two minutes. Look again then"
        )
    silence = f"; it has said nothing{case.since}" if case.since else ""
    return HEALTHY, (
        f"nothing is wrong with {name}: {whole}, at work or waiting as ranks do between steps"
        f"{silence}{beside}"
    )


# ---- hosts that are silent, daemons, processes ----------------------------------------------


def silent_hosts(case: Scene) -> Iterator[Cause]:
    """Hosts that did not answer: off, frozen, cut off, or with another host key."""
    used = {host.host for host in case.hosts}
    slow = {cause.host for cause in slow_links(case)} if case.silent else set()
    for host in case.silent:
        if host.host in slow:
            continue  # it did not answer in time because of its link, which slow_links reports
        matters = case.is_running and (host.host in used or bool(host.quarantined))
        ranks = tuple(sorted(one for one, at in case.host_of.items() if at.host == host.host))
        what, shown = _silence(case, host)
        there = f"; {_plural_ranks(ranks)} {_are(ranks)} there" if ranks else ""
        check = "host.key" if re.search(r"host key", host.error) else "host.silent"
        if "off" in what:
            check = "host.off"
        # A host that is off is the cause of the job's end, unless the log shows another one.
        ended = _failed(case) and check == "host.off" and host.host in used
        root = _root(case)
        if ended and not case.explained.unknown and (not root or _is_of_link(_failure(case, root))):
            matters = True
        severity = ERROR if matters and not (case.advances and check == "host.silent") else WARNING
        again = "the job has to be started again"
        if case.is_running and case.job.retries_left:
            again = "the job is started again by itself when its nodes answer"
        hints = {
            "host.off": f"clusterctl start {case.cluster}, or replace it: clusterctl replace "
            f"{case.cluster} {host.index}; {again}",
            "host.key": "another machine may answer at its address: see "
            f"`clusterctl status {case.cluster}` before you trust it",
            "host.silent": f"clusterctl reboot {case.cluster} {host.index}; if that does not help: "
            f"clusterctl replace {case.cluster} {host.index}",
        }
        message = f"{called(host)} {what}{there}"
        if matters and not case.is_running:
            message += f": job {case.job.job_id} {case.job.state} without it"
        elif matters:
            message += case.since and f", and the job has made no step{case.since}"
        # A changed host key does not stop the job.
        blocks = matters and check != "host.key"
        yield Cause(check, severity, message, host.host, hints[check], ranks, shown, blocks)


def _are(ranks: Sized) -> str:
    return "are" if len(ranks) > 1 else "is"


def _plural_ranks(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return f"{'ranks' if len(listed) > 1 else 'rank'} {format_indices(listed)}"


def _silence(case: Scene, host: HostEvidence) -> tuple[str, tuple[str, ...]]:
    """Return why a host did not answer, and the evidence: EC2's state, SSH's error, sockets."""
    shown = [f"SSH: {host.error}"] + ([host.ec2] if host.ec2 else [])
    said = f"{host.error} {host.ec2}"
    retransmits = persist = queued = 0
    for other in case.evidence.hosts:
        for process in other.processes:
            for socket in process.samples[-1].sockets if process.samples else ():
                if host.address and socket.peer.rpartition(":")[0] == host.address:
                    retransmits = max(retransmits, socket.retransmits)
                    persist += socket.timer == "persist"
                    queued += socket.send_queue_bytes
    if retransmits or persist or queued:
        shown.append(
            f"sockets to it: {format_bytes(queued)} unsent, {retransmits} retransmissions, "
            f"{persist} with a closed window"
        )
    if re.search(r"\b(stopped|stopping|terminated|shutting-down)\b|no such instance", said):
        state = re.search(r"stopped|stopping|terminated|shutting-down", said)
        return f"is off: EC2 has it as {state[0] if state else 'gone'}", tuple(shown)
    if "host key" in host.error:
        return "shows another host key than the one that is pinned", tuple(shown)
    if "refused every key" in host.error:
        return "refuses the cluster's key", tuple(shown)
    if "answers none in time" in host.error or "did not end" in host.error:
        return "takes connections and answers none: it is frozen, or far too busy", tuple(shown)
    if persist and not retransmits:
        return "answers no longer, and its kernel still takes packets: frozen", tuple(shown)
    if retransmits or "did not answer in time" in host.error or "no route" in host.error:
        more = ", and its peers' packets to it are not acknowledged" if retransmits else ""
        return f"cannot be reached: its link is cut, or it is down{more}", tuple(shown)
    return f"gives no answer: {host.error}", tuple(shown)


def daemons(case: Scene) -> Iterator[Cause]:
    """Processes of mpirun, and of its daemons on the nodes, that are stopped or have ended."""
    if not case.is_running:
        return
    for host in case.hosts:
        at_host = [
            one
            for one in host.processes
            if one.role in ("launcher", "daemon") and one.samples
            if (one.job_id or "") == case.job.job_id
        ]
        for process in at_host:
            # prted may have a parent of the same role, which only waits for it: they are one.
            if any(process.parent == one.pid and one.role == process.role for one in at_host):
                continue
            states = {sample.state for sample in process.samples}
            family = [process, *(one for one in at_host if one.parent == process.pid)]
            pids = " ".join(str(one.pid) for one in family if _is_stopped(one))
            shown = tuple(_process_line(one) for one in family if _is_stopped(one))
            states = {"T"} if pids else states
            name = "mpirun" if process.role == "launcher" else "mpirun's daemon (prted)"
            if states == {"T"}:
                yield Cause(
                    f"{process.role}.stopped",
                    ERROR,
                    f"{name} on {called(host)} is stopped (state T): ranks' output and the job's "
                    "end stay with it",
                    host.host,
                    _on(case, host, f"kill -CONT {pids}"),
                    evidence=shown,
                )
            elif any({sample.state for sample in one.samples} == {"Z"} for one in family):
                yield Cause(
                    f"{process.role}.ended",
                    ERROR,
                    f"{name} on {called(host)} has ended",
                    host.host,
                    f"clusterctl cancel {case.cluster}, and start the job again",
                    evidence=(_process_line(process),),
                )


def _is_stopped(process: ProcessEvidence) -> bool:
    states = {sample.state for sample in process.samples}
    return len(states) == 1 and states <= {"T", "t"} and process.role in ("launcher", "daemon")


def _on(case: Scene, host: HostEvidence, command: str) -> str:
    return f"clusterctl run {case.cluster} --nodes {host.index} {shlex.quote(command)}"


def _process_line(process: ProcessEvidence) -> str:
    last = process.samples[-1] if process.samples else Sample()
    parts = [f"pid {process.pid}", f"state {''.join(one.state for one in process.samples)}"]
    parts += [f"in {last.syscall}"] if last.syscall and last.syscall != "running" else []
    parts += [f"wchan {last.wait_channel}"] if last.wait_channel else []
    return ", ".join(parts)


def _rank_lines(rank: Rank) -> tuple[str, ...]:
    """Return the evidence of where a rank is: its process, and the innermost calls of its stack."""
    frames = main_thread(rank.last)
    stack = " > ".join(label(frame) for frame in frames[-4:])
    line = f"rank {rank.number}: {_process_line(rank.process)}"
    return (line, f"rank {rank.number}: {stack}") if stack else (line,)


def processes(case: Scene) -> Iterator[Cause]:
    """Ranks whose process state is the cause: stopped, traced, ended, blocked in the kernel."""
    found = []
    for rank in case.ranks:
        shown = _rank_lines(rank)
        if rank.was("T"):
            hint = _on(case, rank.host, f"kill -CONT {rank.process.pid}")
            found.append(("rank.stopped", ERROR, rank, "{is} stopped (state T)", shown, hint))
        elif rank.was("t"):
            what = "{is} held by a debugger (state t)"
            found.append(
                ("rank.traced", ERROR, rank, what, shown, "detach the debugger, or let it go on")
            )
        elif rank.was("Z"):
            hint = f"clusterctl logs {case.cluster}"
            found.append(("rank.exited", ERROR, rank, "{has} ended (state Z)", shown, hint))
        elif rank.was("D") and not rank.moved and not case.advances:
            full = _full_disks(rank)
            at_full = _no_further(case, rank, full, "", shown)
            found.append(at_full if full else _in_kernel(case, rank, shown))
    yield from combine(found)


def _in_kernel(
    case: Scene, rank: Rank, shown: tuple[str, ...]
) -> tuple[str, Severity, Rank, str, tuple[str, ...], str]:
    """Return the finding about a rank in state D, as input of `combine`."""
    path = _path_in(rank.last.syscall)
    where = f" on {path}" if path else ""
    call = rank.last.syscall.partition(" ")[0]
    what = f"{{is}} blocked in the kernel (state D){where}"
    if call and call != "running":
        what += f", in {call}"
    channel = rank.last.wait_channel
    if re.search(r"nfs|rpc_|fuse|request_wait|ceph|cifs", channel):
        what += f" ({channel}: a remote file system does not answer)"
    elif re.search(r"nvidia|nv_|os_acquire", channel):
        what += f" ({channel}: the GPU's driver does not answer)"
    elif channel:
        what += f" ({channel})"
    hint = (
        "no signal ends such a process but what it waits for: look at that file system or device; "
        f"clusterctl reboot {case.cluster} {rank.host.index} ends it"
    )
    stuck = (case.others_wait([rank.number]) or case.is_quiet) and not _gets_on(rank)
    severity = ERROR if stuck else WARNING
    return ("rank.uninterruptible", severity, rank, what, shown, hint)


def _path_in(syscall: str) -> str:
    """Return the path in a system call such as `read /data/train-00017`; else empty."""
    found = re.match(r"\w+ (/.*)", syscall)
    return found[1] if found else ""


def missing_ranks(case: Scene) -> Iterator[Cause]:
    """Ranks that run nowhere, although the job's size includes them.

    Ranks on hosts that could not be observed are not counted as missing.
    """
    if not case.is_running or not case.size:
        return
    silent = {host.host for host in case.silent}
    blind = {host.host for host in case.hosts if not host.error and _sees_nothing(host)}
    unseen = [
        rank
        for rank in range(case.size)
        if rank not in case.by_number
        and (rank not in case.host_of or case.host_of[rank].host not in silent | blind)
    ]
    if not unseen or (silent and any(rank not in case.host_of for rank in unseen)):
        return
    if any(one.place is Activity.ENDED for one in case.ranks) and case.advances:
        return
    ages = [one.process.age_s for one in case.ranks]
    if not ages:
        if case.job.age_s > 30 and not (case.job.retries_left and case.silent):
            yield Cause(
                "ranks.none",
                ERROR,
                f"no rank runs anywhere, {format_duration(case.job.age_s)} after the start",
                hint=f"clusterctl logs {case.cluster} says how far mpirun got; end it: clusterctl "
                f"cancel {case.cluster}",
            )
        return
    if max(ages) < STARTED_AFTER_S:
        return
    by_host: dict[str, list[int]] = {}
    for rank in unseen:
        by_host.setdefault(called(case.host_of[rank]) if rank in case.host_of else "", []).append(
            rank
        )
    for where, ranks in by_host.items():
        first = case.host_of.get(ranks[0])
        place = f" on {where}" if where else ""
        yield Cause(
            "rank.missing",
            ERROR,
            f"{_plural_ranks(ranks)}{place} {_are(ranks)} gone: of the job's {case.size} ranks "
            f"{len(case.ranks)} run",
            first.host if first else None,
            f"clusterctl logs {case.cluster} may say why it ended; then clusterctl cancel "
            f"{case.cluster}",
            tuple(ranks),
            tuple(_gone_line(case, rank) for rank in ranks[:6]),
        )


def _sees_nothing(host: HostEvidence) -> bool:
    """Return whether the processes of a host that answered could not be read."""
    return any(text.startswith("processes:") for text in host.problems)


def _gone_line(case: Scene, number: int) -> str:
    ended = [one for one in case.gone if one.number == number]
    if ended:
        return f"rank {number}: pid {ended[0].process.pid} ended while it was looked at"
    where = f" on {case.host_of[number].host}" if number in case.host_of else ""
    return f"rank {number}: no process{where}"


# ---- what ranks do ---------------------------------------------------------------------------


def ended_ranks(case: Scene) -> Iterator[Cause]:
    """Ranks whose program has ended, by an exception or by a return, while others go on."""
    ended = [one for one in case.ranks if one.place is Activity.ENDED]
    rest = [one for one in case.ranks if one.place is not Activity.ENDED]
    if not ended or not rest or case.advances:
        return
    failed = _exception(case)
    found = []
    for rank in ended:
        at = main_thread(rank.last)[0].function
        threads = [one.thread for one in others(rank.last)][:3]
        kept = f" and is kept by its thread {threads[0]}" if threads and at == "_shutdown" else ""
        kept = "{has} left the program" + kept + ", while the others go on"
        what = f"{kept}: {failed}" if failed else kept
        hint = (
            f"clusterctl logs {case.cluster} has its last words; then clusterctl cancel "
            f"{case.cluster}"
        )
        check = "rank.exception" if failed else "rank.left"
        found.append((check, ERROR, rank, what, _rank_lines(rank), hint))
    yield from combine(found)


def suspects(case: Scene) -> list[Rank]:
    """Return the few ranks that are at their own work at every sample, while all others wait."""
    out = [
        one
        for one in case.ranks
        if one.samples and not one.waits and one.place not in (Activity.IMPORT, Activity.ENDED)
    ]
    few = len(out) * 2 < len(case.ranks) or (len(out) == 1 and len(case.ranks) == 2)
    if not out or not few or not case.others_wait(one.number for one in out):
        return []
    # A rank that was in a step at one of the samples makes progress.
    return [one for one in out if not any(place in _STEPS for place in one.places)]


_STEPS = (Activity.COLLECTIVE, Activity.GRAPH, Activity.INIT)


def odd_ranks(case: Scene) -> Iterator[Cause]:
    """Ranks that keep the others waiting: in a file, in a loop, on a full disk."""
    if case.advances:
        return
    found = []
    for rank in suspects(case):
        if not (set(rank.states) <= set("RSD")):
            continue
        shown = _rank_lines(rank)
        full = _full_disks(rank) or _full_by_log(case, rank)
        path = _path_in(rank.last.syscall) if _same_call(rank) else ""
        call = rank.user_call
        where = f" in {label(call)}" if call else ""
        if full:
            found.append(_no_further(case, rank, full, where, shown))
        elif path and not rank.was("R") and "S" in rank.states and not rank.moved:
            kind = "opening" if rank.last.syscall.startswith("open") else "reading"
            kind = "writing" if rank.last.syscall.startswith(("write", "pwrite")) else kind
            channel = rank.last.wait_channel
            pipe = " (a pipe: nobody is at its other end)" if _is_pipe(channel) else ""
            what = f"{{is}} blocked {kind} {path}{pipe}{where}"
            ls = _on(case, rank.host, f"ls -l {shlex.quote(path)}")
            hint = f"see what is at {path}: {ls}"
            found.append(("rank.io", ERROR, rank, what, shown, hint))
        elif rank.place is Activity.DATA:
            what = "{is} waiting for the next batch of data: its input is stuck, or slow"
            hint = f"clusterctl diagnose {case.cluster} --tree shows its threads"
            severity = ERROR if case.is_quiet else WARNING
            found.append(("rank.data", severity, rank, what, shown, hint))
        elif rank.moved or "R" in rank.states or rank.place is Activity.USER:
            found.append(_busy(case, rank, where, shown))
        elif case.is_quiet:
            inner = rank.shared_frames[-1:]
            deep = f", {label(inner[0])}" if inner else ""
            what = f"{{is}} blocked{where}{deep}"
            hint = f"clusterctl diagnose {case.cluster} --tree shows its whole stack"
            found.append(("rank.blocked", ERROR, rank, what, shown, hint))
    yield from combine(found)


def _no_further(
    case: Scene, rank: Rank, disk: str, where: str, shown: tuple[str, ...]
) -> tuple[str, Severity, Rank, str, tuple[str, ...], str]:
    """Return the finding about a rank on a full disk, as input of `combine`."""
    hint = (
        f"clusterctl disk {case.cluster} says what fills it; clusterctl clean-logs {case.cluster} "
        "makes room"
    )
    what = f"get{{s}} no further{where}: {disk} on that host is full"
    return ("disk.full", ERROR, rank, what, shown, hint)


def _busy(
    case: Scene, rank: Rank, where: str, shown: tuple[str, ...]
) -> tuple[str, Severity, Rank, str, tuple[str, ...], str]:
    """Return the finding about a rank at its own work, as input of `combine`."""
    looks = f"{len(rank.samples)} looks in {format_duration(rank.span_s)}"
    cpu = rank.grown("cpu_s") / rank.span_s if rank.span_s else 0.0
    runs = "R" in rank.states
    deed = "{is} busy" if runs else "{is}"
    seen = bool(rank.shared_frames)
    deed += f"{where or (' in its own code' if seen else '')} at all {looks}"
    if runs and rank.place is Activity.USER and not rank.moved and not _gets_on(rank):
        deed += " on one line: a loop in C, or of that line"
    elif _gets_on(rank):
        deed += ": it saves or evaluates, and its bytes move"
    elif runs:
        deed += ": a loop, or long work"
    hint = (
        f"look again (clusterctl diagnose {case.cluster}): a rank at work comes out of it; a loop "
        f"has to be mended, after clusterctl cancel {case.cluster}"
    )
    stuck = case.is_quiet and (seen or case.stall) and not _gets_on(rank)
    severity = ERROR if stuck else WARNING
    shown = (*shown, f"rank {rank.number}: {cpu:.0%} of a processor")
    return ("rank.busy", severity, rank, deed, shown, hint)


def _same_call(rank: Rank) -> bool:
    return len({sample.syscall for sample in rank.samples}) == 1


def _is_pipe(channel: str) -> bool:
    return bool(re.search(r"wait_for_partner|fifo|pipe", channel))


def _full_disks(rank: Rank) -> str:
    """Return the full file system on which a rank has files or its working folder; else empty."""
    systems = rank.host.facts.get("filesystems")
    full = {
        str(one["path"])
        for one in (systems if isinstance(systems, list) else ())
        if isinstance(one, dict) and _is_full(one)
    } - {"/dev/shm"}  # noqa: S108
    every = {str(one.get("path")) for one in systems or () if isinstance(one, dict)}
    used = {rank.process.cwd, *(file.path for one in rank.samples for file in one.files)}
    used |= {_path_in(sample.syscall) for sample in rank.samples}
    for path in sorted(filter(None, used)):
        mounts = [one for one in every if _is_below(path, one)]
        mount = max(mounts, key=len, default="")
        if mount in full:
            return mount
    return ""


def _full_by_log(case: Scene, rank: Rank) -> str:
    """Return a full file system of the rank's host if the log shows that it has no space for it.

    The error in the log must not be that of another rank. Else the result is empty.
    """
    paths = [path for host, path in _full_places(case) if host is rank.host]
    root = _root(case)
    if not root or root.signature.id not in _NO_ROOM or root.ranks - {rank.number}:
        return ""
    named = re.search(r"\brank (\d+)\b", root.text)
    if named and int(named[1]) != rank.number:
        return ""
    return next((path for path in paths if path != "/dev/shm"), "")  # noqa: S108


def _is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_full(system: dict[str, Any]) -> bool:
    size, free = system.get("size_bytes") or 0, system.get("free_bytes") or 0
    inodes, left = system.get("inodes") or 0, system.get("inodes_free") or 0
    return bool((size and free < FULL_BYTES) or (inodes and not left))


# ---- what the libraries say -----------------------------------------------------------------


def stalled(case: Scene) -> Iterator[Cause]:
    """Ranks that, by Horovod's stall report, are missing from tensors that others submitted."""
    stall = case.stall
    if stall is None or not case.is_running:
        return
    absent = stall.absent(case.size)
    lines = case.job.log[stall.at : stall.last + 1]
    shown = tuple(line.strip()[-200:] for line in lines if len(lines) == 1 or "[" in line[:40])[-8:]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, tensors in absent.items():
        groups.setdefault(tensors, []).append(rank)
    if not groups:
        return
    hint = (
        "all ranks have to run the same code on as many batches: compare the scripts and the data "
        f"of these nodes; then clusterctl cancel {case.cluster}"
    )
    if len(groups) == 1:
        [(tensors, ranks)] = groups.items()
        hosts = {case.host_of[rank].host for rank in ranks if rank in case.host_of}
        where = f" on {fold_hosts(sorted(hosts))}" if hosts else ""
        if len(hosts) == 1:
            where = f" on {called(case.host_of[ranks[0]])}"
        here = [case.by_number[rank] for rank in ranks if rank in case.by_number]
        do = "; ".join(sorted({_doing(one) for one in here} - {""}))
        verb = "have" if len(ranks) > 1 else "has"
        yield Cause(
            "rank.missed" if len(ranks) > 1 else "rank.skipped",
            ERROR,
            f"{_plural_ranks(ranks)}{where} {verb} not entered {case.waited_for(ranks)}{case.since}"
            + (f": {'they are' if len(ranks) > 1 else 'it is'} {do}" if do else ""),
            next(iter(hosts)) if len(hosts) == 1 else None,
            hint,
            tuple(ranks),
            shown,
        )
        return
    # Several groups of ranks are missing from different tensors: they wait for each other.
    listed = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    fewest, few = listed[0]
    odd = len(few) * 2 < case.size and len(few) < len(listed[1][1])
    hosts = {case.host_of[rank].host for rank in few if rank in case.host_of}
    says = "; ".join(
        f"{_plural_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'} not submitted "
        f"{_tensors(tensors)}"
        for tensors, ranks in listed[:4]
    )
    s = "" if len(few) > 1 else "s"
    probably = f": probably {_plural_ranks(few)} skip{s} `{fewest[0]}`, or submit{s} it later"
    yield Cause(
        "rank.skipped" if odd else "ranks.order",
        ERROR,
        "ranks wait for each other, since they do not submit the same tensors in the same order: "
        f"{says}{probably if odd else ''}",
        next(iter(hosts)) if odd and len(hosts) == 1 else None,
        hint,
        tuple(few) if odd else (),
        shown,
    )


def _tensors(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _doing(rank: Rank) -> str:
    call = rank.user_call
    if rank.place is Activity.UNKNOWN:
        return f"in {label(call)}" if call else ""
    return f"{rank.place.value}" + (f", {label(call)}" if call else "")


def ras(case: Scene) -> Iterator[Cause]:
    """Ranks that, by NCCL's RAS, lag in a communicator or do not answer, in a job without steps."""
    if case.advances or not case.is_running:
        return
    seen: set[str] = set()
    for host in case.evidence.hosts:
        for one in nccl.read_ras(host.ras):
            if one.name in seen:
                continue
            seen.add(one.name)
            lost = (*one.dead, *one.silent)
            if lost:
                word = "considers dead" if one.dead else "gets no answer from"
                yield _of_ras(case, "nccl.silent", lost, f"NCCL {word} {{who}}")
            elif one.behind and len(one.behind) * 2 < max(one.size, len(one.counts)):
                most = max(one.counts.values())
                least = min(one.counts.values())
                yield _of_ras(
                    case,
                    "nccl.behind",
                    one.behind,
                    f"{{who}} lag{'' if len(one.behind) > 1 else 's'} in NCCL: {least} collectives "
                    f"launched, the others {most}",
                )


def _of_ras(case: Scene, check: str, ranks: tuple[int, ...], message: str) -> Cause:
    hosts = {case.host_of[rank].host for rank in ranks if rank in case.host_of}
    where = f" on {fold_hosts(sorted(hosts))}" if hosts else ""
    return Cause(
        check,
        ERROR if case.is_quiet else WARNING,
        message.format(who=f"{_plural_ranks(ranks)}{where}"),
        next(iter(hosts)) if len(hosts) == 1 else None,
        f"clusterctl diagnose {case.cluster} --tree shows where they are",
        ranks,
    )


# ---- the log, the kernels --------------------------------------------------------------------


def _exception(case: Scene) -> str:
    """Return the log's first exception, or else its known error that is a cause; else empty."""
    if case.explained.unknown:
        return case.explained.unknown[0].text
    root = _root(case)
    return f"{root.text.strip()[:200]} ({root.cause})" if root else ""


def _root(case: Scene) -> LogFinding | None:
    """Return the known error in the log that is a cause, not a consequence; None without one."""
    lead = case.explained.lead
    is_cause = lead and lead.signature.role is Role.ROOT and lead.signature.severity is ERROR
    return lead if is_cause else None


def kernels(case: Scene) -> Iterator[Cause]:
    """Known errors in the kernel messages of the hosts since the job began: memory, GPUs, disks."""
    if case.evidence.job is None or case.job.state == "succeeded":
        return
    blocks = not case.advances and case.job.state != "cancelled"
    for host in case.hosts:
        lines = case.kernel_lines(host)
        said = explain(["\n".join(lines)]) if lines else Explanation()
        for role in (Role.ROOT, Role.SYMPTOM):
            for one in said.of(role):
                severe = blocks and role is Role.ROOT and one.signature.severity is ERROR
                yield _of_kernel(case, host, one, ERROR if severe else WARNING, severe)


def _of_kernel(
    case: Scene, host: HostEvidence, one: LogFinding, severity: Severity, blocks: bool
) -> Cause:
    """Return the cause of a known error in the kernel log, with the ranks that it hit."""
    check = one.signature.id
    ranks: tuple[int, ...] = ()
    message = f"the kernel of {called(host)}: {one.cause}"
    if "oom" in check:
        pids = re.findall(r"Killed process (\d+)|[, ]pid=(\d+)", "\n".join(case.kernel_lines(host)))
        numbers = {case.rank_of_pid(host, int(first or second)) for first, second in pids} - {None}
        if numbers:
            ranks = tuple(sorted(number for number in numbers if number is not None))
            check = "rank.oom"
            was = "were" if len(ranks) > 1 else "was"
            message = f"{_plural_ranks(ranks)} on {called(host)} {was} killed: {one.cause}"
    gpu = one.values.get("gpu", "")
    index = _gpu_index(host, gpu)
    if index is not None:
        using = [r.number for r in case.ranks if r.host is host and index in r.process.gpus]
        ranks = tuple(sorted(using))
        message += f" (GPU {index}{f', {_plural_ranks(ranks)}' if ranks else ''})"
    hint = one.remedy.replace("NAME NODE", f"{case.cluster} {host.index}")
    return Cause(check, severity, message, host.host, hint, ranks, (one.text[:300],), blocks)


def _gpu_index(host: HostEvidence, bus: str) -> int | None:
    """Return the index of a GPU by its PCI address in kernel messages; None if unknown.

    The kernel's `0000:00:1e` is nvidia-smi's `00000000:00:1e.0`.
    """
    for index, gpu in enumerate(_gpus_of(host)):
        known = str(gpu.get("bus") or "").lower().rpartition(".")[0]
        if bus and known and known.endswith(bus.lower().removeprefix("pci:")):
            return index
    return None


def ended_by_cause(case: Scene) -> Iterator[Cause]:
    """Why a job failed, if its log has the cause; also a job that had nothing left to train."""
    job = case.job
    if job.state == "succeeded":
        for line in job.log[-40:]:
            found = re.search(r"Nothing to train: (\S+) has all (\d+) steps", line)
            if found:
                yield Cause(
                    "log.nothing_left",
                    WARNING,
                    f"job {job.job_id} ended at once: the checkpoint {found[1]} has all "
                    f"{found[2]} steps, so that nothing was left to train",
                    hint="train longer (--epochs), or anew (--clear)",
                    evidence=(line.strip()[:300],),
                )
    root = _root(case)
    if not _failed(case) or not (root or case.explained.unknown):
        return
    yield _failure(case, root)


def ended_unexplained(case: Scene) -> Iterator[Cause]:
    """A job that failed, if its log has only consequences, or nothing that is known."""
    if _failed(case) and not (_root(case) or case.explained.unknown):
        yield _failure(case, case.explained.lead)


def _failed(case: Scene) -> bool:
    ended = case.evidence.job is not None and not case.is_running
    return ended and case.job.state not in ("succeeded", "cancelled", QUEUED)


# Ids of known log lines that a full disk or a full /dev/shm can cause.
_NO_ROOM = {"system.no-space", "mpi.backing-file", "nccl.shm-full", "torch.shm", "system.bus-error"}


def _failure(case: Scene, one: LogFinding | None) -> Cause:
    """Return the cause of a job that failed; `one` is the known error in its log, if any."""
    job = case.job
    status = f" with exit status {job.exit_status}" if job.exit_status is not None else ""
    begin = f"job {job.job_id} {job.state}{status}"
    hint = f"clusterctl logs {case.cluster}{f' --job {job.job_id}' if job.job_id else ''}"
    ranks = case.first_to_end
    at = case.host_of.get(ranks[0]) if ranks else None
    by = ""
    if ranks:
        by = f"; mpirun saw rank {ranks[0]} end first" + (f", on {called(at)}" if at else "")
    if one is None:
        unknown = case.explained.unknown
        if unknown:
            text = f"{begin}: {unknown[0].text[:300]}{by}"
            shown = (f"line {unknown[0].line}: {unknown[0].text[:300]}",)
            if unknown[0].rank.isdigit():
                ranks = (int(unknown[0].rank),)
                at = case.host_of.get(ranks[0])
            host = at.host if at else None
            return Cause("log.exception", ERROR, text, host, hint, ranks, shown)
        text = f"{begin}, and its log does not say why{by}"
        return Cause("job.failed", ERROR, text, at.host if at else None, hint, ranks)
    if one.ranks:
        ranks, by = tuple(sorted(one.ranks)), ""
        at = case.host_of.get(ranks[0])
    named = [host for host in case.evidence.hosts if one.values.get("host") in host.names]
    at = named[0] if named else at
    full = _full_places(case) if one.signature.id in _NO_ROOM else []
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


def _full_places(case: Scene) -> list[tuple[HostEvidence, str]]:
    """Return the full file systems of all hosts."""
    return [
        (host, str(system.get("path")))
        for host in case.evidence.hosts
        for system in host.facts.get("filesystems") or ()
        if isinstance(system, dict) and _is_full(system)
    ]


def logged(case: Scene) -> Iterator[Cause]:
    """Errors in the log of a running job that makes no steps."""
    if not case.is_running or case.advances or not case.is_quiet:
        return
    root = _root(case)
    if root and not root.signature.id.startswith("horovod.stall"):
        ranks = tuple(sorted(root.ranks))
        at = case.host_of.get(ranks[0]) if ranks else None
        text = f"the log says: {root.cause}"
        shown = (f"line {root.line}: {root.text[:300]}",)
        host = at.host if at else None
        yield Cause(root.signature.id, ERROR, text, host, root.remedy, ranks, shown)
    lead = case.whole_log.lead
    stall = lead and lead.signature.id.startswith("horovod.stall")
    if lead and not root and not stall and lead.signature.severity is ERROR:
        text = f"earlier in the log, and the job went on: {lead.cause}"
        shown = (f"line {lead.line}: {lead.text[:300]}",)
        yield Cause(lead.signature.id, INFO, text, None, lead.remedy, (), shown, blocks=False)
    for one in () if root else case.explained.unknown[:1]:
        text = f"the log has an exception: {one.text[:300]}"
        hint = f"clusterctl logs {case.cluster}"
        yield Cause("log.exception", ERROR, text, hint=hint, evidence=(f"line {one.line}",))


# ---- hosts -----------------------------------------------------------------------------------


def host_facts(case: Scene) -> Iterator[Cause]:
    """Full disks, full shared memory, dead mounts and broken GPUs of the hosts that answered."""
    for host in case.evidence.hosts:
        facts = host.facts
        blocks = case.is_running and not case.advances
        for system in facts.get("filesystems") or ():
            if isinstance(system, dict) and _is_full(system):
                yield _full(case, host, str(system.get("path")), system, blocks)
        errors = facts.get("errors")
        for name, why in errors.items() if isinstance(errors, dict) else ():
            if name.startswith("mount "):
                yield Cause(
                    "mount.dead",
                    ERROR if blocks else WARNING,
                    f"{name[6:]} on {called(host)} does not answer ({why})",
                    host.host,
                    f"see to its server; clusterctl reboot {case.cluster} {host.index} lets go",
                    blocks=blocks,
                )
        yield from _gpus(case, host)


def _full(
    case: Scene, host: HostEvidence, path: str, system: dict[str, Any], blocks: bool
) -> Cause:
    no_inodes = (system.get("free_bytes") or 0) >= FULL_BYTES
    what = "has no inode left" if no_inodes else "is full"
    shared = path == "/dev/shm"  # noqa: S108
    hint = f"clusterctl disk {case.cluster}; clusterctl clean-logs {case.cluster} makes room"
    if shared:
        hint = f"{_on(case, host, 'ls -lS /dev/shm')}: what dead jobs left there can go"
    return Cause(
        "shm.full" if shared else "disk.full",
        ERROR if blocks else WARNING,
        f"{path} on {called(host)} {what}",
        host.host,
        hint,
        evidence=(f"{path}: {format_bytes(system.get('free_bytes') or 0)} free",),
        blocks=blocks,
    )


def _gpus_of(host: HostEvidence) -> list[dict[str, Any]]:
    listed = host.facts.get("gpus")
    gpus = listed.get("gpus") if isinstance(listed, dict) else None
    return [gpu for gpu in (gpus if isinstance(gpus, list) else ()) if isinstance(gpu, dict)]


def _gpus(case: Scene, host: HostEvidence) -> Iterator[Cause]:
    for index, gpu in enumerate(_gpus_of(host)):
        action = gpu.get("recovery_action") or "None"
        if action not in ("None", "N/A") or gpu.get("remap_failed"):
            needs = action if action not in ("None", "N/A") else "a replacement: row remap failed"
            yield Cause(
                "gpu.broken",
                ERROR,
                f"GPU {index} on {called(host)} needs {needs}",
                host.host,
                f"clusterctl replace {case.cluster} {host.index}",
                blocks=case.is_running and not case.advances,
            )
        slowed = [one for one in gpu.get("throttled") or () if re.search(r"hw_|thermal|brake", one)]
        if slowed:
            clock = gpu.get("clock_mhz")
            yield Cause(
                "gpu.throttled",
                WARNING,
                f"GPU {index} on {called(host)} is slowed down by {', '.join(slowed)}"
                + (f", to {clock:.0f} MHz" if clock else ""),
                host.host,
                f"if it stays so: clusterctl replace {case.cluster} {host.index}",
                blocks=False,
            )


def descriptors(case: Scene) -> Iterator[Cause]:
    """Ranks that have nearly as many open files as their limit allows."""
    found = []
    for rank in case.ranks:
        limit = rank.host.facts.get("limits")
        most = limit.get("nofile") if isinstance(limit, dict) else None
        held = max((file.fd for file in rank.last.files), default=0)
        if isinstance(most, int) and most - held <= FEW_DESCRIPTORS and held > most // 2:
            what = f"{{has}} {held} files open of the {most} that the limit allows"
            hint = "raise the limit: nofile in limits.conf"
            found.append(("rank.descriptors", WARNING, rank, what, (), hint))
    yield from (replace(one, blocks=False) for one in combine(found))


def clocks(case: Scene) -> Iterator[Cause]:
    """Hosts whose clock differs from the others' by more than SKEW_S."""
    known = [
        (host.clock_offset_s, host)
        for host in case.evidence.hosts
        if host.clock_offset_s is not None
    ]
    if not known:
        return
    # Offsets are to this machine's clock, which may be wrong itself: so compare with the median.
    middle = sorted(offset for offset, _ in known)[len(known) // 2] if len(known) > 2 else 0.0
    for offset, host in known:
        apart = offset - middle
        if abs(apart) > SKEW_S + (host.clock_error_s or 0.0):
            way = "ahead" if apart > 0 else "behind"
            yield Cause(
                "clock.skew",
                WARNING,
                f"the clock of {called(host)} is {format_duration(abs(apart))} {way}",
                host.host,
                _on(case, host, "sudo chronyc makestep"),
                blocks=False,
            )


def hostnames(case: Scene) -> Iterator[Cause]:
    """Hosts of the same name: Horovod and NCCL take their ranks for those of one machine."""
    named: dict[str, list[HostEvidence]] = {}
    for host in case.evidence.hosts:
        system = host.facts.get("system")
        name = system.get("hostname") if isinstance(system, dict) else None
        if isinstance(name, str) and name:
            named.setdefault(name, []).append(host)
    for name, hosts in named.items():
        if len(hosts) > 1:
            yield Cause(
                "host.name",
                ERROR if case.is_running and not case.advances else WARNING,
                f"{fold_hosts([one.host for one in hosts])} all call themselves {name}: NCCL and "
                "Horovod take their ranks for those of one machine",
                hosts[-1].host,
                _on(case, hosts[-1], f"sudo hostnamectl set-hostname {hosts[-1].host}"),
                blocks=case.is_running and not case.advances,
            )


def left_over(case: Scene) -> Iterator[Cause]:
    """Ranks of jobs that have ended, or that are unknown, and the memory that they hold."""
    others_now = set(case.job.others)
    by_host: dict[str, list[Rank]] = {}
    for rank in case.left_over:
        if (rank.process.job_id or "") not in others_now:
            by_host.setdefault(rank.host.host, []).append(rank)
    for ranks in by_host.values():
        host = ranks[0].host
        held = sum(one.last.rss_bytes for one in ranks)
        pids = {one.process.pid for one in ranks}
        gpu = _gpu_memory(host, pids)
        also = f" and {format_bytes(gpu)} of GPU memory" if gpu else ""
        jobs = sorted({one.process.job_id or "an mpirun typed by hand" for one in ranks})
        # Ranks of the diagnosed job that outlived it. Nothing will end them, so it is an error.
        own = not case.is_running and any(one.process.job_id == case.job.job_id for one in ranks)
        yield Cause(
            "ranks.leftover",
            ERROR if own else WARNING,
            f"left over on {called(host)}: {count(len(ranks), 'rank')} of {', '.join(jobs[:2])}, "
            f"with {format_bytes(held)} of memory{also}",
            host.host,
            f"clusterctl kill {case.cluster} --nodes {host.index}",
            tuple(sorted({one.number for one in ranks})) if own else (),
            evidence=tuple(_process_line(one.process) for one in ranks[:4]),
            blocks=not case.is_running,
        )


def _gpu_memory(host: HostEvidence, pids: set[int]) -> int:
    held = 0.0
    for gpu in _gpus_of(host):
        for one in gpu.get("processes") or ():
            if one.get("pid") in pids:
                held += one.get("memory_mib") or 0
    return int(held) << 20


# ---- slow, not stuck ------------------------------------------------------------------------


def stragglers(case: Scene) -> Iterator[Cause]:
    """Slow ranks in a job that makes steps: they are at their own work while the others wait."""
    if not case.advances or len(case.ranks) < 2:
        return
    own = {one.number: _own_share(one) for one in case.ranks if len(one.samples) > 1}
    works = {
        one.number: sum(letter in "RD" for letter in one.process.glances) / len(one.process.glances)
        for one in case.ranks
        if len(one.process.glances) >= GLANCES
    }
    numbers = _apart(own, BUSY_SHARE, 1 - WAIT_SHARE) or _apart(works, WORKS_SHARE, RESTS_SHARE)
    # A rank that saves or evaluates keeps the others waiting only for a while.
    slow = [one for one in case.ranks if one.number in numbers and not _saves(one)]
    found = []
    for rank in slow:
        what = f"{{is}} slower than the others, which wait for it: it is {_slow_at(rank)}"
        hint = f"clusterctl diagnose {case.cluster} --tree shows where it spends its time"
        found.append(("rank.straggler", WARNING, rank, what, _rank_lines(rank), hint))
    yield from combine(found)


def _apart(shares: dict[int, float], most: float, least: float) -> set[int]:
    """Return the ranks with a share of `most` or more, if they are few and stand out.

    They are at most half of all, and the mean share of the others is `least` or less. Otherwise the
    result is empty.
    """
    slow = {number for number, share in shares.items() if share >= most}
    rest = [share for number, share in shares.items() if number not in slow]
    few = rest and len(slow) * 2 <= len(shares)
    return slow if few and sum(rest) / len(rest) <= least else set()


def _saves(rank: Rank) -> bool:
    """Return whether a rank was in a function that saves or evaluates, judged by its name."""
    return any(
        re.search(r"(?i)save|checkpoint|export|evaluat", frame.function)
        for sample in rank.samples
        for frame in main_thread(sample)
    )


def _gets_on(rank: Rank) -> bool:
    """Return whether a rank is in a checkpoint or an evaluation, and reads or writes meanwhile."""
    return _saves(rank) and (rank.grown("written_bytes") > 0 or rank.grown("read_bytes") > 0)


def _own_share(rank: Rank) -> float:
    """Return the share of a rank's samples in which it was at its own work."""
    work = (Activity.USER, Activity.LIBRARY, Activity.DATA)
    own = [
        place in work or sample.state in "DT" for place, sample in zip(rank.places, rank.samples)
    ]
    return sum(own) / len(own) if own else 0.0


def _slow_at(rank: Rank) -> str:
    """Return, in words, what a slow rank spends its time on."""
    span = rank.span_s or 1.0
    if rank.grown("run_wait_s") / span > 1.0:
        return "waiting for a processor: too much else runs on that host"
    if rank.place is Activity.DATA or all(one is Activity.DATA for one in rank.places):
        return "waiting for its data"
    path = _path_in(rank.last.syscall)
    if path:
        return f"in {rank.last.syscall}"
    call = rank.user_call
    return f"in {label(call)}" if call else "at work of its own"


@dataclass(frozen=True)
class SentData:
    """What a rank sent to another host between its first and its last sample.

    It was sending for `share` of the time, at `bytes_s` during that time. `rtt_s` is the mean round
    trip.
    """

    share: float
    bytes_s: float
    rtt_s: float

    @property
    def text(self) -> str:
        return (
            f"{format_bytes(int(self.bytes_s))}/s for {self.share:.0%} of the time, round trip "
            f"{format_duration(self.rtt_s)}"
        )


def _traffic(case: Scene) -> dict[tuple[str, str], SentData]:
    """Return the busiest connection between each two hosts, by (sender's address, receiver's)."""
    hosts = {host.address for host in case.evidence.hosts if host.address}
    found: dict[tuple[str, str], SentData] = {}
    for rank in case.ranks:
        looks = [{(one.local, one.peer): one for one in look.sockets} for look in rank.samples]
        for ends, last in looks[-1].items() if looks and rank.span_s else ():
            first, peer = looks[0].get(ends), last.peer.rpartition(":")[0]
            moved = last.acked_bytes - first.acked_bytes if first else 0
            if not first or moved < MOVED_BYTES or peer not in hosts - {rank.host.address}:
                continue
            sending_s = max(last.sending_s - first.sending_s, 1e-3)
            rtts = [look[ends].rtt_s for look in looks if ends in look]
            one = SentData(sending_s / rank.span_s, moved / sending_s, sum(rtts) / len(rtts))
            pair = (rank.host.address, peer)
            found[pair] = max(one, found.get(pair, one), key=lambda traffic: traffic.share)
    return found


def slow_links(case: Scene) -> Iterator[Cause]:
    """Hosts whose links are much slower than those between others.

    A slow link between two hosts is assigned to the one that has more slow links. If that does not
    decide, both hosts are named.
    """
    traffic = _traffic(case) if case.is_running else {}
    quickest = max((one.bytes_s for one in traffic.values()), default=0.0)
    nearest_s = min((one.rtt_s for one in traffic.values()), default=0.0)
    pairs = {frozenset(ends) for ends in traffic}
    slow = {
        frozenset(ends): one
        for ends, one in traffic.items()
        if one.share >= SENDING_SHARE and one.rtt_s >= ROUND_TRIP_S
        # With only one pair of hosts there is no other link to compare with.
        if len(pairs) == 1
        or (one.bytes_s * TIMES_SLOWER <= quickest and one.rtt_s >= TIMES_SLOWER * nearest_s)
    }
    well = {end for pair in pairs - slow.keys() for end in pair}
    crawling = sorted(slow, key=sorted)
    hosts = {host.address: host for host in case.evidence.hosts}
    while crawling:
        every = Counter(end for pair in crawling for end in sorted(pair))
        counted = Counter({end: n for end, n in every.items() if end not in well}) or every
        most = max(counted.values())
        ends = [hosts[end] for end in counted if counted[end] == most]
        named = ends[0] if len(ends) == 1 or len(crawling) > 1 else None
        of = [pair for pair in crawling if not named or named.address in pair]
        crawling = [pair for pair in crawling if pair not in of]
        shown = tuple(f"{' - '.join(sorted(pair))}: {slow[pair].text}" for pair in of[:4])
        if pairs - slow.keys():
            shown += (f"the quickest other: {format_bytes(int(quickest))}/s",)
        host = named or ends[-1]
        yield Cause(
            "link.slow",
            WARNING,
            f"the link of {called(host)} is slow: data crawl between it and other hosts"
            if named
            else f"the link between {' and '.join(map(called, ends))} is slow: data crawl over it",
            named.host if named else None,
            f"see its traffic beside the others': clusterctl watch {case.cluster}; or replace it: "
            f"clusterctl replace {case.cluster} {host.index}",
            evidence=(*shown, *((f"SSH: {host.error}",) if host.error else ())),
        )


def slowed_down(case: Scene) -> Iterator[Cause]:
    """A training whose last steps make far fewer images/s than those before."""
    speeds = [
        float(row["images_per_s"])
        for row in case.rows
        if row.get("kind") == "train"
        and isinstance(row.get("images_per_s"), (int, float))
        and row["images_per_s"] > 0
    ]
    # The first rows include the start-up.
    past, now = sorted(speeds[2:-3]), sorted(speeds[-3:])
    if not case.advances or len(past) < 5:
        return
    usual, last = past[len(past) // 2], now[1]
    if usual > SLOWED * last:
        yield Cause(
            "job.slower",
            WARNING,
            f"the last steps made {last:.1f} images/s, those before {usual:.1f}",
            hint=f"clusterctl watch {case.cluster} shows processors, disks and links as they are",
            evidence=("images/s of the last rows: " + ", ".join(f"{x:.1f}" for x in speeds[-5:]),),
        )


def scripts(case: Scene) -> Iterator[Cause]:
    """Ranks whose script, or a module beside it, differs from that of the other ranks."""
    names = {name for rank in case.ranks for name in rank.process.sources}
    for name in sorted(names):
        by_digest: dict[str, list[Rank]] = {}
        for rank in case.ranks:
            if name in rank.process.sources:
                by_digest.setdefault(rank.process.sources[name], []).append(rank)
        if len(by_digest) < 2:
            continue
        usual = max(by_digest, key=lambda digest: len(by_digest[digest]))
        odd = [rank for digest, ranks in by_digest.items() if digest != usual for rank in ranks]
        hosts = list(dict.fromkeys(rank.host.host for rank in odd))
        blocks = bool(case.stall) and not case.advances
        yield Cause(
            "script.differs",
            ERROR if blocks else WARNING,
            f"{who(odd)} run{'' if len(odd) > 1 else 's'} another {name} than the other ranks",
            hosts[0] if len(hosts) == 1 else None,
            f"copy it to all: clusterctl copy {case.cluster} FILE DST; then start the job again",
            tuple(sorted(rank.number for rank in odd)),
            tuple(
                f"{name} {digest} on {fold_hosts(sorted({rank.host.host for rank in ranks}))}"
                for digest, ranks in by_digest.items()
            ),
            blocks,
        )


def quarantined(case: Scene) -> Iterator[Cause]:
    """Hosts in quarantine that the job uses, or may use because they do not answer."""
    used = {rank.host.host for rank in case.ranks}
    for host in case.evidence.hosts:
        if host.quarantined and (host.host in used or (host.error and case.is_running)):
            since, _, why = host.quarantined.partition(" ")
            yield Cause(
                "host.quarantined",
                WARNING,
                f"{called(host)} is in quarantine since {since}{why and f' ({why})'}, and the job "
                "uses it",
                host.host,
                f"clusterctl release {case.cluster} {host.index} brings it back",
                blocks=False,
            )


# The order decides which cause becomes the verdict, among those of equal severity.
RULES: tuple[Callable[[Scene], Iterable[Cause]], ...] = (
    silent_hosts,
    processes,
    daemons,
    kernels,
    missing_ranks,
    ended_ranks,
    odd_ranks,
    scripts,
    stalled,
    ras,
    ended_by_cause,
    left_over,
    ended_unexplained,
    host_facts,
    logged,
    hostnames,
    stragglers,
    slow_links,
    slowed_down,
    descriptors,
    clocks,
    quarantined,
)


def _clean(case: Scene, found: list[Cause]) -> Iterator[str]:
    """Yield what was checked and is well, in words."""
    checks = {one.check_id for one in found}
    hosts = case.evidence.hosts
    answered = [host for host in hosts if not host.error]
    if answered and len(answered) == len(hosts):
        yield f"{count(len(hosts), 'host')} answered"
    if case.is_running and case.ranks and not checks & {"rank.missing", "ranks.none"}:
        if len(case.ranks) == case.size:
            yield f"ranks {rank_set(case.by_number)}: all there"
        if not any(check.startswith("rank.") for check in checks):
            yield "no rank is stopped, dead, or alone in what it does"
    launched = any(one.role == "launcher" for host in hosts for one in host.processes)
    if launched and not any(check.startswith(("launcher", "daemon")) for check in checks):
        yield "mpirun and its daemons"
    if case.is_running and case.job.log and not case.stall:
        yield "no stall report of Horovod is open"
    told = (
        ("filesystems", ("disk.full", "shm.full", "mount.dead"), "disks, /dev/shm and mounts"),
        ("gpus", ("gpu.broken", "gpu.throttled"), "GPUs"),
        ("system", ("host.name",), "hostnames"),
    )
    for fact, bad, words in told:
        if any(host.facts.get(fact) for host in answered) and not checks & set(bad):
            yield words
    if any(host.clock_offset_s is not None for host in answered) and "clock.skew" not in checks:
        yield "clocks"
    if answered and not case.left_over:
        yield "no rank of another job"
