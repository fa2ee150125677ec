"""Facts about the calls of a process in C, C++ or Fortran, which is stopped while they are read."""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import processes

# Timeout of a program that reads the calls of one process. gdb loads the symbols of all libraries.
WITHIN_S = 8.0
# The stack is compared for so long: in a job that goes on, its counters change meanwhile.
COMPARED_S, COMPARED_TIMES = 0.9, 4
POLL_S = 0.002
MOST_STACK_BYTES = 1 << 20
MISSING = "no native frames: install elfutils or gdb on that node"
# Where `diagnose` stores py-spy.
SPIES = "~/.local/share/clusterctl/py-spy-*[0-9a-f]"
SUDO = ("sudo", "-n")
# MPI's calls that wait for one rank, which an argument names.
WITH_PEER = re.compile(r"P?MPI_(?:Recv|Mrecv|Send|Ssend|Rsend|Bsend|Probe|Sendrecv)")
_ONE_GDB = threading.Lock()
LEAST_S = 2.0  # gdb is not started with less time than this


@dataclass(frozen=True)
class NativeFrame:
    """A call. With debug information `file` is the source and `line` is known, else `file` is the
    library and `line` is 0. `native` is false for a call in Python."""

    function: str = ""
    file: str = ""
    line: int = 0
    native: bool = True


@dataclass(frozen=True)
class NativeCalls:
    """The calls of a process's main thread, the outermost first, as `source` (gdb, eu-stack,
    py-spy) shows them; empty for the reason `error`.

    The process was stopped for `held_s`. `call` is the source text of its call of MPI, and
    `arguments` are those of its arguments whose values debug information has. `same` is whether
    the part of the stack from that call outwards stayed as it was for a second; None: not compared.
    """

    pid: int = 0
    frames: tuple[NativeFrame, ...] = ()
    source: str = ""
    error: str = ""
    held_s: float = 0.0
    call: str = ""
    arguments: dict[str, int] = field(default_factory=dict)
    same: Optional[bool] = None


@deadline(WITHIN_S + 3.0)
def native_calls(pids: tuple[int, ...], python: tuple[int, ...] = ()) -> tuple[NativeCalls, ...]:
    """Return the calls of these processes. One that is stopped already, waits in the kernel or is
    traced is skipped. Those of `python` are read by py-spy, if one is stored here."""
    spies = sorted(glob.glob(os.path.expanduser(SPIES)))  # noqa: PTH111, PTH207
    found: dict[int, NativeCalls] = {}

    until = time.monotonic() + WITHIN_S

    def work(pid: int) -> None:
        try:
            spy = spies[-1] if spies and pid in python else ""
            found[pid] = _calls_of(pid, spy, until, pid in python)
        except (OSError, ValueError, IndexError) as error:
            found[pid] = NativeCalls(pid, error=str(error))

    threads = [threading.Thread(target=work, args=(pid,)) for pid in pids]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return tuple(found[pid] for pid in pids)


def _calls_of(pid: int, py_spy: str, until: float, is_python: bool) -> NativeCalls:
    state, tracer = processes.read_process(pid).state, _tracer(pid)
    if tracer:
        return NativeCalls(pid, error=f"process {tracer} traces it: skipped")
    if state not in ("R", "S"):
        return NativeCalls(pid, error=f"it is in state {state}: skipped")
    if py_spy:
        return _held(pid, lambda: _by_py_spy(pid, py_spy))
    has_gdb = shutil.which("gdb")
    if not shutil.which("eu-stack"):
        return _by_gdb(pid, until) if has_gdb else NativeCalls(pid, error=MISSING)
    found = _held(pid, lambda: _by_eu_stack(pid))
    # gdb takes far longer: only it shows for whom a rank waits.
    inside = any(WITH_PEER.fullmatch(one.function) for one in found.frames)
    if has_gdb and inside and not (is_python or _tracer(pid)):
        by_gdb = _by_gdb(pid, until)
        held_s = round(found.held_s + by_gdb.held_s, 3)
        found = replace(by_gdb if by_gdb.frames else found, held_s=held_s)
    return found


def _tracer(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    found = re.search(r"^TracerPid:\s*(\d+)", text, re.M)
    return int(found[1]) if found else 0


def _held(pid: int, read: Callable[[], NativeCalls]) -> NativeCalls:
    """Read the calls of a process and measure how long it is stopped for that. If the program that
    stopped it was killed halfway, let it go on."""
    held = [0.0]
    done = threading.Event()

    def measure() -> None:
        before = time.monotonic()
        while not done.wait(POLL_S):
            now = time.monotonic()
            with contextlib.suppress(OSError):
                held[0] += (now - before) if _tracer(pid) else 0.0
            before = now

    clock = threading.Thread(target=measure)
    clock.start()
    try:
        found = read()
    except OSError as error:
        found = NativeCalls(pid, error=str(error))
    finally:
        done.set()
        clock.join()
    with contextlib.suppress(OSError, ValueError, IndexError):
        if found.error and processes.read_process(pid).state == "T":
            os.kill(pid, signal.SIGCONT)
    return replace(found, held_s=round(held[0], 3))


def _run(argv: list[str], within_s: float = LEAST_S) -> str:
    """Return what a program prints, by sudo if it is not permitted else. Raises OSError."""
    environ = {name: text for name, text in os.environ.items() if name != "DEBUGINFOD_URLS"}
    for sudo in ((), SUDO):
        try:
            done = subprocess.run(
                [*sudo, *argv],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=within_s,
                env=environ,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{argv[0]} took more than {within_s:.1f} s") from None
        errors = done.stderr.decode(errors="replace")
        refused = re.search(r"[Pp]ermission denied|EPERM|not permitted", errors)
        if not refused:
            break
    if refused or (done.returncode and not done.stdout):
        lines = errors.strip().splitlines() or [f"exit status {done.returncode}"]
        raise OSError(f"{Path(argv[0]).name}: {lines[-1].strip()[:300]}")
    return done.stdout.decode(errors="replace")


# Runs in gdb's own Python. It calls nothing in the process and writes nothing to it. `low` and
# `high` bound the stack from the second call inside MPI's function outwards: what changes there
# while the process waits in that function is the next call of it.
_GDB = r"""
import gdb, json, os, re
pid = PID
gdb.execute("attach %d" % pid, to_string=True)
out = {"frames": [], "call": "", "arguments": {}, "low": 0, "high": 0}
try:
    for thread in gdb.selected_inferior().threads():
        if thread.ptid[1] == pid or thread.ptid[2] == pid:
            thread.switch()
    listed = []
    frame = gdb.newest_frame()
    while frame is not None and len(listed) < 200:
        listed.append(frame)
        try:
            frame = frame.older()
        except gdb.error:
            break
    def pointer(one):
        return int(one.read_register("sp"))
    mpi = None
    for at, one in enumerate(listed):
        where = one.find_sal()
        source = where.symtab.fullname() if where and where.symtab else ""
        name = one.name() or ""
        line = where.line if source and os.path.isabs(source) else 0
        library = gdb.solib_name(one.pc()) or ""
        out["frames"].append({"function": name, "file": source if line else library, "line": line})
        if re.match(r"P?MPI_[A-Z]\w+$|p?mpi_[a-z_]+_$", name):
            mpi = at
    if mpi is not None and mpi + 1 < len(listed):
        out["low"] = pointer(listed[max(0, mpi - 1)])
        out["high"] = pointer(listed[-1])
        user = listed[mpi + 1]
        where = user.find_sal()
        program = os.readlink("/proc/%d/exe" % pid)
        path = where.symtab.fullname() if where and where.symtab else ""
        name = re.sub(r"^P?", "", listed[mpi].name(), count=1)
        if path and os.path.getmtime(path) <= os.path.getmtime(program):
            with open(path, errors="replace") as file:
                lines = file.read().splitlines()
            text = "\n".join(lines[max(0, where.line - 6) : where.line + 6])
            until = len("\n".join(lines[max(0, where.line - 6) : where.line]))
            starts = [m.end() for m in re.finditer(r"\b%s\s*\(" % name, text) if m.start() <= until]
            if starts and len(starts) == len([s for s in starts if s >= until - 400]):
                depth, parts, part = 0, [], ""
                for letter in text[starts[-1] :]:
                    if letter == ")" and not depth:
                        parts.append(part)
                        break
                    depth += (letter in "([") - (letter in ")]")
                    if letter == "," and not depth:
                        parts.append(part)
                        part = ""
                    else:
                        part += letter
                parts = [" ".join(one.split()) for one in parts]
                out["call"] = "%s(%s)" % (name, ", ".join(parts))
                user.select()
                for number, one in enumerate(parts):
                    if re.match(r"^[\w\s+*/%.-]+$", one) and not re.match(r"^MPI_", one):
                        try:
                            value = gdb.parse_and_eval(one)
                            if value.type.strip_typedefs().code == gdb.TYPE_CODE_INT:
                                out["arguments"][str(number)] = int(value)
                        except (gdb.error, ValueError):
                            pass
except (gdb.error, OSError, ValueError):
    pass
finally:
    gdb.execute("detach", to_string=True)
import base64
print("\nCALLS " + base64.b64encode(json.dumps(out).encode()).decode())
"""
_GDB_SETTINGS = ("set debuginfod enabled off", "set may-call-functions off", "set confirm off")


def _by_gdb(pid: int, until: float) -> NativeCalls:
    bounds = [0, 0]
    with _ONE_GDB:
        left_s = until - time.monotonic()
        if left_s < LEAST_S:
            return NativeCalls(pid, error="no time was left for gdb")
        found = _held(pid, lambda: _read_gdb(pid, bounds, left_s))
    return replace(found, same=_stays(pid, *bounds))


def _read_gdb(pid: int, bounds: list[int], within_s: float) -> NativeCalls:
    settings = [word for one in _GDB_SETTINGS for word in ("-iex", one)]
    script = _GDB.replace("PID", str(pid), 1)
    output = _run(["gdb", "-nx", "-batch", *settings, "-ex", f"python exec({script!r})"], within_s)
    found = re.search(r"^CALLS (\S+)$", output, re.M)
    if not found:
        raise OSError("gdb printed no calls")
    data: dict[str, Any] = json.loads(base64.b64decode(found[1]))
    frames = tuple(NativeFrame(**one) for one in reversed(data["frames"]))
    calls = NativeCalls(pid, frames, "gdb", "" if frames else "gdb read no calls", 0.0)
    bounds[:] = [data["low"], data["high"]]
    return replace(calls, call=data["call"], arguments=data["arguments"])


def _stays(pid: int, low: int, high: int) -> Optional[bool]:
    """Return whether a part of a process's stack stays as it is. The process runs on meanwhile."""
    if not 0 < high - low <= MOST_STACK_BYTES:
        return None
    contents = set()
    try:
        for number in range(COMPARED_TIMES):
            time.sleep(COMPARED_S / COMPARED_TIMES if number else 0.0)
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:  # noqa: PTH123
                memory.seek(low)
                contents.add(memory.read(high - low))
    except (OSError, ValueError, OverflowError):
        return None
    return len(contents) == 1


def _by_eu_stack(pid: int) -> NativeCalls:
    frames = read_eu_stack(_run(["eu-stack", "-1", "-m", "-s", "-n", "200", "-p", str(pid)]))
    return NativeCalls(pid, frames, "eu-stack", "" if frames else "eu-stack read no calls")


def read_eu_stack(text: str) -> tuple[NativeFrame, ...]:
    """Parse eu-stack's output: `#1  0x0000 function - /lib/x.so`, and with debug information a
    line with the source, `    /src/x.c:12:3`."""
    frames: list[NativeFrame] = []
    for line in text.splitlines():
        call = re.match(r"#\d+\s+0x[0-9a-f]+(?: - \d+)?\s*(?:([^-\s].*?))?\s*(?: - (/.*))?$", line)
        source = re.match(r"\s+(/.*?):(\d+)(?::\d+)?$", line)
        if call:
            frames.append(NativeFrame(call[1] or "", call[2] or ""))
        elif source and frames:
            frames[-1] = replace(frames[-1], file=source[1], line=int(source[2]))
    return tuple(reversed(frames))


def _by_py_spy(pid: int, path: str) -> NativeCalls:
    """Python's frames and those of its libraries. py-spy names a library as the frame's module."""
    threads = json.loads(_run([path, "dump", "--native", "--json", "--pid", str(pid)], WITHIN_S))
    mains = [one for one in threads if one.get("thread_name") == "MainThread"] or threads[:1]
    frames = tuple(
        NativeFrame(
            str(one.get("name") or ""),
            str(one.get("filename") or one.get("module") or ""),
            int(one.get("line") or 0),
            not str(one.get("filename") or "").endswith(".py"),
        )
        for main in mains[:1]
        for one in reversed(main.get("frames") or ())
    )
    return NativeCalls(pid, frames, "py-spy", "" if frames else "py-spy read no calls")
