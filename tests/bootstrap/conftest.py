from __future__ import annotations

import pytest

from tests.bootstrap.node import ShellNode


@pytest.fixture
def node(tmp_path):
    return ShellNode(tmp_path)
