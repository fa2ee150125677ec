from __future__ import annotations

import signal

import pytest

from clusterctl.node.jobs.folder import JobFolder
from tests.local_node import LocalNode
from tests.pythons import python_or_skip


@pytest.fixture
def weird_home(tmp_path):
    """Return a home folder with a space, quotes, a semicolon and Unicode in its path."""
    home = tmp_path / "we ird'\"; é"
    home.mkdir()
    return home


TOOLS = "sh env head tail cat sleep kill rm touch grep dirname setsid yes"


@pytest.fixture
def node(weird_home, tmp_path):
    """Return a head node with the oldest supported Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS.split():
        (tools / name).symlink_to(f"/usr/bin/{name}")
    (tools / "python3").symlink_to(python_or_skip("3.8"))
    yield LocalNode(weird_home, {"PATH": str(tools)})
    for path in (weird_home / ".clusterctl" / "jobs").glob("2*"):
        JobFolder(path).signal_runner(signal.SIGTERM)
