"""boto3 clients for one account and region. This is the only module that imports boto3."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import threading
import urllib.parse
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.ec2.errors import codes, translated

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_service_quotas import ServiceQuotasClient
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_sts import STSClient

# Tries of a request, the first included.
ATTEMPTS = 6
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60

# Variables of a botocore session: with an access key that is given (the local EC2) neither a
# profile nor the user's files play a part, and none of them may be damaged.
_NO_FILES = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}

_making = threading.RLock()
# EC2 client -> function that makes a client like it without retries (see `without_retries`).
_single_attempts: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()


def is_local(endpoint_url: str) -> bool:
    """Return whether an endpoint's URL points to this machine."""
    host = urllib.parse.urlsplit(endpoint_url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_http(url: str) -> bool:
    try:
        _ = urllib.parse.urlsplit(url).port  # which raises also for what is no address
    except ValueError:
        return False
    return bool(re.match(r"https?://[^/\s]+(/|$)", url))


@dataclass(frozen=True)
class Account:
    """The account and region to use. For a field of None boto3 finds the value by its own rules.

    `endpoint_url` serves every API: the local EC2, or a gateway. `price_cache` is the file that
    keeps prices between commands, if one does. Raises UsageError for an `endpoint_url` that is no
    HTTP URL.
    """

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    price_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.endpoint_url and not _is_http(self.endpoint_url):
            raise UsageError(
                f"not an endpoint URL: {self.endpoint_url!r}", "write it as http://HOST:PORT"
            )


class Clients:
    """The boto3 clients. Each is created at its first use, which takes a tenth of a second.

    Clients retry throttled and failed requests. The first use raises AwsError without credentials
    or region.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self._origin: Clients | None = None

    def in_region(self, region: str) -> Clients:
        """Return clients for the same account in another region.

        They share the boto3 session, so that botocore loads its service models only once.
        """
        elsewhere = Clients(replace(self.account, region=region))
        elsewhere._origin = self
        return elsewhere

    @functools.cached_property
    def ec2(self) -> EC2Client:
        client: EC2Client = self._make("ec2")
        _single_attempts[client] = lambda: self._make("ec2", attempts=1)
        return client

    @functools.cached_property
    def ec2_at_once(self) -> EC2Client:
        """An EC2 client with short timeouts and one retry, for calls while the user waits."""
        client: EC2Client = self._make("ec2", attempts=2, timeout_s=4)
        return client

    @functools.cached_property
    def ec2_as_shown(self) -> EC2Client:
        """An EC2 client whose reads have the tags that EC2 shows: those of `ec2` have the command's
        own ones of the last seconds (`own_tags_count`)."""
        client: EC2Client = self._make("ec2")
        return client

    @functools.cached_property
    def ssm(self) -> SSMClient:
        client: SSMClient = self._make("ssm")
        return client

    @functools.cached_property
    def quotas(self) -> ServiceQuotasClient:
        client: ServiceQuotasClient = self._make("service-quotas", attempts=3, timeout_s=5)
        return client

    @functools.cached_property
    def cloudformation(self) -> CloudFormationClient:
        client: CloudFormationClient = self._make("cloudformation")
        return client

    @functools.cached_property
    def sts(self) -> STSClient:
        client: STSClient = self._make("sts", attempts=3, timeout_s=5)
        return client

    @functools.cached_property
    def iam(self) -> Any:
        return self._make("iam", timeout_s=10)

    @functools.cached_property
    def s3(self) -> Any:
        return self._make("s3")

    @functools.cached_property
    def cloudwatch(self) -> Any:
        return self._make("cloudwatch")

    @functools.cached_property
    def account_id(self) -> str:
        """The number of the account that the credentials belong to. Raises AwsError.

        Queried once for all regions. GetCallerIdentity needs no permission.
        """
        if self._origin:
            return self._origin.account_id
        with translated():
            return self.sts.get_caller_identity()["Account"]

    def frozen_keys(self) -> tuple[str, str, str]:
        """Return access key, secret key and session token; no token for long-lived keys.

        Raises AwsError without credentials.
        """
        with translated():
            keys = self._session.get_credentials().get_frozen_credentials()
            return keys.access_key, keys.secret_key, keys.token or ""

    def pricing(self, region: str) -> PricingClient:
        """Return a client for the price list in `region`, one of the few that serve it.

        Its timeouts are short, because ec2/money/prices.py has a shipped table to fall back on.
        """
        client: PricingClient = self._make("pricing", attempts=2, region=region, timeout_s=4)
        return client

    @functools.cached_property
    def _session(self) -> Any:
        if self._origin:
            return self._origin._session
        with translated():
            import boto3
            from botocore.session import Session

            given = bool(self.account.access_key)
            session = boto3.Session(
                botocore_session=Session(_NO_FILES) if given else None,
                region_name=self.account.region,
                profile_name=self.account.profile,
                aws_access_key_id=self.account.access_key,
                aws_secret_access_key=self.account.secret_key,
            )
            keys = session.get_credentials()
            if keys is None:
                raise AwsError("NoCredentialsError", *codes()["errors"]["NoCredentialsError"])
            if keys.method == "env":
                _check_variables(keys.get_frozen_credentials())
            parsers = session._session.get_component("response_parser_factory")
            parsers.set_parser_defaults(timestamp_parser=parse_timestamp)
            return session

    def _make(
        self,
        service: str,
        attempts: int = ATTEMPTS,
        region: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        with translated():
            from botocore.config import Config

            config = Config(
                retries={"mode": "standard", "total_max_attempts": attempts},
                connect_timeout=timeout_s or CONNECT_TIMEOUT_S,
                read_timeout=timeout_s or READ_TIMEOUT_S,
                # No proxy for this machine's own addresses; None: those of the environment.
                proxies={} if is_local(self.account.endpoint_url or "") else None,
                # Threads of many nodes use one client at the same time, for example to read
                # consoles. botocore's default is 10 connections.
                max_pool_connections=64,
            )
            # Threads may share a client, but not create clients from one session at the same time.
            with _making:
                try:
                    return self._session.client(
                        service,
                        region_name=region or self.account.region,
                        endpoint_url=self.account.endpoint_url,
                        config=config,
                    )
                except ValueError as error:
                    if type(error) is not ValueError:  # botocore's own errors
                        raise
                    given = self.account.endpoint_url and "--endpoint-url"
                    raise UsageError(
                        f"{given or 'AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config'}: {error}",
                        "write it as http://HOST:PORT, or unset it",
                    ) from None


def _check_variables(keys: tuple[str | None, ...]) -> None:
    """Raise UsageError if a key in the environment has a character that no key has.

    botocore fails on it only when it sends the request, and its error shows the key.
    """
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, keys):
        if not re.fullmatch("[!-~]*", value or ""):
            raise UsageError(
                f"{name} has a character that is in no key, such as a space or the end of a line",
                "set it again, for example as `aws configure export-credentials` prints it",
            )


def parse_timestamp(value: Any) -> datetime:
    """Return the time that botocore's own parser returns, for EC2's format in a hundredth of its
    time.

    DescribeInstances has four times for each instance. With botocore's parser, which is dateutil's
    for any format, they took half of the time that the whole answer took.
    """
    if isinstance(value, str) and value.endswith("Z"):
        try:
            return datetime.fromisoformat(f"{value[:-1]}+00:00")
        except ValueError:
            pass
    from botocore.utils import parse_timestamp as parse

    parsed: datetime = parse(value)
    return parsed


def without_retries(client: EC2Client) -> EC2Client:
    """Return a client for the same account and region that sends each request once.

    For RunInstances: botocore retries InsufficientInstanceCapacity (HTTP 500) like a passing error,
    which empties the small bucket of requests that EC2 allows for RunInstances. Returns `client`
    itself if it was not made by Clients.
    """
    make = _single_attempts.get(client)
    made: EC2Client = make() if make else client
    return made
