"""Two accounts in one lab: the key says which one asks, and neither sees what the other has."""

from __future__ import annotations

import json

import pytest

from clusterctl.ec2.tags import CLUSTER
from clusterctl.lab.accounts import LENT_FOR, Keyring
from clusterctl.lab.record import ACCOUNTS
from tests.cli.running import CommandLine
from tests.lab.conftest import Instances
from tests.lab.running import client, keys_of, shown

FIRST, SECOND = ACCOUNTS


def test_a_holder_keeps_its_key_until_it_is_half_over(monkeypatch):
    keys = Keyring()
    lent = keys.lend(FIRST, "i-1")
    assert keys.lend(FIRST, "i-1") == lent == keys.find(lent.id)
    assert keys.lend(FIRST, "i-2").id != lent.id
    monkeypatch.setattr("clusterctl.lab.accounts.LENT_FOR", LENT_FOR * 3)
    again = keys.lend(FIRST, "i-1")
    assert (again.id != lent.id, keys.find(lent.id)) == (True, lent)


@pytest.mark.lab
@pytest.mark.parametrize("account", ACCOUNTS)
def test_the_key_says_which_account_asks(lab, account):
    assert client(lab, service="sts", account=account).get_caller_identity()["Account"] == account


@pytest.mark.lab
def test_instances_of_both_accounts_are_hosts_and_each_sees_its_own(
    lab, ec2, instances, key, capsys, monkeypatch
):
    other = client(lab, account=SECOND)
    other.import_key_pair(KeyName="theirs", PublicKeyMaterial=key.with_suffix(".pub").read_bytes())
    with pytest.raises(ec2.exceptions.ClientError, match=r"InvalidKeyPair\.NotFound"):
        instances.request(KeyName="theirs")
    tags = [{"Key": CLUSTER, "Value": "of-the-second"}]
    made = Instances(lab, other, key)
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
