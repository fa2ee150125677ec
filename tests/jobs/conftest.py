from __future__ import annotations

import subprocess

import pytest

from tests.local_node import LocalNode
from tests.pythons import python_or_skip


@pytest.fixture
def weird_home(tmp_path):
    """Return a home folder with a space, quotes, a semicolon and Unicode in its path."""
    home = tmp_path / "we ird'\"; é"
    home.mkdir()
    return home


TOOLS = "sh env head nohup tail cat sleep kill rm touch grep dirname cp mv wc"


@pytest.fixture(params=["nohup and python3.8", pytest.param("tmux", marks=pytest.mark.all)])
def node(request, weird_home, tmp_path):
    """Return a head node: with tmux, or without it and with the oldest supported Python."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS.split():
        (tools / name).symlink_to(f"/usr/bin/{name}")
    has_tmux = request.param == "tmux"
    (tools / "python3").symlink_to("/usr/bin/python3" if has_tmux else python_or_skip("3.8"))
    if has_tmux:
        (tools / "tmux").symlink_to("/usr/bin/tmux")
    environ = {"PATH": str(tools), "TMUX_TMPDIR": str(tmp_path), "TMUX": ""}
    yield LocalNode(weird_home, environ)
    if has_tmux:
        subprocess.run(["tmux", "kill-server"], env=environ, check=False, capture_output=True)
