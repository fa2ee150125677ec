"""Credentials for nodes: a session that only reads the buckets, or a warning that it does more."""

from __future__ import annotations

import json

import boto3
import pytest
from botocore.exceptions import ClientError

from clusterctl.ec2.policy import temporary_keys
from clusterctl.ec2.session import Account, Clients
from clusterctl.lab.faults.kinds import ApiError
from tests.ec2.launching import faults
from tests.moto_ec2 import KEY, REGION

__all__ = ["faults"]
OWN = (KEY["access_key"], KEY["secret_key"])


@pytest.fixture
def as_lent(client, moto_url):
    """Return a client of a service that uses the lent keys."""

    def make(service, keys):
        access, secret, token = keys
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=moto_url,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token or None,
        )

    return make


@pytest.fixture
def clients(as_lent, moto_url):
    """Return the account's clients, with three buckets of one object each.

    `asked` are the requests to STS.
    """
    clients = Clients(Account(region=REGION, endpoint_url=moto_url, **KEY))
    s3 = as_lent("s3", (*OWN, ""))
    for name in ("train", "validation", "payroll"):
        s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="a/b", Body=b"x")
    return clients


def refusal(call, **arguments):
    """Return the error's code and HTTP status."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_a_session_that_reads_the_buckets_and_nothing_else(clients, as_lent):
    asked = []
    clients.sts.meta.events.register(
        "provide-client-params.sts.*", lambda params, **_: asked.append(dict(params))
    )
    lent = temporary_keys(clients, ["train", "validation", "train"])
    [request] = asked
    assert {**request, "Policy": json.loads(request["Policy"])} == {
        "Name": "clusterctl",
        "DurationSeconds": 12 * 3600,
        "Policy": {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "List",
                    "Effect": "Allow",
                    "Action": ["s3:ListBucket"],
                    "Resource": ["arn:aws:s3:::train", "arn:aws:s3:::validation"],
                },
                {
                    "Sid": "Read",
                    "Effect": "Allow",
                    "Action": ["s3:GetObject"],
                    "Resource": ["arn:aws:s3:::train/*", "arn:aws:s3:::validation/*"],
                },
                {
                    "Sid": "Decrypt",
                    "Effect": "Allow",
                    "Action": ["kms:Decrypt"],
                    "Resource": ["*"],
                    "Condition": {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}},
                },
            ],
        },
    }
    assert lent.finding is None
    s3 = as_lent("s3", lent.keys)
    for bucket in ("train", "validation"):
        s3.head_bucket(Bucket=bucket)
        assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
        assert s3.get_object(Bucket=bucket, Key="a/b", Range="bytes=0-0")["ContentLength"] == 1
    denied = ("AccessDenied", 403)
    assert refusal(s3.list_objects_v2, Bucket="payroll") == denied
    assert refusal(s3.get_object, Bucket="payroll", Key="a/b") == denied
    assert refusal(s3.put_object, Bucket="train", Key="a/b", Body=b"") == denied
    assert refusal(s3.delete_object, Bucket="train", Key="a/b") == denied
    assert refusal(s3.list_buckets) == denied
    assert refusal(as_lent("ec2", lent.keys).describe_instances) == denied
    sts = as_lent("sts", lent.keys)
    assert sts.get_caller_identity()["Account"] == "123456789012"
    assert refusal(sts.get_session_token) == denied


def test_where_no_such_session_is_given_it_is_said_what_is_lent(clients, as_lent, faults):
    faults(ApiError("GetFederationToken", "AccessDenied", times=0))
    lent = temporary_keys(clients, ["train"])
    assert lent.keys[2]
    as_lent("s3", lent.keys).put_object(Bucket="payroll", Key="b", Body=b"")
    assert "get keys of 12 hours with all your rights" in lent.finding.message
    assert "have sts:GetFederationToken allowed, which was refused" in lent.finding.hint
    faults(ApiError("GetSessionToken", "AccessDenied", times=0))
    lent = temporary_keys(clients, ["train"])
    assert lent.keys == (*OWN, "")
    assert "get your long-lived keys" in lent.finding.message


def test_a_session_of_ones_own_is_lent_as_it_is(clients, as_lent, monkeypatch, moto_url):
    given = clients.sts.get_session_token()["Credentials"]
    keys = given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, keys):
        monkeypatch.setenv(name, value)
    # A session cannot request another session.
    asks = as_lent("sts", keys).get_federation_token
    assert refusal(asks, Name="clusterctl", Policy="{}") == ("AccessDenied", 403)
    lent = temporary_keys(Clients(Account(region=REGION, endpoint_url=moto_url)), ["train"])
    assert lent.keys == keys
    assert "get your session's own keys" in lent.finding.message
