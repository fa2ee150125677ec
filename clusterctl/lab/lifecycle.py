"""Starts and stops the lab's processes, and requests its pages, /_lab/..., from outside of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import LabError, UsageError
from clusterctl.lab.hosts.daemon import cgroups
from clusterctl.lab.record import LabOptions, LabRecord, folder_of, read_record
from clusterctl.lab.requirements import check_machine

TIMEOUT_S = 5.0


def request_page(running: LabRecord, path: str, method: str = "GET", body: object = None) -> Any:
    """Return a page's JSON. Raise UsageError if the lab refuses, LabError if it does not answer."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(running.endpoint_url + path, content, method=method)
    request.add_header("Authorization", f"Bearer {running.secret}")
    # The lab is on this machine: ignore the proxies that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        try:
            refusal = json.load(refused)
            problem: LabError | UsageError = UsageError(refusal["error"], refusal["hint"])
        except (OSError, ValueError, KeyError, TypeError):  # it is no answer of the lab's
            problem = _no_answer(running, refused)
        raise problem from None
    except (OSError, ValueError) as failure:
        raise _no_answer(running, failure) from None


def _no_answer(running: LabRecord, failure: Exception) -> LabError:
    return LabError(
        f"the lab (process {running.pid}) does not answer: {failure}",
        "stop it with `clusterctl lab stop`",
    )


STOP_TIMEOUT_S = 15.0
LINK_TIMEOUT_S = 2.0


def start(options: LabOptions) -> LabRecord:
    """Start a lab, and wait until it takes requests. Raise LabError or MissingTool if it fails."""
    check_machine(os.geteuid())
    home = Path(options.home)
    folder = folder_of(home)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (folder / "lab.log").open("a+b") as log:
            problem = _launch(options, log.fileno())
    except OSError as refused:
        full = refused.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space" if full else "name a folder of yours: CLUSTERCTL_HOME=~/elsewhere"
        raise LabError(f"cannot write to {folder}: {refused.strerror}", hint) from None
    if problem:
        raise LabError(problem["error"], problem["hint"])
    started = read_record(home)
    if started is None:
        raise LabError("the lab ended as soon as it had started", f"see {folder / 'lab.log'}")
    return started


def stop(running: LabRecord) -> None:
    """Stop the lab and all its hosts, and wait until nothing of it is left."""
    # A pidfd keeps referring to this process, even if its pid is reused while it stops.
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    index = _interface(running.link)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _ended(process, STOP_TIMEOUT_S):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            _ended(process, STOP_TIMEOUT_S)
    finally:
        os.close(process)
    # The kernel removes a dead namespace, and the link into it, in the background; but only after
    # minutes if a connection there has data left for a host that was cut off.
    deadline = time.monotonic() + LINK_TIMEOUT_S
    while (is_there := index is not None and _interface(running.link) == index) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    if is_there:
        command = ["ip", "link", "delete", str(running.link)]
        subprocess.run(command, check=False, capture_output=True)
    if read_record(running.home) is None:  # otherwise these are the files of a lab started since
        for name in ("lab.json", "dial.sock"):
            (folder_of(running.home) / name).unlink(missing_ok=True)
    cgroups.remove([Path(folder) for folder in running.cgroups])


def _interface(link: str | None) -> int | None:
    """Return the number of a network interface, which no later one of its name has; None for
    none."""
    with contextlib.suppress(OSError):
        return socket.if_nametoindex(link or "")
    return None


def instances(running: LabRecord) -> list[dict[str, Any]]:
    """Return the lab's instances as its status page shows them. Raise LabError on no answer."""
    found: list[dict[str, Any]] = request_page(running, "/_lab/status")
    return found


def _launch(options: LabOptions, log: int) -> dict[str, str]:
    """Start the server and return its report: empty when it is ready, or `error` and `hint`."""
    report, theirs = os.pipe()
    arguments = [json.dumps(asdict(options)), str(theirs)]
    # `python -m` searches the current folder first, and that may contain another clusterctl.
    package = str(Path(__file__).parents[2])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterctl.lab.server", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[theirs],
        cwd="/",
        env={**os.environ, "PYTHONPATH": search},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        with os.fdopen(report, "rb") as line:
            content = line.read()
    except BaseException:  # after Ctrl-C, too, leave no half-started lab behind
        process.terminate()
        raise
    if not content:
        return {
            "error": "the lab's server ended while it started",
            "hint": f"see {folder_of(Path(options.home)) / 'lab.log'}",
        }
    problem: dict[str, str] = json.loads(content)
    return problem


def _ended(process: int, timeout_s: float) -> bool:
    """Wait for the process of a pidfd to end. Return False if it does not end in time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
