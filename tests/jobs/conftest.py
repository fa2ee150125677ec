from __future__ import annotations

import subprocess

import pytest

from tests.local_node import LocalNode
from tests.pythons import python_or_skip


@pytest.fixture
def weird_home(tmp_path):
    """A home folder with a space, quotes, a semicolon and unicode in its path."""
    home = tmp_path / "we ird'\"; é"
    home.mkdir()
    return home


@pytest.fixture(params=["tmux", "nohup", "python3.8"])
def node(request, weird_home, tmp_path):
    """A head node with tmux, one without, and one with the oldest Python that we support."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "python3",
        "sh",
        "env",
        "nohup",
        "tail",
        "cat",
        "sleep",
        "kill",
        "rm",
        "touch",
        "grep",
        "dirname",
        "cp",
        "mv",
        "wc",
    ):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    if request.param == "python3.8":
        (tools / "python3").unlink()
        (tools / "python3").symlink_to(python_or_skip("3.8"))
    if request.param == "tmux":
        (tools / "tmux").symlink_to("/usr/bin/tmux")
    environ = {"PATH": str(tools), "TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    yield LocalNode(weird_home, environ)
    if request.param == "tmux":
        command = ["tmux", "kill-server"]
        subprocess.run(command, env={**environ}, check=False, capture_output=True)
