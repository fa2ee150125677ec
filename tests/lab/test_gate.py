"""Access to the lab's API: only with one of its keys, and never for a web page."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import urllib.parse
from datetime import datetime, timedelta, timezone
from pathlib import Path

import boto3
import botocore.auth
import pytest
from botocore.config import Config

from clusterctl.domain.errors import LabError, UsageError
from clusterctl.lab import lifecycle
from clusterctl.lab.record import ACCOUNTS
from tests.lab.refusals import refused, service
from tests.lab.running import account_of, client, make_profile, signed_headers

pytestmark = pytest.mark.lab

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LIST = b"Action=DescribeKeyPairs&Version=2016-11-15"
EVIL = "http://evil.example"


def send(lab, method, path, body=b"", headers=None):
    """Send one raw request. Return the status, headers and body of the answer."""
    url = urllib.parse.urlsplit(lab.endpoint_url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    said = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    connection.close()
    return said


def signed(lab, body=LIST, name="ec2", path="/", method="POST", headers=FORM):
    return signed_headers(lab, body, name, path, method, headers)


def test_what_is_signed_with_its_key_is_let_in(lab, ec2):
    status, headers, body = send(lab, "POST", "/", LIST, signed(lab))
    assert (status, b"<keyName>tests</keyName>" in body) == (200, True)
    assert not [name for name in headers if name.startswith("access-control")]
    port = urllib.parse.urlsplit(lab.endpoint_url).port
    assert (
        send(lab, "POST", "/", LIST, signed(lab, headers={**FORM, "Host": f"localhost:{port}"}))[0]
        == 200
    )


@pytest.mark.parametrize("told", ["hash", "UNSIGNED-PAYLOAD", "e" * 64])
def test_a_signature_counts_for_its_body_only(lab, ec2, told):
    """Also if the request has the body's hash in a header, which is what is signed then."""
    said = hashlib.sha256(LIST).hexdigest() if told == "hash" else told
    headers = signed(lab, headers={**FORM, "X-Amz-Content-SHA256": said})
    status, _, body = send(lab, "POST", "/", LIST, headers)
    assert (status == 200, b"tests" in body) == (told == "hash", told == "hash")
    other = LIST.replace(b"DescribeKeyPairs", b"DescribeVolumes")
    status, _, body = send(lab, "POST", "/", other, headers)
    assert (status, b"AuthFailure" in body) == (401, True)


@pytest.mark.parametrize(
    ("wrong", "method", "path"),
    [
        ({"Origin": EVIL}, "POST", "/"),
        ({"Origin": EVIL}, "GET", "/_lab/status"),
        ({"Origin": EVIL, "Access-Control-Request-Method": "POST"}, "OPTIONS", "/"),
        ({"Origin": "null"}, "POST", "/_lab/faults"),
        ({"Host": "evil.example"}, "POST", "/"),
        ({"Host": "evil.example"}, "GET", "/_lab/status"),
        ({"Host": "169.254.169.254"}, "GET", "/latest/meta-data/"),
    ],
)
def test_a_web_page_is_not_answered_whatever_it_knows(lab, wrong, method, path):
    """This holds for a page of another origin, and for one whose name resolves to this machine."""
    known = {"Authorization": f"Bearer {lab.secret}"} if "_lab" in path else signed(lab)
    status, headers, body = send(lab, method, path, LIST, {**known, **wrong})
    assert (status, b"tests" in body) == (403, False)
    # In the form of the service's errors, so that a client shows it.
    assert (b"<Code>AuthFailure</Code>" in body) == ("_lab" not in path)
    assert not [name for name in headers if name.startswith("access-control")]


WRONG = ("InvalidClientTokenId", "SignatureDoesNotMatch")


@pytest.mark.parametrize(
    ("name", "call", "codes", "status"),
    [
        ("ec2", "describe_instances", ("AuthFailure", "AuthFailure"), 401),
        ("sts", "get_caller_identity", WRONG, 403),
        ("iam", "list_roles", WRONG, 403),
        ("cloudformation", "list_stacks", WRONG, 403),
        ("ssm", "describe_parameters", ("UnrecognizedClientException", "InvalidSignatureException"),
         400),
        ("s3", "list_buckets", ("InvalidAccessKeyId", "SignatureDoesNotMatch"), 403),
    ],
)  # fmt: skip
def test_an_unknown_key_and_a_wrong_secret_are_refused_in_the_services_words(
    lab, name, call, codes, status
):
    right = account_of(lab)
    asked = (("AKIAIOSFODNN7EXAMPLE", right.secret_key), (right.access_key, "wrong"))
    for (key, secret), code in zip(asked, codes):
        told = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        client = boto3.client(name, region_name="us-east-1", endpoint_url=lab.endpoint_url, **told)
        assert refused(getattr(client, call))[::2] == (code, status)


def test_no_key_is_refused(lab):
    for method, path, body, headers, code in (
        ("POST", "/", LIST, FORM, b"AuthFailure"),
        ("GET", "/?" + LIST.decode(), b"", {}, b"AccessDenied"),
        ("GET", "/", b"", {}, b"AccessDenied"),
        ("PUT", "/a-bucket", b"", {}, b"AccessDenied"),
        ("GET", "/", b"", {"Authorization": "AWS AKIAIOSFODNN7EXAMPLE:abc"}, b"AccessDenied"),
        ("GET", "/", b"", {"Authorization": "AWS4-HMAC-SHA256 Credential=x"}, b"Signature"),
        ("GET", "/?X-Amz-Signature=1&X-Amz-Credential=x", b"", {}, b"Signature"),
        (
            "GET",
            "/?X-Amz-Expires=9&X-Amz-Date=x&X-Amz-SignedHeaders=host&X-Amz-Signature=%C3%A9"
            f"&X-Amz-Credential={account_of(lab).access_key}/1/r/s3/x",
            b"",
            {},
            b"SignatureDoesNotMatch",
        ),
        ("POST", "/", b"{}", {"X-Amz-Target": "AmazonSSM.ListDocuments"}, b"MissingAuth"),
    ):
        status, _, said = send(lab, method, path, body, headers)
        assert (status // 100, code in said) == (4, True), (method, path, said)
    buckets = client(lab, service="s3").list_buckets()["Buckets"]
    assert "a-bucket" not in [one["Name"] for one in buckets]


def test_what_was_changed_after_it_was_signed_is_refused(lab):
    more = {"X-Moto-Account-Id": ACCOUNTS[1]}
    right = signed(lab)
    listing = signed(lab, b"", "s3", "/?list-type=2", "GET", {})
    for method, path, body, headers, status in (
        ("POST", "/", LIST + b"&DryRun=true", right, 401),
        ("POST", "/?a=b", LIST, right, 401),
        ("GET", "/?list-type=2", b"", listing, 200),
        ("GET", "/?list-type=1", b"", listing, 403),
        ("DELETE", "/?list-type=2", b"", listing, 403),
        ("GET", "/other?list-type=2", b"", listing, 403),
    ):
        assert send(lab, method, path, body, headers)[0] == status, (method, path)
    # moto trusts this header, which only the gate may set.
    who = b"Action=GetCallerIdentity&Version=2011-06-15"
    said = send(lab, "POST", "/", who, {**signed(lab, who, "sts"), **more})[2]
    assert f"<Account>{ACCOUNTS[0]}</Account>".encode() in said


def test_a_signature_is_good_for_minutes(lab, monkeypatch):
    earlier = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(minutes=16)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: earlier)
    status, _, said = send(lab, "POST", "/", LIST, signed(lab))
    assert (status, b"RequestExpired" in said) == (401, True)


def test_nothing_of_moto_is_there_but_the_services(lab, ec2):
    for method, path in (
        ("POST", "/moto-api/reset"),
        ("GET", "/moto-api/"),
        ("GET", "/moto-api/data.json"),
        ("GET", "/favicon.ico"),
        ("GET", "/latest/meta-data/iam/security-credentials/"),
    ):
        assert send(lab, method, path)[0] == 403, path
        # With a key, these paths are names of buckets.
        key = signed(lab, b"", "s3", path, method, {})
        assert send(lab, method, path, b"", key)[0] in (400, 404), path
    assert ec2.describe_key_pairs(KeyNames=["tests"])["KeyPairs"]
    for name, call in (
        ("batch", "describe_compute_environments"),
        ("lambda", "list_functions"),
        ("sqs", "list_queues"),
        ("dynamodb", "list_tables"),
    ):
        code, text, _ = refused(getattr(service(lab, name), call))
        assert (code, "no service" in text) == ("InvalidAction", True), name


def test_the_labs_own_pages_need_its_secret(lab):
    for path in ("/_lab/status", "/_lab/faults", "/_lab/interruptions", "/_lab/other"):
        for given in ({}, {"Authorization": "Bearer wrong"}, signed(lab)):
            status, _, body = send(lab, "GET", path, b"", given)
            assert (status, b"secret" in body) == (403, True), path
    with pytest.raises((LabError, UsageError), match="no such page"):
        lifecycle.request_page(lab, "/_lab/other")
    assert isinstance(lifecycle.request_page(lab, "/_lab/status"), list)


def test_a_host_reads_with_its_profiles_key_and_what_is_public_without_one(lab, instances):
    iam, s3 = client(lab, service="iam"), client(lab, service="s3")
    make_profile(iam, "of-hosts")
    s3.create_bucket(Bucket="closed")
    s3.create_bucket(Bucket="open", ACL="public-read")
    try:
        for bucket in ("closed", "open"):
            s3.put_object(
                Bucket=bucket,
                Key="key",
                Body=b"read",
                ACL="public-read" * (bucket == "open") or "private",
            )
        one = instances.up(IamInstanceProfile={"Name": "of-hosts"})[0]
        lent = json.loads(instances.run(one, KEYS))
        assert lent["AccessKeyId"].startswith("ASIA")
        theirs = {
            "aws_access_key_id": lent["AccessKeyId"],
            "aws_secret_access_key": lent["SecretAccessKey"],
        }
        urls = {}
        for token in (lent["Token"], "another", None):
            for version in ("s3", "s3v4"):
                mine = boto3.client(
                    "s3",
                    region_name=lab.region,
                    endpoint_url=lab.storage_url,
                    aws_session_token=token,
                    config=Config(signature_version=version),
                    **theirs,
                )
                asked = {"Bucket": "closed", "Key": "key"}
                urls[mine.generate_presigned_url("get_object", Params=asked)] = (
                    200 if token == lent["Token"] else 403
                )
        urls[f"{lab.storage_url}/closed/key"] = urls[f"{lab.storage_url}/closed"] = 403
        urls[f"{lab.storage_url}/open/key"] = urls[f"{lab.storage_url}/open?list-type=2"] = 200
        urls[f"{lab.storage_url}/open?acl"] = urls[f"{lab.storage_url}/"] = 403
        asking = f"python3 -c '{STATUS}' " + " ".join(f"'{url}'" for url in urls)
        assert json.loads(instances.run(one, asking)) == list(urls.values())
    finally:
        for bucket in ("closed", "open"):
            s3.delete_object(Bucket=bucket, Key="key")
            s3.delete_bucket(Bucket=bucket)


KEYS = """python3 -c '
import urllib.request as u
base, wanted = "http://169.254.169.254/latest/", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
token = u.urlopen(u.Request(base + "api/token", headers=wanted, method="PUT")).read().decode()
path = base + "meta-data/iam/security-credentials/of-hosts"
print(u.urlopen(u.Request(path, headers={"X-aws-ec2-metadata-token": token})).read().decode())'"""
STATUS = """
import json, sys, urllib.error, urllib.request
def status(url):
    try:
        return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as refused:
        return refused.code
print(json.dumps([status(url) for url in sys.argv[1:]]))
"""


def test_a_connection_that_says_nothing_is_closed(monkeypatch):
    """Otherwise one client could hold all connections that the server may have."""
    from clusterctl.lab import app

    monkeypatch.setattr(app.Handler, "timeout", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = app.make_storage(listening)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(listening.getsockname(), 10) as idle:
            assert idle.recv(1) == b""
        server.shutdown()


class SlowLink(socket.socket):
    """Takes a part at a time, all of which together take longer than the timeout allows."""

    def send(self, data, *flags):
        return super().send(data[:1000], *flags)

    def sendall(self, data, *flags):
        self.send(data)
        raise TimeoutError("timed out")


def test_an_answer_over_a_slow_link_is_not_cut():
    """The limit of an idle connection is no limit of the time that an object takes."""
    from clusterctl.lab import app

    def answer(environ, start):
        start("200 OK", [("Content-Length", "20000")])
        return [b"x" * 20000]

    client, served = socket.socketpair()
    client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    with client, socket.create_server(("127.0.0.1", 0)) as listening:
        server = app._serve(listening, answer)
        server.finish_request(SlowLink(fileno=served.detach()), ("127.0.0.1", 1))
        client.settimeout(10)
        got = b"".join(iter(lambda: client.recv(65536), b""))
    assert got.endswith(b"\r\n\r\n" + b"x" * 20000)


def test_it_has_all_the_files_that_it_may_have(lab):
    """Each connection is a file: there are soon more than the 1,024 that a shell allows."""
    limits = Path(f"/proc/{lab.pid}/limits").read_text().partition("Max open files")[2].split()
    assert limits[0] == limits[1]
