"""Runs on every node, once for each rank of a script-mode job: prepares what SageMaker's toolkit
prepares, then becomes the user's program, or what starts that with a parameter server.

It is rank.pyz in the job's folder on the node, next to contract.json (contract.py) and code/. The
interpreter that runs it also runs the program. The packages of the program's requirements.txt are
installed once on each node, for this job only, on top of the interpreter's own.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

from clusterctl.node.affinity import bind_near_gpu
from clusterctl.node.objects import NotStreamed
from clusterctl.node.paths import CONTRACT, PREPARED
from clusterctl.node.record import RecordError, from_json
from clusterctl.node.scripts import parameter_servers
from clusterctl.node.scripts.contract import PIPES, arguments, configuration, environment
from clusterctl.node.scripts.pipe import feed

GET_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)
REQUIREMENTS = "requirements.txt"


def main() -> None:
    base = Path(sys.argv[0]).resolve().parent
    try:
        contract = from_json(Dict[str, Any], (base / CONTRACT).read_bytes())
    except RecordError as error:
        sys.exit(f"{base / CONTRACT}: {error}; start the job again")
    if sys.argv[1:]:  # started by parameter_servers.exec_watcher
        python, *argv = sys.argv[1:]
        sys.exit(parameter_servers.run(contract, os.environ["SM_CURRENT_HOST"], python, argv))
    rank, ranks = this_rank()
    host = {**this_host(contract), "rank": rank}
    python = prepare(base, contract, host)
    os.environ.update(environment(contract, host, str(base)))
    path = [str(base / "code"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    argv = command(contract, python)
    os.chdir(base / "code")
    try:
        feed(contract, base / PIPES / str(rank), rank, ranks)
    except (NotStreamed, OSError) as error:
        sys.exit(f"clusterctl: {socket.gethostname()}: {error}; the program was not started")
    if parameter_servers.are_in(contract["distribution"], contract["hosts"]):
        parameter_servers.exec_watcher(python, argv)
    bind_near_gpu(single_uses_all=True)
    os.execv(argv[0], argv)


def this_rank() -> tuple[int, int]:
    """Return this rank's number and the number of ranks, by torchrun or by mpirun."""
    environ = os.environ
    # torchrun's variables come first: torchrun itself is a rank of mpirun.
    if "TORCHELASTIC_RUN_ID" in environ:
        return int(environ["RANK"]), int(environ["WORLD_SIZE"])
    size = environ.get("OMPI_COMM_WORLD_SIZE", "1")
    return int(environ.get("OMPI_COMM_WORLD_RANK", "0")), int(size)


def command(contract: dict[str, Any], python: str) -> list[str]:
    """Return the program's command line. As in the toolkit, bash runs a shell script."""
    entry = contract["entry_point"]
    runs = ["/bin/bash", entry] if entry.endswith(".sh") else [python, "-u", entry]
    return [*runs, *arguments(contract["hyperparameters"])]


def this_host(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the contract's entry for this node, and what the node adds. Exits without an entry."""
    interfaces = interface_addresses()
    for host in contract["hosts"]:
        if host["address"] in interfaces:
            interface = interfaces[host["address"]]
            return {**host, "interface": interface, "cpus": os.cpu_count()}
    listed = ", ".join(host["address"] for host in contract["hosts"])
    sys.exit(f"{socket.gethostname()} has none of the job's addresses ({listed})")


def interface_addresses() -> dict[str, str]:
    """Return the interface of each IPv4 address of this node. Raises OSError."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
            except OSError:  # it has no IPv4 address
                continue
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def prepare(base: Path, contract: dict[str, Any], host: dict[str, Any]) -> str:
    """Write the files of input/config, once for all ranks of the node, and again when recovery.py
    has named other hosts. Return the Python interpreter of the program."""
    with (base / PREPARED).open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        python = lock.read()
        if python:
            return python
        for name, content in configuration(contract, host).items():
            (base / "input" / "config" / name).write_text(json.dumps(content))
        python = sys.executable
        if (base / "code" / REQUIREMENTS).exists():
            python = with_requirements(base, python)
        lock.write(python)
        return python


def with_requirements(base: Path, python: str) -> str:
    """Create a virtual environment of the job's own that has all packages of `python` and those of
    requirements.txt; the node's own are not changed. Return its interpreter. Exits if pip fails.

    A retry with other hosts finds them installed, and needs no network."""
    own = base / "venv"
    complete = own / "complete"
    if "base_prefix" not in vars(sys):
        sys.exit(f"{python} knows no virtual environments")
    inner = str(own / "bin" / "python")
    if complete.exists():
        return inner
    subprocess.run([python, "-m", "venv", "--without-pip", str(own)], check=True)
    there = subprocess.run(
        [inner, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        stdout=subprocess.PIPE,
        check=True,
    )
    # A venv made from a venv sees the system's packages, but not those of the venv: add them.
    link = Path(there.stdout.decode().strip(), "of_the_environment.pth")
    inherited = [one for one in sys.path if one.endswith("-packages")]
    link.write_text("".join(f"{one}\n" for one in inherited))
    done = subprocess.run(
        [inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        + ["-r", str(base / "code" / REQUIREMENTS)],
        stderr=subprocess.PIPE,
        errors="replace",
        check=False,
    )
    sys.stderr.write(done.stderr)
    if done.returncode:
        why = pip_error(done.stderr) or f"exit status {done.returncode}"
        sys.exit(f"{socket.gethostname()}: pip could not install what {REQUIREMENTS} names: {why}")
    complete.touch()
    return inner


def pip_error(printed: str) -> str:
    """Return the first error in what pip has printed, which names the cause; empty without one."""
    lines = (line.partition("ERROR: ")[2].strip() for line in printed.splitlines())
    return next(filter(None, lines), "")
