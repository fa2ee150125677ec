from __future__ import annotations

import pytest

from tests.copy.buckets import s3_server
from tests.node.relay.relays import relays_in


@pytest.fixture
def relays(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with relays_in(home) as made:
        yield made


@pytest.fixture(scope="session")
def s3():
    """A running S3: tests.copy.buckets.S3Server."""
    with s3_server() as server:
        yield server
