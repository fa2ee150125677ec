"""The guard itself. It checks the limits every second, and ends only if there is nothing to guard.

run [ROOT]       guard this node; ends at once if another guard runs
poll [ROOT]      print what this node does, as JSON, and note that the head node has polled
off WHY          switch off
taken NOTICE     note that EC2 takes a node of the cluster back, as JSON
check FILE [LEFT_S [LIFETIME_S]]  fails if the program does not run here or the file has no valid
                 settings; with LEFT_S, writes into the file when the machine ends
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.node.guard import decisions, workers
from clusterctl.node.guard.activity import NodeActivity, node_activity
from clusterctl.node.guard.clock import (
    BootClock,
    GuardFiles,
    Moment,
    object_in,
    put,
    read_object,
    read_text,
    seconds,
)
from clusterctl.node.guard.power import PowerOff, announce, off_soon
from clusterctl.node.guard.settings import GuardSettings, Worker, parse_settings
from clusterctl.node.guard.spot import EventWatch, Notices, SpotWatch, why_taken
from clusterctl.node.procfs import boot_s

TICK_S = 1.0
STATE_EVERY_S = 5.0
# How long the head node tries to switch the workers off, and the pause between two attempts.
WORKERS_OFF_TIMEOUT_S = 300.0
SEND_AGAIN_S = 10.0
NOTHING = GuardSettings("")


class SettingsFile:
    """The settings, read again when the file changes. If the file is unreadable or invalid, the
    settings stay as they are; after a start those of the last valid file are used."""

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._read_stamp: object = None
        self.problem = ""
        self.value = self._last_good()

    def refresh(self) -> None:
        """Read the file if it has changed."""
        try:
            stat = self._place.settings.stat()
            stamp: object = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        except OSError as missing:
            stamp = missing.errno
        if stamp != self._read_stamp:
            self._read_stamp = stamp
            self._read()

    def _read(self) -> None:
        try:
            text = read_text(self._place.settings)
            found = parse_settings(text)
        except (OSError, ValueError, RecursionError) as broken:
            self.problem = f"{self._place.settings}: {broken}"
            self._place.log(f"the settings stay as they were; {self.problem}")
            return
        self.problem = ""
        if found != self.value:
            self._place.log(f"settings: {' '.join(text.split())[:1000]}")
        self.value = found
        put(self._place.good, text)

    def _last_good(self) -> GuardSettings:
        try:
            return parse_settings(read_text(self._place.good))
        except (OSError, ValueError, RecursionError):
            return NOTHING


class IdleWatch:
    """Watches for idleness: first of this node, then, if this node is idle, of the workers. It runs
    in its own thread, so that an nvidia-smi or a network that hangs does not delay the deadline.

    `given_up` are the workers that have not answered for long. They do not count, and decide for
    themselves. Neither does it count for longer whether GPUs are used that do not say so. `clock`
    is the boot clock.
    """

    def __init__(self, place: GuardFiles, clock: Callable[[], float] = boot_s) -> None:
        self._place, self._clock = place, clock
        self._before: dict[str, NodeActivity] = {}
        self._idleness: decisions.Idleness | None = None
        self._role: object = None
        self._since = self._polled_at = float("-inf")
        self._answered_at: dict[Worker, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._is_head_silent = False
        self.given_up: set[Worker] = set()
        self.limit: float | None = None
        self.report: dict[str, Any] = {}

    def step(self, settings: GuardSettings) -> tuple[float, str]:
        """Check once. Return the seconds until the next check, and why the cluster has to end;
        empty if it does not."""
        self.limit = limit = decisions.limit_s(settings, self._unasked_s(settings))
        self._announce_silent_head(settings)
        if limit is None:
            self._idleness, self.report = None, {}
            self._forget()
            return TICK_S, ""
        interval, began_s = decisions.interval_s(limit), self._clock()
        busy = self._busy(settings)
        now_s = self._clock()
        self._idleness = decisions.next_idleness(
            self._idleness, began_s, now_s, bool(busy), interval
        )
        since = self._idleness.since
        for_s = 0.0 if since is None else now_s - since
        self.report = {"idle_for_s": round(for_s, 1), "busy": busy, "checked_at": time.time()}
        if since is None or for_s < limit:
            return interval, ""
        return interval, f"idle for {for_s / 60:.0f} minutes: no job, no login, quiet GPUs"

    def _forget(self, workers: Collection[Worker] = ()) -> None:
        """Forget all but these workers: one that comes back later has not been silent meanwhile."""
        self._answered_at = {one: at for one, at in self._answered_at.items() if one in workers}
        self.given_up &= set(workers)

    def _unasked_s(self, settings: GuardSettings) -> float:
        """Return for how long the head node has not polled this node, since it has its role."""
        role = settings.index, settings.idle_s
        if role != self._role:
            self._role, self._since = role, self._clock()
        polled_at = seconds(read_object(self._place.polled).get("at_s"))
        return self._clock() - max(self._since, polled_at)

    def _announce_silent_head(self, settings: GuardSettings) -> None:
        is_silent = bool(settings.index) and self.limit is not None
        if is_silent and not self._is_head_silent:
            announce(
                self._place,
                "the head node is silent: this node decides by itself, and stops after "
                f"{(self.limit or 0) / 60:.0f} idle minutes",
            )
        self._is_head_silent = is_silent

    def _busy(self, settings: GuardSettings) -> list[str]:
        self._forget(settings.workers)
        found = self._compare(settings, settings.name, node_activity(not settings.erases_store))
        is_due = self._clock() - self._polled_at >= decisions.ASK_AT_LEAST_S
        if settings.index == 0 and (not found or is_due):
            self._polled_at = self._clock()
            for worker, answer in workers.ask(settings, settings.workers):
                if isinstance(answer, NodeActivity):
                    self._answered_at[worker] = self._clock()
                    self.given_up.discard(worker)
                    found += self._compare(settings, worker.name, answer)
                elif not self._is_given_up(settings, worker):
                    # A worker that does not answer may be computing, so it counts as busy.
                    found.append(f"{worker.name}: {answer}")
        return found

    def _is_given_up(self, settings: GuardSettings, worker: Worker) -> bool:
        """Return whether a worker that does not answer no longer counts."""
        silent_s = self._clock() - self._answered_at.setdefault(worker, self._clock())
        if decisions.is_cut_off(settings, silent_s) and worker not in self.given_up:
            self.given_up.add(worker)
            announce(
                self._place,
                f"{worker.name} has not answered for {silent_s / 3600:.1f} hours: the others stop "
                f"after {(self.limit or 0) / 60:.0f} idle minutes",
            )
        return worker in self.given_up

    def _compare(self, settings: GuardSettings, name: str, now: NodeActivity) -> list[str]:
        before = self._before.get(name)
        self._before[name] = now
        found = decisions.reasons(name, before, now)
        if not now.unknown:
            self._unknown_since.pop(name, None)
            return found
        # A GPU that fell off the bus does not keep the cluster running for ever.
        unknown_s = self._clock() - self._unknown_since.setdefault(name, self._clock())
        if not decisions.is_cut_off(settings, unknown_s):
            found += [f"{name}: {reason}" for reason in now.unknown]
        return found


class Guard:
    """The whole guard. `ending` is the reason why the machine is being switched off."""

    def __init__(self, place: GuardFiles, program: str) -> None:
        self._place = place
        self._program = program
        self._stamp = _stamp(program)
        self._settings = SettingsFile(place)
        self._clock = BootClock(place)
        self._idle = IdleWatch(place)
        self._notices = Notices(place)
        self._spot = SpotWatch(self._notices, place.log)
        self._events = EventWatch(place)
        self._off = PowerOff(place)
        self._warned: float | None = None
        self._block_warned: float | None = None
        self._state_at = float("-inf")
        self.ending = ""

    def run(self) -> None:
        """Run until there is nothing to guard. Raises nothing."""
        watches = {
            "idle": self._watch_idleness,
            "spot": self._watch_spot,
            "workers": self._watch_workers,
            "events": lambda: self._events.step(self._settings.value),
        }
        for name, step in watches.items():
            threading.Thread(target=self._forever, args=(name, step), daemon=True).start()
        while self._attempt("guard", self._tick, True):
            time.sleep(TICK_S)
        self._place.log("nothing to guard")
        self._place.state.unlink(missing_ok=True)

    def _tick(self) -> bool:
        self._settings.refresh()
        settings = self._settings.value
        if not settings.guards:
            # Settings that cannot be read may come back: a damaged file is no order to end.
            return bool(self._settings.problem) and self._place.settings.exists()
        now = self._clock.read()
        left = decisions.left_s(settings, now)
        self._warn(left)
        self._warn_of_block(settings, now)
        if left is not None and left <= 0 and not self.ending:
            self._end("its time is up")
        if self.ending:
            self._off.step(now.boot_s)
        if now.boot_s - self._state_at >= STATE_EVERY_S:
            self._state_at = now.boot_s
            put(self._place.state, json.dumps(self._state(settings, now, left)) + "\n")
        # A newer version was installed: run it.
        if not self.ending and _stamp(self._program) not in (self._stamp, None):
            self._place.log("the program has changed")
            os.execv(sys.executable, [sys.executable, "-IS", self._program, *sys.argv[1:]])
        return True

    def _warn(self, left: float | None) -> None:
        if left is None:
            return
        due = decisions.warning(left)
        if due is not None and (self._warned is None or due < self._warned):
            fate = self._settings.value.power_off_effect
            when = decisions.in_words(left)
            announce(self._place, f"this machine ends {when}, {fate}: save your work")
        self._warned = due

    def _warn_of_block(self, settings: GuardSettings, now: Moment) -> None:
        """Announce that EC2 will terminate the machines of a Capacity Block, and inform rank 0.

        EC2 gives no notice of it on the machine. Each node does this for itself.
        """
        due, before = decisions.block_warning(settings, now), self._block_warned
        # None again after the block was extended.
        self._block_warned = due
        if due is None or (before is not None and due >= before):
            return
        when = decisions.in_words((settings.block_ends_at or 0.0) - now.wall)
        why = f"its Capacity Block ends: EC2 begins to terminate this machine {when}"
        if due == min(decisions.BLOCK_WARN_AT_S):
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(settings.block_ends_at))
            self._notices.taken({"action": "terminate", "time": ends, "node": settings.name}, why)
        else:
            announce(self._place, why)

    def _end(self, why: str) -> None:
        self.ending = why
        self._state_at = float("-inf")
        announce(self._place, f"this machine is {self._settings.value.power_off_effect} now: {why}")

    def _state(self, settings: GuardSettings, now: Moment, left: float | None) -> dict[str, Any]:
        return {
            "at": now.wall,
            "cluster": settings.cluster,
            "index": settings.index,
            "left_s": None if left is None else round(left),
            "used_s": round(now.used_s),
            "idle_s": self._idle.limit,
            **self._idle.report,
            "spot": self._notices.notice,
            "ending": self.ending or None,
            "problem": self._settings.problem or None,
        }

    def _watch_idleness(self) -> float:
        settings = self._settings.value
        pause_s, why = self._idle.step(settings)
        # Asking the workers takes time, in which a job or a login may begin here.
        if why and not self.ending and not node_activity(not settings.erases_store).busy:
            self._end_workers(settings, why)
            # `up` may have changed the limits meanwhile, and what EC2 does at a power-off.
            if self._settings.value == settings:
                self._end(why)
        return pause_s

    def _end_workers(self, settings: GuardSettings, why: str) -> None:
        """Switch the workers off before the head node. The attempts for one that cannot be reached
        end after a few minutes, because the head node costs money meanwhile, and when the settings
        change."""
        # One that has not answered for long may compute: it decides for itself.
        untold = [one for one in settings.workers if one not in self._idle.given_up]
        deadline_s = time.monotonic() + WORKERS_OFF_TIMEOUT_S
        while untold and self._settings.value == settings:
            untold = workers.power_off(settings, untold, why)
            if untold and time.monotonic() > deadline_s:
                names = " ".join(worker.name for worker in untold)
                announce(self._place, f"could not be ordered to switch off: {names}")
                return
            if untold:
                time.sleep(SEND_AGAIN_S)

    def _watch_spot(self) -> float:
        settings = self._settings.value
        return self._spot.step(settings) if settings.spot else TICK_S

    def _watch_workers(self) -> float:
        settings = self._settings.value
        polls_workers = settings.spot and settings.index == 0
        return self._spot.poll_workers(settings) if polls_workers else TICK_S

    def _forever(self, name: str, step: Callable[[], float]) -> None:
        while True:
            time.sleep(self._attempt(name, step, 60.0))

    def _attempt(self, name: str, step: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return step()
        except Exception as failure:  # noqa: BLE001 - nothing ends a guard but its settings
            self._place.log(f"{name}: {failure!r}")
            return otherwise


def _stamp(path: str) -> object:
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def main() -> None:
    command, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if command == "run":
        guard(GuardFiles(*arguments), sys.argv[0])
    elif command == "poll":
        place = GuardFiles(*arguments)
        found = node_activity(not SettingsFile(place).value.erases_store)
        # Only now: the head node does not count one that does not answer as polled.
        put(place.polled, json.dumps({"at_s": boot_s()}) + "\n")
        print(json.dumps(vars(found)))
    elif command == "off":
        print("off", flush=True)
        announce(GuardFiles(), f"this machine is switched off now: {' '.join(arguments)}")
        off_soon()
    elif command == "taken":
        notice = object_in(arguments[0])
        Notices(GuardFiles()).taken(notice, why_taken(notice))
    elif command == "check":
        try:
            check(GuardFiles(), Path(arguments[0]), *map(float, arguments[1:]))
        except (OSError, ValueError) as broken:
            sys.exit(f"{arguments[0]}: {broken}")
    else:
        sys.exit("usage: guard run [ROOT] | poll | off WHY | taken NOTICE | check FILE [LEFT_S]")


def check(
    place: GuardFiles, file: Path, left_s: float | None = None, lifetime_s: float | None = None
) -> None:
    """Check the settings in `file`. With `left_s`, also write the end into them (`decisions.end`).

    Raises OSError, ValueError.
    """
    settings = parse_settings(read_text(file))
    if left_s is not None:
        end = decisions.end(BootClock(place).used_s(), left_s, lifetime_s)
        if not put(file, replace(settings, lifetime_s=end).text()):
            raise OSError("it cannot be written")


def guard(place: GuardFiles, program: str) -> None:
    """Run the guard unless one runs already. The lock is on the folder itself: it needs no disk
    space, and the kernel releases it when the guard ends."""
    place.kept.mkdir(parents=True, exist_ok=True)
    lock = os.open(place.kept, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with contextlib.suppress(OSError):
        # When a job uses up the memory, the kernel must not kill the guard, which may stop the job.
        Path("/proc/self/oom_score_adj").write_text("-1000")
    Guard(place, program).run()
