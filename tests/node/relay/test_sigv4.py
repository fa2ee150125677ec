"""Signatures: AWS's own examples, and botocore's signer as the oracle."""

from __future__ import annotations

import re

import pytest

from clusterctl.node.relay.sigv4 import Keys, encoded_path, encoded_query, signed_headers

KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
NOW = "20130524T000000Z"


@pytest.mark.parametrize(
    ("path", "query", "headers", "signature"),
    [
        # The examples of "Authenticating Requests: Using the Authorization Header", S3 API.
        (
            "/test.txt",
            [],
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "/",
            [("lifecycle", "")],
            {},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/",
            [("prefix", "J"), ("max-keys", "2")],
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_examples_of_aws(path, query, headers, signature):
    text = encoded_query(query)
    signed = signed_headers("GET", HOST, path, text, KEYS, "us-east-1", NOW, headers)
    assert signed["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize(
    "key",
    [
        b"plain/name.txt",
        b"with blanks and + % ? # & = : ; ,",
        "ümläut/日本語".encode(),
        b"~tilde-_.()!*'",
        b"double//slash",
        b"control\x01\x7f",
    ],
)
@pytest.mark.parametrize("token", ["", "a session's/token+="])
def test_botocore_signs_the_same(key, token):
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    path = encoded_path(b"/" + key)
    query = encoded_query([("list-type", "2"), ("prefix", key.decode("latin-1"))])
    url = f"https://{HOST}{path}?{query}"
    request = AWSRequest("GET", url, headers={"Range": "bytes=5-9"})
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials("AKID", "secret/+", token or None), "s3", "eu-west-1").add_auth(request)
    now = request.headers["X-Amz-Date"]
    ours = signed_headers(
        "GET",
        HOST,
        path,
        query,
        Keys("AKID", "secret/+", token),
        "eu-west-1",
        now,
        {"Range": "bytes=5-9"},
    )
    names = "SignedHeaders=([^,]+), ?Signature=(.+)"
    theirs = re.search(names, request.headers["Authorization"])
    mine = re.search(names, ours["authorization"])
    assert theirs and mine
    assert mine.groups() == theirs.groups()
    assert ours["x-amz-content-sha256"] == request.headers["X-Amz-Content-SHA256"]


def test_a_query_is_in_the_order_of_its_names():
    assert encoded_query([("b", "2 /"), ("a", "+")]) == "a=%2B&b=2%20%2F"


def test_bytes_that_are_no_text_survive_in_a_query():
    assert encoded_query([("prefix", b"\xff".decode("utf-8", "surrogateescape"))]) == "prefix=%FF"


def test_printing_keys_prints_no_secret():
    shown = f"{Keys('AKID', 'hush', 'hush too')} {Keys('AKID', 'hush')!r}"
    assert "hush" not in shown
