"""Notices that EC2 is about to reclaim or service machines, and informs the job."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterctl.node.guard import activity, workers
from clusterctl.node.guard.clock import GuardFiles, parsed, put, read_text
from clusterctl.node.guard.power import announce
from clusterctl.node.guard.settings import GuardSettings

POLL_S = 5.0
WORKERS_POLL_S = 10.0
# While the metadata service does not answer.
LONGEST_POLL_S = 60.0
TIMEOUT_S = 2.0
# The longest that IMDSv2 permits.
TOKEN_TTL_S = 21600
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
# Events that EC2 has scheduled, such as a retirement. They strike days later.
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
SCHEDULED_POLL_S = 300.0


class Imds:
    """The instance metadata service, version 2."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._token = ""

    def read(self, path: str) -> dict[str, Any]:
        """Return the JSON object at `path`; empty if there is none. Raises OSError."""
        found = self._read(path)
        return found if isinstance(found, dict) else {}

    def read_all(self, path: str) -> list[dict[str, Any]]:
        """Return the JSON objects of the list at `path`; none without one. Raises OSError."""
        found = self._read(path)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def _read(self, path: str) -> object:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            status, self._token = self._ask("PUT", "/latest/api/token", ttl)
            if status != 200:
                self._token = ""
                raise OSError(f"the metadata service gives no token: {status}")
        status, text = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == 404:
            return None
        if status != 200:
            self._token = ""
            raise OSError(f"the metadata service answers {status}")
        return parsed(text)

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(65536).decode(errors="replace")
        except http.client.HTTPException as broken:
            raise OSError(f"the metadata service: {broken!r}") from None
        finally:
            connection.close()


class Notices:
    """The notices that machines of the cluster are reclaimed. Each is announced once.

    Thread-safe. The file has a line for each: programs read it, and the head node reads that of a
    worker for that worker's own notice.
    """

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._announced: set[str] = set()
        self.notice: dict[str, Any] | None = None

    def taken(self, notice: dict[str, Any], why: str, signals_rank: bool = True) -> bool:
        """Note that a machine of the cluster is reclaimed. Return whether that is new.

        With `signals_rank`, the rank that saves the job's state is informed, if it runs here.
        """
        if not self._is_new(notice):
            return False
        pids = send_term(activity.all_processes()) if signals_rank else []
        rank_signalled = f"; sent SIGTERM to rank 0, which catches it ({pids[0]})" if pids else ""
        announce(self._place, f"{why}: save your work now{rank_signalled}")
        return True

    def recommended(self, notice: dict[str, Any]) -> None:
        """Note that EC2 is likely to reclaim this machine."""
        if self._is_new(notice):
            announce(
                self._place,
                f"EC2 is likely to take this spot instance back soon (since {notice['time']})",
            )

    def _is_new(self, notice: dict[str, Any]) -> bool:
        key = json.dumps(notice)
        with self._lock:
            if key in self._announced:
                return False
            self._announced.add(key)
            self.notice = notice
            noted = ""
            with contextlib.suppress(OSError, ValueError):
                noted = read_text(self._place.spot)
            put(self._place.spot, f"{noted}{key}\n")
        return True


class SpotWatch:
    """Polls for notices of interruptions: of this node, and on the head node also of the workers.

    One lost node ends the whole job, and mostly only rank 0 saves its state. So the head node
    passes a notice on to all nodes, and the one that has rank 0 informs it. The other ranks are not
    informed: they could only end the job before its state is saved.
    """

    def __init__(self, notices: Notices, log: Callable[[str], None]) -> None:
        self._notices = notices
        self._log = log
        self._imds: Imds | None = None
        self._pause_s = POLL_S

    def step(self, settings: GuardSettings) -> float:
        """Poll this node's metadata once. Return the seconds until the next poll."""
        if self._imds is None or self._imds.address != settings.imds:
            self._imds = Imds(settings.imds)
        try:
            action, rebalance = self._imds.read(ACTION), self._imds.read(REBALANCE)
        except OSError as absent:
            if self._pause_s == POLL_S:
                self._log(f"spot: {absent}")
            self._pause_s = min(self._pause_s * 2, LONGEST_POLL_S)
            return self._pause_s
        self._pause_s = POLL_S
        if action:
            notice = {"action": str(action.get("action")), "time": action.get("time")}
            self._taken({**notice, "node": settings.name}, settings)
        elif rebalance:
            notice = {"action": "rebalance", "time": rebalance.get("noticeTime")}
            self._notices.recommended({**notice, "node": settings.name})
        return POLL_S

    def poll_workers(self, settings: GuardSettings) -> float:
        """Read the workers' notices once. Return the seconds until the next time."""
        for notice in workers.notices(settings, settings.workers):
            self._taken(notice, settings)
        return WORKERS_POLL_S

    def _taken(self, notice: dict[str, Any], settings: GuardSettings) -> None:
        is_head = settings.index == 0
        if self._notices.taken(notice, why_taken(notice), signals_rank=is_head) and is_head:
            workers.pass_on(settings, settings.workers, notice)


class EventWatch:
    """Announces each event that EC2 has scheduled for this machine once."""

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._announced: set[str] = set()

    def step(self, settings: GuardSettings) -> float:
        """Ask once. Return the seconds until the next time."""
        try:
            scheduled = Imds(settings.imds).read_all(SCHEDULED)
        except OSError:
            # `status` and `doctor` ask EC2 itself.
            return SCHEDULED_POLL_S
        for event in scheduled:
            what = f"{event.get('Code')} for this machine, from {event.get('NotBefore')} on"
            if event.get("State", "active") == "active" and what not in self._announced:
                self._announced.add(what)
                announce(self._place, f"EC2 has scheduled {what}")
        return SCHEDULED_POLL_S


def why_taken(notice: dict[str, Any]) -> str:
    """Return in words which spot instance EC2 takes back, and when."""
    what = f"({notice.get('action')} at {notice.get('time')})"
    return f"EC2 takes the spot instance {notice.get('node')} back {what}"


def send_term(processes: dict[int, activity.JobProcess]) -> list[int]:
    """Send SIGTERM to rank 0, if it runs on this node and catches it. Return the process IDs. Of a
    rank's processes only the outermost gets it: the others inherit its variables, often its
    handler."""
    ranks = {pid: one for pid, one in processes.items() if is_rank_0(one.environ)}
    signalled: list[int] = []
    catching = {pid for pid in ranks if catches_term(pid)}
    for pid in sorted(catching):
        if not (activity.ancestors(ranks, pid) - {pid}) & catching:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
                signalled.append(pid)
    return signalled


def is_rank_0(environ: dict[bytes, bytes]) -> bool:
    """Return whether these variables are those of a job's rank 0, of mpirun or of torchrun."""
    if by_mpi := [environ[name] for name in activity.MPI_RANKS if name in environ]:
        return b"0" in by_mpi
    return environ.get(b"RANK") == environ.get(b"LOCAL_RANK") == b"0"


def catches_term(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    except (OSError, ValueError, IndexError, StopIteration):
        return False
