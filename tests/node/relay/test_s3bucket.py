"""Requests to a bucket, and what S3 says in place of content: AWS's own answers, replayed."""

from __future__ import annotations

import time

import pytest

from clusterctl.node.relay.httpget import Broken, SourceError, Wire
from clusterctl.node.relay.s3bucket import Bucket, address_of, endpoint_of
from clusterctl.node.relay.sigv4 import Keys
from tests.node.relay.webserver import serving, status

KEYS = Keys("AKIATEST", "not so secret")


def error(code: str, message: str = "words of S3", more: str = "") -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>"
    ).encode()


@pytest.fixture
def web():
    with serving() as server:
        server.files["/my-bucket/key"] = b"content"
        yield server


def bucket(web, keys=lambda renew: KEYS, region="us-east-1"):
    return Bucket(Wire(5), "my-bucket", keys, web.url, region)


def scope(web, number=-1):
    return web.requests[number][2]["authorization"].split("/")[2]


def test_a_request_is_signed_and_a_public_one_is_not(web):
    assert bucket(web).ask("GET", b"key").body == b"content"
    assert "Credential=AKIATEST/" in web.requests[-1][2]["authorization"]
    bucket(web, lambda renew: None).ask("GET", b"key")
    assert "authorization" not in web.requests[-1][2]


@pytest.mark.parametrize(
    ("code", "body", "headers"),
    [
        (301, error("PermanentRedirect"), {"x_amz_bucket_region": "eu-west-1"}),
        (301, b"", {"x_amz_bucket_region": "eu-west-1"}),
        (400, b"", {"x_amz_bucket_region": "eu-west-1"}),
        (307, error("TemporaryRedirect"), {"x_amz_bucket_region": "eu-west-1"}),
        (
            400,
            error("AuthorizationHeaderMalformed", more="<Region>eu-west-1</Region>"),
            {},
        ),
    ],
)
def test_a_bucket_of_another_region_is_asked_there(web, code, body, headers):
    web.misdeeds.append(status(code, body, **headers))
    one = bucket(web)
    assert one.ask("GET", b"key").body == b"content"
    assert one.region == scope(web) == "eu-west-1"
    one.ask("GET", b"key")
    assert len(web.requests) == 3


@pytest.mark.parametrize("region", ["us-east-1", "evil.example.com/", "", "eu-west-1.evil"])
def test_a_redirect_that_leads_nowhere_is_an_error(web, region):
    body = error("PermanentRedirect", more=f"<Region>{region}</Region>")
    web.misdeeds.extend([status(301, body)] * 9)
    with pytest.raises(SourceError, match="the bucket my-bucket is in"):
        bucket(web).ask("GET", b"key")
    assert len(web.requests) == 1


def test_regions_that_change_each_time_end(web):
    for number in range(9):
        web.misdeeds.append(status(301, b"", x_amz_bucket_region=f"eu-west-{number + 1}"))
    with pytest.raises(SourceError, match="is in eu-west-4") as told:
        bucket(web).ask("GET", b"key")
    assert told.value.hint == "name it: --s3-region eu-west-4"


def test_keys_that_have_expired_are_renewed_once(web):
    given = []

    def keys(renew):
        given.append(renew)
        return Keys("NEW", "s") if True in given else KEYS

    web.misdeeds.append(status(400, error("ExpiredToken")))
    assert bucket(web, keys).ask("GET", b"key").body == b"content"
    assert "Credential=NEW/" in web.requests[-1][2]["authorization"]
    web.misdeeds.extend([status(400, error("ExpiredToken"))] * 9)
    with pytest.raises(SourceError, match="does not accept the credentials .ExpiredToken"):
        bucket(web, keys).ask("GET", b"key")


def test_a_clock_that_is_wrong_is_made_up_for(web):
    def skewed(handler):
        body = error("RequestTimeTooSkewed")
        handler.send_response_only(403)
        handler.send_header("Date", "Sat, 21 Nov 2020 00:00:00 GMT")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    web.misdeeds.append(skewed)
    assert bucket(web).ask("GET", b"key").body == b"content"
    assert web.requests[-1][2]["x-amz-date"].startswith("20201121T0000")
    web.misdeeds.extend([skewed] * 9)
    with pytest.raises(SourceError):
        bucket(web).ask("GET", b"key")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (503, error("SlowDown")),
        (500, error("InternalError")),
        (400, error("RequestTimeout")),
        (503, b""),
        (504, b"<html>gateway"),
    ],
)
def test_what_passes_is_broken(web, code, body):
    web.misdeeds.append(status(code, body))
    with pytest.raises(Broken):
        bucket(web).ask("GET", b"key")


@pytest.mark.parametrize(
    ("code", "body", "kind", "message", "hint"),
    [
        (403, error("AccessDenied", "no"), "denied", "refuses s3://my-bucket/key: no", "--data-b"),
        (403, b"", "denied", "refuses s3://my-bucket/key .403.", "s3:GetObject and s3:ListBucket"),
        (404, error("NoSuchBucket"), "usage", "there is no bucket my-bucket", "aws s3 ls"),
        (404, error("NoSuchKey"), "gone", "s3://my-bucket/key is not there", "aws s3 ls"),
        (403, error("InvalidAccessKeyId"), "denied", "credentials .InvalidAccessKeyId", "log in"),
        (403, error("SignatureDoesNotMatch"), "denied", "SignatureDoesNotMatch", "log in"),
        (403, error("InvalidObjectState"), "gone", "is archived", "restore"),
        (412, error("PreconditionFailed"), "changed", "has changed since", "again"),
        (416, error("InvalidRange"), "changed", "has changed since", "again"),
        (400, error("Strange", "what?"), "usage", "Strange: what?", ""),
        (418, b"\xff\xfe no XML", "usage", "418", ""),
        (403, b"<a" + b"<b>" * 5000, "denied", "403", ""),
    ],
)
def test_refusals_say_what_happened_and_what_to_do(web, code, body, kind, message, hint):
    web.misdeeds.append(status(code, body))
    with pytest.raises(SourceError, match=message) as told:
        bucket(web).ask("GET", b"key")
    assert told.value.kind == kind
    assert hint in told.value.hint


@pytest.mark.parametrize("body", [error("AccessDenied", "no"), b""])
def test_who_asks_without_credentials_is_told_of_those(web, body):
    web.misdeeds.append(status(403, body))
    with pytest.raises(SourceError, match="key to requests without credentials") as told:
        bucket(web, lambda renew: None).ask("GET", b"key")
    assert told.value.kind == "denied"
    assert "--credentials mine" in told.value.hint
    assert "role" not in told.value.hint


@pytest.mark.parametrize(
    "name", ["", "ab", "UPPER", "a/b", "a b", "..", "a\nb", "x" * 64, "ü-bucket"]
)
def test_what_is_no_bucket_is_never_asked(name):
    with pytest.raises(SourceError, match="not a bucket") as told:
        Bucket(Wire(), name, lambda renew: None)
    assert "3 to 63 letters" in told.value.hint


@pytest.mark.parametrize(
    ("name", "region", "endpoint", "host", "before"),
    [
        ("data", "us-east-1", "", "data.s3.us-east-1.amazonaws.com", b"/"),
        ("data", "cn-north-1", "", "data.s3.cn-north-1.amazonaws.com.cn", b"/"),
        ("my.data", "eu-west-1", "", "s3.eu-west-1.amazonaws.com", b"/my.data/"),
        ("data", "us-east-1", "http://10.0.0.1:9000", "10.0.0.1:9000", b"/data/"),
        ("data", "us-east-1", "https://[fd00::1]:9000", "[fd00::1]:9000", b"/data/"),
    ],
)
def test_whom_to_ask(name, region, endpoint, host, before):
    place, prefix = address_of(name, region, endpoint)
    assert (place.header, prefix) == (host, before)


@pytest.mark.parametrize(
    ("named", "environ", "endpoint"),
    [
        (None, {}, ""),
        ("http://a/", {"AWS_ENDPOINT_URL_S3": "http://b"}, "http://a"),
        (None, {"AWS_ENDPOINT_URL_S3": "http://b", "AWS_ENDPOINT_URL": "http://c"}, "http://b"),
        (None, {"AWS_ENDPOINT_URL": "http://c"}, "http://c"),
    ],
)
def test_the_endpoint(named, environ, endpoint):
    assert endpoint_of(named, environ) == endpoint


def test_the_time_of_a_signature_is_now(web):
    bucket(web).ask("GET", b"key")
    now = time.strftime("%Y%m%d", time.gmtime())
    assert web.requests[-1][2]["x-amz-date"].startswith(now)
