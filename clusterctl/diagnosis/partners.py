"""For whom a process waits in a system call, and for whom that one waits, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.diagnosis.case import Scene
from clusterctl.diagnosis.evidence import HostEvidence, Partner
from clusterctl.diagnosis.frames import is_user
from clusterctl.diagnosis.ranks import Rank, asks_user, called, syscall_path
from clusterctl.diagnosis.tree import label, main_thread
from clusterctl.node.diagnosis.partners import LOCKS, READS, STARTS

_VERBS = {
    "open": "opening",
    "write": "writing",
    "send": "writing",
    **dict.fromkeys(READS, "reading"),
}
_WHY = {
    "wait_for_partner": " (a pipe: no process is at its other end)",
    "__break_lease": " (another process has a lease on it)",
}


@dataclass(frozen=True)
class Chain:
    """The processes that follow each other in waiting, from the one for which a rank waits to the
    last that is known, which is on `host`. `words` tells it, as a continuation of what the rank
    does."""

    partners: tuple[Partner, ...]
    words: str
    host: HostEvidence

    def hint(self, scene: Scene) -> str:
        """Return what helps with the last process; empty if none is known."""
        if not self.partners:
            return ""
        last = self.partners[-1]
        if last.state == "T":
            return scene.hints.on(self.host, f"kill -CONT {last.pid}")
        ctrl_s = ""
        if any("write /dev/pts/" in one.call for one in self.partners):
            ctrl_s = "if Ctrl-S has stopped its terminal, Ctrl-Q lets it go on"
        end = ""
        if last.relation == "child":
            end = f"if it is stuck, end it: {scene.hints.on(self.host, f'kill {last.pid}')}"
        ps = scene.hints.on(self.host, f"ps -fp {last.pid}")
        return scene.hints.steps(f"see it: {ps}", end, ctrl_s)


def wait_in_words(call: str, channel: str) -> str:
    """Return what a process does in a system call that may wait for another process, or for a
    file; empty for other calls."""
    name, path = call.partition(" ")[0], syscall_path(call)
    if name in LOCKS:
        return f"waiting for the lock on {path or 'a file'}"
    if name in STARTS:
        return f"waiting in {name} for its child to execute its program"
    if name.startswith("wait"):
        return "waiting for a process that it has started"
    if "socket:[" in call:
        path = "a socket"
    elif "pipe:[" in call or channel.endswith(("pipe_read", "pipe_write", "pipe_wait")):
        path = path or "a pipe"
    if not path:
        return ""
    if asks_user(call):
        return "waiting for input on its terminal"
    verb = next((word for part, word in _VERBS.items() if part in name), f"in {name} of")
    return f"blocked {verb} {path}{_WHY.get(channel, '')}"


def chain(scene: Scene, rank: Rank) -> Chain:
    """Return for whom a rank waits, for whom that one waits, and so on."""
    if asks_user(rank.last.syscall):
        return Chain((), "", rank.host)
    found: list[Partner] = []
    host, words = rank.host, ""
    numbers = {(one.host.host, one.process.pid): one.number for one in scene.ranks}
    partners, pid = rank.process.partners, rank.process.pid
    while one := _of(partners, pid, found):
        words += _named(one, numbers.get((host.host, one.pid)), _place(host, one.pid))
        found.append(one)
        pid = one.pid
        if _of(partners, pid, found) or "write" in one.call or one.state == "D":
            does = wait_in_words(one.call, one.wait_channel)
            state = " (state D)" * (one.state == "D")
            words += f"; pid {pid} itself is {does}{state}" if does else ""
        daemons = {other.pid for other in host.processes if other.role == "daemon"}
        if pid in daemons and scene.launcher and not _of(partners, pid, found):
            # The daemon sends what it collects to mpirun.
            above, mpirun = scene.launcher
            last = mpirun.last
            if "write" in last.syscall:
                host, partners, pid = above, mpirun.partners, mpirun.pid
                words += f"; mpirun on {called(above)}, which gets it from there, is "
                words += wait_in_words(last.syscall, last.wait_channel)
                found.append(Partner(pid, last.state, "gets", mpirun.argv, call=last.syscall))
    return Chain(tuple(found), words, host)


def waits_for(scene: Scene, rank: Rank, told: str = "") -> str:
    """Return the process at the other end of what a rank reads or writes, such as `, which pid 77
    (tee log) reads`, or that it has started; empty if it waits for none that is known. What it does
    is left out if `told` has it."""
    does = wait_in_words(rank.last.syscall, rank.last.wait_channel)
    found = chain(scene, rank) if does else None
    if not found or not found.partners:
        return ""
    return found.words if told.startswith(does) else f", {does}{found.words}"


def _of(partners: Sequence[Partner], pid: int, found: Sequence[Partner]) -> Partner | None:
    """Return a partner of a process, one that cannot go on itself first."""
    waiters = (pid,) if found else (0, pid)
    those = [one for one in partners if one.waiter in waiters and one not in found]
    stuck = {one.waiter for one in partners}
    return max(
        those, key=lambda one: (one.state in ("T", "F", "D"), one.pid in stuck), default=None
    )


def _place(host: HostEvidence, pid: int) -> str:
    """Return where a process is in the user's code, such as `, in load train.py:30`, or nothing."""
    calls = [main_thread(one.last) for one in host.processes if one.pid == pid and one.samples]
    own = [frame for frames in calls for frame in frames if is_user(frame)]
    return f", in {label(own[-1])}" if own else ""


def _named(one: Partner, rank: int | None, place: str) -> str:
    """Return a process, which may be a rank, with what it is to another, such as `, which pid 77
    (tee log, stopped) reads`."""
    argv = " ".join(one.argv)[:60] or "its name is not known"
    call = one.call.partition(" ")[0]
    relation = "holds" if one.relation == "locks" else one.relation
    states = {"T": ", stopped", "F": ", frozen by its cgroup", "D": ", in the kernel (state D)"}
    state = states.get(one.state, "")
    if one.relation == "child":
        return f": pid {one.pid} ({argv}{state or (f', in {call}' if call else '')})"
    who = f"pid {one.pid} ({argv}{state}{place})"
    who = who if rank is None else f"rank {rank} (pid {one.pid}{state})"
    return f", which {who} {relation}"
