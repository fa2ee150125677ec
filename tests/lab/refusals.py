"""Clients of a lab's APIs that send each request once, what a refusal says, quotas to run into."""

from __future__ import annotations

import contextlib
import json
import urllib.request

import pytest
from botocore.exceptions import ClientError


def service(record, name: str, region: str | None = None):
    import boto3
    from botocore.config import Config

    return boto3.client(
        name,
        region_name=region or record.region,
        endpoint_url=record.endpoint_url,
        aws_access_key_id="lab",
        aws_secret_access_key="lab",
        config=Config(retries={"total_max_attempts": 1}),
    )


def refused(call, **arguments) -> tuple[str, str, int]:
    """The code, the text and the HTTP status of a call that has to be refused."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    error = answer["Error"]
    return error["Code"], error["Message"], answer["ResponseMetadata"]["HTTPStatusCode"]


@contextlib.contextmanager
def quota(record, code: str, value: float):
    """A service quota as it is in the block."""
    page = f"{record.endpoint_url}/_lab/faults"
    wanted = json.dumps({"kind": "quota", "code": code, "value": value}).encode()
    set_fault = urllib.request.Request(page, data=wanted, method="POST")
    with urllib.request.urlopen(set_fault) as answer:
        id = json.load(answer)["id"]
    try:
        yield
    finally:
        urllib.request.urlopen(urllib.request.Request(f"{page}?id={id}", method="DELETE")).close()
