from __future__ import annotations

import functools
import sys

import botocore.credentials
import botocore.utils
import pytest
from botocore.stub import Stubber

from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.session import Account, Clients, parse_timestamp, without_retries
from tests.moto_ec2 import KEY, REGION
from tests.programs import completed

NOWHERE = "http://127.0.0.1:9"
OWN_KEY = "aws_access_key_id = A\naws_secret_access_key = B\n"
EXPIRED = """credential_process = echo '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B", \
"SessionToken": "C", "Expiration": "%s"}'"""
MFA = (
    """role_arn = arn:aws:iam::1:role/a
source_profile = base
mfa_serial = arn:aws:iam::1:mfa/me
[profile base]
"""
    + OWN_KEY
)


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("account", "own_key", "code"),
    [
        ({"region": REGION}, "", "NoCredentialsError"),
        ({"region": REGION}, "only this", "PartialCredentialsError"),
        (KEY, "", "NoRegionError"),
        ({"region": "us east 1", **KEY}, "", "InvalidRegionError"),
        ({"region": REGION, "profile": "nobody"}, "", "ProfileNotFound"),
        ({"region": REGION, "endpoint_url": NOWHERE, **KEY}, "", "EndpointConnectionError"),
    ],
)
def test_an_account_that_cannot_be_asked(monkeypatch, account, own_key, code):
    if own_key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", own_key)
    with pytest.raises(AwsError) as caught:
        find_instances(without_retries(Clients(Account(**account)).ec2), "demo")
    assert caught.value.code == code


def ended_input(prompt):
    raise EOFError


@pytest.mark.parametrize(
    ("profile", "message", "hint"),
    [
        ("credential_process = echo hello", "read: JSONDecodeError: Expecting", "~/.aws/config"),
        ("credential_process = echo []", "read: AttributeError", "credential_process"),
        ("credential_process = echo 'hello", "No closing quotation", "credential_process"),
        ("credential_process = /no/helper", "/no/helper: No such file", "credential_process"),
        (EXPIRED % "2020-01-01T00:00:00Z", "credentials are still expired", "log in again"),
        (EXPIRED % "tomorrow", "tomorrow", "credential_process"),
        (
            "role_arn = arn:aws:iam::1:role/a\nsource_profile = none",
            "none",
            "~/.aws/config",
        ),
        (MFA, "MFA code", "in a terminal"),
        ("[", "Unable to parse config file", "~/.aws/config"),
    ],
)
def test_a_profile_that_cannot_be_used(monkeypatch, tmp_path, profile, message, hint):
    """What a profile's programs and files provoke in botocore may be of any class."""
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    provider = botocore.credentials.AssumeRoleProvider
    without_terminal = functools.partialmethod(provider.__init__, prompter=ended_input)
    monkeypatch.setattr(provider, "__init__", without_terminal)
    with pytest.raises(AwsError) as caught:
        find_instances(Clients(Account(region=REGION)).ec2, "demo")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "refused" not in caught.value.message


def test_an_account_with_a_key_reads_no_file_of_the_user(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("[")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    clients = Clients(Account(region=REGION, endpoint_url=NOWHERE, **KEY))
    assert clients.ec2.meta.endpoint_url == NOWHERE
    assert clients.frozen_keys()[:2] == (KEY["access_key"], KEY["secret_key"])


def test_the_proxy_of_the_environment_is_not_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:11")
    with pytest.raises(AwsError, match="127.0.0.1:9/") as caught:
        find_instances(without_retries(Clients(Account(REGION, None, NOWHERE, **KEY)).ec2), "demo")
    assert caught.value.code == "EndpointConnectionError"


@pytest.mark.parametrize(
    "value",
    ["2026-11-25T15:25:21.000Z", "2026-11-25T15:25:21Z", "2026-11-25T15:25:21.123456789Z"]
    + ["20261125T152521Z", "2026-11-25T15:25:21+02:00", "Wed, 25 Nov 2026 15:25:21 GMT"]
    + [1795620321.5, "1795620321"],
)
def test_times_are_those_of_botocores_parser(value):
    assert parse_timestamp(value) == botocore.utils.parse_timestamp(value)
    assert parse_timestamp(value).utcoffset() is not None


@pytest.mark.parametrize(
    "url",
    ["banana", "http://", "ftp://x", "http://a b", "127.0.0.1:5000"]
    + ["http://[::1", "http://a:65536"],
)
def test_an_endpoint_that_is_no_url(url):
    with pytest.raises(UsageError, match="not an endpoint URL"):
        Clients(Account(region=REGION, endpoint_url=url, **KEY)).ec2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AWS_ENDPOINT_URL", "banana", "AWS_ENDPOINT_URL, or endpoint_url .*: Invalid endpoint: b"),
        ("AWS_ENDPOINT_URL_EC2", "-1", "AWS_ENDPOINT_URL, or endpoint_url .*: Invalid endpoint: -"),
        ("AWS_ACCESS_KEY_ID", "AKIA\r", "^AWS_ACCESS_KEY_ID has a character that is in no key"),
        ("AWS_SECRET_ACCESS_KEY", "é∞", "^AWS_SECRET_ACCESS_KEY has a character"),
        ("AWS_SESSION_TOKEN", "very secret\n", "^AWS_SESSION_TOKEN has a character that is"),
        ("AWS_SESSION_TOKEN", "\udcff", "^AWS_SESSION_TOKEN has a character that is"),
        ("AWS_DEFAULTS_MODE", "abc", "read: Client configured with"),
    ],
)
def test_a_variable_that_boto3_cannot_use_is_named_and_no_key_is_shown(
    monkeypatch, name, value, message
):
    for each, key in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", name), ("a", "b", value)):
        monkeypatch.setenv(each, key)
    with pytest.raises((AwsError, UsageError), match=message) as caught:
        find_instances(without_retries(Clients(Account(region=REGION)).ec2), "demo")
    assert "secret\n" not in str(caught.value)


def test_the_client_without_retries_is_the_same_account():
    client = Clients(Account(region="eu-west-1", endpoint_url=NOWHERE, **KEY)).ec2
    once = without_retries(client)
    assert once.meta.config.retries["total_max_attempts"] == 1
    assert client.meta.config.retries["total_max_attempts"] > 1
    assert (once.meta.region_name, once.meta.endpoint_url) == (
        client.meta.region_name,
        client.meta.endpoint_url,
    )
    import boto3

    elsewhere = boto3.client("ec2", region_name=REGION)
    with Stubber(elsewhere):
        assert without_retries(elsewhere) is elsewhere


def test_boto3_is_imported_only_when_a_client_is_made():
    program = (
        "import sys, clusterctl.ec2.launch.execution, clusterctl.ec2.resources;"
        "import clusterctl.operations.up;"
        "print([name for name in ('boto3', 'botocore', 'moto') if name in sys.modules])"
    )
    done = completed([sys.executable, "-c", program], check=True)
    assert done.stdout == "[]\n"
