from __future__ import annotations

import pytest

from tests.copy.buckets import s3_server


@pytest.fixture(scope="session")
def s3():
    """A running S3: tests.copy.buckets.S3Server."""
    with s3_server() as server:
        yield server
