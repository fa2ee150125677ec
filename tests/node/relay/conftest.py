from __future__ import annotations

import pytest

from tests.node.relay.relays import relays_in


@pytest.fixture
def relays(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with relays_in(home) as made:
        yield made
