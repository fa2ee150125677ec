"""A tiny SavedModel for tests of the model server, and a server that only runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.jobs.detached import end_job
from clusterctl.jobs.plan import new_job_id
from clusterctl.operations.access import Access
from clusterctl.operations.serving import start_server
from tests.pair import eventually


def training_python() -> str:
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / "bin" / "python").exists():
        pytest.skip(f"no training environment at {env}: run scripts/training-env")
    return str(env / "bin" / "python")


def make_model(folder: Path, *versions: int) -> Path:
    """Make the model. Version N returns N * x; for other signatures see serving_model.py."""
    program = Path(__file__).parent / "bootstrap" / "serving_model.py"
    subprocess.run([training_python(), str(program), str(folder), *map(str, versions)], check=True)
    return folder


@contextlib.contextmanager
def stand_in_server(access: Access) -> Iterator[str]:
    """Run the job of a model served on node 1, with a server that does nothing. Yields its ID."""
    (target,) = access.select((1,))
    options = ("--port", "8503", "--model", "stand-in", "--folder", "/none")
    line = ("bash", "-c", 'echo started; exec -a "sleep 1000 $*" sleep 1000', "bash", *options)
    job_id, home = new_job_id(), access.connections.run(access.head, "pwd", timeout_s=10).stdout
    start_server(access, target, job_id, home.strip(), line, "stand-in")
    log = f"cat ~/.clusterctl/jobs/{job_id}/log"
    try:
        eventually(
            lambda: "started" in access.connections.run(access.head, log, timeout_s=10).stdout,
            "the server",
        )
        yield job_id
    finally:
        end_job(access.connections, access.head, job_id)
        # Otherwise a server that failed would be named by each `serve --status` that follows.
        remove = f"rm -rf ~/.clusterctl/jobs/{job_id}"
        access.connections.run(access.head, remove, timeout_s=10)
