"""Two accounts in one lab: the key selects the account. An account does not see the other's
resources."""

from __future__ import annotations

import json

import boto3
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from moto import mock_aws
from moto.iam.models import iam_backends

from clusterctl.ec2.tags import CLUSTER
from clusterctl.lab.accounts import ROLE_KEY_LASTS, Keyring
from clusterctl.lab.record import ACCOUNTS
from tests import hostless
from tests.cli.running import CommandLine
from tests.lab.conftest import with_key
from tests.lab.running import client, keys_of, shown

FIRST, SECOND = ACCOUNTS


def test_a_holder_keeps_its_key_until_it_is_half_over(monkeypatch):
    keys = Keyring()
    lent = keys.role_key(FIRST, "i-1")
    assert keys.role_key(FIRST, "i-1") == lent == keys.find(lent.id)
    assert keys.role_key(FIRST, "i-2").id != lent.id
    monkeypatch.setattr("clusterctl.lab.accounts.ROLE_KEY_LASTS", ROLE_KEY_LASTS * 3)
    again = keys.role_key(FIRST, "i-1")
    assert (again.id != lent.id, keys.find(lent.id)) == (True, lent)


def test_each_account_has_its_own_copy_of_the_policies_of_aws():
    hostless.complete_moto()
    arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    with mock_aws():
        own, other = (iam_backends[account]["aws"] for account in ACCOUNTS[:2])
        own.create_role("node", "{}", "/", None, "", [], 3600)
        own.attach_role_policy(arn, "node")
        counts = [backend.managed_policies[arn].attachment_count for backend in (own, other)]
        assert (counts, own.managed_policies.keys() == other.managed_policies.keys()) == (
            [1, 0],
            True,
        )
        assert len(own.managed_policies) > 1000


@pytest.mark.lab
def test_instances_of_both_accounts_are_hosts_and_each_sees_its_own(
    lab, ec2, instances, key, capsys, monkeypatch
):
    made = with_key(lab, key, account=SECOND)
    other = made.ec2
    other.import_key_pair(KeyName="theirs", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
    with pytest.raises(ec2.exceptions.ClientError, match=r"InvalidKeyPair\.NotFound"):
        instances.request(KeyName="theirs")
    tags = [{"Key": CLUSTER, "Value": "of-the-second"}]
    mine = instances.up()[0]
    try:
        theirs = made.up(
            KeyName="theirs", TagSpecifications=[{"ResourceType": "instance", "Tags": tags}]
        )[0]
        names = [made.run(one, "hostname") for one in (mine, theirs)]
        assert names == [one["PrivateDnsName"].partition(".")[0] for one in (mine, theirs)]
        assert not shown(ec2, made.ids)
        assert not shown(other, instances.ids)
        seen = [one["Instances"][0] for one in other.describe_instances()["Reservations"]]
        assert [one["InstanceId"] for one in seen] == made.ids
        monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
        clusterctl = CommandLine(lab.home, capsys, ["--lab"])
        for account in ACCOUNTS:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys_of(lab, account)["aws_access_key_id"])
            listed = json.dumps(clusterctl("list", "--json").data)
            assert ("of-the-second" in listed) == (account == SECOND)
    finally:
        other.terminate_instances(InstanceIds=made.ids)
    assert instances.state(mine["InstanceId"]) == "running"


@pytest.mark.lab
def test_a_bucket_is_closed_to_the_other_account(lab):
    for account in ACCOUNTS:
        who = client(lab, service="sts", account=account).get_caller_identity()
        assert who["Account"] == account
        assert who["Arn"] == f"arn:aws:iam::{account}:user/lab"
    mine, theirs = (client(lab, service="s3", account=account) for account in ACCOUNTS)
    mine.create_bucket(Bucket="of-the-first")
    try:
        mine.put_object(Bucket="of-the-first", Key="key", Body=b"mine")
        assert theirs.list_buckets()["Buckets"] == []
        for call in (
            lambda: theirs.get_object(Bucket="of-the-first", Key="key"),
            lambda: theirs.list_objects_v2(Bucket="of-the-first"),
            lambda: theirs.delete_object(Bucket="of-the-first", Key="key"),
        ):
            with pytest.raises(theirs.exceptions.ClientError, match="AccessDenied"):
                call()
    finally:
        mine.delete_object(Bucket="of-the-first", Key="key")
        mine.delete_bucket(Bucket="of-the-first")


def session_of(lab, service, credentials):
    names = {"AccessKeyId": "access_key_id", "SecretAccessKey": "secret_access_key"}
    names["SessionToken"] = "session_token"
    told = {f"aws_{ours}": credentials[theirs] for theirs, ours in names.items()}
    return boto3.client(service, region_name=lab.region, endpoint_url=lab.endpoint_url, **told)


def asked_with_another_keys_name(lab, credentials, path):
    """Return the statuses of two requests that name a second key, signed in URL and header."""
    url, decoy = lab.endpoint_url + path, "AWSAccessKeyId=x"
    key = Credentials(*(credentials[f] for f in ("AccessKeyId", "SecretAccessKey", "SessionToken")))
    by_url, by_header = AWSRequest("GET", f"{url}?{decoy}"), AWSRequest("GET", url)
    S3SigV4QueryAuth(key, "s3", lab.region, 60).add_auth(by_url)
    S3SigV4Auth(key, "s3", lab.region).add_auth(by_header)
    headers = dict(by_header.headers.items())
    kind, _, rest = headers["Authorization"].partition(" ")
    scope = f"Credential=x/20260101/{lab.region}/s3/aws4_request"
    headers["Authorization"] = f"{kind} Other={scope}, {rest}"
    asked = [
        AWSPreparedRequest("GET", url, headers, b"", stream_output=False)
        for url, headers in ((by_url.url, {}), (url, headers))
    ]
    return [URLLib3Session().send(one).status_code for one in asked]


@pytest.mark.lab
def test_keys_that_sts_gives_are_good_for_what_their_policy_allows(lab):
    sts, s3 = (client(lab, service=name, account=SECOND) for name in ("sts", "s3"))
    iam = client(lab, service="iam", account=SECOND)
    role = iam.create_role(RoleName="readers", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    s3.create_bucket(Bucket="lent-out")
    s3.put_object(Bucket="lent-out", Key="a", Body=b"lent")
    reading = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::lent-out/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [reading]})
    whole = sts.get_session_token()["Credentials"]
    assert session_of(lab, "sts", whole).get_caller_identity()["Account"] == SECOND
    with pytest.raises(ClientError, match="AuthFailure"):
        session_of(lab, "ec2", {**whole, "SessionToken": "x"}).describe_vpcs()
    given = sts.assume_role(RoleArn=role, RoleSessionName="nodes", Policy=policy)["Credentials"]
    theirs = session_of(lab, "s3", given)
    assert theirs.get_object(Bucket="lent-out", Key="a")["Body"].read() == b"lent"
    for service, action, asked in (
        ("s3", "list_objects_v2", {"Bucket": "lent-out"}),
        ("s3", "list_buckets", {}),
        ("ec2", "describe_instances", {}),
        ("ssm", "describe_parameters", {}),
        ("pricing", "get_products", {"ServiceCode": "AmazonEC2"}),
    ):
        call = getattr(session_of(lab, service, given), action)
        with pytest.raises(ClientError, match=r"\(AccessDenied(Exception)?\)"):
            call(**asked)
    assert asked_with_another_keys_name(lab, given, "/lent-out") == [403, 403]
    for arn in (role.replace("readers", "nobody"), role.replace(SECOND, "999999999999")):
        with pytest.raises(ClientError, match="AccessDenied"):
            sts.assume_role(RoleArn=arn, RoleSessionName="nodes")
    s3.delete_object(Bucket="lent-out", Key="a")
    s3.delete_bucket(Bucket="lent-out")
    iam.delete_role(RoleName="readers")
