"""Runs on a node: collects all that `doctor` compares between nodes. JSON in, JSON out; changes
nothing.

stdin: {"python": PATH, "mpirun": PATH, "data_dir": PATH, "peers": [ADDRESS], "over_ssh": BOOLEAN,
"within_s": SECONDS}. With `over_ssh` (on the head node) `peers` are tested by ssh as mpirun uses
it, else only their port 22. Prints the facts of `host`, and

    {"versions": {"mpirun": TEXT, ...}, "mpirun_on_path": [PATH, TEXT], "scripts": {NAME: HASH},
     "data": [HASH, FILES], "unreached": {ADDRESS: TEXT}, "dcgm": [TEXT] or null}

"errors" has what did not answer in time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterctl.node.diagnosis import host
from clusterctl.node.jobs import preflight, unpack
from clusterctl.node.programs import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PEER_S = 5.0  # timeout of a connection to a peer
# Peers that are tested in parallel.
AT_ONCE = 128
DCGM_S = 30.0


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """Return all facts."""
    questions = {
        "versions": lambda: preflight.versions(asked["python"], asked["mpirun"]),
        "mpirun_on_path": mpirun_on_path,
        "scripts": scripts,
        "data": lambda: data(asked["data_dir"]),
        "unreached": lambda: unreached(asked["peers"], asked["over_ssh"]),
        "dcgm": dcgm,
    }
    found = host.facts()
    answers, errors = host.ask(questions, asked["within_s"])
    found["errors"].update(errors)
    found["clock"]["last_s"] = time.time()
    return {**found, **answers}


def mpirun_on_path() -> list[str] | None:
    """Return path and version of the `mpirun` on PATH. A job may use another one."""
    path = shutil.which("mpirun")
    said = output([path, "--version"]) if path else None
    return [path, (said or "").split("\n")[0]] if path else None


def scripts() -> dict[str, str]:
    """Return hashes of the shipped examples as they are on this node, without the hosts file: that
    differs between clusters."""
    home = Path.home()
    record = home / unpack.SHIPPED
    names = json.loads(record.read_text()) if record.exists() else {}
    found = {}
    for name in sorted(names):
        if not name.endswith("/hosts"):
            try:
                found[name] = hashlib.sha256((home / name).read_bytes()).hexdigest()[:12]
            except OSError as error:
                found[name] = str(error.strerror)
    return found


def data(folder: str) -> list[object] | None:
    """Return a hash of the names and sizes of the training and validation files, and their number.

    None if there are no such files.
    """
    found = preflight.listing(os.path.expanduser(folder))  # noqa: PTH111
    sizes = sorted({**found["train"], **found["validation"]}.items())
    if not sizes:
        return None
    return [hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:12], len(sizes)]


def unreached(peers: list[str], over_ssh: bool) -> dict[str, str]:
    """Return the peers that cannot be reached, with the reasons."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = pool.map(_ssh if over_ssh else _greeting, peers)
        return {peer: why for peer, why in zip(peers, reasons) if why}


def _ssh(peer: str) -> str:
    """Return why ssh does not reach the peer; empty if it does."""
    ssh = ("ssh", "-n", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={PEER_S:.0f}")
    try:
        done = subprocess.run(
            [*ssh, peer, "true"],
            stderr=subprocess.PIPE,
            text=True,
            timeout=2 * PEER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {2 * PEER_S:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _greeting(peer: str) -> str:
    """Return why the peer's port 22 does not answer as SSH; empty if it does."""
    try:
        with socket.create_connection((peer, 22), PEER_S) as there:
            return "" if there.recv(4) == b"SSH-" else "port 22 is not SSH's"
    except OSError as error:
        return error.strerror or str(error)


def dcgm() -> list[str] | None:
    """Return what fails in NVIDIA's level 1 diagnosis, which takes seconds; None without dcgmi."""
    if not shutil.which("dcgmi"):
        return None
    # dcgmi exits with an error also if a test fails, which is a result.
    said = output(["dcgmi", "diag", "-r", "1", "-j"], DCGM_S, check=False) or ""
    try:
        return failed_tests(json.loads(said))
    except ValueError:
        return [f"dcgmi diag -r 1 -j says nothing of use: {said.strip()[:200]!r}"]


def failed_tests(answer: Any, name: str = "") -> list[str]:
    """Return the failed tests with their warnings. DCGM 2, 3 and 4 have different layouts, so the
    whole answer is searched."""
    if isinstance(answer, list):
        return [text for one in answer for text in failed_tests(one, name)]
    if not isinstance(answer, dict):
        return []
    name = str(answer.get("name") or answer.get("entity_id") or name)
    if str(answer.get("status", "")).lower() == "fail":
        warnings = answer.get("warnings") or answer.get("warning") or answer.get("info") or ""
        told = warnings if isinstance(warnings, str) else _warnings(warnings)
        return [f"{name}: {told}".rstrip(": ")]
    return [text for one in answer.values() for text in failed_tests(one, name)]


def _warnings(found: Any) -> str:
    texts = (one.get("warning", "") if isinstance(one, dict) else str(one) for one in found)
    return "; ".join(filter(None, texts))


def main() -> None:
    print(json.dumps(look(json.loads(sys.stdin.buffer.read()))))
