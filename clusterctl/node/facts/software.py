"""Facts about what is installed for jobs: MPI, Python, the examples, the data."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Optional

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import preflight, unpack
from clusterctl.node.programs import output

# A busy node loads TensorFlow's libraries slowly.
SLOW_S = 30.0


@deadline(SLOW_S)
def versions(python: str, mpirun: str) -> dict[str, str]:
    """Return the versions of what a job uses, by name; see jobs/preflight.py. A program that does
    not start is left out."""
    return preflight.versions(python, mpirun)


@deadline(SLOW_S)
def mpirun_on_path() -> Optional[tuple[str, str]]:
    """Return path and version of the `mpirun` on PATH. A job may use another one."""
    path = shutil.which("mpirun")
    if not path:
        return None
    return path, (output([path, "--version"]) or "").split("\n")[0]


@deadline(SLOW_S)
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


@deadline(SLOW_S)
def data(folder: str) -> Optional[tuple[str, int]]:
    """Return a hash of the names and sizes of the training and validation files, and their number.
    None if there are no such files."""
    found = preflight.listing(os.path.expanduser(folder))  # noqa: PTH111
    sizes = sorted({**found["train"], **found["validation"]}.items())
    if not sizes:
        return None
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:12], len(sizes)
