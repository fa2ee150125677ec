"""S3: one store that this machine and the hosts share."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import re
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from moto.s3.exceptions import S3ClientError
from moto.s3.models import FakeKey

from clusterctl.lab import app
from clusterctl.lab.ec2 import objects
from clusterctl.lab.record import read_record
from tests.lab.running import LabHome, client, signed_headers

pytestmark = pytest.mark.lab

MIB = 2**20
NAMES = ("plain", "a folder/with spaces/ü\nand '\"", "deep/" * 20 + "end", "%2F+&?=#")
VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL")


def content(size, seed=0):
    return random.Random(seed).randbytes(size)


def s3_client(lab, url, **more):
    return client(dataclasses.replace(lab, endpoint_url=url), service="s3", **more)


@pytest.fixture(scope="module")
def s3(lab):
    return s3_client(lab, lab.endpoint_url)


@pytest.fixture
def bucket(s3):
    s3.create_bucket(Bucket="data-set")
    yield "data-set"
    for one in s3.list_objects_v2(Bucket="data-set").get("Contents", ()):
        s3.delete_object(Bucket="data-set", Key=one["Key"])
    s3.delete_bucket(Bucket="data-set")


def test_objects_as_boto3_has_them(s3, bucket):
    wanted = {name: content(size, size) for name, size in zip(NAMES, (0, 1, 4096, 3 * MIB))}
    for name, bytes_ in wanted.items():
        s3.put_object(Bucket=bucket, Key=name, Body=bytes_, Metadata={"origin": "a test"})
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 3}
    )
    listed = {one["Key"]: one["Size"] for page in pages for one in page["Contents"]}
    assert listed == {name: len(bytes_) for name, bytes_ in wanted.items()}
    for name, bytes_ in wanted.items():
        head = s3.head_object(Bucket=bucket, Key=name)
        etag = hashlib.md5(bytes_, usedforsecurity=False).hexdigest()
        assert (head["ETag"], head["Metadata"]) == (f'"{etag}"', {"origin": "a test"})
        assert s3.get_object(Bucket=bucket, Key=name)["Body"].read() == bytes_


def test_an_object_of_many_parts_is_read_in_others(s3, bucket):
    whole = content(21 * MIB)
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_fileobj(io.BytesIO(whole), bucket, "parts", Config=parts)
    head = s3.head_object(Bucket=bucket, Key="parts")
    assert (head["ContentLength"], head["ETag"][-3:]) == (len(whole), '-5"')
    for first, last in ((0, 0), (5 * MIB - 1, 5 * MIB), (20 * MIB, 21 * MIB - 1)):
        got = s3.get_object(Bucket=bucket, Key="parts", Range=f"bytes={first}-{last}")
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["ContentRange"] == f"bytes {first}-{last}/{len(whole)}"
        assert got["Body"].read() == whole[first : last + 1]
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.get_object(Bucket=bucket, Key="parts", Range=f"bytes={len(whole)}-")
    assert refused.value.response["Error"]["Code"] == "InvalidRange"


def test_a_copy_stays_when_its_origin_changes(s3, bucket):
    s3.put_object(Bucket=bucket, Key="origin", Body=b"one")
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "origin"})
    s3.put_object(Bucket=bucket, Key="origin", Body=b"another")
    read = [s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in ("copy", "origin")]
    assert read == [b"one", b"another"]


def test_what_a_host_is_told_of_it(lab, host):
    told = "\n".join([lab.storage_url] * len(VARIABLES))
    shown = " ".join(f"${{{name}-}}" for name in VARIABLES).replace(" ", "; echo ")
    for command in ("", "sudo ", "sudo -u ubuntu "):
        assert host.run(host.host, f"{command}sh -c {shlex.quote('echo ' + shown)}") == told
    for name in VARIABLES:
        assert f'{name}="{lab.storage_url}"' in host.run(host.host, "cat /etc/environment")


PULL = """
import concurrent.futures, hashlib, sys, urllib.request
url, size, step = sys.argv[1], int(sys.argv[2]), 4 << 20
def get(start):
    headers = {"Range": "bytes=%d-%d" % (start, min(start + step, size) - 1)}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        assert answer.status == 206
        return answer.read()
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(hashlib.sha256(b"".join(pool.map(get, range(0, size, step)))).hexdigest())
"""


def test_hosts_pull_an_object_at_once(lab, s3, bucket, instances):
    whole = content(50 * MIB + 7)
    s3.put_object(Bucket=bucket, Key="big one", Body=whole)
    theirs = s3_client(lab, lab.storage_url, config=Config(signature_version="s3v4"))
    asked = {"Bucket": bucket, "Key": "big one"}
    url = theirs.generate_presigned_url("get_object", Params=asked, ExpiresIn=600)
    hosts = instances.up(MinCount=3, MaxCount=3)
    command = shlex.join(["python3", "-c", PULL, url, str(len(whole))])
    with ThreadPoolExecutor(3) as pool:
        sums = list(pool.map(lambda host: instances.run(host, command), hosts))
    assert sums == [hashlib.sha256(whole).hexdigest()] * 3
    # This machine reads what a host has written.
    put = {"Bucket": bucket, "Key": "from a host"}
    url = theirs.generate_presigned_url("put_object", Params=put, ExpiresIn=600)
    send = (
        "import sys, urllib.request as u; "
        "u.urlopen(u.Request(sys.argv[1], b'hello', {'Content-Type': 'text/x'}, method='PUT'))"
    )
    instances.run(hosts[0], shlex.join(["python3", "-c", send, url]))
    assert s3.get_object(**put)["Body"].read() == b"hello"


def test_a_host_launches_another_and_finds_its_name(lab, host, ec2):
    """As a head node does that launches its own workers."""
    theirs = dataclasses.replace(lab, endpoint_url=lab.storage_url)
    like = host.host
    asked = {
        "Action": "RunInstances",
        "Version": "2016-11-15",
        "ImageId": like["ImageId"],
        "InstanceType": like["InstanceType"],
        "KeyName": like["KeyName"],
        "MinCount": "1",
        "MaxCount": "1",
    }
    body = urlencode(asked)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    headers = signed_headers(theirs, body.encode(), "ec2", "/", "POST", form)
    words = [word for pair in headers.items() for word in ("-H", ": ".join(pair))]
    said = host.run(host.host, shlex.join(["curl", "-s", "-d", body, *words, lab.storage_url]))
    tags = ("instanceId", "privateDnsName")
    id, name = (re.search(f"<{tag}>(.+?)</{tag}>", said)[1] for tag in tags)
    try:
        address = host.run(host.host, f"getent hosts {name}; getent hosts {name.split('.')[0]}")
        [found] = {tuple(line.split()) for line in address.splitlines()}
        assert found == (address.split()[0], name)
        reverse = host.run(host.host, f"getent hosts {found[0]}")
        assert reverse.split() == [found[0], name]
        public = ec2.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]
        shown = host.run(host.host, f"getent hosts {public['PublicDnsName']}")
        assert shown.split()[0] == found[0] == public["PrivateIpAddress"]
        assert host.run(host.host, "getent hosts no-such-host || echo $?") == "2"
    finally:
        ec2.terminate_instances(InstanceIds=[id])


def test_no_route_leads_to_an_api(monkeypatch):
    """As on AWS, a host without a way to the Internet gets no answer, but from S3."""
    monkeypatch.setattr(app, "instance_at", lambda address: address)
    monkeypatch.setattr(app.network, "reaches_internet", lambda host: host == "10.0.0.4")
    ours, theirs = socket.socketpair()
    services = app._along_routes(lambda environ, start: [environ["clusterctl.service"].encode()])

    def ask(address, service):
        environ = {"REMOTE_ADDR": address, "clusterctl.service": service}
        return services({**environ, "werkzeug.socket": theirs}, lambda *_: None)

    with ours, theirs:
        assert [ask("10.0.0.4", "ec2"), ask("10.0.0.5", "s3")] == [[b"ec2"], [b"s3"]]
        with pytest.raises(ConnectionAbortedError):
            ask("10.0.0.5", "ec2")
        assert ours.recv(1) == b""


def test_the_labs_own_pages_are_out_of_a_hosts_reach(lab, host):
    for path in ("/_lab/faults", "/_lab/status", "/moto-api/data.json"):
        status = f"curl -s -o /dev/null -w '%{{http_code}}' {lab.storage_url}{path}"
        assert host.run(host.host, status) in ("403", "404"), path
    action = f"curl -s '{lab.storage_url}/?Action=DescribeInstances&Version=2016-11-15'"
    assert "<reservation" not in host.run(host.host, action)


def test_this_machines_environment(lab, capsys):
    capsys.readouterr()
    assert LabHome(lab.home).run("env", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["S3_ENDPOINT_URL"] == told["AWS_ENDPOINT_URL"] == lab.endpoint_url
    assert read_record(lab.home).storage_url == lab.storage_url


def ask_raw(lab, *headers):
    """Send only the headers of a PUT. Return the answer."""
    host, port = lab.endpoint_url.removeprefix("http://").split(":")
    signed = signed_headers(lab, b"", "s3", "/data-set/large", "PUT", {"Host": f"{host}:{port}"})
    with socket.create_connection((host, int(port)), 10) as connection:
        head = ["PUT /data-set/large HTTP/1.1", *headers]
        head += [f"{name}: {value}" for name, value in signed.items()]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        return connection.makefile("rb").read().decode()


def test_more_than_the_machine_can_hold_is_refused_before_it_comes(lab, bucket):
    too_large = ask_raw(lab, f"Content-Length: {2**50}")
    assert "<Code>EntityTooLarge</Code>" in too_large
    assert "half of this machine's memory" in too_large
    assert "<Code>MissingContentLength</Code>" in ask_raw(lab, "Transfer-Encoding: chunked")


def test_what_is_deleted_is_room_again(monkeypatch):
    """Objects of 100 bytes in total free their space when they are replaced or deleted."""
    monkeypatch.setattr(objects, "ROOM", room := objects.Room(100))
    monkeypatch.setattr(objects, "KEY_BYTES", 0)
    for name in ("value", "dispose", "instances_tracked"):
        monkeypatch.setattr(FakeKey, name, FakeKey.__dict__[name])
    objects._keep_in_room()
    first, second = (FakeKey(name, b"x" * 40, "1", "us-east-1") for name in "ab")
    with pytest.raises(S3ClientError, match="holds 100 bytes"):
        FakeKey("c", b"x" * 21, "1", "us-east-1").dispose()
    second.value = b"y" * 60
    second.dispose()
    assert room.take("a request", 60)
    assert not room.take("another", 1)
    room.give_back("a request")
    del first
    assert room.take("all", 100)
