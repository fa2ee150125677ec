"""Rules on the state of each host: disks, mounts, GPUs, limits, clock, hostname, quarantine."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from clusterctl.diagnosis.case import (
    ERROR,
    INFO,
    WARNING,
    Cause,
    RankFinding,
    Scene,
    combine,
    room_hint,
)
from clusterctl.diagnosis.evidence import HostEvidence
from clusterctl.diagnosis.hostchecks import (
    SHM,
    TAKEN_FOR_ONE,
    fullness,
    has_no_room,
    namesakes,
    reboot_hint,
    skews,
    slowdown,
)
from clusterctl.diagnosis.ranks import called, format_ranks, full_disk_of, syscall_path
from clusterctl.diagnosis.rules.logs import NO_ROOM
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_bytes
from clusterctl.node.facts.disks import MountedFileSystem

# Users of the system's own processes.
SYSTEM = ("root", "daemon", "nobody", "messagebus", "syslog", "_apt", "_chrony")
# A mount whose server is gone. Others refuse the login (another's home), or cannot tell their size.
UNANSWERED = re.compile(r"no answer|\[Errno (?:5|107|110|111|112|113|116|121)\]")
# With so little address space left, a program cannot go on.
NO_MEMORY = 64 << 20
# Mounts in which a job writes though it has no file open there.
USUAL = ("/", "/tmp", "/var", "/home", "/data", "/scratch")  # noqa: S108
FEW_DESCRIPTORS = 64  # that a rank has left


def host_facts(scene: Scene) -> Iterator[Cause]:
    """Full disks, full shared memory, dead mounts and broken GPUs of the hosts that answered."""
    for host in scene.evidence.hosts:
        blocks = scene.is_running and not scene.advances
        for system in host.known.filesystems:
            yield from _full(scene, host, system, blocks)
        for name, why in host.known.errors.items():
            if name.startswith("mount ") and UNANSWERED.search(why):
                yield _dead_mount(scene, host, name[6:], why, blocks)
        yield from _gpus(scene, host)
    yield from _read_only(scene)


def _dead_mount(scene: Scene, host: HostEvidence, path: str, why: str, blocks: bool) -> Cause:
    """Return the finding about a mount whose server is gone, with the ranks that wait for it."""
    inside = f"{path.rstrip('/')}/"
    calls = [(one, syscall_path(one.last.syscall)) for one in scene.ranks if one.host is host]
    ranks = [one for one, at in calls if f"{at}/".startswith(inside)]
    message = f"{path} on {called(host)} does not answer ({why})"
    if ranks:
        call = ranks[0].last.syscall.replace(" ", " of ", 1)
        wait = "wait" if ranks[1:] else "waits"
        message += f", and {format_ranks(one.number for one in ranks)} {wait} for it in {call}"
    hint = scene.hints.steps(
        "see to its server", scene.hints.cluster(f"clusterctl reboot NAME {host.index} lets go")
    )
    numbers = tuple(one.number for one in ranks)
    severity = ERROR if blocks else WARNING
    return Cause("mount.dead", severity, message, host.host, hint, numbers, blocks=blocks)


def _read_only(scene: Scene) -> Iterator[Cause]:
    """Local file systems that are read-only and should not be. Others, which may be meant to be,
    only if they are so on few hosts, while no step is made: what writes there may try again and
    again."""
    hosts = scene.hosts
    found = [(host, one) for host in hosts for one in host.known.filesystems if one.readonly]
    many = Counter(one.path for _, one in found)
    for host, one in found:
        is_fault = one.lost_writes or one.is_refusing
        if is_fault or (many[one.path] * 2 < len(hosts) and not scene.advances):
            what = f"{one.path} on {called(host)} is mounted read-only"
            hint = f"see why: {scene.hints.on(host, 'sudo dmesg | tail')}"
            severity = WARNING if is_fault else INFO
            yield Cause("disk.readonly", severity, what, host.host, hint, blocks=False)


def _full(
    scene: Scene, host: HostEvidence, system: MountedFileSystem, blocks: bool
) -> Iterator[Cause]:
    """Find a full file system. Only one without any room can be why a job is stuck."""
    is_out = has_no_room(system)
    # Of other hosts than a cluster's, a mount may be anybody's.
    own = (full_disk_of(one) for one in scene.ranks if one.host is host)
    is_ours = not scene.evidence.source or system.path in (*USUAL, SHM) or system.path in own
    is_ours = is_ours or any(one.signature.id in NO_ROOM for one in scene.whole_log.findings)
    hint = room_hint(scene)
    if system.path == SHM:
        hint = f"{scene.hints.on(host, 'ls -lS /dev/shm')}: what dead jobs left there can go"
    for short in fullness(system):
        if short.severity is ERROR:
            yield Cause(
                short.check.replace("inodes.", ""),
                ERROR if blocks and is_out and is_ours else WARNING,
                f"{system.path} on {called(host)} {short.words}",
                host.host,
                hint,
                blocks=blocks and is_out and is_ours,
            )


def _gpus(scene: Scene, host: HostEvidence) -> Iterator[Cause]:
    # Without a cluster the slots are those of a hosts file, which need not be GPUs.
    if not scene.evidence.source and host.known.gpus and len(host.gpus) < host.slots > 1:
        yield Cause(
            "gpu.count",
            ERROR,
            f"nvidia-smi sees {count(len(host.gpus), 'GPU')} on {called(host)}, its type has "
            f"{host.slots}",
            host.host,
            scene.hints.cluster(reboot_hint(host.index)),
            blocks=False,
        )
    for index, gpu in enumerate(host.gpus):
        action = "" if gpu.recovery_action in ("None", "N/A") else gpu.recovery_action
        if action or gpu.remap_failed:
            state = f"needs {action}"
            hint = reboot_hint(host.index)
            if gpu.remap_failed:
                state = "has a bad memory row that could not be remapped"
                hint = f"clusterctl replace NAME {host.index}"
            yield Cause(
                "gpu.broken",
                ERROR,
                f"GPU {index} on {called(host)} {state}",
                host.host,
                scene.hints.cluster(hint),
                blocks=scene.is_running and not scene.advances,
            )
        slowed = slowdown(gpu.throttled)
        if slowed:
            yield Cause(
                "gpu.throttled",
                WARNING,
                f"GPU {index} on {called(host)} {slowed}"
                + (f", to {gpu.clock_mhz:.0f} MHz" if gpu.clock_mhz else ""),
                host.host,
                scene.hints.cluster(f"if it stays so: clusterctl replace NAME {host.index}"),
                blocks=False,
            )


def limits(scene: Scene) -> Iterator[Cause]:
    """Ranks that have reached a limit: of open descriptors, of threads, of address space."""
    found = []
    for rank in scene.ranks:
        last, own = rank.last, rank.process.limits
        most, held = own.get("files", rank.host.known.limits.get("nofile")), last.descriptors
        hint = "raise the limit: nofile in limits.conf"
        if most is not None and most - held <= FEW_DESCRIPTORS and held > most // 2:
            what = f"{{has}} {held} files open of the {most} that the limit allows"
            found.append(RankFinding("rank.descriptors", WARNING, rank, what, (), hint))
        threads, memory = own.get("threads"), own.get("memory")
        if threads is not None and last.threads >= threads:
            what = f"{{has}} {last.threads} threads, and its limit allows its user {threads}"
            hint = "raise the limit: nproc in limits.conf, or what lowers it in the program"
            found.append(RankFinding("rank.threads", WARNING, rank, what, (), hint))
        if "cgroup" in own:
            what = f"{{is}} in a cgroup that has all {own['cgroup']} threads that it may have"
            hint = (
                "raise pids.max of its cgroup: of a container, a job, or a systemd unit (TasksMax)"
            )
            found.append(RankFinding("rank.threads", WARNING, rank, what, (), hint))
        if memory is not None and last.virtual_bytes > memory - NO_MEMORY:
            what = (
                f"{{has}} {format_bytes(last.virtual_bytes)} of address space, and the limit is "
                f"{format_bytes(memory)}"
            )
            hint = "raise the limit: `as` in limits.conf (ulimit -v), or what lowers it"
            found.append(RankFinding("rank.memory", WARNING, rank, what, (), hint))
    yield from (replace(one, blocks=False) for one in combine([*found, *_lower_limits(scene)]))


def _lower_limits(scene: Scene) -> Iterator[RankFinding]:
    """Find the few ranks with a lower limit than most, in a job that makes no step: of those that
    no counter shows to be reached."""
    names = {name for rank in scene.ranks for name in rank.process.limits}
    for name in sorted(names - {"files", "threads", "memory", "cgroup"}):
        own = [rank.process.limits.get(name, math.inf) for rank in scene.ranks]
        usual = statistics.median_high(own)
        low = [rank for rank, limit in zip(scene.ranks, own) if limit < usual]
        for rank in low if not scene.advances and len(low) * 2 < len(own) else ():
            others = "none" if usual == math.inf else f"{usual:.0f}"
            what = f"{{has}} a limit of {rank.process.limits[name]} {name}, and most have {others}"
            hint = "see what sets it there: ulimit -a, limits.conf, or the program"
            yield RankFinding("rank.limit", INFO, rank, what, (), hint)


def other_users(scene: Scene) -> Iterator[Cause]:
    """Busy processes of people on the hosts of a running job; the system's are no finding."""
    if not scene.is_running:
        return
    for host in scene.hosts:
        people = [one for one in host.others if one.user not in SYSTEM and one.share >= 0.5]
        if people:
            users = sorted({one.user for one in people})
            share = sum(one.share for one in people)
            yield Cause(
                "host.shared",
                WARNING,
                f"{count(len(people), 'process')} of {', '.join(users)} on {called(host)} "
                f"use{'s' if len(people) == 1 else ''} {share:.1f} processors next to the job",
                host.host,
                "they are another user's: ask before you end them",
                evidence=tuple(
                    f"pid {one.pid}, {one.user}: {' '.join(one.argv)[:100]}" for one in people
                ),
                blocks=False,
            )


def clocks(scene: Scene) -> Iterator[Cause]:
    """Hosts whose clock differs from the clock that most agree with."""
    known = [host for host in scene.evidence.hosts if host.clock_offset_s is not None]
    clocks = [(host.clock_offset_s or 0.0, host.clock_error_s or 0.0) for host in known]
    for host, skew in zip(known, skews(clocks)):
        if skew:
            yield Cause(
                "clock.skew",
                WARNING,
                f"the clock of {called(host)} is {skew}",
                host.host,
                scene.hints.on(host, "sudo chronyc makestep"),
                blocks=False,
            )


def hostnames(scene: Scene) -> Iterator[Cause]:
    """Hosts of the same name: Horovod and NCCL take their ranks for those of one machine."""
    fix = "give each its own again" + scene.hints.cluster(": clusterctl doctor NAME --fix")
    for name, hosts in namesakes(scene.evidence.hosts, lambda host: host.hostname).items():
        yield Cause(
            "host.name",
            ERROR if scene.is_running and not scene.advances else WARNING,
            f"{fold_hosts([one.host for one in hosts])} all call themselves {name}: "
            f"{TAKEN_FOR_ONE}",
            hosts[-1].host,
            f"{scene.hints.cancel}, then {fix}" if scene.is_running else fix,
            blocks=scene.is_running and not scene.advances,
        )


def quarantined(scene: Scene) -> Iterator[Cause]:
    """Hosts in quarantine that the job uses, or may use because they do not answer."""
    used = {rank.host.host for rank in scene.ranks}
    for host in scene.evidence.hosts:
        if host.quarantined and (host.host in used or (host.error and scene.is_running)):
            since, _, why = host.quarantined.partition(" ")
            yield Cause(
                "host.quarantined",
                WARNING,
                f"{called(host)} is in quarantine since {since}{why and f' ({why})'}, and the job "
                "uses it",
                host.host,
                scene.hints.cluster(f"clusterctl release NAME {host.index} makes it usable again"),
                blocks=False,
            )
