from __future__ import annotations

import subprocess
import sys

import pytest
from botocore.stub import Stubber

from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.ec2.session import Account, Clients, without_retries
from tests.moto_ec2 import KEY, REGION


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_no_credentials():
    with pytest.raises(AwsError) as caught:
        Clients(Account(region=REGION)).ec2
    assert "no AWS credentials" in caught.value.message
    assert "--lab" in caught.value.hint


def test_no_region():
    with pytest.raises(AwsError) as caught:
        Clients(Account(**KEY)).ec2
    assert "--region" in caught.value.hint


def test_an_impossible_region():
    with pytest.raises(AwsError) as caught:
        Clients(Account(region="us east 1", **KEY)).ec2
    assert caught.value.code == "InvalidRegionError"


def test_an_unknown_profile():
    with pytest.raises(AwsError) as caught:
        Clients(Account(region=REGION, profile="nobody")).ec2
    assert "nobody" in caught.value.message


def test_half_a_key(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "only this")
    with pytest.raises(AwsError) as caught:
        Clients(Account(region=REGION)).ec2
    assert caught.value.code == "PartialCredentialsError"


def test_an_endpoint_that_is_not_there():
    client = without_retries(
        Clients(Account(region=REGION, endpoint_url="http://127.0.0.1:9", **KEY)).ec2
    )
    from clusterctl.ec2.instances import find_instances

    with pytest.raises(AwsError) as caught:
        find_instances(client, "demo")
    assert caught.value.code == "EndpointConnectionError"
    assert "127.0.0.1:9" in caught.value.message


def test_the_client_without_retries_is_the_same_account():
    client = Clients(Account(region="eu-west-1", endpoint_url="http://127.0.0.1:9", **KEY)).ec2
    once = without_retries(client)
    assert once.meta.config.retries["total_max_attempts"] == 1
    assert client.meta.config.retries["total_max_attempts"] > 1
    assert (once.meta.region_name, once.meta.endpoint_url) == (
        client.meta.region_name,
        client.meta.endpoint_url,
    )


def test_a_client_from_elsewhere_is_taken_as_it_is():
    import boto3

    client = boto3.client("ec2", region_name=REGION)
    with Stubber(client):
        assert without_retries(client) is client


def test_boto3_is_imported_only_when_a_client_is_made():
    program = (
        "import sys, clusterctl.ec2.launch.execution, clusterctl.ec2.cluster_resources;"
        "import clusterctl.operations.up;"
        "print([name for name in ('boto3', 'botocore', 'moto') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("url", ["banana", "http://", "ftp://x", "http://a b", "127.0.0.1:5000"])
def test_an_endpoint_that_is_no_url(url):
    with pytest.raises(UsageError, match="not an endpoint URL"):
        Clients(Account(region="us-east-1", endpoint_url=url, access_key="a", secret_key="b")).ec2
