from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.node.relay.relays import relays_in


@pytest.fixture
def relays(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with relays_in(home) as made:
        yield made


@pytest.fixture
def other_disk():
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
