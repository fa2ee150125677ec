"""Clients that send each request once, the content of a refusal, and low quotas."""

from __future__ import annotations

import contextlib

import pytest
from botocore.exceptions import ClientError

from clusterctl.lab import lifecycle
from tests.lab.running import client


def service(record, name: str, region: str | None = None):
    from botocore.config import Config

    return client(record, region, name, config=Config(retries={"total_max_attempts": 1}))


def refused(call, **arguments) -> tuple[str, str, int]:
    """Return code, text and HTTP status of a call's error. The call has to fail."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    error = answer["Error"]
    return error["Code"], error["Message"], answer["ResponseMetadata"]["HTTPStatusCode"]


def quota(record, code: str, value: float):
    """Set a service quota for the duration of the block."""
    return fault(record, kind="quota", code=code, value=value)


@contextlib.contextmanager
def fault(record, **wanted):
    """Set a fault of the lab for the duration of the block."""
    id = lifecycle.request_page(record, "/_lab/faults", "POST", wanted)["id"]
    try:
        yield
    finally:
        lifecycle.request_page(record, f"/_lab/faults?id={id}", "DELETE")
