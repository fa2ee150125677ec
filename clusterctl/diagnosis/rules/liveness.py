"""Rules on silent hosts, and on daemons and ranks that are stopped, dead, missing or left over."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sized
from dataclasses import replace

from clusterctl.diagnosis.case import (
    ERROR,
    STARTED_AFTER_S,
    STARTING_S,
    WARNING,
    Cause,
    RankFinding,
    Scene,
    combine,
    full_disk_finding,
)
from clusterctl.diagnosis.evidence import HostEvidence, ProcessEvidence
from clusterctl.diagnosis.frames import Activity
from clusterctl.diagnosis.partners import chain, wait_in_words
from clusterctl.diagnosis.progress import were
from clusterctl.diagnosis.ranks import (
    Rank,
    asks_user,
    called,
    format_ranks,
    full_disk_of,
    is_working,
    only,
    process_line,
    rank_lines,
    ranks_in_words,
    saves_with_progress,
    sees_nothing,
    syscall_path,
    works_alone,
)
from clusterctl.diagnosis.rules.logs import failure, has_failed, root_error
from clusterctl.diagnosis.rules.slowness import slow_links
from clusterctl.domain.errors import LOGIN_FILES, PROXY_ENDED, UNKNOWN_NAME
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.node.diagnosis.partners import STARTS


def silent_hosts(scene: Scene) -> Iterator[Cause]:
    """Hosts that did not answer: off, frozen, cut off, or with another host key."""
    used = {host.host for host in scene.hosts}
    slow = {cause.host for cause in slow_links(scene)} if scene.silent else set()
    for host in scene.silent:
        if host.host in slow:
            continue  # it did not answer in time because of its link, which slow_links reports
        # Where ranks are that were not seen may not be known.
        may_have = not scene.advances and bool(_not_seen(scene))
        matters = host.host in used or bool(host.quarantined) or may_have
        matters = scene.is_running and matters
        ranks = tuple(sorted(one for one, at in scene.host_of.items() if at.host == host.host))
        starts_none = UNSTARTED in host.error and _has_none_started(scene)
        is_awaited = scene.others_wait(ranks) or starts_none
        if ENDED_NOTHING in host.error and not (scene.advances or is_awaited):
            continue  # it may only be too busy: nothing shows that a job waits for it
        what, shown = _silence(scene, host)
        is_off = what.startswith(("is off", "is gone"))
        are = _are(ranks) if scene.is_running and not is_off else were(ranks)
        are = f"{are} to run" if starts_none else are
        there = f"; {format_ranks(ranks)} {are} there" if ranks else _not_seen(scene)
        check = "host.key" if re.search(r"host key", host.error) else "host.silent"
        if is_off:
            check = "host.off"
        # A host that is off is the cause of the job's end, unless the log shows another one.
        ended = has_failed(scene) and check == "host.off" and host.host in used
        root = root_error(scene)
        if (
            ended
            and not scene.explained.unknown
            and (not root or may_follow_lost_host(failure(scene, root)))
        ):
            matters = True
        # A job that advances does so without the host.
        is_minor = scene.advances and not (matters and check != "host.silent")
        severity = WARNING if is_minor else ERROR
        message = f"{called(host)} {what}{there}"
        if matters and not scene.is_running:
            message += f": job {scene.job.job_id} {scene.job.state} without it"
        elif matters and scene.advances and not scene.doubt:
            message += f"; the job goes on: {scene.advances}"
        elif matters:
            message += scene.since and f", and the job has made no step{scene.since}"
        # A changed host key does not stop the job.
        blocks = matters and check != "host.key"
        hint = _hint(scene, host, check, matters)
        yield Cause(check, severity, message, host.host, hint, ranks, shown, blocks)


def _has_none_started(scene: Scene) -> bool:
    """Return whether no rank runs, though some would be seen: mpirun starts them all together."""
    seen = [host for host in scene.host_of.values() if not host.error and not sees_nothing(host)]
    return scene.is_running and not scene.ranks and bool(seen)


def _hint(scene: Scene, host: HostEvidence, check: str, matters: bool) -> str:
    """Return what helps with a silent host. `matters`: a job needs it, or has ended with it."""
    if check == "host.off":
        again = "the job has to be started again" if matters else ""
        if matters and scene.is_running and scene.job.retries_left:
            again = "the job is started again by itself when its nodes answer"
        return scene.hints.steps(_back(scene, host), again)
    if check == "host.key":
        if "host key is unknown" in host.error:
            return "log in once with ssh, and compare the fingerprint that it shows"
        status = scene.hints.cluster(": see `clusterctl status NAME` before you trust it")
        return f"another machine may answer at its address{status}"
    # It takes no command over SSH, so `reboot` cannot help.
    if RUNS_NOTHING.search(host.error):
        return LOGIN_FILES
    return _login(scene, host) or _renewal(scene, host)


def _not_seen(scene: Scene) -> str:
    """Return, in words, the ranks of a running job of which no host is known."""
    if not scene.is_running or not scene.size:
        return ""
    ranks = [rank for rank in range(scene.size) if rank not in scene.host_of]
    return f"; {format_ranks(ranks)} {were(ranks)} not observed: running, or ended" if ranks else ""


# An instance that does not run: its state in EC2, and why (operations/status.py, describe_state).
OFF = re.compile(
    r"\b(?P<state>stopped|stopping|terminated|shutting-down|gone)\b(: (?P<why>.+))?"
    r"|no such instance"
)
# The errors of CommandTimeout: the host lets the login in.
ENDED_NOTHING, UNSTARTED = "did not end", "login shell has not started it"
# The errors of CommandNotRun: the host is up, and a new machine would not help.
RUNS_NOTHING = re.compile(
    rf"its login (files|shell ended)|{UNSTARTED}|the output .*(broke off|is disturbed)"
)


def may_follow_lost_host(one: Cause) -> bool:
    """Return whether the finding may be a consequence of a host that went down."""
    return one.check.startswith(("ssh.", "mpi.", "prrte.", "net", "job.failed"))


def _are(ranks: Sized) -> str:
    return "are" if len(ranks) > 1 else "is"


def _back(scene: Scene, host: HostEvidence) -> str:
    """Return what brings a node back that is off."""
    off = OFF.search(host.ec2)
    if off and off["state"] in ("stopped", "stopping"):
        replace = f"clusterctl replace NAME {host.index}"
        return scene.hints.cluster(f"clusterctl start NAME, or replace it: {replace}")
    return scene.hints.cluster("launch another in its place: clusterctl up NAME")


def _login(scene: Scene, host: HostEvidence) -> str:
    """Return what helps if a host without a cluster refuses the login or sudo; else empty."""
    if scene.evidence.source and "sudo: " in host.error:
        return "let this login use sudo without a password (NOPASSWD), or log in as root: -u root"
    if scene.evidence.source and "key" in host.error:
        return "-u USER names the login; IdentityFile in your ssh_config names the key"
    return ""


def _renewal(scene: Scene, host: HostEvidence) -> str:
    """Return what helps with a node that takes no command over SSH, the harmless steps first."""
    hints = scene.hints
    near = next((one for one in scene.evidence.hosts if not one.error), None)
    ping = ""
    if near is not None and _means_the_same_elsewhere(host):
        ping = f"see it from another node: {hints.on(near, f'ping -c 3 {host.address}')}"
    if scene.advances and not scene.doubt:
        return hints.steps(f"diagnose again: {hints.look}", ping)
    last = f"a new machine in its place, its disks are lost: clusterctl replace NAME {host.index}"
    last = f"last, {last}"
    if not host.index:
        # A replacement would lose the jobs, logs and checkpoints on the head node's disk.
        last = (
            "then off and on again, disks kept: clusterctl stop NAME --force; clusterctl start "
            f"NAME; a spot node cannot be stopped: {last.removeprefix('last, ')}"
        )
    return hints.steps(f"diagnose again: {hints.look}", ping, hints.cluster(last))


def _means_the_same_elsewhere(host: HostEvidence) -> bool:
    """Return whether another host finds this one by its address here, as far as that shows."""
    if not host.address or host.error.startswith(UNKNOWN_NAME):
        return False
    try:
        address = ipaddress.ip_address(host.address)
    except ValueError:
        return host.address != "localhost"
    return not (address.is_loopback or address.is_link_local)


# The errors of what comes before a host: its proxy, a jump host, DNS. They tell nothing of it.
UNASKED = (PROXY_ENDED, "cannot be reached through ", UNKNOWN_NAME)
# What the error of a host that gave no evidence means: the first that fits.
SILENCES = (
    ("host key is unknown", "has a host key that no known_hosts file here has"),
    ("host key", "shows another host key than the one that is known for it"),
    (
        "(?i)no SSH session|reset by peer|closed by",
        "takes connections and refuses the login: too many logins at once (MaxStartups), or its "
        "sshd is ill",
    ),
    ("refused every key", "refuses each key that was offered"),
    ("sudo: ", "lets the login in, and sudo refuses it"),
    ("there is no key to offer", "was not contacted: there is no key to log in with"),
    (
        UNSTARTED,
        "lets the login in, and its login shell starts no command in time: a login file of its "
        "user waits for something, or it is too busy",
    ),
    (
        ENDED_NOTHING,
        "lets the login in and ended no command in time: a disk hangs, or it is too busy",
    ),
    ("answers none in time", "takes connections and answers none: it is frozen, or far too busy"),
)


def _silence(scene: Scene, host: HostEvidence) -> tuple[str, tuple[str, ...]]:
    """Return why a host did not answer, and the evidence: EC2's state, SSH's error, sockets."""
    shown = [f"SSH: {host.error}"] if host.error != host.ec2 else []
    shown += [host.ec2] if host.ec2 else []
    looks = [
        [
            {
                (x.local, x.peer): x
                for x in look.sockets
                if x.peer.rpartition(":")[0] in host.addresses
            }
            for look in (process.samples[0], process.last)
        ]
        for other in scene.evidence.hosts
        for process in other.processes
        if process.samples
    ]
    to_it = [one for _, last in looks for one in last.values()]
    queued = sum(one.send_queue_bytes for one in to_it)
    retransmits = max((one.retransmits for one in to_it), default=0)
    persist = sum(one.timer == "persist" for one in to_it)
    if retransmits or persist or queued:
        shown.append(
            f"sockets to it: {format_bytes(queued)} unsent, {retransmits} retransmissions, "
            f"{persist} with a closed window"
        )
    sends = any(
        last[pair].received_bytes > first[pair].received_bytes
        for first, last in looks
        for pair in first.keys() & last.keys()
    )
    return _why_silent(host, bool(retransmits), bool(persist), sends), tuple(shown)


def _why_silent(host: HostEvidence, loses: bool, is_closed: bool, sends: bool) -> str:
    """Return why a host did not answer. Its peers' packets are lost, or find its window closed, or
    data came from it to them."""
    is_unasked = host.error.startswith(UNASKED)
    off = OFF.search(host.ec2) or (None if is_unasked else OFF.search(f"{host.error} {host.ec2}"))
    if off:
        state = off["state"] or "gone"
        text = "is gone" if state == "gone" else f"is off: EC2 has it as {state}"
        return f"{text}: {off['why']}" if off["why"] else text
    if is_unasked:
        return f"was not contacted: {host.error}"
    known = next((text for form, text in SILENCES if re.search(form, host.error)), "")
    if known:
        return known
    if "looking at it failed" in host.error or RUNS_NOTHING.search(host.error):
        return f"lets the login in, and cannot be examined: {host.error}"
    if is_closed and not loses:
        return "answers no longer, and its kernel still takes packets: frozen"
    if loses or "did not answer in time" in host.error or "no route" in host.error:
        if sends:
            return "cannot be reached from here, while data come from it to other hosts of the job"
        more = ", and its peers' packets to it are not acknowledged" if loses else ""
        return f"cannot be reached from here: its link is cut, or it is down{more}"
    return f"gives no answer: {host.error}"


# Who would read a launcher's output, and is stopped.
READER = ("reads", "T")


def daemons(scene: Scene) -> Iterator[Cause]:
    """Processes of mpirun, and of its daemons on the nodes, that are stopped or have ended."""
    if not scene.is_running:
        return
    for host in scene.hosts:
        at_host = [
            one
            for one in host.processes
            if one.role in ("launcher", "daemon") and one.samples
            if (one.job_id or "") == scene.job.job_id
        ]
        for process in at_host:
            # prted may have a parent of the same role, which only waits for it: they are one.
            if any(process.parent == one.pid and one.role == process.role for one in at_host):
                continue
            states = {sample.state for sample in process.samples}
            family = [process, *(one for one in at_host if one.parent == process.pid)]
            pids = " ".join(str(one.pid) for one in family if _is_stopped(one))
            shown = tuple(process_line(one) for one in family if _is_stopped(one))
            states = {"T"} if pids else states
            program = "".join(process.argv[:1]).rpartition("/")[2] or "prted"
            name = process.launcher_name or f"mpirun's daemon ({program})"
            stopped = [one for one in process.partners if (one.relation, one.state) == READER]
            for one in stopped if process.role == "launcher" else ():
                yield Cause(
                    "launcher.stopped",
                    WARNING if scene.advances else ERROR,
                    f"what reads the output of {name} on {called(host)}, pid {one.pid} "
                    f"({' '.join(one.argv)[:60]}), is stopped (state T): its log ends "
                    "there, and ranks that print will wait",
                    host.host,
                    scene.hints.on(host, f"kill -CONT {one.pid}"),
                    evidence=(process_line(process),),
                )
            if states == {"T"}:
                what, hint = _stopped(scene, host, process, pids)
                what = f"{name} on {called(host)} is {what}: ranks' output and the job's end stay "
                check = f"{process.role}.stopped"
                yield Cause(check, ERROR, f"{what}with it", host.host, hint, evidence=shown)
            elif any({sample.state for sample in one.samples} == {"Z"} for one in family):
                yield Cause(
                    f"{process.role}.ended",
                    ERROR,
                    f"{name} on {called(host)} has ended",
                    host.host,
                    f"{scene.hints.cancel}, and start it again",
                    evidence=(process_line(process),),
                )


# What starts the ranks of these stays their parent, itself or a daemon of it.
STARTED_BY = {
    "Open MPI": "mpirun",
    "MPICH or Intel MPI": "mpiexec",
    "torchrun": "torchrun",
    "horovodrun": "horovodrun",
}


def abandoned(scene: Scene) -> Iterator[Cause]:
    """Ranks whose launcher has ended: init has become the parent of all that are left."""
    source = scene.evidence.source
    if not (source and scene.is_running and scene.ranks) or scene.launcher:
        return
    if not all(one.process.launcher in STARTED_BY and _has_no_parent(one) for one in scene.ranks):
        return
    name = STARTED_BY[scene.ranks[0].process.launcher]
    one_job = f"--launcher {scene.job.job_id} " if scene.job.job_id else ""
    are = _are([one.number for one in scene.ranks])
    yield Cause(
        "launcher.gone",
        ERROR,
        f"{name} of this job is gone, and {ranks_in_words(scene.ranks)} {are} left over",
        only({one.host.host for one in scene.ranks}),
        f"clusterctl kill {source} {one_job}--dry-run shows them, and without --dry-run ends them",
        tuple(sorted(scene.by_number)),
        tuple(f"{_line(one.process)}, its parent is init" for one in scene.ranks[:4]),
    )


def _has_no_parent(rank: Rank) -> bool:
    """Return whether init is the parent of a rank, or of what has started it."""
    by_pid = {one.pid: one for one in rank.host.processes}
    parent = rank.process.parent
    while parent in by_pid and by_pid[parent].role not in ("launcher", "daemon"):
        parent = by_pid[parent].parent
    return parent == 1 and 1 not in by_pid


def _is_stopped(process: ProcessEvidence) -> bool:
    states = {sample.state for sample in process.samples}
    return len(states) == 1 and states <= {"T", "t", "F"} and process.role in ("launcher", "daemon")


def processes(scene: Scene) -> Iterator[Cause]:
    """Ranks whose process state is the cause: stopped, traced, ended, blocked in the kernel."""
    found = []
    for rank in scene.ranks:
        shown = rank_lines(rank)
        if rank.was("T") or rank.was("F"):
            check = "rank.stopped"
            what, hint = _stopped(scene, rank.host, rank.process, f"{rank.process.pid}")
            what = f"{{is}} {what}"
        elif rank.was("t") and not (rank.grown("main_runs") or rank.grown("main_cpu_s")):
            # One that strace follows is in that state at each of its calls, and goes on.
            by = next((one for one in rank.process.partners if one.relation == "traces"), None)
            who = f"pid {by.pid} ({' '.join(by.argv)[:60]})" if by else "a debugger"
            check, what = "rank.traced", f"{{is}} held by {who} (state t)"
            hint = "detach the debugger, or let it go on"
        elif rank.was("Z"):
            check, what = "rank.exited", "{has} ended (state Z)"
            hint = scene.hints.cluster("clusterctl logs NAME")
        else:
            if rank.was("D") and not rank.moved and not scene.advances:
                found.append(_in_kernel(scene, rank, shown))
            continue
        found.append(RankFinding(check, ERROR, rank, what, shown, hint))
    yield from combine(found)


def _stopped(
    scene: Scene, host: HostEvidence, process: ProcessEvidence, pids: str
) -> tuple[str, str]:
    """Return, in words, that a process is stopped, and what lets it go on."""
    if process.last.state == "F":
        of = scene.hints.on(host, f"cat /proc/{process.pid}/cgroup")
        return (
            "frozen by its cgroup, as a paused container is",
            "let it go on: docker unpause, or 0 into cgroup.freeze of its cgroup (of version 1: "
            f"THAWED into freezer.state): {of}",
        )
    goes_on = scene.hints.on(host, f"kill -CONT {pids}")
    if not asks_user(process.last.syscall):
        again = "if it stops again, it writes to its terminal from the background (stty tostop): fg"
        by_hand = process.role == "launcher" and scene.evidence.source
        return "stopped (state T)", scene.hints.steps(goes_on, again) if by_hand else goes_on
    return (
        "stopped (state T) in reading its terminal, as a job in the background is (SIGTTIN)",
        f"start it with < /dev/null, or run it in the foreground (fg) and answer; {goes_on} "
        "makes it try again",
    )


# What a process waits for in state D, by its system call and the kernel's function.
_CHANNELS = (
    (r"nfs|rpc_|fuse|request_wait|ceph|cifs", "a remote file system does not answer"),
    (r"nvidia|nv_|os_acquire", "the GPU's driver does not answer"),
    (r" fanotify", "what has to permit it, as a virus scanner, does not answer"),
    (r"mem_cgroup_handle_over_high", "its cgroup has more memory than memory.high"),
    (r"mem_cgroup_oom", "its cgroup has no memory left; oom_kill_disable may be set"),
    (
        r"^(?:p?write|open|mkdir|unlink|rename|ftruncate|fallocate)\w* (?:percpu_rwsem|__sb_start)",
        "its file system is frozen (fsfreeze), as for a snapshot",
    ),
)


def _in_kernel(scene: Scene, rank: Rank, shown: tuple[str, ...]) -> RankFinding:
    """Return the finding about a rank in state D."""
    full = full_disk_of(rank)
    if full:
        return full_disk_finding(scene, rank, full, "", shown)
    path = syscall_path(rank.last.syscall)
    where = f" on {path}" if path else ""
    call = rank.last.syscall.partition(" ")[0]
    stuck = (scene.others_wait([rank.number]) or scene.is_quiet) and not saves_with_progress(rank)
    severity = ERROR if stuck else WARNING
    if call in STARTS:
        child = chain(scene, rank)
        what = f"{{is}} {wait_in_words(call, '')}{child.words}"
        hint = child.hint(scene) or "see what it has started: " + scene.hints.on(
            rank.host, f"ps -f --ppid {rank.process.pid}"
        )
        return RankFinding("rank.uninterruptible", severity, rank, what, shown, hint)
    what = f"{{is}} blocked in the kernel (state D){where}"
    if call and call != "running":
        what += f", in {call}"
    channel = rank.last.wait_channel
    why = (f": {words}" for form, words in _CHANNELS if re.search(form, f"{call} {channel}"))
    what += f" ({channel}{next(why, '')})" * bool(channel)
    hint = scene.hints.steps(
        "perhaps no signal ends it but what it waits for: check that file system or device",
        scene.hints.cluster(f"clusterctl reboot NAME {rank.host.index} ends it"),
    )
    return RankFinding("rank.uninterruptible", severity, rank, what, shown, hint)


def missing_ranks(scene: Scene) -> Iterator[Cause]:
    """Ranks that run nowhere, although the job's size includes them.

    Ranks on hosts that could not be observed are not counted as missing.
    """
    unseen = _unseen(scene) if scene.is_running else []
    blank = any(map(scene.unnumbered, scene.evidence.hosts))
    if scene.is_running and scene.launcher and not (scene.ranks or blank):
        yield from _awaiting_nodes(scene, *scene.launcher)
    if not unseen or scene.is_ending:
        return
    if scene.left and scene.advances:
        return
    # At a program's end ranks leave one by one, and the last one evaluates or saves.
    python = scene.ranks and all(one.is_python or not one.places for one in scene.ranks)
    alone = any(map(works_alone, scene.ranks)) and scene.no_rank_waits
    if scene.has_made_steps and alone and python:
        return
    outlived = _outlived(scene, unseen)
    yield from outlived
    unseen = [one for one in unseen if not any(one in cause.ranks for cause in outlived)]
    if not scene.ranks:
        if not (blank or outlived):
            yield from _none_runs(scene)
        return
    if max(one.process.age_s for one in scene.ranks) < STARTED_AFTER_S:
        return
    if scene.evidence.source:
        ended = {one.number for one in scene.gone}
        elsewhere = [one for one in unseen if one not in ended and one not in scene.host_of]
        lost = _at_another_address(scene, elsewhere)
        seen = {one.number for one in lost}
        elsewhere, unseen = ([x for x in ranks if x not in seen] for ranks in (elsewhere, unseen))
        if lost:
            here, there = scene.ranks[0].process.meets_at, lost[0].process.meets_at
            yield Cause(
                "rendezvous.unreached",
                ERROR,
                f"{ranks_in_words(lost)} and {ranks_in_words(scene.ranks)} wait for each other at "
                f"two addresses, {there} and {here}: they never meet",
                lost[0].host.host,
                f"start all with one MASTER_ADDR and MASTER_PORT; {scene.hints.cancel}",
                tuple(one.number for one in lost),
                tuple(process_line(one.process) for one in lost[:4]),
            )
        if elsewhere:
            yield Cause(
                "rank.missing",
                WARNING,
                f"{format_ranks(elsewhere)} {_are(elsewhere)} not found on these hosts: ended, or "
                "on others",
                hint=NAME_ALL,
                ranks=tuple(elsewhere),
                blocks=False,
            )
        unseen = [one for one in unseen if one not in elsewhere]
    by_host: dict[str, list[int]] = {}
    for rank in unseen:
        by_host.setdefault(called(scene.host_of[rank]) if rank in scene.host_of else "", []).append(
            rank
        )
    for where, ranks in by_host.items():
        yield _gone(scene, ranks, where)


def _outlived(scene: Scene, unseen: list[int]) -> list[Cause]:
    """Return the finding about ranks that have ended, and left running what they have started."""
    left = [
        (one.rank, host, one)
        for host in scene.evidence.hosts
        for one in host.processes
        if one.role == "orphan" and one.rank in unseen and (one.job_id or "") == scene.job.job_id
    ]
    ranks = sorted({rank for rank, _, _ in left if rank is not None})
    if not ranks:
        return []
    shown = [
        f"{one.argv[0].rpartition('/')[2] if one.argv else 'a process'} (pid {one.pid}) on "
        f"{called(host)}"
        for _, host, one in left
    ]
    more = f" and {len(shown) - 3} more" if shown[3:] else ""
    works = any(is_working(one) for _, _, one in left)
    return [
        Cause(
            "rank.missing",
            WARNING if works and not scene.ranks else ERROR,
            f"{format_ranks(ranks)} {'have' if ranks[1:] else 'has'} ended, and what "
            f"{'they' if ranks[1:] else 'it'} started still runs: {', '.join(shown[:3])}{more}; "
            "the job runs on while that holds its output",
            only({host.host for _, host, _ in left}),
            scene.hints.steps("end what is left, unless it is needed", f"or {scene.hints.cancel}"),
            tuple(ranks),
            tuple(f"rank {rank}: left {_line(one)}" for rank, _, one in left[:6]),
        )
    ]


def _at_another_address(scene: Scene, missing: list[int]) -> list[Rank]:
    """Return the missing ranks that look like another job: they run this program for as many ranks,
    and are to meet at another address or port.

    Two jobs that wait for ranks on hosts which were not seen look like that, too. So together they
    have to be all ranks, and rank 0, which listens, is not on the seen host where some look for it.
    """
    first = scene.ranks[0].process
    own = (first.argv, first.size)
    found = [one for one in scene.left_over if one.number in missing and one.process.meets_at]
    found = [one for one in found if (one.process.argv, one.process.size) == own]
    every = sorted((*scene.ranks, *found), key=lambda one: one.number)
    waits = all(x.place is Activity.INIT and x.process.age_s >= STARTING_S for x in every)
    if not waits or [one.number for one in every] != [*range(first.size or 0)]:
        return []
    at = {one.process.meets_at for one in every}
    elsewhere = {one.rpartition(":")[0] for one in at - {every[0].process.meets_at}}
    answered = (host for host in scene.evidence.hosts if not (host.error or host.hidden))
    seen = set().union(*(host.names | host.addresses for host in answered))
    return found if elsewhere and elsewhere <= seen else []


# For hosts without a cluster.
NAME_ALL = "name all hosts of the job; for ranks of another user add --sudo"


def sizes(scene: Scene) -> Iterator[Cause]:
    """Ranks that were started for another number of ranks than the others: they wait for some that
    nobody starts, or go on without some that are there. Ranks that do not wait at their start may
    have been started later for more or fewer, by an elastic launcher or MPI_Comm_spawn."""
    groups: dict[int, list[Rank]] = {}
    at_start = not scene.has_made_steps and all(one.place is Activity.INIT for one in scene.ranks)
    for rank in scene.ranks if at_start else ():
        if rank.process.size:
            groups.setdefault(rank.process.size, []).append(rank)
    if len(groups) < 2:
        return
    usual = max(groups, key=lambda size: len(groups[size]))
    odd = [rank for size, ranks in groups.items() if size != usual for rank in ranks]
    of = " or ".join(str(size) for size in groups if size != usual)
    were_started = "were" if odd[1:] else "was"
    yield Cause(
        "ranks.size",
        ERROR,
        f"{ranks_in_words(odd)} {were_started} started as of {of} ranks, the others as of {usual}",
        only({rank.host.host for rank in odd}),
        scene.hints.steps("see what sets the number of ranks there", f"then {scene.hints.cancel}"),
        tuple(rank.number for rank in odd),
        rank_lines(odd[0]),
    )


def _unseen(scene: Scene) -> list[int]:
    """Return the ranks that were not seen, unless they may be where nothing could be seen."""
    silent = {host.host for host in scene.silent}
    blind = {host.host for host in scene.hosts if not host.error and sees_nothing(host)}
    # A process whose environment could not be read may be any rank of its host, or one whose host
    # is not known.
    blank = {host.host for host in scene.evidence.hosts if scene.unnumbered(host)}
    hidden = silent | blind | blank
    unseen = [rank for rank in range(scene.size) if rank not in scene.by_number]
    if silent and any(rank not in scene.host_of for rank in unseen):
        return []
    at = {rank: scene.host_of[rank].host for rank in unseen if rank in scene.host_of}
    return [one for one in unseen if (at[one] not in hidden if one in at else not blank)]


_NODES = re.compile(r"--(nnodes|rdzv[-_]endpoint|master[-_]addr|master[-_]port)[ =](\S+)")


def _awaiting_nodes(scene: Scene, host: HostEvidence, process: ProcessEvidence) -> Iterator[Cause]:
    """A torchrun without ranks: it starts them once all its nodes have come to one address."""
    found = {name.replace("-", "_"): value for name, value in _NODES.findall(scene.job.line)}
    nodes, name = found.get("nnodes", "1").partition(":")[0], process.launcher_name
    if nodes in ("0", "1") or "torch" not in name or process.age_s < STARTING_S:
        return
    master = ":".join(found[one] for one in ("master_addr", "master_port") if one in found)
    at = found.get("rdzv_endpoint") or master
    yield Cause(
        "ranks.none",
        WARNING,
        f"{name} on {called(host)} runs no rank, {format_duration(process.age_s)} after its start: "
        f"it starts them once {nodes} nodes have joined{f' at {at}' if at else ''}",
        host.host,
        "see that it runs on each of these nodes, with the same address, port and --rdzv_id, and "
        "that they reach that address",
        evidence=(process_line(process),),
    )


def _none_runs(scene: Scene) -> Iterator[Cause]:
    if scene.evidence.source:
        yield Cause(
            "ranks.none",
            WARNING,
            "no rank was found on these hosts: none runs, or on others",
            hint=NAME_ALL,
            blocks=False,
        )
    elif scene.job.age_s > STARTING_S and not (scene.job.retries_left and scene.silent):
        yield Cause(
            "ranks.none",
            ERROR,
            f"no rank runs anywhere, {format_duration(scene.job.age_s)} after the start",
            hint=scene.hints.cluster(
                "clusterctl logs NAME shows how far mpirun got; end it: clusterctl cancel NAME"
            ),
        )


def _gone(scene: Scene, ranks: list[int], where: str) -> Cause:
    """Return the finding about ranks that have gone. `where` is their host; empty if that is not
    known."""
    first = scene.host_of.get(ranks[0])
    place = f" on {where}" if where else ""
    return Cause(
        "rank.missing",
        ERROR,
        f"{format_ranks(ranks)}{place} {_are(ranks)} gone: of the job's {scene.size} ranks "
        f"{len(scene.ranks)} run",
        first.host if first else None,
        scene.hints.steps(
            scene.hints.cluster("clusterctl logs NAME may say why it ended"),
            f"then {scene.hints.cancel}",
        ),
        tuple(ranks),
        tuple(_gone_line(scene, rank) for rank in ranks[:6]),
    )


def _gone_line(scene: Scene, number: int) -> str:
    ended = [one for one in scene.gone if one.number == number]
    if ended:
        return f"rank {number}: pid {ended[0].process.pid} ended during the diagnosis"
    where = f" on {scene.host_of[number].host}" if number in scene.host_of else ""
    return f"rank {number}: no process{where}"


def unstarted(scene: Scene) -> Iterator[Cause]:
    """Ranks that are still the shell script which has to start their program, while others run it,
    or which try something again and again."""
    if not scene.is_running or scene.advances:
        return
    started = [one for one in scene.ranks if not one.shell_script]
    found = []
    for rank in scene.ranks:
        here = rank.children
        names = {" ".join(one.argv)[:60] for one in here}
        polls = len(here) > 1 and not any(len(one.samples) == len(rank.samples) for one in here)
        if not rank.shell_script or not (started or polls):
            continue
        what = (
            f"{{is}} still the shell script {rank.shell_script}, which has not started its program"
        )
        if here:
            what += f": it runs `{sorted(names)[0]}`{' again and again' if polls else ''}"
        shown = (*rank_lines(rank), *(f"rank {rank.number}: its {_line(one)}" for one in here))
        severity = ERROR if scene.is_quiet and rank.process.age_s > STARTING_S else WARNING
        hint = f"see what {rank.shell_script} waits for before it starts the program"
        found.append(RankFinding("rank.unstarted", severity, rank, what, shown[:4], hint))
    inside = sorted({one.native.mpi for one in started} - {""})
    for cause in combine(found):
        waiting = [one.number for one in started if one.native.mpi]
        rest = f"; {format_ranks(waiting)} {_wait(waiting)} in {' or '.join(inside)}"
        yield replace(cause, message=cause.message + rest * bool(waiting))


def _line(process: ProcessEvidence) -> str:
    return f"{process_line(process)} ({' '.join(process.argv)[:60]})"


def _wait(ranks: Sized) -> str:
    return "wait" if len(ranks) > 1 else "waits"


def left_over(scene: Scene) -> Iterator[Cause]:
    """Ranks of jobs that have ended, or that are unknown, and the memory that they hold."""
    others_now = {*scene.job.others}
    ended_s = scene.job.ended_s
    if scene.launcher and ended_s is not None and ended_s <= scene.evidence.took_s:
        others_now.add(scene.job.job_id)  # it has ended after its processes were seen
    by_host: dict[str, list[Rank]] = {}
    for rank in scene.left_over:
        if (rank.process.job_id or "") not in others_now:
            by_host.setdefault(rank.host.host, []).append(rank)
    for ranks in by_host.values():
        host = ranks[0].host
        held = sum(one.last.rss_bytes for one in ranks)
        pids = {one.process.pid for one in ranks}
        users = [one for gpu in host.gpus for one in gpu.processes if one.pid in pids]
        gpu = int(sum(one.memory_mib or 0 for one in users)) << 20
        also = f" and {format_bytes(gpu)} of GPU memory" if gpu else ""
        jobs = sorted({one.process.job_id or "an mpirun typed by hand" for one in ranks})
        # Ranks of the diagnosed job that outlived it. Nothing will end them, so it is an error.
        own = not scene.is_running and any(one.process.job_id == scene.job.job_id for one in ranks)
        if scene.silent_head:
            head = called(scene.silent_head)
            yield Cause(
                "ranks.leftover",
                WARNING,
                f"{count(len(ranks), 'rank')} of {', '.join(jobs[:2])} on {called(host)}: whether "
                f"that runs is not known, since {head} does not answer",
                host.host,
                evidence=tuple(process_line(one.process) for one in ranks[:4]),
                blocks=False,
            )
            continue
        yield Cause(
            "ranks.leftover",
            ERROR if own else WARNING,
            f"left over on {called(host)}: {count(len(ranks), 'rank')} of {', '.join(jobs[:2])}, "
            f"with {format_bytes(held)} of memory{also}",
            host.host,
            scene.hints.cluster(f"clusterctl kill NAME --nodes {host.index}"),
            tuple(sorted({one.number for one in ranks})) if own else (),
            evidence=tuple(process_line(one.process) for one in ranks[:4]),
            blocks=not scene.is_running,
        )
