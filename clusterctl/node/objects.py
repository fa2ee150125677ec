"""Reads S3 objects on a node in parts, from several threads. A part is complete and of the version
that was listed, or NotStreamed is raised.

When a connection drops, s5cmd and aws write an object to their output again from its beginning, or
end in the middle of one; the reader of a FIFO cannot go back. So this module requests the bytes
that are missing.

Signatures: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
The metadata service (IMDSv2), from which a node's keys are read:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import http.client
import os
import random
import re
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import Optional
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree

from clusterctl.node.record import from_json

ADDRESS, METADATA_TIMEOUT_S = "http://169.254.169.254", 5.0
ROLES = "meta-data/iam/security-credentials/"


def metadata(path: str) -> str:
    """Return the text at `path`. Raises OSError; HTTPError with code 404 if nothing is there."""
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ADDRESS
    # No proxy, whatever http_proxy is set to: the address is local to the instance.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, method: str, name: str, value: str) -> str:
        request = urllib.request.Request(  # noqa: S310
            f"{base.rstrip('/')}/latest/{path}", method=method, headers={name: value}
        )
        with opener.open(request, timeout=METADATA_TIMEOUT_S) as answer:
            return str(answer.read().decode())

    try:
        token = ask("api/token", "PUT", "X-aws-ec2-metadata-token-ttl-seconds", "300")
        return ask(path, "GET", "X-aws-ec2-metadata-token", token)
    except (ValueError, http.client.HTTPException) as error:  # no address, or no service of AWS's
        raise OSError(f"{base} is no metadata service: {error}") from None


def epoch_s(text: str) -> int:
    """Return the seconds since the epoch of a time as AWS writes it: `2026-11-21T12:00:00.000Z`."""
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))


def has_role() -> bool:
    """Return whether the node has an instance profile. True also if the service does not answer."""
    try:
        return bool(metadata(ROLES).strip())
    except urllib.error.HTTPError as error:
        # 404: there is no profile; 403: the service is turned off. Other errors may be temporary.
        return error.code not in (403, 404)
    except OSError:
        return True


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

TIMEOUT_S = 30.0
# Attempts without any progress before giving up, and the longest wait between two: about a minute.
ATTEMPTS, LONGEST_WAIT_S = 12, 10.0
# HTTP statuses and error codes after which another attempt may succeed.
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
LATE_KEYS = ("ExpiredToken", "InvalidToken")
TEMPORARY_CODES = ("SlowDown", "RequestTimeout", "InternalError", *LATE_KEYS)
EMPTY = hashlib.sha256().hexdigest()  # checksum of an empty body
# Credentials are renewed so long before they expire. EC2 has new ones by then.
EARLY_S = 240
# Storage classes whose objects cannot be read before they are restored.
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")


class NotStreamed(Exception):
    """An object or file cannot be streamed. The message names it and the reason."""


class ObjectReader:
    """Reads the objects of a channel's source, `s3://BUCKET/PREFIX`."""

    def __init__(self, channel: Mapping[str, Any]) -> None:
        self.name, _, self.prefix = channel["source"][len("s3://") :].partition("/")
        self.endpoint = channel.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or ""
        self.region = channel.get("region") or region_here()
        self.keys = None if channel.get("unsigned") else Keys(channel.get("env") or os.environ)
        # http.client's connections cannot be shared: each thread has its own.
        self._own = threading.local()

    def list_all(self) -> list[tuple[str, int, str]]:
        """Return name, size and ETag of the source's objects, sorted by name. Raises NotStreamed.

        They are those that `copy` fetches: the object of the prefix's own name alone, if there is
        one, otherwise all below it.
        """
        found: list[tuple[str, int, str]] = []
        for row in self.rows():
            key, size = row["Key"], int(row.get("Size") or 0)
            if (key.endswith("/") and not size) or not self._below(key):
                continue
            if row.get("StorageClass") in ARCHIVES:
                raise NotStreamed(f"s3://{self.name}/{key} is archived: copy it first")
            found.append((key, size, row.get("ETag") or ""))
        own = [one for one in found if one[0] == self.prefix and not self.prefix.endswith("/")]
        return own or sorted(found, key=lambda one: one[0].encode())

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield S3's fields of each object whose key begins with the prefix. Raises NotStreamed."""
        # Encoded, since XML has no control characters, and keys may have them.
        query = {"encoding-type": "url", "list-type": "2", "prefix": self.prefix}
        while True:
            try:
                page = ElementTree.fromstring(self._persist(partial(self._get, query), self.prefix))
            except ElementTree.ParseError as error:
                raise NotStreamed(
                    f"what S3 lists of {self._url(self.prefix)} is no XML: {error}"
                ) from None
            encoded = page.findtext("{*}EncodingType") == "url"
            for one in page:
                row = {inner.tag.rpartition("}")[2]: inner.text or "" for inner in one}
                if "Key" in row:
                    yield {**row, "Key": unquote_plus(row["Key"])} if encoded else row
            more = page.findtext("{*}NextContinuationToken")
            if not more:
                return
            query = {**query, "continuation-token": more}

    def _below(self, key: str) -> bool:
        """Return whether it is the prefix or below it: `train-old/x` is not below `train`."""
        prefix = self.prefix
        return not prefix or prefix.endswith("/") or key[len(prefix) :][:1] in ("", "/")

    def read(self, key: str, etag: str, begin: int, end: int) -> bytearray:
        """Return bytes `begin` to `end` (excluded) of the version `etag`. Raises NotStreamed."""
        data = bytearray(end - begin)
        view = memoryview(data)

        def some(at: int) -> int:
            # An empty range cannot be requested.
            part = {"Range": f"bytes={begin + at}-{end - 1}"} if data else {}
            answer = self._open(key, {}, {**part, "If-Match": etag})
            content_range = answer.getheader("Content-Range", "")
            if part and (
                answer.status != 206 or not content_range.startswith(f"bytes {begin + at}-")
            ):
                raise NotStreamed(f"{self._url(key)}: the server does not send parts")
            if answer.getheader("ETag", etag) != etag:
                raise NotStreamed(f"{self._url(key)} has changed since it was listed")
            if not part:
                answer.read()
            while at < len(data):
                try:
                    had = answer.readinto(view[at:])
                except (OSError, http.client.HTTPException) as error:
                    raise _Cut(at, error) from error
                if not had:
                    raise _Cut(at, OSError("the answer was cut short"))
                at += had
            return at

        self._persist(some, key)
        return data

    def _url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def _persist(self, work: Any, key: str) -> Any:
        """Call `work(at)` until it succeeds; `at` is where the last attempt stopped. Return what it
        returns. Raises NotStreamed."""
        attempt = at = 0
        while True:
            try:
                return work(at)
            except (OSError, http.client.HTTPException, _Cut) as error:
                self._own.connection = None
                why: Any = error
                attempt += 1
                if isinstance(error, _Cut):
                    attempt = 1 if error.at > at else attempt
                    at, why = error.at, error.why
                if attempt >= ATTEMPTS:
                    raise NotStreamed(
                        f"gave up after {attempt} attempts: {self._url(key)}: "
                        f"{why or type(why).__name__}"
                    ) from error
                wait_s = min(LONGEST_WAIT_S, 0.1 * 2**attempt)
                time.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311

    def _get(self, query: Mapping[str, str], _: int) -> bytes:
        return bytes(self._open("", query, {}).read())

    def _open(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """Return a successful response. Raises NotStreamed; OSError if a retry may succeed."""
        answer = self._ask(key, query, headers)
        if answer.status < 300:
            return answer
        elsewhere = answer.getheader("x-amz-bucket-region")
        body = answer.read(1 << 16).decode("utf-8", "replace")
        if elsewhere and elsewhere != self.region:  # the bucket is in another region
            self.region = elsewhere
            self._own.connection = None
            return self._open(key, query, headers)
        found = re.search("<Code>(.*?)</Code>", body)
        code = found[1] if found else ""
        url = self._url(key or self.prefix)
        if answer.status in TEMPORARY or code in TEMPORARY_CODES:
            if self.keys and code in LATE_KEYS:
                self.keys.forget()
            raise OSError(f"S3 responded {answer.status} {code}".strip())
        if answer.status in (412, 416):
            raise NotStreamed(f"{url} has changed since it was listed")
        if answer.status == 404:
            gone = "is no longer there" if key else "is not there: there is no such bucket"
            raise NotStreamed(f"{url} {gone}")
        if answer.status == 403:
            raise NotStreamed(
                f"S3 refuses {url} ({code}): the nodes' role needs s3:ListBucket and s3:GetObject"
            )
        raise NotStreamed(f"S3 does not send {url} ({answer.status} {code})")

    def _ask(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        base, path = self.endpoint.rstrip("/"), "/" + quote(key, safe="/-_.~")
        china = ".cn" if self.region.startswith("cn-") else ""
        host = f"s3.{self.region}.amazonaws.com{china}"
        if base or "." in self.name:  # S3's certificate does not cover a bucket name with dots
            base = base or f"https://{host}"
            path = f"/{self.name}{path}"
        else:
            base = f"https://{self.name}.{host}"
        parts = urlsplit(base)
        query_text = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
            for name, value in sorted(query.items())
        )
        sent = {"host": parts.netloc, **{name.lower(): text for name, text in headers.items()}}
        keys = self.keys.get() if self.keys else None
        if keys:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            sent = signed(keys, self.region, path, query_text, sent, now)
        connection = getattr(self._own, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection
            if parts.scheme == "http":
                kind = http.client.HTTPConnection  # type: ignore[assignment]
            connection = self._own.connection = kind(parts.netloc, timeout=TIMEOUT_S)
        connection.request("GET", f"{path}?{query_text}" if query_text else path, headers=sent)
        answer: http.client.HTTPResponse = connection.getresponse()
        return answer


class _Cut(Exception):
    """A part was cut off after `at` bytes, for the reason `why`."""

    def __init__(self, at: int, why: Exception) -> None:
        super().__init__(str(why))
        self.at, self.why = at, why


def signed(
    keys: Sequence[str], region: str, path: str, query: str, headers: Mapping[str, str], now: str
) -> dict[str, str]:
    """Return the headers of a GET with its signature (version 4). `path` and `query` are quoted,
    names in `headers` are in lower case."""
    access, secret, token = keys
    sent = {**headers, "x-amz-content-sha256": EMPTY, "x-amz-date": now}
    if token:
        sent["x-amz-security-token"] = token
    names = ";".join(sorted(sent))
    lines = [f"{name}:{sent[name].strip()}\n" for name in sorted(sent)]
    request = "\n".join(["GET", path, query, "".join(lines), names, EMPTY])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"Credential={access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**sent, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


@dataclass(frozen=True)
class _RoleKeys:
    """The credentials of an instance profile, under EC2's names."""

    AccessKeyId: str
    SecretAccessKey: str
    Expiration: str
    Token: Optional[str] = None


class Keys:
    """Credentials of the environment, or of the instance profile, which change every few hours."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env, self._lock = env, threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Discard the credentials, which S3 has refused, so that `get` reads them again."""
        self._keys, self._until = ("", "", ""), 0.0

    def get(self) -> tuple[str, str, str]:
        """Return access key, secret key and session token. Raises NotStreamed, OSError."""
        env = self._env
        if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
            token = env.get("AWS_SESSION_TOKEN", "")
            return env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token
        with self._lock:
            if time.time() > self._until - EARLY_S:
                self._renew()
            return self._keys

    def _renew(self) -> None:
        try:
            role = metadata(ROLES).split()[0]
            keys = from_json(_RoleKeys, metadata(ROLES + role))
        except (urllib.error.HTTPError, IndexError):
            raise NotStreamed(
                "there are no credentials for S3: no instance profile; for a public bucket: "
                "--credentials none; else give the nodes a role: clusterctl up NAME "
                "--instance-profile new"
            ) from None
        self._keys = (keys.AccessKeyId, keys.SecretAccessKey, keys.Token or "")
        self._until = float(epoch_s(keys.Expiration))


def region_here() -> str:
    """Return the region of the environment, or of the node. S3's answer names a bucket's own."""
    given = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if given:
        return given
    try:
        return metadata("meta-data/placement/region")
    except OSError:
        return "us-east-1"
