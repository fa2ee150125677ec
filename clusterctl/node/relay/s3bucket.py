"""One bucket of S3: signed requests, the right endpoint, and what S3's refusals mean."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from clusterctl.node.relay.httpget import (
    Answer,
    Broken,
    Place,
    SourceError,
    Wire,
    http_time_ns,
    place_of,
)
from clusterctl.node.relay.sigv4 import Keys, encoded_path, encoded_query, signed_headers

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
NAME_HINT = "write it as s3://BUCKET/PREFIX: names have 3 to 63 letters (a-z), digits, . or -"
REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}", re.ASCII)
# A server that sends everybody elsewhere sends them in circles.
MOST_MENDS = 4
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_TEMPORARY_CODES = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable")
_KEYS_REFUSED = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken")
_ELSEWHERE = ("PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed")


class Refusal(NamedTuple):
    """What S3 answers in place of content."""

    status: int
    code: str
    message: str
    region: str


def refusal_of(answer: Answer) -> Refusal:
    """Code, words and region of an error; an answer to HEAD has its headers only."""
    found = {"Code": "", "Message": "", "Region": ""}
    try:
        root = ElementTree.fromstring(answer.body) if answer.body else None
        for child in () if root is None else root:
            found[child.tag.rpartition("}")[2]] = (child.text or "").strip()
    except ElementTree.ParseError:
        pass
    region = answer.headers.get("x-amz-bucket-region", "") or found["Region"]
    return Refusal(
        answer.status, found["Code"], found["Message"], region if REGION.fullmatch(region) else ""
    )


def endpoint_of(named: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The endpoint that is asked in place of AWS's own; empty without one."""
    found = named or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    return found.rstrip("/")


def address_of(bucket: str, region: str, endpoint: str) -> tuple[Place, bytes]:
    """Whom to ask for a bucket, and what stands before its keys in the path."""
    if endpoint:
        return place_of(endpoint), b"/" + bucket.encode() + b"/"
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    # No certificate covers a name with more dots.
    if "." in bucket:
        return Place("https", f"s3.{region}.{domain}", None), b"/" + bucket.encode() + b"/"
    return Place("https", f"{bucket}.s3.{region}.{domain}", None), b"/"


class Bucket:
    """Requests to one bucket. `keys(renew)` gives the keys to sign with, or None. Safe in
    threads."""

    def __init__(
        self,
        wire: Wire,
        name: str,
        keys: Callable[[bool], Keys | None],
        endpoint: str = "",
        region: str = "us-east-1",
    ) -> None:
        if not NAME.fullmatch(name):
            raise SourceError("usage", f"not a bucket: {name!r}", NAME_HINT)
        self.name = name
        self.region = region
        self._wire = wire
        self._keys = keys
        self._endpoint = endpoint
        self._ahead_s = 0.0

    def ask(
        self,
        method: str,
        key: bytes = b"",
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        into: memoryview | None = None,
    ) -> Answer:
        """One answer of success. Raises Broken where trying again may help, else SourceError."""
        for _ in range(MOST_MENDS):
            keys = self._keys(False)
            answer = self._once(method, key, query, headers or {}, into, keys)
            if answer.status < 300:
                return answer
            refusal = refusal_of(answer)
            if refusal.status in _TEMPORARY or refusal.code in _TEMPORARY_CODES:
                raise Broken(f"S3 says {refusal.code or refusal.status}")
            if not self._mend(refusal, answer, keys):
                break
        raise explain(self.name, key, refusal, signed=keys is not None)

    def _once(
        self,
        method: str,
        key: bytes,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        into: memoryview | None,
        keys: Keys | None,
    ) -> Answer:
        place, before = address_of(self.name, self.region, self._endpoint)
        path, text = encoded_path(before + key), encoded_query(query)
        sent = {"host": place.header, **headers}
        if keys is not None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + self._ahead_s))
            sent = signed_headers(method, place.header, path, text, keys, self.region, now, headers)
        return self._wire.ask(place, method, f"{path}?{text}" if text else path, sent, into)

    def _mend(self, refusal: Refusal, answer: Answer, keys: Keys | None) -> bool:
        """Whether the same request may now be answered otherwise."""
        elsewhere = refusal.status in (301, 307) or refusal.code in _ELSEWHERE
        if (elsewhere or not answer.body) and refusal.region not in ("", self.region):
            self.region = refusal.region
            return True
        if refusal.code == "RequestTimeTooSkewed":
            told_ns = http_time_ns(answer.headers.get("date", ""))
            if not told_ns or abs(self._ahead_s) > 1:
                return False
            self._ahead_s = told_ns / 1e9 - time.time()
            return True
        if refusal.code in ("ExpiredToken", "InvalidToken") and keys is not None:
            return self._keys(True) != keys
        return False


def explain(bucket: str, key: bytes, refusal: Refusal, signed: bool = True) -> SourceError:
    """What a refusal means to somebody who wants the data."""
    what = f"s3://{bucket}/{key.decode('utf-8', 'backslashreplace')}"
    status, code, message, region = refusal
    said = f": {message}" if message else ""
    if code == "NoSuchBucket":
        return SourceError("usage", f"there is no bucket {bucket}", "check its name: aws s3 ls")
    if code == "InvalidObjectState":
        return SourceError("gone", f"{what} is archived", "restore it first")
    if code in _KEYS_REFUSED:
        return SourceError(
            "denied",
            f"S3 does not accept the credentials ({code}{said})",
            "log in again, or check the nodes' instance profile",
        )
    if status == 412 or status == 416:
        return SourceError("changed", f"{what} has changed since it was listed", "copy it again")
    if status == 403 or code.startswith("AccessDenied"):
        return _denied(bucket, what, said or " (403)", signed)
    if status == 404:
        return SourceError("gone", f"{what} is not there", "check the name: aws s3 ls")
    if region or status in (301, 307) or code in _ELSEWHERE:
        where = f"is in {region}" if region else "is in another region"
        hint = f"name it: --s3-region {region or 'REGION'}"
        return SourceError("usage", f"the bucket {bucket} {where}", hint)
    return SourceError("usage", f"S3 refuses {what}: {code or status}{said}")


def _denied(bucket: str, what: str, said: str, signed: bool) -> SourceError:
    if signed:
        return SourceError(
            "denied",
            f"S3 refuses {what}{said}",
            "the role needs s3:GetObject and s3:ListBucket: "
            f"clusterctl iam-policy node --data-bucket {bucket}",
        )
    return SourceError(
        "denied",
        f"S3 refuses {what} to requests without credentials{said}",
        "the bucket is not public: leave out --credentials none, or use --credentials mine",
    )
