"""Run many commands, each in a forked process.

A forked process has the interpreter and its imports already; a new one takes ten times the CPU
time. `run_all` runs many commands in a mount and user namespace (`unshare`), where a disk can be
full and a folder read-only even for root. `run_one` runs one command as a user would.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.botocore_shared import share_what_is_always_the_same

WORKERS = 3
PATIENCE_S = 300
ROOT = Path(__file__).parents[2]
# All but the lab's, which is moto: what commands use of it, its own module of `cli` imports.
PACKAGES = (
    *("bench", "bootstrap", "cli", "configuration", "copy", "diagnosis", "domain", "ec2"),
    *("explain", "jobs", "operations", "transport"),
)


def run_all(cases, environ, folder):
    """Run the cases and return their results in order: status, out, err, seconds."""
    argv = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-m",
        "tests.cli.forks",
    ]
    done = subprocess.run(
        [*argv, str(folder)],
        input="".join(json.dumps(case) + "\n" for case in cases),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    return [found[number] for number in range(len(cases))]


def run_one(argv, environ, folder=None, **more):
    """Run `clusterctl ARGV...` with this environment. Return (status, stdout, stderr).

    `program`: another program than clusterctl. `interrupt`: Ctrl-C after the first line of output.
    """
    case = {"argv": list(argv), "environ": dict(environ), "cwd": str(folder or Path.cwd()), **more}
    answer, answering = os.pipe()
    try:
        socket.send_fds(_runner(), [json.dumps(case).encode()], [answering])
    finally:
        os.close(answering)
    with open(answer) as told:  # noqa: PTH123
        done = json.load(told)
    assert done["status"] != -signal.SIGKILL, f"{argv}: killed after {done['seconds']} s: {done}"
    return done["status"], done["out"], done["err"]


@functools.lru_cache(maxsize=1)
def _runner() -> socket.socket:
    """Return the socket of a process that runs a command per message. It ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([sys.executable, "-m", "tests.cli.forks"], stdin=theirs, cwd=ROOT)
    return ours


def _answer_messages() -> None:
    asked = socket.socket(fileno=os.dup(0))
    _warm_up()
    os.environ.clear()
    while True:
        message, answering, _, _ = socket.recv_fds(asked, 1 << 20, 1)
        if not message:
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not os.fork():
            asked.close()
            with open(answering[0], "w") as answer:  # noqa: PTH123
                json.dump(_run(json.loads(message)), answer)
            os._exit(0)
        os.close(answering[0])


def _serve(folder: Path) -> None:
    _warm_up()
    _make_places(folder)
    cases = list(enumerate(json.loads(line) for line in sys.stdin))
    workers = []
    for first in range(WORKERS):
        pid = os.fork()
        if not pid:
            for number, case in cases[first::WORKERS]:
                line = json.dumps([number, _run(case)]) + "\n"
                os.write(1, line.encode())
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)


def _warm_up() -> None:
    # Before boto3 uses it: a short command spends most of its time reading EC2's API description.
    share_what_is_always_the_same()
    import boto3
    import fabric  # noqa: F401
    import rich.live  # noqa: F401

    from clusterctl.jobs.deploy import example_files
    from clusterctl.node.packer import program_of

    # All of them: what a command imports as it begins, each fork would import again.
    for name in PACKAGES:
        package = importlib.import_module(f"clusterctl.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    for service, call in (("ec2", "describe_instances"), ("sts", "get_caller_identity")):
        boto3.client(service, "us-east-1", **keys).can_paginate(call)  # reads a file of its own
    # What most commands send to nodes, packed.
    example_files()
    for name in ("jobs.jobs", "jobs.written", "jobs.processes", "jobs.clean", "facts.report"):
        program_of(f"clusterctl.node.{name}", "clusterctl.node.agent").stdin()
    gc.collect()
    gc.freeze()  # or each fork's collections would copy the pages of all these objects


def _make_places(folder: Path) -> None:
    """Make copies of `folder`/home that cannot be written, beside it: `readonly` and `full`."""
    for name in ("readonly", "full"):
        place = folder / name
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", name, place], check=True)
        shutil.copytree(folder / "home", place, dirs_exist_ok=True)
    with contextlib.suppress(OSError), (folder / "full" / "filler").open("wb", 0) as file:
        while True:
            file.write(b"x" * 4096)
    subprocess.run(["mount", "-o", "remount,ro", folder / "readonly"], check=True)


def _run(case):
    began = time.monotonic()
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        _become(case, {"out": out[1], "err": err[1]})
    os.close(out[1])
    os.close(err[1])
    said = _read({out[0]: "out", err[0]: "err"}, pid, case.get("interrupt", False))
    _, status = os.waitpid(pid, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        **said,
        "seconds": round(time.monotonic() - began, 2),
    }


def _read(pipes, pid, interrupt):
    said = dict.fromkeys(pipes.values(), b"")
    deadline = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        for pipe, name in pipes.items():
            selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                os.kill(pid, 9)
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                said[key.data] += chunk
                if interrupt and b"\n" in said["out"]:
                    os.kill(pid, signal.SIGINT)
                    interrupt = False
                if not chunk:
                    selector.unregister(key.fd)
    for pipe in pipes:
        os.close(pipe)
    return {name: text.decode(errors="replace") for name, text in said.items()}


def _become(case, pipes) -> None:
    """In the child: set the case's outputs, environment and folder, then run the program."""
    try:
        os.environ.update(case.get("environ", {}))
        for name in case.get("unset", ()):
            os.environ.pop(name, None)
        if case.get("cwd") == "deleted":
            folder = tempfile.mkdtemp()
            os.chdir(folder)
            Path(folder).rmdir()
        elif "cwd" in case:
            os.chdir(case["cwd"])
        _redirect(case, 0, "null", pipes)
        _redirect(case, 1, case.get("stdout", "out"), pipes)
        _redirect(case, 2, case.get("stderr", "err"), pipes)
        for pipe in pipes.values():
            os.close(pipe)
        sys.argv = [case.get("program", "clusterctl"), *case["argv"]]
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    module = {"clusterctl": "main"}.get(sys.argv[0], sys.argv[0])
    main = importlib.import_module(f"clusterctl.cli.{module}").main
    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # As the interpreter at its exit: flush. If that fails, it prints a message and exits with 120.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            try:
                stream.flush()
            except OSError:
                os.write(2, b"Exception ignored: a flush at the end\n")
                status = 120
    os._exit(status)


def _redirect(case, number, to, pipes) -> None:
    """Open stream `number` as Python does at its start."""
    name = ("stdin", "stdout", "stderr")[number]
    if to == "closed":
        with contextlib.suppress(OSError):
            os.close(number)
        setattr(sys, name, None)
        return
    if to == "gone":
        reader, target = os.pipe()
        os.close(reader)
    elif to in pipes:
        target = os.dup(pipes[to])
    else:
        target = os.open(f"/dev/{to}", os.O_RDWR)
    os.dup2(target, number)
    os.close(target)
    unbuffered = bool(case.get("unbuffered"))
    if number == 0:
        sys.stdin = open(number)  # noqa: PTH123, SIM115
    else:
        raw = open(number, "wb", 0 if unbuffered else -1)  # noqa: PTH123, SIM115
        errors = "backslashreplace" if number == 2 else "strict"
        stream = io.TextIOWrapper(
            raw, "utf-8", errors, write_through=unbuffered, line_buffering=number == 2
        )
        setattr(sys, name, stream)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve(Path(sys.argv[1]))
    else:
        _answer_messages()
