"""Clients for the EC2 API: the only place that imports boto3."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.ec2.errors import TABLE, translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ATTEMPTS = 6
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60

_single_attempts: weakref.WeakKeyDictionary[EC2Client, Callable[[], EC2Client]] = (
    weakref.WeakKeyDictionary()
)


def ec2_client(
    region: str | None = None,
    profile: str | None = None,
    endpoint_url: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
) -> EC2Client:
    """A client that retries throttled and failed requests. What is None comes from boto3's chain.

    Raises AwsError without credentials or region, UsageError for a URL that is none.
    """
    if endpoint_url and not re.match(r"https?://[^/\s]+(/|$)", endpoint_url):
        raise UsageError(f"not an endpoint URL: {endpoint_url!r}", "write it as http://HOST:PORT")
    with translated():
        import boto3

        session = boto3.Session(
            region_name=region,
            profile_name=profile,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
        )
        if session.get_credentials() is None:
            raise AwsError("NoCredentialsError", *TABLE["NoCredentialsError"])
        client = _client(session, endpoint_url, ATTEMPTS)
        _single_attempts[client] = lambda: _client(session, endpoint_url, 1)
        return client


def without_retries(client: EC2Client) -> EC2Client:
    """The same account and region, each request sent once.

    For RunInstances: botocore takes InsufficientInstanceCapacity (HTTP 500) for a hiccup and
    repeats it until the small request bucket of RunInstances is empty.
    """
    make = _single_attempts.get(client)
    return make() if make else client


def _client(session: Any, endpoint_url: str | None, attempts: int) -> EC2Client:
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        # One connection per node that asks for its console.
        max_pool_connections=64,
    )
    client: EC2Client = session.client("ec2", endpoint_url=endpoint_url, config=config)
    return client
