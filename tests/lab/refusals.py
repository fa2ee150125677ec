"""Clients of a lab's APIs that send each request once, what a refusal says, quotas to run into."""

from __future__ import annotations

import contextlib
import json
import urllib.request

import pytest
from botocore.exceptions import ClientError

from tests.lab.running import client


def service(record, name: str, region: str | None = None):
    from botocore.config import Config

    return client(record, region, name, config=Config(retries={"total_max_attempts": 1}))


def refused(call, **arguments) -> tuple[str, str, int]:
    """The code, the text and the HTTP status of a call that has to be refused."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    error = answer["Error"]
    return error["Code"], error["Message"], answer["ResponseMetadata"]["HTTPStatusCode"]


def quota(record, code: str, value: float):
    """A service quota as it is in the block."""
    return fault(record, kind="quota", code=code, value=value)


@contextlib.contextmanager
def fault(record, **wanted):
    """A fault of the lab that is set in the block."""
    page = f"{record.endpoint_url}/_lab/faults"
    setting = urllib.request.Request(page, data=json.dumps(wanted).encode(), method="POST")
    with urllib.request.urlopen(setting) as answer:
        id = json.load(answer)["id"]
    try:
        yield
    finally:
        clearing = urllib.request.Request(f"{page}?id={id}", method="DELETE")
        urllib.request.urlopen(clearing).close()
