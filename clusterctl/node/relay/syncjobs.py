"""Runs on a node: starts, lists, shows and cancels syncs, each a folder in ~/.clusterctl/s3sync.

    probe         print the S3 tools that the node has, and the machine's architecture
    look          print what an order on stdin would do: its progress before the first byte
    start         start the order in a line of JSON on stdin; print {"busy": ID}, or {"started": ID,
                  "ended": its result, or null if it has not ended within a moment}
    list [ID]     print one line of JSON for each sync, oldest first
    log ID AT     print the log from byte AT on, and the state of the sync
    cancel ID     end the sync and wait for its end

The first three need the modules that list and fetch, which are sent only with them: the others are
called once a second.

A sync is a process of its own that outlives the connection. It keeps what it read from stdin in
memory: keys are in no file, on no command line, and in no environment but the tool's.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from clusterctl.node.relay.s3files import Job

SYNCS = Path.home() / ".clusterctl" / "s3sync"
# Syncs that are kept.
KEPT = 20
# Seconds between SIGTERM and SIGKILL.
CANCEL_TIMEOUT_S = 15.0
# Bytes of a log that are printed at once.
LONGEST_READ = 1 << 18
# Bytes on the disk that are reserved for the result.
RESERVED_BYTES = 4096
# Seconds between writes of the progress.
REPORT_S = 0.5
# How long `start` waits for an early failure: usually an unreadable source fails within this time.
SETTLE_S = 2.0


def alive(folder: Path) -> int:
    """Return the process ID of a sync; 0 if it has ended.

    Its start time is compared, too, since the kernel reuses process IDs.
    """
    try:
        pid, born = (folder / "pid").read_text().split(" ", 1)
        return int(pid) if birth_of(int(pid)) == born else 0
    except (OSError, ValueError):
        return 0


def birth_of(pid: int) -> str:
    """Return the start time and boot ID of a process, which no other process with its ID has.

    Raises OSError or ValueError if the process has ended.
    """
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if stat[0] == "Z":  # a zombie
        raise ValueError("it has ended")
    return stat[19] + " " + Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically. Raises OSError."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value) + "\n")
    new.replace(path)


def describe(folder: Path) -> dict[str, Any]:
    """Return the state of a sync, as `list` prints it."""
    # First check whether it runs, then read the result. In the other order, a sync that ends in
    # between would look lost.
    running = bool(alive(folder))
    ended = read_json(folder / "end.json")
    return {
        "id": folder.name,
        **read_json(folder / "sync.json"),
        "running": running and not ended,
        "progress": read_json(folder / "progress.json"),
        "ended": ended or None,
        "now": time.time(),
    }


def folders() -> list[Path]:
    """Return the folders of all syncs, oldest first."""
    return sorted(path for path in SYNCS.glob("*-*-*") if path.is_dir())


def start(order: dict[str, Any]) -> dict[str, Any]:
    """Start a sync, unless one to the same destination runs. Raises OSError."""
    SYNCS.mkdir(parents=True, exist_ok=True)
    with (SYNCS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        here = folders()
        for folder in here:
            same = read_json(folder / "sync.json").get("destination") == order["destination"]
            if same and alive(folder):
                return {"busy": folder.name}
        for folder in here[: max(0, len(here) + 1 - KEPT)]:
            if not alive(folder):
                shutil.rmtree(folder, ignore_errors=True)
        folder = SYNCS / order["id"]
        folder.mkdir(mode=0o700)
        told = {name: order[name] for name in ("sources", "destination")}
        try:
            write_json(folder / "sync.json", {**told, "started_at": time.time()})
            (folder / "log").touch(mode=0o600)
            # Reserves room for the result, so that it can be written even if the disk is full.
            (folder / "end.json.new").write_text(" " * RESERVED_BYTES)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / "pid").write_text(detach(folder, order))
    return {"started": folder.name, "ended": settled(folder)}


def settled(folder: Path) -> dict[str, Any] | None:
    """Return the result of a sync if it ends before it has listed and compared, else None.

    Waits at most SETTLE_S seconds.
    """
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        # Check first whether it runs, for the reason given in `describe`.
        running = alive(folder)
        ended = read_json(folder / "end.json")
        if ended or not running or read_json(folder / "progress.json").get("gap"):
            return ended or None
        time.sleep(0.05)
    return None


def detach(folder: Path, order: dict[str, Any]) -> str:
    """Fork a process that carries out the order, without this one's session and connection.

    Return the content of its `pid` file. The process sends its start time itself, over a pipe: it
    may have ended before this one could read it.
    """
    sys.stdout.flush()
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told) as born:
            return f"{pid} {born.read()}"
    try:
        os.setsid()
        # A core file would contain the keys.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(str(folder / "log"), os.O_WRONLY | os.O_APPEND)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Closes all other descriptors, also that of the lock on all syncs, which this process must
        # not keep.
        os.closerange(3, tell)
        os.closerange(tell + 1, 256)
        os.write(tell, birth_of(os.getpid()).encode())
        os.close(tell)
        work(folder, order)
    finally:
        os._exit(1)


def work(folder: Path, order: dict[str, Any]) -> NoReturn:
    """Carry out an order, record the result, and exit."""
    status, why, hint, left_out = 1, "", "", 0
    try:
        left_out = run(folder, order)
        status = int(bool(left_out))
    except KeyboardInterrupt:
        status, why = 130, "cancelled"
    except BaseException as error:  # noqa: BLE001 - recorded, instead of a traceback in the log
        why, hint = reason_of(error, order)
    if left_out:
        why = f"{left_out} {'file was' if left_out == 1 else 'files were'} left out"
        hint = "the log says which, and why: --follow"
    say(f"done, {why}" if left_out else f"failed: {why}" if status else "done")
    write_end(folder, status, why, hint, left_out)
    os._exit(status)


def write_end(folder: Path, status: int, why: str, hint: str = "", left_out: int = 0) -> None:
    """Record the result of a sync. Raises OSError."""
    ended = {"exit_status": status, "why": why, "hint": hint, "left_out": left_out}
    write_json(folder / "end.json", {**ended, "ended_at": time.time()})


def reason_of(error: BaseException, order: dict[str, Any]) -> tuple[str, str]:
    """Return why a job failed, and what to do."""
    from clusterctl.node.relay.base import failure_of

    failure = failure_of(error, order["destination"])
    return str(failure), failure.hint


def job_of(order: dict[str, Any], say: Callable[[str], None]) -> Job:
    """Return the job for an order: an S3 sync, or the download of a file."""
    # Imported here: most actions run without these modules, which are not sent with them.
    from clusterctl.node.relay.s3files import Sync
    from clusterctl.node.relay.webfile import WebFile

    kind = WebFile if order["config"].get("url") else Sync
    return kind(order["config"], order["destination"], say)


def run(folder: Path, order: dict[str, Any]) -> int:
    """Run a job and record its progress. Return how many files were left out.

    Raises what jobs raise.
    """
    job = job_of(order, say)

    def report() -> None:
        with contextlib.suppress(OSError):  # on a full disk
            write_json(folder / "progress.json", job.progress.as_data())

    def keep_reporting() -> None:
        known = False
        while True:
            # `start` waits for the first report with a gap, so that one comes soon.
            time.sleep(REPORT_S if known else REPORT_S / 10)
            if known or job.progress.gap:
                known = True
                report()

    threading.Thread(target=keep_reporting, daemon=True).start()
    try:
        job.run()
    finally:
        report()
    say(f"files: {job.progress.files}, bytes: {job.progress.bytes}")
    return sum(told.left_out for told in (job.progress.listed, job.progress.done) if told)


def say(line: str) -> None:
    """Write a line to the log, with the time in UTC."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    text = f"{when} {''.join(c if c.isprintable() else '?' for c in line)}\n"
    with contextlib.suppress(OSError):  # on a full disk
        os.write(1, text.encode("utf-8", "backslashreplace"))


def look(order: dict[str, Any]) -> dict[str, Any]:
    """Return the progress after a dry run of an order, or why it failed."""
    try:
        job = job_of({**order, "config": {**order["config"], "dry_run": True}}, lambda line: None)
        job.run()
    except Exception as error:  # noqa: BLE001 - printed, instead of a traceback
        why, hint = reason_of(error, order)
        return {"why": why, "hint": hint}
    return job.progress.as_data()


def show_log(folder: Path, at: int) -> dict[str, Any]:
    """Return the state of a sync, and its log from byte `at` on. Raises OSError."""
    told = describe(folder)
    with (folder / "log").open("rb") as log:
        log.seek(at)
        text = log.read(LONGEST_READ)
    more = len(text) == LONGEST_READ
    return {**told, "text_b64": base64.b64encode(text).decode(), "at": at + len(text), "more": more}


def cancel(folder: Path) -> dict[str, Any]:
    """End a sync, and return its state and whether it was running."""
    pid = alive(folder)
    was_running = bool(pid) and describe(folder)["running"]
    for number, patience_s in ((signal.SIGTERM, CANCEL_TIMEOUT_S), (signal.SIGKILL, 2.0)):
        if not pid:
            break
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience_s
        while pid and time.monotonic() < deadline:
            time.sleep(0.05)
            pid = alive(folder)
    if was_running and not pid and not read_json(folder / "end.json"):
        # It did not react to SIGTERM in time and was killed, so it has not recorded a result.
        write_end(folder, 130, "cancelled")
    return {**describe(folder), "was_running": was_running}


def main() -> None:
    action, arguments = sys.argv[1], sys.argv[2:]
    try:
        if action == "start":
            answers = [start(json.loads(sys.stdin.buffer.readline()))]
        elif action == "look":
            answers = [look(json.loads(sys.stdin.buffer.readline()))]
        elif action == "probe":
            from clusterctl.node.relay.s3files import TOOLS, tool_at

            here = [name for name in TOOLS if tool_at(name)]
            answers = [{"tools": here, "machine": os.uname().machine}]
        else:
            wanted = [SYNCS / name for name in arguments[:1]] or folders()
            found = [folder for folder in wanted if folder.is_dir()]
            if action == "log":
                answers = [show_log(folder, int(arguments[1])) for folder in found]
            else:
                answers = [(cancel if action == "cancel" else describe)(one) for one in found]
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    for answer in answers:
        print(json.dumps(answer))
