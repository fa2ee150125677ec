"""EC2's notice that it is about to interrupt a spot instance."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clusterctl.node.guard import look
from clusterctl.node.guard.clock import GuardFiles, put
from clusterctl.node.guard.power import announce

POLL_S = 5.0
# While the metadata service does not answer.
LONGEST_POLL_S = 60.0
TIMEOUT_S = 2.0
# The longest that IMDSv2 permits.
TOKEN_TTL_S = 21600
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Imds:
    """The instance metadata service, version 2."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._token = ""

    def read(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object at `path`; None if there is none. Raises OSError."""
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
        try:
            found = json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

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


class SpotWatch:
    """Polls for notices, and announces each once. An interruption is also passed on to ranks that
    catch SIGTERM, so that they save their state. Others would only die two minutes early."""

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._imds: Imds | None = None
        self._said: set[str] = set()
        self._pause_s = POLL_S
        self.notice: dict[str, Any] | None = None

    def step(self, address: str) -> float:
        """Poll once. Return the seconds until the next poll."""
        if self._imds is None or self._imds.address != address:
            self._imds = Imds(address)
        try:
            action, rebalance = self._imds.read(ACTION), self._imds.read(REBALANCE)
        except OSError as absent:
            if self._pause_s == POLL_S:
                self._place.log(f"spot: {absent}")
            self._pause_s = min(self._pause_s * 2, LONGEST_POLL_S)
            return self._pause_s
        self._pause_s = POLL_S
        if action:
            self._interrupted({"action": str(action.get("action")), "time": action.get("time")})
        elif rebalance:
            self._recommended({"action": "rebalance", "time": rebalance.get("noticeTime")})
        return POLL_S

    def _interrupted(self, notice: dict[str, Any]) -> None:
        if self._is_new(notice):
            pids = send_term(look.all_processes())
            told = f"; sent SIGTERM to processes that catch it: {len(pids)}" if pids else ""
            announce(
                self._place,
                f"EC2 takes this spot instance back ({notice['action']} at {notice['time']}): "
                f"save your work now{told}",
            )

    def _recommended(self, notice: dict[str, Any]) -> None:
        if self._is_new(notice):
            announce(
                self._place,
                f"EC2 is likely to take this spot instance back soon (since {notice['time']})",
            )

    def _is_new(self, notice: dict[str, Any]) -> bool:
        key = json.dumps(notice)
        if key in self._said:
            return False
        self._said.add(key)
        self.notice = notice
        put(self._place.spot, json.dumps({**notice, "seen_at": time.time()}) + "\n")
        return True


def send_term(processes: dict[int, look.JobProcess]) -> list[int]:
    """Send SIGTERM to each rank on this node that catches it. Return the process IDs. Of a rank's
    processes only the outermost gets it: the others inherit its variables, often its handler."""
    ranks = {
        pid: process
        for pid, process in processes.items()
        if any(entry.startswith(look.MARKS[:2]) for entry in process.environ)
    }
    told: list[int] = []
    catching = {pid for pid in ranks if catches_term(pid)}
    for pid in sorted(catching):
        if not (look.ancestors(ranks, pid) - {pid}) & catching:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
                told.append(pid)
    return told


def catches_term(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    except (OSError, ValueError, IndexError, StopIteration):
        return False
