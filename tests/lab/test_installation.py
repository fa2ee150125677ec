"""The modules that complete moto are independent: any order of installation gives the same EC2."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the other modules share.
OWN = ("__init__", "completion")

# One process for each order, because moto is completed once per process. Several rules refuse each
# of these launches.
ASK = """
import random, sys
from tests import hostless
from clusterctl.lab import complete

complete.MODULES = list(complete.MODULES)
random.Random(int(sys.argv[1])).shuffle(complete.MODULES)
hostless.complete_moto()

import boto3
from botocore.exceptions import ClientError
from moto import mock_aws

def outcome(call, **asked):
    try:
        return sorted(call(**asked))
    except ClientError as refused:
        return refused.response["Error"]["Code"]

with mock_aws():
    ec2 = boto3.client("ec2", region_name="us-east-1")
    images = ec2.describe_images(Owners=["898082745236"])["Images"]
    image = {one["Architecture"]: one["ImageId"] for one in images}
    one = {"MinCount": 1, "MaxCount": 1, "InstanceType": "p3.2xlarge", "ImageId": image["x86_64"]}
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    group = {"Placement": {"GroupName": "none"}}
    for more in (
        {}, spot, group, {**spot, **group},
        {"ImageId": image["arm64"], **group},
        {"IamInstanceProfile": {"Name": "none"}, "ImageId": image["arm64"]},
        {"MinCount": 2}, {"MaxCount": 20000, "MinCount": 20000},
        {"InstanceType": "t3.micro", "InstanceMarketOptions": {"MarketType": "capacity-block"}},
    ):
        print(sorted(more), outcome(ec2.run_instances, **{**one, **more}))
    [made] = ec2.run_instances(**one, ClientToken="t")["Instances"]
    again = ec2.run_instances(**one, ClientToken="t")["Instances"][0]["InstanceId"]
    print(made["State"]["Name"], again == made["InstanceId"])
    print(outcome(ec2.create_placement_group, GroupName="g", Strategy="cluster"))
    print(outcome(ec2.describe_capacity_reservations))
"""


@pytest.mark.all
def test_any_order_of_installation():
    orders = 0, random.randrange(1, 10**6)
    asked = [
        subprocess.Popen([sys.executable, "-c", ASK, str(order)], stdout=subprocess.PIPE, text=True)
        for order in orders
    ]
    one, another = (process.communicate()[0] for process in asked)
    assert [process.returncode for process in asked] == [0, 0], orders
    assert one == another, orders


def test_the_list_of_what_the_lab_adds_to_moto():
    """docs/architecture.md gives a reason for each module that completes moto."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("### What the lab adds to moto")[2].partition("`lab/forms.py`")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))
    folder = ROOT / "clusterctl/lab/ec2"
    assert listed == sorted(one.stem for one in folder.glob("*.py") if one.stem not in OWN)
